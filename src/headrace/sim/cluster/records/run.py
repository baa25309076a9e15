"""One run of replicated partitions: faults and load, then calm and progress, then a power cut for all, then judgement.

A run has these phases:
- Three to five brokers are born, and a topic with three or four replicas is created.
- Producers and consumers work while the nemesis causes faults. In some runs there is a quiet time in the middle, in
  which one disk is lost for good.
- The faults end. All clients must finish, and all replicas must join the ISR.
- The power of all brokers is cut at once, and everything is read. Promised records must be on every replica, byte for
  byte.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from functools import partial
from typing import Any, ClassVar, Final
from unittest.mock import patch

from headrace.base.limits import REPLICA_ANSWER_BYTES_MAX
from headrace.broker.cluster.quorum.commit_log import SETTINGS
from headrace.broker.replication import copying
from headrace.sim.client import Client, Lost
from headrace.sim.cluster.brokers import CONFIGS, BrokerPrograms
from headrace.sim.cluster.host import Host
from headrace.sim.cluster.judges import watching
from headrace.sim.cluster.play import LIVENESS_SECONDS_MAX, ClusterOutcome, Over, Play, simulate
from headrace.sim.cluster.records.anomalies import Contents, anomalies
from headrace.sim.cluster.records.assigning import AssigningNemesis
from headrace.sim.cluster.records.consumers import Reader
from headrace.sim.cluster.records.judge import RecordsJudge
from headrace.sim.cluster.records.nemesis import RecordsNemesis
from headrace.sim.cluster.records.producers import Producers
from headrace.sim.cluster.records.rot import Rot
from headrace.sim.cluster.records.stage import APIS, Stage
from headrace.sim.cluster.world import PORT, ClusterWorld, address_of
from headrace.sim.counting import JournalFigures, counted
from headrace.sim.history import PartitionKey, Problem
from headrace.sim.journals import Journals
from headrace.wire.apis import ApiKey
from headrace.wire.errors import ErrorCode
from headrace.wire.messages.create_topics import CreatableTopic, CreatableTopicConfig, CreateTopicsRequest
from headrace.wire.messages.metadata import MetadataRequest, MetadataRequestTopic

SIZES: Final = (3, 3, 4, 5)
TICKS_MS: Final = (10, 20, 50)
PARTITIONS: Final = (1, 1, 2)
REPLICAS: Final = (3, 4)
"""Four where there are enough brokers: only then can one be behind while two others are in sync with a new leader."""
MIN_INSYNC_REPLICAS: Final = (1, 2, 2)
SEGMENT_BYTES: Final = (2048, 8192, 1 << 20)
SESSION_MS: Final = (600, 1_500)
"""broker.session.timeout.ms: so short that live leaders are fenced in a run (6,000 shipped)."""
LAG_MS: Final = (300, 1_000, 3_000)
"""replica.lag.time.max.ms: so short that the ISR changes often in a run (30,000 shipped)."""
OFTEN_EXAMINED: Final = {"log.scrub.interval.ms": "300", "log.scrub.io.max.bytes.per.second": "100000000"}
ANSWER_BYTES: Final = (1, 1, 2_000, REPLICA_ANSWER_BYTES_MAX)
"""Bytes that a follower takes at once during faults. With few, it passes every batch on its way to the end of its
leader's log."""
LANES: Final = (2, 4)
READERS_PER_PARTITION: Final = 2
FAULTS_SECONDS: Final = (3.0, 9.0)
LOSES_A_DISK: Final = 0.3
TOPIC: Final = "records"


def run_records(seed: int) -> ClusterOutcome:
    """Simulate one seed. Never raises for anything that the brokers did."""
    return play(seed, "records ", RecordsRun)


def run_rotten(seed: int) -> ClusterOutcome:
    """Simulate one seed on disks that damage their content; the run differs from `run_records` of that seed."""
    return play(seed, "rot ", partial(RecordsRun, rots=True))


def play(
    seed: int, kind: str, make: Callable[[ClusterWorld], RecordsRun], more_apis: Iterable[ApiKey] = ()
) -> ClusterOutcome:
    """Run one simulation of this kind. Never raises for anything that the brokers did."""
    return simulate(seed, kind, make, (*APIS, *more_apis))


