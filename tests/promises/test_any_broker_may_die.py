"""Promises 1 to 5 over replicas, with real processes: any broker may die, or two, or all of them.

Acknowledged records are there, once, in order, at their offsets; clients continue by themselves.

Clusters have three brokers with three replicas, or five with three or five, two of which must be in sync. The producers
are librdkafka, with and without idempotence, and Kafka's Java client. A reader follows, through every death. The oracle
is on the client's side, with the data on each disk (tests/promises/support/records.py).
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from pathlib import Path
from typing import Final, NamedTuple

import pytest

from tests import loops
from tests.interop import java_project
from tests.promises.support import java
from tests.promises.support.java import JavaProducer
from tests.promises.support.load import PARTITIONS
from tests.promises.support.records import IDEMPOTENT, PLAIN, Records, Shape, under_records
from tools.servers.broker_cluster import BrokerCluster

BEFORE_EACH_DEATH: Final = 500
"""Acknowledgements that each producer waits for, so that a death meets a busy cluster."""
AFTER_A_DEATH: Final = 250


class Trial(NamedTuple):
    brokers: int
    victims: tuple[str | int, ...]
    shapes: Mapping[str, Shape]


OF_THREE: Final = Trial(
    3, ("leader", "controller", 1, "two", 2, "all", 3, "leader"), {IDEMPOTENT: Shape(), PLAIN: Shape()}
)
OF_FIVE: Final = Trial(
    5,
    ("two", "controller", "all", "leader", 1, "two", 2, 3, "all", 4, 5, "two"),
    {IDEMPOTENT: Shape(replicas=3), PLAIN: Shape(replicas=5)},
)
WITH_JAVA: Final = Trial(3, ("leader", "controller", "two", "all"), {**OF_THREE.shapes, java.TOPIC: Shape()})
needs_java = pytest.mark.skipif(not java_project.IS_POSSIBLE, reason=java_project.REASON)


async def whom(records: Records, victim: str | int, number: int) -> list[int]:
    brokers = list(records.cluster.nodes)
    if victim == "all":
        return brokers
    if victim == "two":
        return [brokers[(number + step) % len(brokers)] for step in range(2)]
    if isinstance(victim, int):
        return [victim]
    if victim == "controller":
        return [await records.controller()]
    leader = (await records.partition(IDEMPOTENT, number % PARTITIONS, 1)).leader_id
    return [leader] if leader in brokers else [1]


async def goes_on(records: Records, dead: int) -> None:
    """Clients do, where enough replicas are left."""
    if dead == 1:
        await records.acknowledged(AFTER_A_DEATH)
    elif 2 * dead < len(records.cluster.nodes):
        of_all = [name for name, shape in records.shapes.items() if shape.replicas == len(records.cluster.nodes)]
        await records.acknowledged(AFTER_A_DEATH, *of_all)


@pytest.mark.parametrize(
    "trial", [OF_THREE, OF_FIVE, pytest.param(WITH_JAVA, marks=needs_java)], ids=["three", "five", "java"]
)
def test_kill_9_of_any_brokers_loses_repeats_and_reorders_nothing_acknowledged(
    tmp_path: Path, few_rounds: int, trial: Trial
) -> None:
    async def work() -> None:
        cluster = BrokerCluster(tmp_path, trial.brokers, "--json")
        others = [JavaProducer(cluster.bootstrap)] if java.TOPIC in trial.shapes else []
        async with cluster, under_records(cluster, trial.shapes, others=others) as records:
            victims = itertools.islice(itertools.cycle(trial.victims), few_rounds)
            for number, victim in enumerate((*victims, "all")):
                await records.acknowledged(BEFORE_EACH_DEATH)
                if victim == "two":  # else it may be those two alone that have all that is acknowledged
                    await records.in_sync()
                killed = await whom(records, victim, number)
                print(f"round {number + 1} of {few_rounds + 1}: kill -9 of {killed}", flush=True)
                await cluster.kill(*killed)
                await goes_on(records, len(killed))
                await cluster.start(*killed)

    loops.run(work())
