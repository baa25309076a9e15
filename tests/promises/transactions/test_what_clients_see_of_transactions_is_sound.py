"""Promise 4, with real processes, judged as Jepsen's Kafka workload is: nobody sees an anomaly of transactions.

Clients write transactions over several partitions, abort some, and consume a partition for a group of their own. Each
is a process, of librdkafka (the old protocol) or Java (the new one, KIP-890). Brokers are killed, stopped and cut off:
the coordinator, leaders, all. So are clients, and one goes on when another has its id, one is stopped for longer than
its transaction may last.

The simulator's judges (`headrace.sim.cluster.transactions`) judge what clients and readers were told, and what is there
at the end. They know aborted and dirty reads, torn, lost and repeated transactions, offsets without output and the
reverse, cycles, and more.
"""

from __future__ import annotations

import asyncio
import itertools
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from headrace.net.client.cluster import Cluster as Client
from headrace.net.client.transactions import Transactions
from headrace.sim.cluster.transactions.anomalies import anomalies
from tests import loops
from tests.interop import java_project
from tests.promises.support.load import QUIET
from tests.promises.support.networks import CLIENTS, Cluster, Network, permitted
from tests.promises.support.reading import cluster_of, reading_from
from tests.promises.support.transactors import Lane, Session, Transactors, transacting_in
from tools.servers.broker_cluster import BrokerCluster

TOPIC: Final = "t"
PARTITIONS: Final = 3
BROKERS: Final = (1, 2, 3)
DEADLINE_S: Final = 150.0
ASKED_EVERY_S: Final = 0.1
BEFORE_EACH_FAULT: Final = 3
"""Transactions that each id ends before the next fault, and after the last one."""
MEANWHILE: Final = 2
TIMEOUT_MS: Final = 60_000
BRIEF_TIMEOUT_MS: Final = 6_000
"""Of the client that is stopped for longer than that."""
OPEN: Final = ("Ongoing", "PrepareCommit", "PrepareAbort")
CONFIGS: Final = (
    "broker.session.timeout.ms=2000",
    "broker.heartbeat.interval.ms=400",
    "replica.lag.time.max.ms=2000",
    "offsets.topic.num.partitions=3",
    "transaction.state.log.num.partitions=3",
    "transaction.abort.timed.out.transaction.cleanup.interval.ms=500",
)
OPTIONS: Final = ("--json", *(option for config in CONFIGS for option in ("--config", config)))


@dataclass(slots=True, kw_only=True)
class Scene:
    cluster: BrokerCluster
    network: Network | None
    client: Client
    transactors: Transactors
    random: random.Random

    @property
    def lane(self) -> Lane:
        return self.random.choice(self.transactors.lanes)

    async def coordinator(self, lane: Lane) -> int:
        """The broker that coordinates its transactions now."""
        _, broker = await self.client.retried(lambda: Transactions(self.client).coordinator(lane.name))
        return broker

    async def leader(self) -> int:
        """A broker that leads a partition of the topic."""
        number = self.random.randrange(PARTITIONS)

        async def ask() -> int:
            await self.client.topic(TOPIC, fresh=True)
            return (await self.client.partition(TOPIC, number)).leader

        return await self.client.retried(ask, (TOPIC,))

    async def stopped(self, lane: Lane) -> Session:
        """The id's client, which is stopped (SIGSTOP), in the middle of a transaction where it is lucky."""
        await self.transactors.until(lambda: lane.current.is_ready and not lane.current.is_over, "no client is ready")
        lane.current.stop()
        return lane.current


Fault = Callable[[Scene], Awaitable[None]]


async def the_coordinator_is_killed(scene: Scene) -> None:
    await kill(scene, await scene.coordinator(scene.lane))


async def a_leader_is_killed(scene: Scene) -> None:
    await kill(scene, await scene.leader())


async def all_brokers_are_killed(scene: Scene) -> None:
    await kill(scene, *BROKERS)


