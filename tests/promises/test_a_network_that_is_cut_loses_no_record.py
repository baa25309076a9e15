"""Promises 1 to 5, with real processes on a network that is cut under records.

A leader is cut off from its followers, from the controller, from all, or in one direction only; a follower from its
leader. Clients reach every broker all the time. Those that ask many brokers continue with any that can serve. Others
ask one only (`tests.promises.support.insiders`). Where that one is on the minority's side, it tells them nothing that
the majority contradicts.
"""

from __future__ import annotations

import itertools
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Final, NamedTuple

from tests import loops
from tests.promises.support import insiders
from tests.promises.support.load import PARTITIONS
from tests.promises.support.networks import Cluster, Network, permitted
from tests.promises.support.records import Records, patient_options, under_records

BROKERS: Final = (1, 2, 3)
BEFORE_EACH_CUT: Final = 500
"""Acknowledgements that each producer waits for, so that a cut meets a busy cluster."""
LAG_MS_MAX: Final = 15_000
"""Of a follower that hears the controller and not its leader: then it leaves the ISR."""
WHILE_CUT: Final = 250
ANSWERS: Final = 30
"""Of the broker that is cut off, to clients that ask it alone, while it is and afterwards."""


class Scene(NamedTuple):
    network: Network
    records: Records
    leader: int
    """Of some partition."""
    controller: int

    @property
    def followers(self) -> list[int]:
        return [broker for broker in BROKERS if broker != self.leader]

    async def replaced(self) -> None:
        """The leader is, by the others; clients go on with them, and those of the old leader alone are answered."""
        other = next(broker for broker in self.followers if broker != self.controller)
        await self.records.led_by_others(self.leader, other)
        await self.go_on(self.leader)

    async def go_on(self, cut_off: int) -> None:
        await self.records.acknowledged(WHILE_CUT)
        await self.records.insiders[cut_off].answered(ANSWERS)


async def the_leader_from_all(scene: Scene) -> None:
    await scene.network.isolate(scene.leader)
    await scene.replaced()


async def the_leader_from_the_controller(scene: Scene) -> None:
    """Some of its followers, and the clients, still hear both."""
    if scene.leader == scene.controller:
        await the_leader_from_all(scene)
        return
    await cut(scene.network, scene.leader, scene.controller)
    await scene.replaced()


async def the_leader_from_a_follower(scene: Scene) -> None:
    """Where both still hear the controller, the follower leaves the ISR, and nobody has to be replaced."""
    follower = next(broker for broker in scene.followers if broker != scene.controller)
    await cut(scene.network, scene.leader, follower)
    await scene.go_on(follower)


async def nobody_hears_the_leader(scene: Scene) -> None:
    for other in scene.followers:
        await scene.network.cut(scene.leader, other)
    await scene.replaced()


async def the_leader_hears_nobody(scene: Scene) -> None:
    for other in scene.followers:
        await scene.network.cut(other, scene.leader)
    await scene.replaced()


async def cut(network: Network, one: int, other: int) -> None:
    await network.cut(one, other)
    await network.cut(other, one)


CUTS: Final[tuple[Callable[[Scene], Awaitable[None]], ...]] = (
    the_leader_from_all,
    the_leader_from_a_follower,
    nobody_hears_the_leader,
    the_leader_from_the_controller,
    the_leader_hears_nobody,
)


def test_no_acknowledged_record_is_lost_by_a_network_that_is_cut(tmp_path: Path, few_rounds: int) -> None:
    async def work() -> None:
        async with (
            permitted()(BROKERS) as network,
            Cluster(tmp_path, network, *patient_options(LAG_MS_MAX)) as cluster,
            under_records(cluster) as records,
        ):
            for number, happens in enumerate(itertools.islice(itertools.cycle(CUTS), few_rounds)):
                await records.in_sync()
                await records.acknowledged(BEFORE_EACH_CUT)
                leader = (await records.partition(insiders.TOPIC, number % PARTITIONS, 1)).leader_id
                scene = Scene(network, records, leader, await records.controller())
                print(f"round {number + 1} of {few_rounds}: {happens.__name__}, {leader} leads", flush=True)
                await happens(scene)
                await network.heal()
                await records.insiders[leader].answered(ANSWERS)

    loops.run(work())
