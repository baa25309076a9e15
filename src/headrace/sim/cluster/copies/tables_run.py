"""One run with a table (`copies.table`): as `copies.run`, and a compacted topic whose leaders are plotted against, too.

In some runs one disk is lost midway, when every record has another copy.
"""

from __future__ import annotations

from collections.abc import Coroutine, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

from headrace.metadata.image import MetadataImage
from headrace.metadata.values import PartitionImage
from headrace.sim.cluster.brokers import BrokerPrograms
from headrace.sim.cluster.copies.judge import CopiesJudge
from headrace.sim.cluster.copies.nemesis import CopiesNemesis
from headrace.sim.cluster.copies.run import CopiesRun
from headrace.sim.cluster.copies.table import APIS, CLEANING, NAME, Table
from headrace.sim.cluster.moves.operator import APIS as MOVERS_APIS
from headrace.sim.cluster.nemesis import Act
from headrace.sim.cluster.play import ClusterOutcome
from headrace.sim.cluster.records.judge import RecordsJudge
from headrace.sim.cluster.records.nemesis import RecordsNemesis
from headrace.sim.cluster.records.run import play
from headrace.sim.history import PartitionKey
from headrace.sim.process import Process
from headrace.storage.log.compaction.planning import Compaction
from headrace.storage.log.compaction.rounds import Round


def run_tables(seed: int) -> ClusterOutcome:
    """Simulate one seed; the run differs from `run_copies` of that seed. Never raises for anything that the brokers
    did."""
    return play(seed, "tables ", TablesRun, (*MOVERS_APIS, *APIS))


class TablesJudge(CopiesJudge):
    """Passes on what brokers show, to the table and to plots against it."""

    def __init__(self, *args: Any, table: Table) -> None:
        super().__init__(*args)
        self._table = table
        self.unjudged.add(NAME)

    def on_image(self, process: Process, image: MetadataImage) -> None:
        super().on_image(process, image)
        self._table.on_image(image)

    def state(self, key: PartitionKey) -> PartitionImage | None:
        return self._table.state if key == self._table.key else super().state(key)

    def frontier(self, key: PartitionKey) -> int:
        return self._table.catalog.next_offset if key == self._table.key else super().frontier(key)


class TablesNemesis(CopiesNemesis):
    """The nemesis with a plot of its own against the table's leader."""

    may_bereave = False

    def __init__(self, *args: Any, table: Table) -> None:
        self._table = table
        super().__init__(*args)

    def _plots(self) -> list[tuple[Act, float]]:
        return [*super()._plots(), (self.usurp_table, self._table.hazards.usurps)]

    async def usurp_table(self) -> None:
        """`usurp`, for the table."""
        await self._usurp_one([] if self._table.key is None else [self._table.key])

    async def _place(self, key: PartitionKey, replicas: tuple[int, ...], through: int) -> bool:
        if key == self._table.key:
            return await self._table.hazards.place(replicas, through=through)
        return await super()._place(key, replicas, through)


class TablesRun(CopiesRun):
    """The run, as the module says."""

    def _programs(self, nodes: Sequence[int], configs: Mapping[str, str]) -> BrokerPrograms:
        self._table = Table(self._world)
        self._disks_lost = 0
        return super()._programs(nodes, {**configs, **CLEANING})

    def _make_judge(self) -> RecordsJudge:
        args = (self._world.problem, self._world.tell_of, self.hosts, self._store)
        judge = TablesJudge(*args, table=self._table)
        self._table.join(self.hosts, self._store, judge)
        return judge

    def _nemesis_of(self, *args: Any) -> CopiesNemesis:
        return TablesNemesis(*args, table=self._table)

    def _make_nemesis(self) -> RecordsNemesis:
        nemesis = super()._make_nemesis()
        if self._table.hazards.forgets:
            self._mover.drain_nothing()
        return nemesis

    def _clients(self) -> list[Coroutine[Any, Any, None]]:
        return [*super()._clients(), self._table.run(), self._table.hazards.run()]

    async def _more_faults(self) -> None:
        await super()._more_faults()
        if self._table.hazards.loses_a_disk:
            await self._quietly(self._lose_a_disk)
            await self._faults()

    async def _lose_a_disk(self) -> None:
        """Lose one disk. Nothing is moved meanwhile."""
        self._mover.rests = self._table.hazards.rests = True
        await super()._lose_a_disk()
        self._disks_lost += 1
        self._mover.rests = self._table.hazards.rests = False

    def _is_whole(self) -> bool:
        state = self._table.state
        return super()._is_whole() and state is not None and set(state.isr) == set(state.replicas)

    @contextmanager
    def _watching(self) -> Iterator[None]:
        install = Compaction.install

        def cleaned(compaction: Compaction, cleaning: Round) -> None:
            self._table.cleanings += 1
            install(compaction, cleaning)

        with ExitStack() as stack:
            stack.enter_context(patch.object(Compaction, "install", cleaned))
            stack.enter_context(super()._watching())
            yield

    async def _make_topics(self) -> None:
        await super()._make_topics()
        await self._make_topic(self._table.topic())
        [key] = [key for key, name in self._stage.partitions.items() if name == NAME]
        del self._stage.partitions[key]
        self._table.made(key)

    async def _judge_more(self) -> None:
        await self._table.check()

    def figures(self) -> dict[str, float]:
        """Figures for the table of a swarm."""
        return {**super().figures(), **self._table.figures(), "lost disks": self._disks_lost}
