"""Merges of durable segments in some runs: an operator asks for them repeatedly, through any broker.

At each step of a merge (object stored, proposed, committed, mirrored, replaced objects deleted) a broker that takes
part may be killed. All of it draws from its own source of randomness, so that runs without it do not change.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any, Final
from unittest.mock import patch

from headrace.base.limits import DURABLE_SEGMENT_BYTES_MAX, HISTORY_DELETE_GRACE_MS
from headrace.broker.cluster.control import Control
from headrace.broker.durable import history_keeper, merger, sweeper
from headrace.controller.asks.asking import Ask
from headrace.controller.asks.history import ReplaceSegments
from headrace.metadata.segment_keys import SegmentKey
from headrace.sim.cluster.asking import asked
from headrace.sim.cluster.copies.judge import CopiesJudge
from headrace.sim.cluster.moves.store import SimStore
from headrace.sim.cluster.records.stage import Stage
from headrace.sim.cluster.world import ClusterWorld, address_of
from headrace.sim.history import PartitionKey
from headrace.storage.tier.merge import mergeable
from headrace.wire.durable import MERGE, decode_answer, encode_request

MERGES: Final = 0.5
"""Share of the runs with merging."""
PACES: Final = (0.1, 0.4, 1.5)
"""Longest pause between two requests, in seconds."""
BYTES: Final = (2_048, 8_192, DURABLE_SEGMENT_BYTES_MAX)
"""Largest size of a merged segment's batches."""
GRACES_MS: Final = (0, 200, HISTORY_DELETE_GRACE_MS)
"""Time from the event to the deletion of the replaced objects."""
RETAINED_BYTES: Final = (-1, -1, 6_000, 12_000)
"""retention.bytes, in runs where nothing else may lose records."""
STRIKES: Final = (0.0, 0.1, 0.4)
"""Share of the steps of merges at which a broker is killed."""
STRIKE_SECONDS: Final = (0.002, 0.02, 0.1)
ASKS_MAX: Final = 50
"""Questions whether a merge is done."""


class Merging:
    """The merges, as the module says. `strike` kills a broker after that many seconds."""

    def __init__(self, world: ClusterWorld) -> None:
        chance = self._chance = world.chance("merging")
        self._world = world
        self.is_on = chance.random() < MERGES
        self._pace = chance.choice(PACES)
        self._bytes_max = chance.choice(BYTES)
        self._grace_ms = chance.choice(GRACES_MS)
        self._retained_bytes = chance.choice(RETAINED_BYTES)
        self._at_steps = chance.choice(STRIKES)
        self._strike_seconds = chance.choice(STRIKE_SECONDS)
        self.asked = 0

    def join(self, stage: Stage, judge: CopiesJudge, store: SimStore, strike: Callable[[int, float], object]) -> None:
        """Take part in a run."""
        self._stage, self._judge, self._strike = stage, judge, strike
        if self.is_on:
            store.on_put = self._on_put
            judge.on_gone = self._on_object
            judge.on_replaced = self._on_step

    def configs(self, *, may_lose: bool) -> dict[str, str]:
        """Further configs of the topic. Where leaders may be elected uncleanly, nothing else is deleted."""
        if not self.is_on:
            return {}
        return {
            "segment.bytes": "1024",
            "durable.export.max.lag.ms": "100",
            "retention.bytes": str(-1 if may_lose else self._retained_bytes),
        }

    @contextmanager
    def going_on(self) -> Iterator[None]:
        """Patch brokers to use this run's settings."""
        if not self.is_on:
            yield
            return
        submit = Control.submit

        async def watched(control: Control, ask: Ask[Any], **bounds: int) -> Any:
            if isinstance(ask, ReplaceSegments):
                self._on_step(PartitionKey(ask.topic_id, ask.partition))
            return await submit(control, ask, **bounds)

        with ExitStack() as stack:
            stack.enter_context(patch.object(Control, "submit", watched))
            stack.enter_context(patch.object(merger, "mergeable", partial(mergeable, bytes_max=self._bytes_max)))
            for module in (history_keeper, sweeper):
                stack.enter_context(patch.object(module, "HISTORY_DELETE_GRACE_MS", self._grace_ms))
            yield

    async def run(self) -> None:
        """Ask for merges until the world winds down, and once more then."""
        while self.is_on and not self._world.winding_down:
            await asyncio.sleep(self._chance.random() * self._pace)
            await self._merge()
        await self._merge()

    async def _merge(self) -> None:
        """Ask all brokers, as the command does, until the merge is done or none answers."""
        self.asked += 1
        topic_id = self._chance.choice(sorted({str(key.topic_id) for key in self._stage.partitions}))
        wish = {"op": MERGE, "id": str(self.asked), "topic_id": topic_id, "partition": None, "execute": True}
        await asyncio.gather(*(self._merge_on(host.node, encode_request(wish)) for host in self._stage.hosts))

    async def _merge_on(self, node: int, wish: bytes) -> None:
        for _ in range(ASKS_MAX):
            frame = await asked(address_of(node), wish)
            answered = None if frame is None else decode_answer(frame)
            if answered is None or answered["done"]:
                break
            await asyncio.sleep(0.05)
        if answered is None or answered.get("before") or answered.get("problems"):
            self._world.tell(f"merge {self.asked} by {node}: {'unknown' if answered is None else answered}")

    # the steps

    def _on_put(self, name: str) -> None:
        named = SegmentKey.parse(name)
        if "/chunks/" in name or (named is not None and named.made_in is not None):
            self._on_object(name)

    def _on_object(self, name: str) -> None:
        for key in self._stage.partitions:
            if f"/{key.topic_id}/{key.number}/" in name:
                self._on_step(key)

    def _on_step(self, key: PartitionKey) -> None:
        if self._chance.random() >= self._at_steps or (state := self._judge.state(key)) is None:
            return
        heroes: Sequence[int] = [state.leader, state.leader, *state.replicas, self._controller()]
        self._strike(self._chance.choice(heroes), self._chance.random() * self._strike_seconds)

    def _controller(self) -> int:
        leaders = self._judge.leaders
        return leaders[max(leaders)].node if leaders else -1
