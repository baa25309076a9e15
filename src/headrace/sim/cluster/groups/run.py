"""One run of consumer groups: three to five shipped brokers, members of both protocols, and all kinds of faults.

At the end all faults are over. Each group must be stable, and each partition must have one owner, who commits. Then the
power of all is cut, and the committed offsets are read.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import partial
from typing import Any, Final
from uuid import UUID

from headrace.broker.cluster.quorum.commit_log import SETTINGS
from headrace.sim.client import Client, Lost
from headrace.sim.cluster.brokers import BrokerPrograms
from headrace.sim.cluster.groups.classic import ClassicMember
from headrace.sim.cluster.groups.consumer import ConsumerMember
from headrace.sim.cluster.groups.history import Register, judge_offsets
from headrace.sim.cluster.groups.judge import ClassicJudge, ConsumerJudge, GroupsJudge
from headrace.sim.cluster.groups.member import Member
from headrace.sim.cluster.groups.outsiders import Administrator, Reader, Topics
from headrace.sim.cluster.groups.stage import APIS, FLEETING, STEADY, Phase, Stage
from headrace.sim.cluster.host import Host
from headrace.sim.cluster.judges import watching
from headrace.sim.cluster.play import LIVENESS_SECONDS_MAX, ClusterOutcome, Over, Play, simulate
from headrace.sim.cluster.records.nemesis import RecordsNemesis
from headrace.sim.cluster.world import PORT, ClusterWorld, address_of
from headrace.sim.history import PartitionKey
from headrace.wire.apis import ApiKey
from headrace.wire.errors import ErrorCode
from headrace.wire.messages.create_topics import CreatableTopic, CreateTopicsRequest
from headrace.wire.messages.find_coordinator import FindCoordinatorRequest
from headrace.wire.messages.metadata import MetadataRequest, MetadataRequestTopic

SIZES: Final = (3, 3, 4, 5)
TICKS_MS: Final = (10, 20, 50)
SESSION_MS: Final = (600, 1_500)
"""broker.session.timeout.ms: so short that live leaders are fenced in a run (6,000 shipped)."""
LAG_MS: Final = (600, 1_000, 3_000)
"""replica.lag.time.max.ms: with the longer session, the shortest value limits the lease. Below REPLICA_IDLE_MS no idle
replica would stay in sync."""
BALANCE_SECONDS: Final = ("1", "300")
"""leader.imbalance.check.interval.seconds: at one, leadership moves back as soon as the first replica is back."""
CONSUMER_SESSION_MS: Final = (1_000, 2_500)
INITIAL_DELAY_MS: Final = (0, 0, 300)
MIN_INSYNC_REPLICAS: Final = (1, 2, 2)
SEGMENT_BYTES: Final = (4096, 1 << 20)
"""Segment size of the offsets topic: small ones are closed and compacted."""
MEMBERS: Final = (2, 3, 4)
STATIC: Final = 0.3
FAULTS_SECONDS: Final = (3.0, 9.0)
OFFSETS: Final = "__consumer_offsets"
CLASSIC: Final = "classic"
CONSUMER: Final = "consumer"
LONE: Final = "lone"
"""A group mostly without members. An administrator commits and deletes there, and sometimes members of either protocol
come."""
MIXTURES: Final = ((CLASSIC, LONE), (CONSUMER, LONE), (CLASSIC, CONSUMER), (CLASSIC,), (CONSUMER,), (LONE,))


def run_groups(seed: int) -> ClusterOutcome:
    """Simulate one seed. Never raises for anything that the brokers did."""
    return simulate(seed, "groups ", GroupsRun, APIS)


class GroupsRun(Play):
    """The run, as the module says."""

    judge: GroupsJudge

    def __init__(self, world: ClusterWorld) -> None:
        super().__init__(world)
        pick = world.random.choice
        segment_bytes = pick(SEGMENT_BYTES)
        self._consumer_session_s = pick(CONSUMER_SESSION_MS) / 1000
        configs = {
            "offsets.topic.num.partitions": "1",
            "offsets.topic.segment.bytes": str(segment_bytes),
            "broker.session.timeout.ms": str(pick(SESSION_MS)),
            "broker.heartbeat.interval.ms": "200",
            "replica.lag.time.max.ms": str(pick(LAG_MS)),
            "min.insync.replicas": str(pick(MIN_INSYNC_REPLICAS)),
            "leader.imbalance.check.interval.seconds": pick(BALANCE_SECONDS),
            "log.message.timestamp.after.max.ms": str(1 << 60),  # clocks jump
            "log.cleaner.backoff.ms": "1000",
            "offsets.commit.timeout.ms": "800",
            "group.min.session.timeout.ms": "100",
            "group.initial.rebalance.delay.ms": str(pick(INITIAL_DELAY_MS)),
            "group.consumer.session.timeout.ms": str(int(self._consumer_session_s * 1000)),
        }
        size = pick(SIZES)
        programs = BrokerPrograms(range(1, size + 1), configs)
        self.hosts = [Host(world, node, programs) for node in range(1, size + 1)]
        programs.birth(self.hosts)
        self.judge = GroupsJudge(world.problem, world.tell_of, self.hosts)
        self._stage = Stage(world, self.hosts, self.judge, keeps_records=segment_bytes == max(SEGMENT_BYTES))
        self._nemesis = RecordsNemesis(world, self.hosts, self.judge, self._stage.partitions)
        self._kinds = pick(MIXTURES)
        self._members: dict[str, list[Member]] = {}
        self._outsiders: list[Reader | Administrator] = []
        self._topics = Topics(self._stage)
        self._classic_judges: list[ClassicJudge] = []
        self._consumer_judges: list[ConsumerJudge] = []
        world.tell(f"{size} brokers, groups {', '.join(self._kinds)}, {configs}")

    def watching(self) -> AbstractContextManager[None]:
        """Connect the judge to every step."""
        return watching(self.judge, tick_ms=self._world.random.choice(TICKS_MS), settings=replace(SETTINGS))

    async def _life(self) -> None:
        world = self._world
        for host in self.hosts:
            host.boot()
        await self._within("the topics are not made", self._make_topics())
        self._people()
        clients = [world.loop.create_task(client) for client in self._lives()]
        try:
            least, most = FAULTS_SECONDS
            await self._nemesis.run(least + world.random.random() * (most - least))
            self._stage.phase = Phase.SETTLING
            await self._quietly(self._settle)
            self._stage.phase = Phase.OVER
            await self._within("not all clients come to an end", asyncio.wait(clients))
        finally:
            for client in clients:
                client.cancel()
        for client in clients:
            if not client.cancelled() and (error := client.exception()) is not None:
                raise error
        for host in self.hosts:
            host.power_cut()
        await world.think(1.0)
        for host in self.hosts:
            host.boot()
        await self._quietly(self._read)
        for kind, what in judge_offsets(self._stage.ledger):
            world.problem(kind, what)

    # clients

    def _people(self) -> None:
        for kind in self._kinds:
            classic = ClassicJudge(self._world, kind, restarts=kind == LONE)
            consumer = ConsumerJudge(self._world, kind, lease_s=self._consumer_session_s)
            self._classic_judges.append(classic)
            self._consumer_judges.append(consumer)
            count = 0 if kind == LONE else self._world.random.choice(MEMBERS)
            make = partial(self._classic, classic) if kind == CLASSIC else partial(self._consumer, consumer)
            self._members[kind] = [make(f"{kind}-{number}", kind) for number in range(count)]
            visitors = (partial(self._visitor, classic), partial(self._visitor, consumer)) if kind == LONE else ()
            self._outsiders += [Reader(self._stage, f"{kind}-reader-{number}", kind) for number in range(2)]
            self._outsiders.append(
                Administrator(self._stage, f"{kind}-admin", kind, deletes=kind != CLASSIC, visitors=visitors)
            )

    def _is_static(self) -> bool:
        return self._world.random.random() < STATIC

    def _classic(self, judge: ClassicJudge, name: str, group: str) -> Member:
        return ClassicMember(self._stage, judge, name, group, is_static=self._is_static())

    def _consumer(self, judge: ConsumerJudge, name: str, group: str) -> Member:
        return ConsumerMember(
            self._stage, judge, name, group, is_static=self._is_static(), session_s=self._consumer_session_s
        )

    def _visitor(self, judge: ClassicJudge | ConsumerJudge) -> Member:
        """A temporary member, with a name that was never used before."""
        name = f"visitor-{self._stage.ledger.now()}"
        member: Member
        if isinstance(judge, ClassicJudge):
            member = ClassicMember(self._stage, judge, name, LONE, is_static=False)
        else:
            member = ConsumerMember(self._stage, judge, name, LONE, is_static=False, session_s=self._consumer_session_s)
        member.may_be_refused = True
        return member

    def _lives(self) -> list[Coroutine[Any, Any, None]]:
        members = [member.run() for members in self._members.values() for member in members]
        return [*members, *(each.run() for each in self._outsiders), self._topics.run()]

    # topics

    async def _make_topics(self) -> None:
        stage, client = self._stage, Client("maker", (address_of(1), PORT))
        stage.steady_partitions = self._world.random.choice((2, 3, 5))
        topic = CreatableTopic(name=STEADY, num_partitions=stage.steady_partitions, replication_factor=2)
        names = (MetadataRequestTopic(name=STEADY), MetadataRequestTopic(name=OFFSETS))
        while True:
            try:
                if len(self.judge.newest.live_brokers()) == len(self.hosts):  # else it has fewer replicas
                    await client.call(ApiKey.CREATE_TOPICS, 7, CreateTopicsRequest((topic,), 3_000))
                    coordinators = FindCoordinatorRequest(key_type=0, coordinator_keys=self._kinds)
                    await client.call(ApiKey.FIND_COORDINATOR, 4, coordinators)
                    asked = MetadataRequest(names, allow_auto_topic_creation=False)
                    answer = await client.call(ApiKey.METADATA, 12, asked)
                    if all(each.error_code == ErrorCode.NONE for each in answer.topics):
                        break
            except Lost:
                pass
            await self._world.think(0.5)
        client.close()
        found = {each.name: each for each in answer.topics}
        stage.steady = found[STEADY].topic_id
        for each in found[OFFSETS].partitions:
            stage.partitions[PartitionKey(found[OFFSETS].topic_id, each.partition_index)] = OFFSETS

    # the end

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
            self._world.problem("liveness", f"{otherwise} in {LIVENESS_SECONDS_MAX} s: {self._amiss()}")
            raise Over from None

    async def _settle(self) -> None:
        """Wait until every group is stable and every owner of a partition has committed."""
        await self._within("not all groups are stable", self._until_stable())

    async def _until_stable(self) -> None:
        while self._amiss() is not None:  # noqa: ASYNC110 - virtual time
            await asyncio.sleep(0.05)
        self._stage.settled.clear()
        while self._amiss() is not None or self._uncommitted():  # noqa: ASYNC110 - virtual time
            await asyncio.sleep(0.05)

    def _amiss(self) -> str | None:
        """A reason why things are not settled yet."""
        if not all(host.serves for host in self.hosts):
            return "not all brokers serve"
        if self._stage.phase is Phase.SETTLING:  # the last request of the topic's maker may have changed it
            self._stage.fleeting = self.judge.newest.topic_ids.get(FLEETING)
        for group, members in self._members.items():
            wanted = self._wanted(group)
            owned = [partition for member in members for partition in member.owned]
            if members and (len(owned) != len(set(owned)) or set(owned) != wanted):
                shares = {member.name: len(member.owned) for member in members}
                return f"{group} is shared out as {shares}, of {len(wanted)} partitions"
            sharings = {member.sharing for member in members if isinstance(member, ClassicMember)}
            if len(sharings) > 1:
                return f"members of {group} are in several generations: {sharings}"
        return self._uncommitted()

    def _wanted(self, group: str) -> set[tuple[UUID, int]]:
        """The partitions that must have an owner. Leaders of classic groups do not look for new topics."""
        shared = self._stage.shared
        return shared if group == CONSUMER else {each for each in shared if each[0] == self._stage.steady}

    def _uncommitted(self) -> str | None:
        settled = {register for _, register in self._stage.settled}
        for group in self._kinds:
            for topic, index in sorted(self._stage.shared):
                if topic == self._stage.steady and Register(group, topic, index) not in settled:
                    return f"nobody has committed for {Register(group, topic, index)}"
        return None

    async def _read(self) -> None:
        for kind in self._kinds:
            reader = Reader(self._stage, f"{kind}-judge", kind)
            registers = [Register(kind, topic, index) for topic, index in sorted(self._stage.shared)]
            await self._within(f"what {kind} has committed is not read", reader.read(registers))

    def figures(self) -> dict[str, float]:
        """Figures for the table of a swarm."""
        ledger = self._stage.ledger
        members = [member for members in self._members.values() for member in members]
        return {
            "faults around groups": self._nemesis.acts,
            "leader epochs": self.judge.leader_epochs,
            "members": sum(member.lives for member in members),
            "generations": sum(judge.generations for judge in self._classic_judges),
            "partitions handed over": sum(judge.handed_over for judge in self._consumer_judges),
            "commits acknowledged": ledger.acknowledged,
            "fetches of offsets": ledger.looks,
            "virtual seconds": self._world.loop.time(),
        }
