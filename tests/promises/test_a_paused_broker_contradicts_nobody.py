"""Promises 1 to 5, with real processes and a broker that is paused (SIGSTOP) until others have taken over.

When it goes on it tells nobody anything that the others' records contradict: two leaders never both acknowledge.
Requests that it gets or has meanwhile are answered once it is back. Those answers, and all others, are judged by later
reads of clients, and by the data on every replica (`tests.promises.support.records`).
"""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Final

from tests import loops
from tests.promises.support import insiders
from tests.promises.support.load import PARTITIONS
from tests.promises.support.records import Records, patient_options, under_records
from tools.servers.broker_cluster import BrokerCluster

BROKERS: Final = 3
BEFORE_EACH_PAUSE: Final = 500
"""Acknowledgements that each producer waits for, so that a pause meets a busy cluster."""
WHILE_PAUSED: Final = 250
ANSWERS_AFTERWARDS: Final = 30
"""Of the broker that was stopped, to clients that ask it alone: what it was at, and more."""
VICTIMS: Final = ("leader", "controller", "leader")


async def whom(records: Records, victim: str, number: int) -> int:
    if victim == "controller":
        return await records.controller()
    return (await records.partition(insiders.TOPIC, number % PARTITIONS, 1)).leader_id


def test_a_broker_that_stood_still_while_others_took_over_contradicts_nobody(tmp_path: Path, few_rounds: int) -> None:
    async def work() -> None:
        async with BrokerCluster(tmp_path, BROKERS, *patient_options()) as cluster, under_records(cluster) as records:
            for number, victim in enumerate(itertools.islice(itertools.cycle(VICTIMS), few_rounds)):
                await records.in_sync()
                await records.acknowledged(BEFORE_EACH_PAUSE)
                paused = await whom(records, victim, number)
                another = paused % BROKERS + 1
                print(f"round {number + 1} of {few_rounds}: SIGSTOP of {paused}, {victim}", flush=True)
                cluster.pause(paused)
                await records.led_by_others(paused, another)
                await records.acknowledged(WHILE_PAUSED)
                cluster.resume(paused)
                await records.insiders[paused].answered(ANSWERS_AFTERWARDS)

    loops.run(work())
