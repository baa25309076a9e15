"""One run of replicas behind durable history: reassignments, load and faults, then calm and progress, then a power cut.

It is like `moves.run`, with a topic of two or three replicas whose segments are exported and soon deleted locally. So a
new replica begins behind history, which has the records that it lacks. In half of the runs leaders may be elected
uncleanly. In another half, chosen independently, segments are merged and some old records deleted.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, ClassVar, Final
from unittest.mock import patch

from headrace.base.errors import UsageError
from headrace.base.ids import PartitionIndex, TopicId, TopicPartition
from headrace.broker.partitions.following import FollowerPartition
from headrace.sim.cluster.copies.judge import CopiesJudge
from headrace.sim.cluster.copies.merging import Merging
from headrace.sim.cluster.copies.nemesis import CopiesNemesis
from headrace.sim.cluster.copies.producers import AbsentProducers
from headrace.sim.cluster.moves.operator import APIS, Mover
from headrace.sim.cluster.moves.run import LOCAL_BYTES, MovesRun
from headrace.sim.cluster.moves.store import Shelf
from headrace.sim.cluster.play import ClusterOutcome
from headrace.sim.cluster.records.anomalies import Contents, anomalies, of_content
from headrace.sim.cluster.records.judge import RecordsJudge
from headrace.sim.cluster.records.nemesis import RecordsNemesis
from headrace.sim.cluster.records.producers import Producers
from headrace.sim.cluster.records.run import play
from headrace.sim.consumers import records_from
from headrace.sim.history import Found, PartitionKey, Problem
from headrace.storage.tier.beginnings import Beginning
from headrace.storage.tier.mirror import lacks_chunk
from headrace.storage.tier.reader import DamagedHistory, Store
from headrace.wire.messages.create_topics import CreatableTopic, CreatableTopicConfig

TOPIC: Final = "copied"
PARTITIONS: Final = (1, 1, 2)
REPLICAS: Final = (2, 2, 3)
"""Two, if an unexpected broker is to lead."""
SEGMENT_BYTES: Final = (1024, 1024, 4096)
LAG_MS: Final = (100, 300)
"""durable.export.max.lag.ms: short enough that most records are exported."""
MAY_LOSE: Final = 0.5
PEACE_SECONDS: Final = 3.0


def run_copies(seed: int) -> ClusterOutcome:
    """Simulate one seed. Never raises for anything that the brokers did."""
    return play(seed, "copies ", CopiesRun, APIS)


class CopiesRun(MovesRun):
    """See the module."""

    judge: CopiesJudge
    sizes: ClassVar[Sequence[int]] = (3, 3, 4)

    def _make_judge(self) -> RecordsJudge:
        return CopiesJudge(self._world.problem, self._world.tell_of, self.hosts, self._store)

    def _nemesis_of(self, *args: Any) -> CopiesNemesis:
        return CopiesNemesis(*args)

    def _make_nemesis(self) -> RecordsNemesis:
        self._stage.may_lose = self._world.chance("losses").random() < MAY_LOSE
        self._begun_elsewhere = 0
        self._mover = Mover(self._stage, self.judge)
        partitions, may_lose = self._stage.partitions, self._stage.may_lose
        nemesis = self._nemesis_of(self._world, self.hosts, self.judge, partitions, self._store, self._mover, may_lose)
        self._merging = Merging(self._world)
        self._merging.join(self._stage, self.judge, self._store, nemesis.strike)
        return nemesis

    def _clients(self) -> list[Coroutine[Any, Any, None]]:
        return [*super()._clients(), *([self._merging.run()] if self._merging.is_on else [])]

    async def _more_faults(self) -> None:
        """With merging: a peaceful time in which one leader exports much, then faults again."""
        if self._merging.is_on:
            await self._quietly(lambda: asyncio.sleep(PEACE_SECONDS))
            await self._faults()

    def _make_producers(self, lanes: int) -> Producers:
        return AbsentProducers(self._stage, lanes)

    @contextmanager
    def _watching(self) -> Iterator[None]:
        start_over = FollowerPartition.start_over

        def counted(copy: FollowerPartition, beginning: Beginning) -> None:
            self._begun_elsewhere += beginning.offset > 0
            start_over(copy, beginning)

        with ExitStack() as stack:
            stack.enter_context(patch.object(FollowerPartition, "start_over", counted))
            stack.enter_context(super()._watching())
            stack.enter_context(self._merging.going_on())
            yield

    async def _make_topics(self) -> None:
        pick = self._world.random.choice
        count, may_lose = pick(PARTITIONS), self._stage.may_lose
        replicas = 2 if may_lose else min(len(self.hosts), pick(REPLICAS))
        configs = {
            "durable.enable": "true",
            "min.insync.replicas": "1" if may_lose else str(pick((1, 2))),
            "unclean.leader.election.enable": "true" if may_lose else "false",
            "segment.bytes": str(pick(SEGMENT_BYTES)),
            "durable.export.max.lag.ms": str(pick(LAG_MS)),
            "local.retention.bytes": str(pick(LOCAL_BYTES)),
            "message.timestamp.after.max.ms": str(1 << 60),  # clocks jump
            **self._merging.configs(may_lose=may_lose),
        }
        wanted = tuple(CreatableTopicConfig(*each) for each in configs.items())
        await self._make_topic(CreatableTopic(TOPIC, num_partitions=count, replication_factor=replicas, configs=wanted))

    async def _judge(self) -> None:
        await super()._judge()
        partitions = list(self._stage.partitions)
        self.judge.check_kept()
        await self._judge_more()
        await self._within("the mirror is not brought up", self._until(lambda: all(map(self._is_mirrored, partitions))))

    async def _judge_more(self) -> None:
        """A hook for subclasses that know further topics."""

    def _is_mirrored(self, key: PartitionKey) -> bool:
        """Whether a reader of the store finds there, without any broker, all that the brokers know of. Damage is a
        problem once nothing is written any more."""
        catalog = self.judge.newest.durable(TopicPartition(TopicId(key.topic_id), PartitionIndex(key.number)))
        store: Any = Store(Shelf(self._store))  # type: ignore[arg-type]  # of what a reader asks for it has all
        try:
            topic = store.topic(str(key.topic_id))
            if store.catalog(topic, key.number) != catalog:
                return False
            store.verify(topic, key.number)
        except UsageError:
            return not catalog.entries
        except DamagedHistory as error:
            if lacks_chunk(store.objects, topic.topic_id, PartitionIndex(key.number)):
                return False  # a sweep took it just as it was named again; one of the two puts it back
            self._world.problem("mirror-damaged", str(error))
        return True

    def _anomalies(self, contents: Contents) -> Iterator[Problem]:
        judge, history = self.judge, self._stage.history
        starts = {key: judge.start_of(key) for key in contents}
        for key, records in contents.items():
            if records and records[0].offset > starts[key]:
                text = f"partition {key.number} begins with {records[0].offset}, and is deleted up to {starts[key]}"
                yield Problem("lost-write", text)
        contents = {key: [*self._deleted(key, records), *records] for key, records in contents.items()}
        sound = {key: records for key, records in contents.items() if not judge.has_lost(key)}
        yield from anomalies(history.of(sound), sound, starts)
        yield from of_content(history, {key: contents[key] for key in contents if key not in sound})
        for key in contents:
            if (problem := self._not_one_stream(key, contents)) is not None:
                yield problem

    def _deleted(self, key: PartitionKey, read: Sequence[Found]) -> list[Found]:
        """The records in history before the first one that was read."""
        start = read[0].offset if read else self.judge.frontier(key)
        batches = (batch for batch in self.judge.history(key) if batch.base < start)
        found = (each for batch in batches for each in records_from(batch.data, batch.base))
        return [each for each in found if each.offset < start]

    def _not_one_stream(self, key: PartitionKey, contents: Contents) -> Problem | None:
        """A problem where the records read differ from history and the first replica's log."""
        state = self.judge.state(key)
        assert state is not None
        stored = (records_from(batch.data, batch.base) for batch in self.judge.log(state.replicas[0], key))
        served = [(each.offset, each.value) for records in stored for each in records]
        read = [(each.offset, each.value) for each in contents[key]]
        if read == served:
            return None
        at = next((at for at, (one, other) in enumerate(zip(read, served, strict=False)) if one != other), -1)
        text = f"partition {key.number} was read with {len(read)} records, and has {len(served)}; they differ at {at}"
        return Problem("not-one-stream", text)

    def figures(self) -> dict[str, float]:
        """Figures for the table of a swarm."""
        judge = self.judge
        return {
            **super().figures(),
            "copies begun above 0": self._begun_elsewhere,
            "merges asked for": self._merging.asked,
            "segments in the place of others": judge.replacements,
            "unclean elections": judge.unclean_elections,
            "of these below the frontier": judge.gave_way,
            "of these with another history": judge.parted,
            "recoveries from history": judge.recoveries,
        }
