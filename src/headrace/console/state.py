"""The state of a console: its knowledge of the cluster, and the client that its pages ask with."""

from __future__ import annotations

import asyncio
import shlex
import time
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from headrace.base.errors import HeadraceError
from headrace.base.limits import (
    CONSOLE_CHECK_MS,
    CONSOLE_FLOWS_MS,
    CONSOLE_IDLE_LOOK_MS,
    CONSOLE_LOOK_MS,
    CONSOLE_MOVES_MS,
    CONSOLE_PIPELINES_MS,
    CONSOLE_READERS_MAX,
    CONSOLE_SIZES_MS,
    CONSOLE_STREAMS_MAX,
    CONSOLE_STREAMS_OF_A_SESSION_MAX,
    CONSOLE_STREAMS_OF_AN_ADDRESS_MAX,
    CONSOLE_TAILS_OF_A_SESSION_MAX,
    CONSOLE_TAILS_OF_AN_ADDRESS_MAX,
    CONSOLE_VERIFICATIONS_MAX,
    LOOK_MS_MAX,
)
from headrace.console.charts.hour import Charts
from headrace.console.feeds import Feed, ForbiddenError
from headrace.console.places import Places
from headrace.console.policies import Policies
from headrace.console.standing import Standing, standing_of
from headrace.metadata.access.acls import Acl, AclFilter, AclOperation
from headrace.metadata.access.quotas import QuotaEntity
from headrace.net.client.access import acls as access
from headrace.net.client.access.own import operations
from headrace.net.client.access.quotas import Quotas, quotas
from headrace.net.client.access.users import Credentials, users
from headrace.net.client.cluster import Cluster
from headrace.net.client.disks import DiskView, sizes
from headrace.net.client.errors import WrongCredentialsError
from headrace.net.client.looks import Look, Place, Traffic, look, traffic
from headrace.net.client.members import Members, QuorumView
from headrace.net.client.moves import under_way
from headrace.net.client.retry import Backoff
from headrace.net.client.transactions import ListedTransaction, Transactions
from headrace.operations.diagnosis import findings
from headrace.operations.finding import Finding
from headrace.operations.flows import Counted, Flow, counted, flow
from headrace.operations.histories import History, summaries
from headrace.operations.masking import Masks
from headrace.operations.pipelines import PipelineState, states
from headrace.operations.reaching import Reach
from headrace.operations.schemas.records import Schemas
from headrace.wire.moves import FinishedView, MoveView

if TYPE_CHECKING:
    from headrace.console.charts.prometheus import Prometheus

PATIENCE = Backoff(attempts_max=2)
"""The console asks again by itself: a page does not wait for a cluster that is away."""


class Seen(NamedTuple):
    """One look at the cluster, and what has happened since the one before."""

    look: Look
    standing: Standing
    traffic: Traffic | None
    """None: it is the first."""


def _seen(before: Look | None, now: Look) -> Seen:
    return Seen(now, standing_of(now.view), None if before is None else traffic(before, now))


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


class Flows(NamedTuple):
    """Bytes of clients and brokers."""

    flow: Flow | None
    """None: no broker tells, or it is the first look."""


class Moves(NamedTuple):
    under_way: Sequence[MoveView]
    finished: Sequence[FinishedView]


class Pipelines(NamedTuple):
    """The pipelines of the directory."""

    states: Sequence[PipelineState]
    trouble: str = ""
    """Why they are not known; empty: they are."""


def _streams() -> Places:
    return Places(
        "pages open that are kept up to date",
        CONSOLE_STREAMS_MAX,
        of_a_session=CONSOLE_STREAMS_OF_A_SESSION_MAX,
        of_an_address=CONSOLE_STREAMS_OF_AN_ADDRESS_MAX,
    )


def _tails() -> Places:
    return Places(
        "pages open that show new records",
        CONSOLE_READERS_MAX,
        of_a_session=CONSOLE_TAILS_OF_A_SESSION_MAX,
        of_an_address=CONSOLE_TAILS_OF_AN_ADDRESS_MAX,
    )


