"""Promise: whatever directions between brokers are cut, nothing acknowledged is lost, and a majority goes on. A broker
that cannot reach the controller says so with an error that a client retries.

Three real processes have topics created and deleted without a pause, through each of them, on a network that is cut
(`tests.promises.support.networks`). The cuts are the controller from the others, one broker from all, two from each
other, and one direction only. The oracle is on the client's side, and after healing every broker tells the same.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, Final

from headrace.wire.messages.metadata import MetadataRequest
from tests import loops
from tests.broker.group_broker import RawClient
from tests.promises.support.changes import DEADLINE_S, Ledger, Writer, controller, told_by
from tests.promises.support.networks import Cluster, Network, permitted

BROKERS: Final = (1, 2, 3)
PATIENCE_MS: Final = 1_000
BEFORE_EACH_CUT: Final = 10
"""Acknowledgements that are waited for, so that a cut meets a busy cluster."""
WHILE_CUT: Final = 10


async def the_controller_from_all(network: Network, ledger: Ledger, leads: int) -> None:
    await network.isolate(leads)
    await goes_on(ledger, without=leads)


async def a_broker_from_all(network: Network, ledger: Ledger, leads: int) -> None:
    other = next(broker for broker in BROKERS if broker != leads)
    await network.isolate(other)
    await goes_on(ledger, without=other)


async def the_controller_from_one(network: Network, ledger: Ledger, leads: int) -> None:
    """A broker that hears both sides prevents a second controller."""
    one, both = (broker for broker in BROKERS if broker != leads)
    await network.cut(leads, one)
    await network.cut(one, leads)
    await ledger.wait_for(WHILE_CUT, through=[both])


async def nobody_hears_the_controller(network: Network, ledger: Ledger, leads: int) -> None:
    for other in BROKERS:
        if other != leads:
            await network.cut(leads, other)
    await goes_on(ledger, without=leads)


async def the_controller_hears_nobody(network: Network, ledger: Ledger, leads: int) -> None:
    for other in BROKERS:
        if other != leads:
            await network.cut(other, leads)
    await goes_on(ledger, without=leads)


async def goes_on(ledger: Ledger, *, without: int) -> None:
    """Those who can agree do, and the other refuses, once it knows: from then on it acknowledges nothing."""
    await ledger.wait_for_refusals(1, through=without)
    acknowledged = ledger.acknowledged[without]
    await ledger.wait_for(WHILE_CUT, through=[broker for broker in BROKERS if broker != without])
    await ledger.wait_for_refusals(1, through=without)
    assert ledger.acknowledged[without] == acknowledged, "nothing is decided by who is alone"


CUTS: Final[tuple[Callable[[Network, Ledger, int], Awaitable[None]], ...]] = (
    the_controller_from_all,
    nobody_hears_the_controller,
    the_controller_from_one,
    the_controller_hears_nobody,
    a_broker_from_all,
)


def test_no_acknowledged_change_is_lost_by_a_network_that_is_cut(tmp_path: Path, rounds: int) -> None:
    loops.run(_cut_again_and_again(tmp_path, rounds))


async def _cut_again_and_again(directory: Path, rounds: int) -> None:
    ledger = Ledger()
    async with permitted()(BROKERS) as network, Cluster(directory, network, "--json") as cluster:
        await cluster.start(*BROKERS)
        writers = [Writer(cluster, broker, ledger, patience_ms=PATIENCE_MS) for broker in BROKERS]
        for number, cut in enumerate(itertools.islice(itertools.cycle(CUTS), rounds), 1):
            await ledger.wait_for(BEFORE_EACH_CUT, through=BROKERS)
            leads = await controller(cluster, 1)
            await cut(network, ledger, leads)
            await network.heal()
            changes, refusals = ledger.acknowledged.total(), ledger.refused.total()
            print(f"round {number} of {rounds}: {cut.__name__}, {changes} changes, {refusals} refusals", flush=True)
        await ledger.wait_for(BEFORE_EACH_CUT, through=BROKERS)
        for writer in writers:
            await writer.stop()
        ledger.check(await _agreed(cluster))
        assert await cluster.stop(*BROKERS) == [0, 0, 0]


async def _agreed(cluster: Cluster) -> dict[str, Any]:
    """The state that all brokers tell, once all are back."""
    async with asyncio.timeout(DEADLINE_S):
        for broker in BROKERS:
            async with RawClient(str(cluster.address(broker))) as client:
                while len((await client.ask(12, MetadataRequest(topics=()))).brokers) < len(BROKERS):
                    await told_by(cluster, broker)
        while True:
            images = [await told_by(cluster, broker) for broker in BROKERS]
            if images[0] == images[1] == images[2]:
                return images[0]