class RecordsRun(Play):
    """The run, as the module says."""

    judge: RecordsJudge
    sizes: ClassVar[Sequence[int]] = SIZES
    """Numbers of brokers in a cluster; one is chosen."""

    def __init__(self, world: ClusterWorld, *, rots: bool = False) -> None:
        """`rots`: disks damage their content, and brokers soon scrub all of it."""
        super().__init__(world)
        pick = world.random.choice
        configs = {
            **CONFIGS,
            "broker.session.timeout.ms": str(pick(SESSION_MS)),
            "broker.heartbeat.interval.ms": "200",
            "replica.lag.time.max.ms": str(pick(LAG_MS)),
            **(OFTEN_EXAMINED if rots else {}),
        }
        size = pick(self.sizes)
        self._journal = JournalFigures()
        self._journals = Journals(world.chance("journals"))
        programs = self._programs(range(1, size + 1), configs)
        self.hosts = [Host(world, node, programs) for node in range(1, size + 1)]
        programs.birth(self.hosts)
        self.judge = self._make_judge()
        self._replicas = min(size, pick(REPLICAS))
        self._answer_bytes = pick(ANSWER_BYTES)
        self._stage = Stage(world, self.hosts, self.judge)
        self._nemesis = self._make_nemesis()
        self._producers = self._make_producers(pick(LANES))
        self._rot = Rot(world, self.hosts, self.judge, self._stage.partitions) if rots else None

    def _programs(self, nodes: Sequence[int], configs: Mapping[str, str]) -> BrokerPrograms:
        return BrokerPrograms(nodes, configs, journal=self._journals.of_a_life)

    def _make_judge(self) -> RecordsJudge:
        return RecordsJudge(self._world.problem, self._world.tell_of, self.hosts)

    def _make_nemesis(self) -> RecordsNemesis:
        return AssigningNemesis(self._world, self.hosts, self.judge, self._stage.partitions)

    def _make_producers(self, lanes: int) -> Producers:
        return Producers(self._stage, lanes)

    def watching(self) -> AbstractContextManager[None]:
        """Connect the judge to every step."""
        return self._watching()

    @contextmanager
    def _watching(self) -> Iterator[None]:
        tick_ms = self._world.random.choice(TICKS_MS)
        with counted(self._journal), watching(self.judge, tick_ms=tick_ms, settings=replace(SETTINGS)):
            yield

    async def _life(self) -> None:
        world = self._world
        for host in self.hosts:
            host.boot()
        await self._within("no topic is made", self._make_topics())
        async with asyncio.TaskGroup() as group:
            clients = [group.create_task(client) for client in self._clients()]
            await self._faults()
            await self._more_faults()
            world.winding_down = True
            await self._quietly(lambda: self._until_all_end(clients))
        for host in self.hosts:
            host.power_cut()
        await world.think(1.0)
        for host in self.hosts:
            host.boot()
        await self._quietly(self._judge)

    async def _more_faults(self) -> None:
        """In some runs one broker loses its disk."""
        if self._world.random.random() < LOSES_A_DISK:
            await self._quietly(self._lose_a_disk)
            await self._faults()

    def _clients(self) -> list[Coroutine[Any, Any, None]]:
        partitions = list(self._stage.partitions)
        readers = [
            Reader(self._stage, f"reader-{key.number}-{number}", key, roams=number > 0)
            for key in partitions
            for number in range(READERS_PER_PARTITION)
        ]
        prober = Reader(self._stage, "prober", self._world.random.choice(partitions))
        return [self._producers.run(), prober.probe(), *(reader.run() for reader in readers)]

    async def _faults(self) -> None:
        least, most = FAULTS_SECONDS
        rotting = None if self._rot is None else self._world.loop.create_task(self._rot.run())
        with patch.object(copying, "REPLICA_ANSWER_BYTES_MAX", self._answer_bytes):
            await self._nemesis.run(least + self._world.random.random() * (most - least))
        if rotting is not None:
            rotting.cancel()

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
            if any(map(self.judge.has_no_sound_copy_in_sync, self._stage.partitions)):
                self._world.tell("a partition waits for its operator: the only copies in sync are damaged")
                raise Over from None
            self._world.problem("liveness", f"{otherwise} in {LIVENESS_SECONDS_MAX} s: {self._apart()}")
            raise Over from None

    async def _make_topics(self) -> None:
        pick = self._world.random.choice
        configs = (
            CreatableTopicConfig("min.insync.replicas", str(pick(MIN_INSYNC_REPLICAS))),
            CreatableTopicConfig("segment.bytes", str(pick(SEGMENT_BYTES if self._rot is None else SEGMENT_BYTES[:1]))),
            CreatableTopicConfig("message.timestamp.after.max.ms", str(1 << 60)),  # clocks jump
        )
        count = pick(PARTITIONS)
        topic = CreatableTopic(name=TOPIC, num_partitions=count, replication_factor=self._replicas, configs=configs)
        await self._make_topic(topic)

    async def _make_topic(self, topic: CreatableTopic) -> None:
        client = Client("admin", (address_of(1), PORT))
        while True:
            try:
                await client.call(ApiKey.CREATE_TOPICS, 7, CreateTopicsRequest((topic,), 3_000))
                asked = MetadataRequest((MetadataRequestTopic(name=topic.name),), allow_auto_topic_creation=False)
                answer = await client.call(ApiKey.METADATA, 12, asked)
            except Lost:
                await self._world.think(0.5)
                continue
            if answer.topics[0].error_code == ErrorCode.NONE:
                break
            await self._world.think(0.5)
        client.close()
        topic_id = answer.topics[0].topic_id
        count = topic.num_partitions
        self._stage.partitions.update({PartitionKey(topic_id, number): topic.name for number in range(count)})
        chosen = ", ".join(f"{each.name}={each.value}" for each in topic.configs)
        self._world.tell(f"topic {topic.name} has {count} partitions of {topic.replication_factor} replicas, {chosen}")

    async def _lose_a_disk(self) -> None:
        """Lose one disk, while all other copies are sound; with less there are no promises."""
        await self._all_in_sync()
        host = self._world.random.choice(self.hosts)
        self.judge.on_disk_lost(host.node)
        host.wipe()
        host.boot()
        await self._all_in_sync()

    async def _all_in_sync(self) -> None:
        await self._within("not all replicas are in sync", self._until(self._is_whole))

    def _is_whole(self) -> bool:
        states = [self.judge.state(key) for key in self._stage.partitions]
        serving = all(host.serves for host in self.hosts)
        if not self._nemesis.has_given_back or any(map(self.judge.is_any_rotten, self._stage.partitions)):
            return False
        return serving and all(state is not None and len(state.isr) == len(state.replicas) for state in states)

    def _apart(self) -> str | None:
        return next((apart for key in self._stage.partitions if (apart := self.judge.apart_in(key))), None)

    async def _until(self, holds: Callable[[], bool]) -> None:
        while not holds():  # noqa: ASYNC110 - virtual time
            await asyncio.sleep(0.05)

    async def _until_all_end(self, clients: list[asyncio.Task[None]]) -> None:
        _, late = await asyncio.wait(clients, timeout=LIVENESS_SECONDS_MAX)
        if late:
            lanes = self._producers.lanes.values()
            text = "; ".join(f"{lane.name} waits: {lane.waits_for}" for lane in lanes) or "consumers"
            self._world.problem("liveness", f"not all clients came to an end in {LIVENESS_SECONDS_MAX} s: {text}")
            raise Over
        await self._all_in_sync()
        self.judge.check_all()

    async def _judge(self) -> None:
        partitions = list(self._stage.partitions)
        contents = {}
        for key in partitions:
            reader = Reader(self._stage, f"judge-{key.number}", key)
            contents[key] = await self._within(f"partition {key.number} is not read", reader.read_to_the_end())
        await self._all_in_sync()
        await self._within("not all replicas are equal", self._until(lambda: self._apart() is None))
        self.judge.check_all()
        for kind, what in self._anomalies(contents):
            self._world.problem(kind, what)

    def _anomalies(self, contents: Contents) -> Iterator[Problem]:
        """Anomalies in everything that was read at the end."""
        return anomalies(self._stage.history, contents)

    def figures(self) -> dict[str, float]:
        """Figures for the table of a swarm."""
        history = self._stage.history
        return {
            "faults around records": self._nemesis.acts,
            **({} if self._rot is None else {"damaged files": self._rot.acts}),
            **({"copies that came back": self._nemesis.returns} if isinstance(self._nemesis, AssigningNemesis) else {}),
            "rounds of journals": self._journal.rounds,
            "entries recovered from them": self._journal.recovered,
            "their files used again": self._journal.reused,
            "leader epochs": self.judge.leader_epochs,
            "changes of an ISR": self.judge.isr_changes,
            "records sent": len(history.sent),
            "acknowledged by all": sum(each.on_all for each in history.acked.values()),
            "acknowledged by leaders": sum(not each.on_all for each in history.acked.values()),
            "records polled": sum(len(poll.records) for poll in history.polls),
            "virtual seconds": self._world.loop.time(),
        }
