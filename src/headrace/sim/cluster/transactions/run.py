"""One run of transactions: three or four shipped brokers, clients of both protocols, readers, and all kinds of faults.

A run has these phases:
- A topic of two or three partitions is made. Coordinators have one partition each. In some runs the topic has a durable
  history, and keeps few bytes locally, so that readers get most of it from there. In some of these it has one copy of
  each partition, which is handed over to other brokers.
- Producers write transactions over several partitions, and some consume one of them for a group, while the nemesis
  causes faults.
- The faults end. Every transactional id must be able to commit, and no transaction may stay open, also where its client
  is dead.
- The power of all brokers is cut at once, and everything is read. `anomalies` judges it all.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any, Final

from headrace.broker.cluster.quorum.commit_log import SETTINGS
from headrace.sim.client import Client, Lost
from headrace.sim.cluster.brokers import BrokerPrograms
from headrace.sim.cluster.host import Host
from headrace.sim.cluster.judges import watching
from headrace.sim.cluster.moves.run import StoredPrograms
from headrace.sim.cluster.moves.store import SimStore
from headrace.sim.cluster.play import LIVENESS_SECONDS_MAX, ClusterOutcome, Over, Play, simulate
from headrace.sim.cluster.records.judge import RecordsJudge
from headrace.sim.cluster.transactions.anomalies import anomalies
from headrace.sim.cluster.transactions.consumers import Reader, Watcher
from headrace.sim.cluster.transactions.deleting import Deleter
from headrace.sim.cluster.transactions.history import Ending, Logged, Outcome, Partition, Register, Seen
from headrace.sim.cluster.transactions.nemesis import TransactionsNemesis
from headrace.sim.cluster.transactions.producers import Lane
from headrace.sim.cluster.transactions.stage import APIS, GROUP, TOPIC, TRANSACTION, Stage
from headrace.sim.cluster.world import PORT, ClusterWorld, address_of
from headrace.sim.history import PartitionKey
from headrace.sim.journals import NONE
from headrace.wire.apis import ApiKey
from headrace.wire.errors import ErrorCode
from headrace.wire.messages.create_topics import CreatableTopic, CreatableTopicConfig, CreateTopicsRequest
from headrace.wire.messages.find_coordinator import FindCoordinatorRequest
from headrace.wire.messages.metadata import MetadataRequest, MetadataRequestTopic

SIZES: Final = (3, 3, 3, 4)
TICKS_MS: Final = (10, 20, 50)
SESSION_MS: Final = (600, 1_500)
"""broker.session.timeout.ms: so short that live leaders are fenced in a run (6,000 shipped)."""
LAG_MS: Final = (600, 1_000, 3_000)
"""replica.lag.time.max.ms: so short that the ISR changes often in a run (30,000 shipped)."""
MIN_INSYNC_REPLICAS: Final = (1, 2, 2)
SEGMENT_BYTES: Final = (1_024, 4_096, 1 << 20)
"""Small ones are closed in the middle of transactions."""
STATE_SEGMENT_BYTES: Final = (4_096, 1 << 20)
PARTITIONS: Final = (2, 3)
LANES: Final = (2, 3, 4)
CONSUMING_LANES: Final = (0, 1, 1, 2)
HISTORY: Final = 0.4
"""Share of the runs in which the topic has a durable history."""
HANDED_OVER: Final = 0.6
"""Share of these in which its partitions have one copy, and are handed over."""
DELETING: Final = 0.3
"""Share of the runs without history in which the beginnings of partitions are deleted."""
RETENTION_BYTES: Final = (-1, -1, 4_096, 16_384)
EXPORT_LAG_MS: Final = (-1, 100, 1_000)
LOCAL_BYTES: Final = (1, 1, 4_096, -2)
"""local.retention.bytes; -2: as much as there is."""
FAULTS_SECONDS: Final = (2.0, 6.0)
INTERNAL: Final = ("__transaction_state", "__consumer_offsets")


def run_transactions(seed: int) -> ClusterOutcome:
    """Simulate one seed. Never raises for anything that the brokers did."""
    return simulate(seed, "transactions ", TransactionsRun, APIS)


class TransactionsJudge(RecordsJudge):
    """Judges leaders and images. The bytes on the disks are the records' part's, and take long."""

    def _check_in_sync(self, *_: object) -> None:
        """Not judged here."""

    def _check_joined(self, *_: object) -> None:
        """Not judged here."""


class TransactionsRun(Play):
    """The run, as the module says."""

    judge: TransactionsJudge

    def __init__(self, world: ClusterWorld) -> None:
        super().__init__(world)
        pick = world.random.choice
        configs = {
            "offsets.topic.num.partitions": "1",
            "transaction.state.log.num.partitions": "1",
            "transaction.state.log.segment.bytes": str(pick(STATE_SEGMENT_BYTES)),
            "broker.session.timeout.ms": str(pick(SESSION_MS)),
            "broker.heartbeat.interval.ms": "200",
            "replica.lag.time.max.ms": str(pick(LAG_MS)),
            "min.insync.replicas": str(pick(MIN_INSYNC_REPLICAS)),
            "log.message.timestamp.after.max.ms": str(1 << 60),  # clocks jump
            "log.cleaner.backoff.ms": "1000",
        }
        size = pick(SIZES)
        self._copies, self._history = self._durable()
        deletions = world.chance("deletions")
        deletes = not self._history and deletions.random() < DELETING
        self._retention = deletions.choice(RETENTION_BYTES)
        if deletes:
            configs["log.retention.check.interval.ms"] = "200"
        programs = self._programs(range(1, size + 1), configs)
        self.hosts = [Host(world, node, programs) for node in range(1, size + 1)]
        programs.birth(self.hosts)
        self.judge = TransactionsJudge(world.problem, world.tell_of, self.hosts)
        self._stage = Stage(world, self.hosts)
        self._stage.deletes = deletes
        self._deleter = Deleter(self._stage, "deleter")
        self._nemesis = TransactionsNemesis(world, self.hosts, self.judge, self._stage.keys)
        self._stage.on_end = self._nemesis.on_end
        plain, consuming = pick(LANES), pick(CONSUMING_LANES)
        self._lanes = [Lane(self._stage, f"plain-{number}", consumes=False) for number in range(plain)]
        if not deletes:  # the input of those that consume has to be there
            self._lanes += [Lane(self._stage, f"moving-{number}", consumes=True) for number in range(consuming)]
        world.tell(f"{size} brokers, {len(self._lanes)} transactional ids, {configs}")

    def _durable(self) -> tuple[int, Mapping[str, str]]:
        """The topic's replicas, and its configs of durable history; none where it has no history."""
        chance = self._world.chance("history")
        if chance.random() >= HISTORY:
            return 3, {}
        configs = {
            "durable.enable": "true",
            "durable.export.max.lag.ms": str(chance.choice(EXPORT_LAG_MS)),
            "local.retention.bytes": str(chance.choice(LOCAL_BYTES)),
        }
        return (1, {**configs, "min.insync.replicas": "1"}) if chance.random() < HANDED_OVER else (3, configs)

    def _programs(self, nodes: Sequence[int], configs: Mapping[str, str]) -> BrokerPrograms:
        if not self._history:
            return BrokerPrograms(nodes, configs)
        self._store = SimStore(self._world.loop, self._world.chance("store"))
        more = {"log.retention.check.interval.ms": "200"}
        return StoredPrograms(nodes, {**configs, **more}, self._store, journal=lambda: NONE)

    def watching(self) -> AbstractContextManager[None]:
        """Connect the judge to every step."""
        return watching(self.judge, tick_ms=self._world.random.choice(TICKS_MS), settings=replace(SETTINGS))

    async def _life(self) -> None:
        world = self._world
        for host in self.hosts:
            host.boot()
        await self._within("the topics are not made", self._make_topics())
        writers = [world.loop.create_task(lane.run()) for lane in self._lanes]
        readers = [world.loop.create_task(reader) for reader in self._readers()]
        if self._stage.deletes:
            readers.append(world.loop.create_task(self._deleter.run()))
        try:
            least, most = FAULTS_SECONDS
            await self._nemesis.run(least + world.random.random() * (most - least))
            world.winding_down = True
            await self._quietly(lambda: self._until_all_end(writers))
            self._stage.is_over = True
            await self._within("not all readers come to an end", asyncio.wait(readers))
        finally:
            for client in (*writers, *readers):
                client.cancel()
        for client in (*writers, *readers):
            if not client.cancelled() and (error := client.exception()) is not None:
                raise error
        for host in self.hosts:
            host.power_cut()
        await world.think(1.0)
        for host in self.hosts:
            host.boot()
        await self._quietly(self._judge)

    def _readers(self) -> list[Coroutine[Any, Any, None]]:
        readers = [
            Reader(self._stage, f"{kind}-{partition.number}", partition, committed_only=kind == "committed").run()
            for partition in self._stage.partitions
            for kind in ("committed", "all")
        ]
        return [*readers, Watcher(self._stage, "watcher").run()] if self._stage.registers else readers

    async def _quietly(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Run the work without faults, with all brokers started."""
        self._nemesis.calm()
        keeping = self._world.loop.create_task(self._nemesis.keep_up())
        try:
            await work()
        finally:
            keeping.cancel()

    async def _within(self, otherwise: str, work: Coroutine[Any, Any, Any]) -> Any:
        """The work's result. A run that waits too long is over."""
        try:
            async with asyncio.timeout(LIVENESS_SECONDS_MAX):
                return await work
        except TimeoutError:
            waiting = "; ".join(f"{lane.name} waits: {lane.waits_for}" for lane in self._lanes)
            self._world.problem("liveness", f"{otherwise} in {LIVENESS_SECONDS_MAX} s: {waiting}")
            raise Over from None

    # topics

    async def _make_topics(self) -> None:
        pick = self._world.random.choice
        count = pick(PARTITIONS)
        configs = (
            CreatableTopicConfig("segment.bytes", str(pick(SEGMENT_BYTES))),
            CreatableTopicConfig("message.timestamp.after.max.ms", str(1 << 60)),  # clocks jump
            *(CreatableTopicConfig(name, value) for name, value in self._history.items()),
        )
        if self._stage.deletes:
            configs = (*configs, CreatableTopicConfig("retention.bytes", str(self._retention)))
        topic = CreatableTopic(name=TOPIC, num_partitions=count, replication_factor=self._copies, configs=configs)
        client = Client("maker", (address_of(1), PORT))
        asked = tuple(MetadataRequestTopic(name=name) for name in (TOPIC, *INTERNAL))
        while True:
            try:
                if len(self.judge.newest.live_brokers()) == len(self.hosts):  # else it has fewer replicas
                    await client.call(ApiKey.CREATE_TOPICS, 7, CreateTopicsRequest((topic,), 3_000))
                    for kind in (TRANSACTION, GROUP):
                        find = FindCoordinatorRequest(key_type=kind, coordinator_keys=("any",))
                        await client.call(ApiKey.FIND_COORDINATOR, 4, find)
                    answer = await client.call(ApiKey.METADATA, 12, MetadataRequest(asked, False))
                    if all(each.error_code == ErrorCode.NONE for each in answer.topics):
                        break
            except Lost:
                pass
            await self._world.think(0.5)
        client.close()
        stage = self._stage
        for found in answer.topics:
            for each in found.partitions:
                stage.keys[PartitionKey(found.topic_id, each.partition_index)] = found.name
            if found.name == TOPIC:
                stage.topic_id = found.topic_id
        stage.partitions += [Partition(TOPIC, number) for number in range(count)]

    # the end

    async def _until_all_end(self, writers: list[asyncio.Task[None]]) -> None:
        await self._within("not all transactional ids can commit", asyncio.wait(writers))
        for writer in writers:
            writer.result()
        for partition in self._stage.partitions:
            reader = Reader(self._stage, f"end-{partition.number}", partition, committed_only=False)
            await self._within(f"a transaction stays open in {partition}", reader.read_to_the_end())

    async def _judge(self) -> None:
        contents: dict[Partition, list[Seen]] = {}
        logs: dict[Partition, list[Logged]] = {}
        offsets: dict[Register, int] = {}
        starts: dict[Partition, int] = {}
        for partition in self._stage.partitions:
            everything = Reader(self._stage, f"judge-all-{partition.number}", partition, committed_only=False)
            await self._within(f"{partition} is not read", everything.read_to_the_end())
            logs[partition] = everything.log
            committed = Reader(self._stage, f"judge-{partition.number}", partition, committed_only=True)
            contents[partition] = await self._within(f"{partition} is not read", committed.read_to_the_end())
            if self._stage.deletes:
                starts[partition] = max(everything.start, committed.start)
        watcher = Watcher(self._stage, "judge")
        for register in self._stage.registers:
            offsets[register] = await self._within(f"{register} is not told", self._looked(watcher, register))
        watcher.close()
        for kind, what in anomalies(self._stage.history, Ending(contents, offsets, logs, starts)):
            self._world.problem(kind, what)

    async def _looked(self, watcher: Watcher, register: Register) -> int:
        while (offset := await watcher.look(register, stable=True)) is None:
            pass
        return offset

    def figures(self) -> dict[str, float]:
        """Figures for the table of a swarm."""
        history = self._stage.history
        outcomes = Counter(each.outcome for each in history.transactions)
        return {
            "faults around transactions": self._nemesis.acts,
            "leader epochs": self.judge.leader_epochs,
            "transactions committed": outcomes[Outcome.COMMITTED],
            "aborted": outcomes[Outcome.ABORTED],
            "in doubt": outcomes[Outcome.IN_DOUBT],
            "fenced in the middle": sum(each.fenced is not None for each in history.transactions),
            "of them consuming": sum(each.taken is not None for each in history.transactions),
            "polls": len(history.polls),
            "reads of durable history": self._store.ranges if self._history else 0,
            "handed over": self._nemesis.handed_over,
            "offsets told": len(history.looks),
            "records deleted": self._deleter.deletions,
            "virtual seconds": self._world.loop.time(),
        }
