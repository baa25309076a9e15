"""The state of a console: its knowledge of the cluster, and the client that its pages ask with."""

from __future__ import annotations

import asyncio
import shlex
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from headrace.base.errors import HeadraceError
from headrace.base.limits import (
    CONSOLE_CHECK_MS,
    CONSOLE_IDLE_LOOK_MS,
    CONSOLE_LOOK_MS,
    CONSOLE_MOVES_MS,
    CONSOLE_READERS_MAX,
    CONSOLE_SIZES_MS,
    CONSOLE_STREAMS_MAX,
    LOOK_MS_MAX,
)
from headrace.console.charts import Charts
from headrace.console.feeds import Feed
from headrace.console.policies import Policies
from headrace.net.client.cluster import Cluster
from headrace.net.client.disks import DiskView, sizes
from headrace.net.client.looks import Look, Place, Traffic, look, traffic
from headrace.net.client.members import Members, QuorumView
from headrace.net.client.moves import under_way
from headrace.net.client.retry import Backoff
from headrace.operations.diagnosis import findings
from headrace.operations.finding import Finding
from headrace.operations.histories import History, summaries
from headrace.operations.reaching import Reach
from headrace.wire.moves import FinishedView, MoveView

PATIENCE = Backoff(attempts_max=2)
"""The console asks again by itself: a page does not wait for a cluster that is away."""


class Seen(NamedTuple):
    """One look at the cluster, and what has happened since the one before."""

    look: Look
    traffic: Traffic | None
    """None: it is the first."""


class Checked(NamedTuple):
    """The findings of `headrace doctor`, and the quorum."""

    found: list[Finding]
    quorum: QuorumView | None
    """None: no controller answers."""


class Sizes(NamedTuple):
    """Bytes of logs, as the partitions' leaders have them, and of disks."""

    by_place: Mapping[Place, int]
    by_topic: Mapping[str, int]
    disks: Mapping[int, DiskView]


class Moves(NamedTuple):
    under_way: Sequence[MoveView]
    finished: Sequence[FinishedView]


@dataclass(slots=True)
class Console:
    """One console: the feeds that its pages show, and the client that they ask with."""

    reach: Reach
    cluster: Cluster
    """For short questions of all pages."""
    words: Sequence[str] = ()
    """Options with which a command reaches the same cluster."""
    allows_changes: bool = False
    charts: Charts = field(default_factory=Charts)
    policies: Policies = field(default_factory=Policies)
    streams: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(CONSOLE_STREAMS_MAX))
    readers: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(CONSOLE_READERS_MAX))
    closing: asyncio.Event = field(default_factory=asyncio.Event)
    seen: Feed[Seen] = field(init=False)
    checked: Feed[Checked] = field(init=False)
    sizes: Feed[Sizes] = field(init=False)
    moves: Feed[Moves] = field(init=False)
    histories: Feed[list[History]] = field(init=False)
    _before: Look | None = None
    _alarms: object = None

    def __post_init__(self) -> None:
        self.seen = Feed(self._look, every_ms=CONSOLE_LOOK_MS, idle_ms=CONSOLE_IDLE_LOOK_MS, on_value=self._on_seen)
        self.checked = Feed(self._check, every_ms=CONSOLE_CHECK_MS)
        self.sizes = Feed(self._measure, every_ms=CONSOLE_SIZES_MS)
        self.moves = Feed(self._moves, every_ms=CONSOLE_MOVES_MS)
        self.histories = Feed(self._known, every_ms=CONSOLE_CHECK_MS)

    @property
    def feeds(self) -> tuple[Feed[Any], ...]:
        return (self.seen, self.checked, self.sizes, self.moves, self.histories)

    def command(self, *words: str) -> str:
        """A command that does the same in a shell."""
        return shlex.join(["headrace", *words, *self.words])

    def close(self) -> None:
        """Have the open pages end."""
        self.closing.set()
        for feed in self.feeds:
            feed.close()

    # the feeds

    async def _look(self) -> Seen:
        now = await look(self.cluster, at=time.monotonic())
        before, self._before = self._before, now
        return Seen(now, None if before is None else traffic(before, now))

    def _on_seen(self, seen: Seen) -> None:
        if (found := seen.traffic) is not None:
            written, committed = sum(found.topics.values()), sum(each.rate for each in found.groups.values())
            lags = {name: each.lag for name, each in found.groups.items()}
            self.charts.add(time.time_ns() // 1_000_000, written, committed, lags)
            alarms = (found.behind.keys(), found.offline, {each.id for each in seen.look.brokers if each.fenced})
            if self._alarms not in (None, alarms):
                self.checked.want()
            self._alarms = alarms

    async def _check(self) -> Checked:
        found = await findings(self.reach)
        try:
            async with asyncio.timeout(LOOK_MS_MAX / 1000):
                return Checked(found, await Members(self.cluster).quorum())
        except (HeadraceError, OSError, TimeoutError):
            return Checked(found, None)

    async def _measure(self) -> Sizes:
        view = await Members(self.cluster).metadata()
        told, disks = await sizes(self.cluster, list(view.brokers))
        by_place: dict[Place, int] = {}
        by_topic = dict.fromkeys(view.topics, 0)
        for topic in view.topics.values():
            for part in topic.partitions:
                place = (topic.name, int(part.index))
                if (size := told.get(int(part.leader), {}).get(place)) is not None:
                    by_place[place] = size
                    by_topic[topic.name] += size
        return Sizes(by_place, by_topic, disks)

    async def _moves(self) -> Moves:
        return Moves(*await under_way(self.cluster))

    async def _known(self) -> list[History]:
        """The ends of logs are those of the last look: each topic would be asked for them."""
        found = await summaries(self.cluster, ())
        ends = {} if self.seen.value is None else self.seen.value.look.ends
        return [replace(each, log_end=ends.get((each.topic, each.partition))) for each in found]