async def kill(scene: Scene, *brokers: int) -> None:
    await scene.cluster.kill(*brokers)
    await scene.cluster.start(*brokers)


async def the_coordinator_is_stopped(scene: Scene) -> None:
    await stop(scene, await scene.coordinator(scene.lane))


async def a_leader_is_stopped(scene: Scene) -> None:
    await stop(scene, await scene.leader())


async def stop(scene: Scene, broker: int) -> None:
    """Others take over meanwhile."""
    scene.cluster.pause(broker)
    await scene.transactors.ended(MEANWHILE)
    scene.cluster.resume(broker)


async def a_client_is_killed(scene: Scene) -> None:
    """The next client of its id follows by itself."""
    await scene.transactors.kill(scene.lane.current)


async def a_client_is_fenced(scene: Scene) -> None:
    """It goes on when the next one has its id: a zombie."""
    lane = scene.lane
    zombie = await scene.stopped(lane)
    zombie.is_left = True
    await scene.transactors.begin(lane)
    zombie.go_on()
    await scene.transactors.until(lambda: zombie.is_over, "a zombie goes on")


async def a_client_is_stopped_for_too_long(scene: Scene) -> None:
    """Its coordinator ends its transaction."""
    lane = next(lane for lane in scene.transactors.lanes if lane.timeout_ms == BRIEF_TIMEOUT_MS)
    stopped = await scene.stopped(lane)
    async with asyncio.timeout(DEADLINE_S):
        while True:
            found = await Transactions(scene.client).describe(lane.name)
            if found is None or found.state not in OPEN:
                break
            await asyncio.sleep(ASKED_EVERY_S)
    stopped.go_on()


KILLS: Final[tuple[Fault, ...]] = (
    the_coordinator_is_killed,
    a_client_is_fenced,
    a_leader_is_killed,
)
"""They take little time."""
PAUSES: Final[tuple[Fault, ...]] = (
    a_client_is_killed,
    the_coordinator_is_stopped,
    a_client_is_stopped_for_too_long,
    a_leader_is_stopped,
    all_brokers_are_killed,
)


async def the_coordinator_is_cut_off(scene: Scene) -> None:
    await cut_off(scene, await scene.coordinator(scene.lane))


async def a_leader_is_cut_off(scene: Scene) -> None:
    await cut_off(scene, await scene.leader())


async def cut_off(scene: Scene, broker: int) -> None:
    """Clients reach it all the time, and one that asks no other broker is refused until it is back."""
    assert scene.network is not None
    await scene.network.isolate(broker)
    await scene.transactors.met(MEANWHILE)
    await scene.network.heal()


async def nobody_hears_a_leader(scene: Scene) -> None:
    assert scene.network is not None
    leader = await scene.leader()
    for other in BROKERS:
        if other != leader:
            await scene.network.cut(leader, other)
    await scene.transactors.met(MEANWHILE)
    await scene.network.heal()


async def clients_do_not_hear_their_coordinator(scene: Scene) -> None:
    """It does what they ask, and its answers are lost."""
    assert scene.network is not None
    lane = scene.lane
    await scene.network.cut(await scene.coordinator(lane), CLIENTS)
    await scene.transactors.hindered(lane)
    await scene.network.heal()


async def clients_do_not_reach_their_coordinator(scene: Scene) -> None:
    assert scene.network is not None
    lane = scene.lane
    await scene.network.cut(CLIENTS, await scene.coordinator(lane))
    await scene.transactors.hindered(lane)
    await scene.network.heal()


CUTS: Final[tuple[Fault, ...]] = (
    the_coordinator_is_cut_off,
    clients_do_not_hear_their_coordinator,
    a_leader_is_cut_off,
    nobody_hears_a_leader,
    clients_do_not_reach_their_coordinator,
)


def faults(rounds: int, *, cuts: bool) -> list[Fault]:
    """As many faults, each kind in turn."""
    kinds = (
        [fault for group in zip(KILLS + PAUSES, CUTS + CUTS, strict=False) for fault in group]
        if cuts
        else KILLS + PAUSES
    )
    return list(itertools.islice(itertools.cycle(kinds), rounds))