@dataclass(slots=True, kw_only=True)
class Settings:
    """The settings and bounds that all viewers of a console share."""

    words: Sequence[str] = ()
    """Options with which a command reaches the same cluster."""
    allows_changes: bool = False
    masks: Masks = field(default_factory=Masks)
    schemas: Schemas | None = None
    """The schemas that keys and values are decoded by; None: they are shown as they are."""
    pipelines: Path | None = None
    """The directory of the pipelines' files that are shown; None: there is none."""
    prometheus: Prometheus | None = None
    """It has the charts of more than an hour; None: there are none."""
    streams: Places = field(default_factory=_streams)
    tails: Places = field(default_factory=_tails)
    """Pages that show new records. They are readers, too."""
    readers: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(CONSOLE_READERS_MAX))
    verifications: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(CONSOLE_VERIFICATIONS_MAX))


@dataclass(slots=True)
class Console:
    """The console of one user, or of everybody where nobody logs in: the feeds that its pages show, and the client that
    they ask with. No two users share one.
    """

    reach: Reach
    cluster: Cluster
    """For short questions of all pages."""
    settings: Settings = field(default_factory=Settings)
    user: str = ""
    """Empty: nobody logs in."""
    on_refused: Callable[[], object] = lambda: None
    """Called where the cluster lets this user in no more."""
    looks_alone: bool = True
    """Whether it also looks while nobody views it, for its charts."""
    charts: Charts = field(default_factory=Charts)
    policies: Policies = field(default_factory=Policies)
    proofs: dict[tuple[str, int], Any] = field(default_factory=dict)
    """Proofs of histories that were asked for, by topic and partition."""
    reports: OrderedDict[Path, Any] = field(default_factory=OrderedDict)
    """The last reports of pipelines that were shown, by their files."""
    closing: asyncio.Event = field(default_factory=asyncio.Event)
    _working: set[asyncio.Task[None]] = field(default_factory=set)
    seen: Feed[Seen] = field(init=False)
    checked: Feed[Checked] = field(init=False)
    sizes: Feed[Sizes] = field(init=False)
    flows: Feed[Flows] = field(init=False)
    moves: Feed[Moves] = field(init=False)
    histories: Feed[list[History]] = field(init=False)
    transactions: Feed[Sequence[ListedTransaction]] = field(init=False)
    users: Feed[Mapping[str, Credentials]] = field(init=False)
    acls: Feed[Sequence[Acl]] = field(init=False)
    quotas: Feed[Mapping[QuotaEntity, Quotas]] = field(init=False)
    pipelines: Feed[Pipelines] = field(init=False)
    _before: Look | None = None
    _counted: tuple[float, Mapping[int, Counted]] | None = None
    _alarms: object = None

    def __post_init__(self) -> None:
        idle_ms = CONSOLE_IDLE_LOOK_MS if self.looks_alone else None
        self.seen = Feed(
            self._look,
            every_ms=CONSOLE_LOOK_MS,
            idle_ms=idle_ms,
            on_value=self._on_seen,
            on_forgotten=self._on_forgotten,
        )
        self.checked = Feed(self._check, every_ms=CONSOLE_CHECK_MS)
        self.sizes = Feed(self._measure, every_ms=CONSOLE_SIZES_MS)
        self.flows = Feed(self._flow, every_ms=CONSOLE_FLOWS_MS)
        self.moves = Feed(self._moves, every_ms=CONSOLE_MOVES_MS)
        self.histories = Feed(self._known, every_ms=CONSOLE_CHECK_MS)
        self.transactions = Feed(Transactions(self.cluster).list_all, every_ms=CONSOLE_LOOK_MS)
        self.users = Feed(lambda: users(self.cluster), every_ms=CONSOLE_CHECK_MS)
        self.acls = Feed(lambda: access.found(self.cluster, AclFilter()), every_ms=CONSOLE_CHECK_MS)
        self.quotas = Feed(lambda: quotas(self.cluster, {}, strict=False), every_ms=CONSOLE_CHECK_MS)
        self.pipelines = Feed(self._pipelines, every_ms=CONSOLE_PIPELINES_MS)
        for feed in self.feeds:
            feed.on_trouble = self._on_trouble

    @property
    def feeds(self) -> tuple[Feed[Any], ...]:
        return (
            self.seen,
            self.checked,
            self.sizes,
            self.flows,
            self.moves,
            self.histories,
            self.transactions,
            self.users,
            self.acls,
            self.quotas,
            self.pipelines,
        )

    @property
    def allows_changes(self) -> bool:
        return self.settings.allows_changes

    def reading(self, **settings: Any) -> Cluster:
        """A client of its own for a page that reads records. It knows what the last look has seen: the metadata of very
        many partitions take seconds.
        """
        cluster = self.reach(**settings)
        if self.seen.value is not None:
            cluster.know(self.seen.value.look.view)
        return cluster

    def command(self, *words: str) -> str:
        """A command that does the same in a shell."""
        return shlex.join(["headrace", *words, *self.settings.words])

    @asynccontextmanager
    async def alive(self) -> AsyncIterator[None]:
        """Its feeds ask within the block."""
        asking = [asyncio.create_task(feed.run()) for feed in self.feeds]
        try:
            yield
        finally:
            self.close()
            tasks = [*asking, *self._working]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    def work(self, work: Coroutine[Any, Any, None]) -> None:
        """Have it go on by itself, until it is over or the console closes."""
        task = asyncio.create_task(work)
        self._working.add(task)
        task.add_done_callback(self._working.discard)

    def close(self) -> None:
        """Have the open pages end."""
        self.closing.set()
        for feed in self.feeds:
            feed.close()

    # the feeds

    def _on_trouble(self, error: Exception) -> None:
        if isinstance(error, WrongCredentialsError):
            self.on_refused()

    async def _look(self) -> Seen:
        now = await look(self.cluster, at=time.monotonic())
        before, self._before = self._before, now
        return await asyncio.to_thread(_seen, before, now)  # very many partitions take long

    def _on_forgotten(self) -> None:
        self._before = None

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
        seen = self.seen.value
        view = await Members(self.cluster).metadata() if seen is None else seen.look.view
        led: dict[int, list[Place]] = {int(broker): [] for broker in view.brokers}
        for topic in view.topics.values():
            for part in topic.partitions:
                if (own := led.get(int(part.leader))) is not None:
                    own.append((topic.name, int(part.index)))
        by_place, disks = await sizes(self.cluster, led)
        by_topic = dict.fromkeys(view.topics, 0)
        for (name, _), size in by_place.items():
            by_topic[name] += size
        return Sizes(by_place, by_topic, disks)

    async def _flow(self) -> Flows:
        brokers = (await self.cluster.metadata(())).brokers
        now, at = await counted(self.cluster, (int(broker) for broker in brokers)), time.monotonic()
        before, self._counted = self._counted, (at, now)
        return Flows(None if before is None else flow(before[1], now, at - before[0]))

    async def _moves(self) -> Moves:
        """Brokers hang up on those who may not ask, which looks as if nothing moved."""
        if AclOperation.ALTER not in await operations(self.cluster):
            raise ForbiddenError("Moves are for users with the right ALTER on the cluster: see 'headrace acl allow'.")
        return Moves(*await under_way(self.cluster))

    async def _known(self) -> list[History]:
        """The ends of logs are those of the last look: each topic would be asked for them."""
        found = await summaries(self.cluster, ())
        ends = {} if self.seen.value is None else self.seen.value.look.ends
        return [replace(each, log_end=ends.get((each.topic, each.partition))) for each in found]

    async def _pipelines(self) -> Pipelines:
        """They are no part of the cluster: where they cannot be read it may well answer."""
        if (directory := self.settings.pipelines) is None:
            return Pipelines(())
        try:
            return Pipelines(await asyncio.to_thread(states, directory))
        except (HeadraceError, OSError) as error:
            return Pipelines((), str(error))
