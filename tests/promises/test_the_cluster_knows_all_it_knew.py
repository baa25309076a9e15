"""Promise: any broker may die at any moment, or all of them, and the cluster still knows all that it acknowledged.

Three real processes have topics created and deleted without a pause, through each of them. The controller is killed
(kill -9), then each broker in turn, and all at once. The oracle is on the client's side. Acknowledged topics are there,
topics with an acknowledged deletion are not, and every broker tells the same.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from tests import loops
from tests.promises.support.changes import DEADLINE_S, Ledger, Writer, controller, told_by
from tools.servers.broker_cluster import BrokerCluster

BROKERS: Final = (1, 2, 3)
BEFORE_EACH_KILL: Final = 20
"""Acknowledgements that are waited for, so that a kill meets a busy cluster."""
Victims = int | str


def victims(rounds: int) -> Sequence[Victims]:
    return list(itertools.islice(itertools.cycle(("controller", "all", 2, 1, "controller", 3)), rounds))


def test_kill_9_of_any_broker_or_all_loses_no_acknowledged_change(tmp_path: Path, rounds: int) -> None:
    loops.run(_killed_again_and_again(tmp_path, rounds))


async def _killed_again_and_again(directory: Path, rounds: int) -> None:
    ledger = Ledger()
    async with BrokerCluster(directory, len(BROKERS), "--json") as cluster:
        await cluster.start(*BROKERS)
        writers = [Writer(cluster, broker, ledger) for broker in BROKERS]
        for number, victim in enumerate(victims(rounds), 1):
            await ledger.wait_for(BEFORE_EACH_KILL)
            killed = await _whom(cluster, victim)
            await cluster.kill(*killed)
            if len(killed) == 1:
                await ledger.wait_for(BEFORE_EACH_KILL)  # the others go on
            await cluster.start(*killed)
            print(f"round {number} of {rounds}: killed {killed}, {ledger.acknowledged.total()} changes", flush=True)
        await ledger.wait_for(BEFORE_EACH_KILL)
        for writer in writers:
            await writer.stop()
        await _check(cluster, ledger)
        await cluster.kill(*BROKERS)
        await cluster.start(*BROKERS)
        await _check(cluster, ledger)
        assert await cluster.stop(*BROKERS) == [0, 0, 0]


async def _whom(cluster: BrokerCluster, victim: Victims) -> list[int]:
    if victim == "all":
        return list(BROKERS)
    return [await controller(cluster, 1) if victim == "controller" else int(victim)]


async def _check(cluster: BrokerCluster, ledger: Ledger) -> None:
    """Check that the required state is there at once. Elections that follow a broker's return come in slices where it
    has very many partitions. They may go on between two questions, so all are asked until they agree, as they must."""
    async with asyncio.timeout(DEADLINE_S):
        while True:
            images = [await told_by(cluster, broker) for broker in BROKERS]
            for image in images:
                ledger.check(image)
            if images[0] == images[1] == images[2]:
                return