def test_nobody_sees_an_anomaly_whatever_fails(tmp_path: Path, rounds: int) -> None:
    cuts = rounds > len(KILLS)
    lanes = [
        Lane("plain", consumes=False, timeout_ms=BRIEF_TIMEOUT_MS if cuts else TIMEOUT_MS),
        Lane("moving", consumes=True, timeout_ms=TIMEOUT_MS),
    ]
    if cuts:
        lanes.append(Lane("moving-2", consumes=True, timeout_ms=TIMEOUT_MS))
    loops.run(judged(tmp_path, rounds, lanes, cuts=cuts))


@pytest.mark.skipif(not java_project.IS_POSSIBLE, reason=java_project.REASON)
def test_nor_do_clients_of_the_new_protocol(tmp_path: Path, few_rounds: int) -> None:
    """In the short form one Java process, whose coordinator is killed; in the long one beside one of librdkafka."""
    java_project.built()
    cuts = few_rounds > len(KILLS)
    lanes = [Lane("moving", consumes=True, timeout_ms=TIMEOUT_MS, is_java=True)]
    if few_rounds > 1:
        timeout_ms = BRIEF_TIMEOUT_MS if cuts else TIMEOUT_MS
        lanes.append(Lane("plain", consumes=False, timeout_ms=timeout_ms, is_java=True))
        lanes.append(Lane("old", consumes=True, timeout_ms=TIMEOUT_MS))
    loops.run(judged(tmp_path, few_rounds, lanes, cuts=cuts))


async def judged(root: Path, rounds: int, lanes: Sequence[Lane], *, cuts: bool) -> None:
    async with brokers(root, cuts=cuts) as (cluster, network), cluster_of(cluster.bootstrap) as client:
        admin = AdminClient({"bootstrap.servers": cluster.bootstrap, **QUIET})
        await asyncio.to_thread(admin.create_topics([NewTopic(TOPIC, PARTITIONS, 3)])[TOPIC].result, DEADLINE_S)
        async with transacting_in(cluster.bootstrap, TOPIC, PARTITIONS, root, lanes) as transactors:
            registers = [transactors.register(lane) for lane in lanes if lane.consumes]
            about = (cluster.bootstrap, transactors.history, transactors.partitions, registers)
            async with reading_from(*about) as readers:
                scene = Scene(
                    cluster=cluster,
                    network=network,
                    client=client,
                    transactors=transactors,
                    random=random.Random(rounds),
                )
                for number, fault in enumerate(faults(rounds, cuts=cuts), 1):
                    await transactors.ended(BEFORE_EACH_FAULT)
                    print(f"round {number} of {rounds}: {fault.__name__}", flush=True)
                    await fault(scene)
                await transactors.ended(BEFORE_EACH_FAULT)
                await transactors.finish()
                for lane in lanes:
                    await Transactions(client).end(lane.name)  # its markers are written then
                hanging = await Transactions(client).open_in([TOPIC])
                assert not hanging, f"nobody will end these: {hanging}"
                ending = await readers.ending(registers)
        print(transactors.counted(), flush=True)
        found = list(anomalies(transactors.history, ending))
        assert not found, "\n".join(f"{kind}: {what}" for kind, what in found[:10])


@asynccontextmanager
async def brokers(root: Path, *, cuts: bool) -> AsyncIterator[tuple[BrokerCluster, Network | None]]:
    """Three brokers, on a network that can be cut where there are `cuts`: that has no warm starts."""
    if not cuts:
        async with BrokerCluster(root, len(BROKERS), *OPTIONS) as cluster:
            await cluster.start(*BROKERS)
            yield cluster, None
        return
    async with permitted()(BROKERS) as network, Cluster(root, network, *OPTIONS) as cluster:
        await cluster.start(*BROKERS)
        yield cluster, network
