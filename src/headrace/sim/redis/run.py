"""One run of brokers on a Redis: faults and load, then calm and progress, then judgement.

A run has these phases:
- Two to four brokers come to a Redis, with or without a replica, and make a topic.
- Producers, consumers and an administrator work while the nemesis causes faults.
- The faults end. All clients must finish, and all brokers must show the same.
- Redis loses power once more, and everything is read.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

from headrace.sim.client import Client, Lost
from headrace.sim.cluster.brokers import CONFIGS
from headrace.sim.cluster.host import Host
from headrace.sim.cluster.judges import images_seen
from headrace.sim.cluster.play import LIVENESS_SECONDS_MAX, ClusterOutcome, Over, Play, simulate
from headrace.sim.cluster.records.anomalies import anomalies
from headrace.sim.cluster.records.producers import Producers
from headrace.sim.cluster.records.stage import APIS, Stage
from headrace.sim.cluster.world import PORT, ClusterWorld, address_of
from headrace.sim.history import PartitionKey
from headrace.sim.redis.brokers import RedisPrograms, Times, shortened
from headrace.sim.redis.clients import APIS as MORE_APIS
from headrace.sim.redis.clients import Admin, GoingBack
from headrace.sim.redis.judge import RedisJudge, other_records_seen
from headrace.sim.redis.nemesis import RedisNemesis
from headrace.sim.redis.service import Service
from headrace.sim.redis.sockets import simulated_sockets
from headrace.wire.apis import ApiKey
from headrace.wire.errors import ErrorCode
from headrace.wire.messages.create_topics import CreatableTopic, CreatableTopicConfig, CreateTopicsRequest
from headrace.wire.messages.metadata import MetadataRequest, MetadataRequestTopic

SIZES: Final = (2, 3, 3, 4)
PARTITIONS: Final = (1, 2, 3)
MIN_INSYNC_REPLICAS: Final = (1, 2)
SESSION_MS: Final = (600, 1_500)
LEASE_MS: Final = (600, 1_200)
WAIT_MS: Final = (200, 3_000)
LANES: Final = (2, 4)
FAULTS_SECONDS: Final = (3.0, 9.0)
LOSES_CHANGES: Final = 0.5
"""Share of the runs in which Redis may lose entries of the commit log, too."""
SETTLED_SECONDS: Final = 5.0
"""Leaders have written again by then what Redis lost before it was durable."""
TOPIC: Final = "records"


def run_redis(seed: int) -> ClusterOutcome:
    """Simulate one seed. Never raises for anything that the brokers did."""
    return simulate(seed, "redis ", RedisRun, (*APIS, *MORE_APIS), simulated_sockets)


class RedisRun(Play):
    """The run, as the module says."""

    judge: RedisJudge

    def __init__(self, world: ClusterWorld) -> None:
        super().__init__(world)
        pick = world.random.choice
        configs: Mapping[str, str] = {
            **CONFIGS,
            "broker.session.timeout.ms": str(pick(SESSION_MS)),
            "broker.heartbeat.interval.ms": "200",
        }
        self._times = Times(
            lease_ms=pick(LEASE_MS), events_per_snapshot=pick((10, 30, 1000)), kept_entries=5, wait_ms=pick(WAIT_MS)
        )
        has_replica = pick((False, True, True))
        self._copies = pick(MIN_INSYNC_REPLICAS) if has_replica else 1
        self._service = Service(world, has_replica=has_replica, is_always=pick((False, False, True)))
        programs = RedisPrograms(configs)
        self.hosts = [Host(world, node, programs) for node in range(1, pick(SIZES) + 1)]
        self.judge = RedisJudge(world.problem, world.tell_of, self.hosts, self._service)
        self.judge.copies = self._copies
        self._stage = Stage(world, self.hosts, self.judge)
        self._stage.may_lose = has_replica and self._copies == 1
        self._nemesis = RedisNemesis(
            world,
            self.hosts,
            self.judge,
            self._service,
            may_fail_over=has_replica,
            may_lose_changes=world.random.random() < LOSES_CHANGES,
        )
        self._producers = Producers(self._stage, pick(LANES))
        self._admin = Admin(self._stage, TOPIC)

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Connect the judge to every image, and to every log that is given up."""
        with shortened(self._times), images_seen(self.judge), other_records_seen(self.judge):
            yield

    async def _life(self) -> None:
        world = self._world
        self._service.start()
        for host in self.hosts:
            host.boot()
        await self._quietly("no topic is made", self._make_topic())
        async with asyncio.TaskGroup() as group:
            clients = [group.create_task(client) for client in self._clients()]
            least, most = FAULTS_SECONDS
            await self._nemesis.run(least + world.random.random() * (most - least))
            world.winding_down = True
            await self._quietly("not all clients came to an end", asyncio.wait(clients))
        await self._quietly("brokers show different states", self._until_equal())
        self._service.power_cut()
        await self._quietly("not everything is read", self._judge())

    def _clients(self) -> list[Coroutine[Any, Any, None]]:
        readers = [GoingBack(self._stage, f"reader-{key.number}", key) for key in self._stage.partitions]
        return [self._producers.run(), self._admin.run(), *(reader.run() for reader in readers)]

    async def _quietly(self, otherwise: str, work: Coroutine[Any, Any, Any]) -> None:
        """Do it without faults, with all brokers started. A run that waits too long is over."""
        self._nemesis.calm()
        keeping = self._world.loop.create_task(self._nemesis.keep_up())
        try:
            async with asyncio.timeout(LIVENESS_SECONDS_MAX):
                await work
        except TimeoutError:
            waits = "; ".join(f"{lane.name} waits: {lane.waits_for}" for lane in self._producers.lanes.values())
            self._world.problem("liveness", f"{otherwise} in {LIVENESS_SECONDS_MAX} s: {self.judge.apart()} {waits}")
            raise Over from None
        finally:
            keeping.cancel()

    async def _make_topic(self) -> None:
        pick = self._world.random.choice
        configs = (
            CreatableTopicConfig("min.insync.replicas", str(self._copies)),
            CreatableTopicConfig("message.timestamp.after.max.ms", str(1 << 60)),  # clocks jump
        )
        topic = CreatableTopic(name=TOPIC, num_partitions=pick(PARTITIONS), replication_factor=-1, configs=configs)
        client = Client("maker", (address_of(1), PORT))
        while True:
            try:
                await client.call(ApiKey.CREATE_TOPICS, 7, CreateTopicsRequest((topic,), 3_000))
                asked = MetadataRequest((MetadataRequestTopic(name=TOPIC),), allow_auto_topic_creation=False)
                answer = await client.call(ApiKey.METADATA, 12, asked)
                if answer.topics[0].error_code == ErrorCode.NONE:
                    break
            except Lost:
                self._world.tell("the maker asks again")
            await self._world.think(0.5)
        client.close()
        topic_id = answer.topics[0].topic_id
        numbers = range(topic.num_partitions)
        self._stage.partitions.update({PartitionKey(topic_id, number): TOPIC for number in numbers})
        always = "always" if self._service.is_always else "everysec"
        self._world.tell(f"{TOPIC} has {len(numbers)} partitions, min.insync.replicas={self._copies}, {always}")

    async def _until_equal(self) -> None:
        while self.judge.apart() is not None or not all(host.serves for host in self.hosts):  # noqa: ASYNC110
            await asyncio.sleep(0.05)

    async def _judge(self) -> None:
        await self._until_equal()
        await asyncio.sleep(SETTLED_SECONDS)
        contents = {}
        for key in self._stage.partitions:
            reader = GoingBack(self._stage, f"judge-{key.number}", key)
            contents[key] = await reader.read_to_the_end()
        if not self.judge.losses:
            await self._admin.check()
        await self._until_equal()
        history = self._stage.history
        self.judge.check_told(history)
        for kind, what in anomalies(self.judge.excused(history), contents):
            self._world.problem(kind, what)

    def figures(self) -> dict[str, float]:
        """Figures for the table of a swarm."""
        history = self._stage.history
        lost = [each for key in self.judge.stored for each in self.judge.lost(key)]
        return {
            "faults around Redis": self._nemesis.acts,
            "its restarts": self._service.restarts,
            "its failovers": self._service.failovers,
            "batches that they lost": len(lost),
            "times that they lost changes": self.judge.losses,
            "entries of the commit log": self.judge.entries,
            "leader epochs": self.judge.leader_epochs,
            "records sent": len(history.sent),
            "acknowledged by all": sum(each.on_all for each in history.acked.values()),
            "acknowledged by leaders": sum(not each.on_all for each in history.acked.values()),
            "polled": sum(len(poll.records) for poll in history.polls),
            "virtual seconds": self._world.loop.time(),
        }
