"""One run of partitions that are handed over: moves, load and faults, then calm and progress, then a power cut for all.

It is like `records.run`, with a durable store. A topic of one replica has its segments exported and soon deleted
locally, so that readers from the start read history. Some runs also have a topic of two replicas. An operator moves all
of them. Once the faults end every move must end. After the power cut everything is read from disks and store.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, ClassVar, Final
from unittest.mock import patch

from headrace.base.limits import OBJECT_PART_BYTES, OBJECT_SINGLE_BYTES_MAX
from headrace.base.ports import Objects
from headrace.broker.cluster.control import Control
from headrace.controller.asks.asking import Ask
from headrace.controller.asks.moves import SealMove
from headrace.sim.cluster.brokers import BrokerPrograms
from headrace.sim.cluster.host import Host
from headrace.sim.cluster.moves.judge import MovesJudge
from headrace.sim.cluster.moves.nemesis import MovesNemesis
from headrace.sim.cluster.moves.operator import APIS, Mover
from headrace.sim.cluster.moves.store import SimStore
from headrace.sim.cluster.play import ClusterOutcome, Over
from headrace.sim.cluster.records.consumers import Reader
from headrace.sim.cluster.records.judge import RecordsJudge
from headrace.sim.cluster.records.nemesis import RecordsNemesis
from headrace.sim.cluster.records.run import RecordsRun, play
from headrace.sim.history import PartitionKey
from headrace.storage import remote
from headrace.storage.log.journal.journal import JournalSettings
from headrace.wire.messages.create_topics import CreatableTopic, CreatableTopicConfig

MOVED: Final = "moved"
COPIED: Final = "copied"
PARTITIONS: Final = (1, 2, 3)
COPIES: Final = 0.3
"""Share of the runs that have a topic of two replicas, too."""
SEGMENT_BYTES: Final = (1024, 4096, 1 << 20)
LAG_MS: Final = (-1, 100, 1_000)
LOCAL_BYTES: Final = (1, 1, 4096, -2)
"""local.retention.bytes; -2: as much as there is."""
SWEEPS_MS: Final = (300, 3_600_000)
GRACE_MS: Final = (0, 500)
LISTING_LAGS: Final = (0.0, 0.0, 1.0)
PARTS_BYTES: Final = ((OBJECT_SINGLE_BYTES_MAX, OBJECT_PART_BYTES), (2048, 1024))
"""Size from which on an object is sent in parts, and the size of these."""
POLLS_MAX: Final = 30
REST_SECONDS_MAX: Final = 1.0
MOVES_SECONDS_MAX: Final = 240.0
"""Virtual seconds until every move must be over after the faults end. A hanging request takes 30, and an owner that
failed to seal writes for up to 60 before it tries again."""


def run_moves(seed: int) -> ClusterOutcome:
    """Simulate one seed. Never raises for anything that the brokers did."""
    return play(seed, "moves ", MovesRun, APIS)


class StoredPrograms(BrokerPrograms):
    """Brokers with a durable store."""

    def __init__(
        self,
        known: Sequence[int],
        configs: Mapping[str, str],
        store: SimStore,
        *,
        journal: Callable[[], JournalSettings],
    ) -> None:
        super().__init__(known, configs, journal=journal)
        self._store = store

    def _objects(self, host: Host) -> Objects | None:
        return self._store.mount()


class MovesRun(RecordsRun):
    """The run, as the module says."""

    judge: MovesJudge
    sizes: ClassVar[Sequence[int]] = (3, 3, 3, 4)

    def _programs(self, nodes: Sequence[int], configs: Mapping[str, str]) -> BrokerPrograms:
        chance = self._world.chance("mixture")
        self._store = SimStore(self._world.loop, self._world.chance("store"))
        self._store.worsen(listing_lag_seconds=chance.choice(LISTING_LAGS))
        self._parts_bytes = chance.choice(PARTS_BYTES)
        more = {
            "log.retention.check.interval.ms": "200",
            "durable.sweep.interval.ms": str(chance.choice(SWEEPS_MS)),
            "durable.sweep.grace.ms": str(chance.choice(GRACE_MS)),
        }
        return StoredPrograms(nodes, {**configs, **more}, self._store, journal=self._journals.of_a_life)

    def _make_judge(self) -> RecordsJudge:
        return MovesJudge(self._world.problem, self._world.tell_of, self.hosts, self._store)

    def _make_nemesis(self) -> RecordsNemesis:
        self._mover = Mover(self._stage, self.judge)
        partitions = self._stage.partitions
        return MovesNemesis(self._world, self.hosts, self.judge, partitions, self._store, self._mover)

    @contextmanager
    def _watching(self) -> Iterator[None]:
        single, part = self._parts_bytes
        submit = Control.submit

        async def watched(control: Control, ask: Ask[Any], **bounds: int) -> Any:
            if isinstance(ask, SealMove):
                self.judge.on_proposal(PartitionKey(ask.seal.topic_id, ask.seal.partition))
            return await submit(control, ask, **bounds)

        with ExitStack() as stack:
            stack.enter_context(patch.object(Control, "submit", watched))
            stack.enter_context(super()._watching())
            stack.enter_context(patch.object(remote, "OBJECT_SINGLE_BYTES_MAX", single))
            stack.enter_context(patch.object(remote, "OBJECT_PART_BYTES", part))
            yield

    async def _more_faults(self) -> None:
        """No further faults: a partition with one replica would be lost with its disk."""

    def _clients(self) -> list[Coroutine[Any, Any, None]]:
        historians = [self._read_history(key) for key in self._stage.partitions]
        return [self._mover.run(), *historians, *super()._clients()]

    async def _read_history(self, key: PartitionKey) -> None:
        """Run readers one after the other from the start, where most records are in the store alone by then."""
        world, number = self._world, 0
        while not world.winding_down:
            reader = Reader(self._stage, f"historian-{number} of {self._stage.partitions[key]}-{key.number}", key)
            for _ in range(world.random.randrange(1, POLLS_MAX)):
                if not world.winding_down:
                    await reader.poll()
            reader.close()
            number += 1
            await world.think(REST_SECONDS_MAX)

    async def _make_topics(self) -> None:
        pick = self._world.random.choice
        configs = (
            CreatableTopicConfig("durable.enable", "true"),
            CreatableTopicConfig("min.insync.replicas", "1"),
            CreatableTopicConfig("segment.bytes", str(pick(SEGMENT_BYTES))),
            CreatableTopicConfig("durable.export.max.lag.ms", str(pick(LAG_MS))),
            CreatableTopicConfig("local.retention.bytes", str(pick(LOCAL_BYTES))),
            CreatableTopicConfig("message.timestamp.after.max.ms", str(1 << 60)),  # clocks jump
        )
        count = pick(PARTITIONS)
        await self._make_topic(CreatableTopic(MOVED, num_partitions=count, replication_factor=1, configs=configs))
        if self._world.random.random() < COPIES:
            await self._make_topic(CreatableTopic(COPIED, num_partitions=1, replication_factor=2, configs=configs))

    async def _until_all_end(self, clients: list[asyncio.Task[None]]) -> None:
        await self._until_moves_end()
        await super()._until_all_end(clients)
        self.judge.check_catalogs()

    async def _until_moves_end(self) -> None:
        try:
            async with asyncio.timeout(MOVES_SECONDS_MAX):
                await self._until(lambda: not self.judge.under_way)
        except TimeoutError:
            states = [self.judge.state(key) for key in self.judge.under_way]
            self._world.problem("move-unended", f"not in {MOVES_SECONDS_MAX} s: {states}")
            raise Over from None

    async def _judge(self) -> None:
        await super()._judge()
        self.judge.check_catalogs()

    def figures(self) -> dict[str, float]:
        """Figures for the table of a swarm."""
        judge, store = self.judge, self._store
        return {
            **super().figures(),
            "moves asked for": self._mover.asked,
            "started": judge.moves_started,
            "sealed": judge.moves_sealed,
            "aimed anew": judge.moves_retargeted,
            "finished": judge.moves_finished,
            "cancelled": judge.moves_cancelled,
            "requests to the store": store.requests,
            "of these reads of history": store.ranges,
            "failed": store.failures,
            "torn uploads": store.torn,
            "objects": len(store.objects),
        }
