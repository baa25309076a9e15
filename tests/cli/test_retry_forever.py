"""`headrace consume --retry-forever` goes on through the death of the broker; without it the client gives up."""

from __future__ import annotations

import asyncio
import re
import subprocess
import sys
from pathlib import Path

import confluent_kafka
import pytest

from headrace.cli.work.consuming import TOLD_AGAIN_SECONDS, TOLD_FROM_FAILURE, Waiting
from headrace.net.client.cluster import Cluster
from headrace.net.client.errors import ClientError
from tools.servers.broker_cluster import BrokerCluster
from tools.servers.broker_process import BrokerProcess

TIMEOUT_S = 150.0


def produce(bootstrap: str, *values: bytes) -> None:
    client = confluent_kafka.Producer({"bootstrap.servers": bootstrap, "log_level": 0})
    for value in values:
        client.produce("t", value)
    assert client.flush(TIMEOUT_S) == 0


def consume(bootstrap: str, *options: str) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "headrace.cli.main", "consume", "t", "--bootstrap", bootstrap, *options]
    return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE)


def test_a_consumer_that_retries_for_ever_goes_on_where_it_stood(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path) as broker:
        produce(broker.bootstrap, b"one", b"two")
        reader = consume(broker.bootstrap, "--retry-forever", "--max", "3")
        assert reader.stdout is not None
        assert [reader.stdout.readline(), reader.stdout.readline()] == [b"one\n", b"two\n"]
        broker.kill()
        assert reader.stderr is not None
        told = reader.stderr.readline()
        assert re.fullmatch(rb"Waiting for [0-9]+ s: .+; tried again until it is there\.\n", told), told
        broker.start()
        produce(broker.bootstrap, b"three")
        rest, complaints = reader.communicate(timeout=TIMEOUT_S)
        assert (rest, reader.returncode) == (b"three\n", 0), complaints


def test_what_is_waited_for_is_told_once_in_a_while(capsys: pytest.CaptureFixture[str]) -> None:
    now = 100.0
    waiting = Waiting(lambda: now)
    away, moved = ClientError("The broker is away."), ClientError("Partition 0 has no leader.")
    waiting.tell(away, 1)
    now += 3
    waiting.tell(away, TOLD_FROM_FAILURE - 1)
    waiting.tell(away, TOLD_FROM_FAILURE)
    waiting.tell(away, TOLD_FROM_FAILURE + 1)
    waiting.tell(moved, TOLD_FROM_FAILURE + 2)
    now += TOLD_AGAIN_SECONDS
    waiting.tell(moved, TOLD_FROM_FAILURE + 3)
    told = capsys.readouterr()
    assert told.out == ""
    assert [line.partition(";")[0] for line in told.err.splitlines()] == [
        "Waiting for 3 s: The broker is away",
        "Waiting for 3 s: Partition 0 has no leader",
        f"Waiting for {3 + TOLD_AGAIN_SECONDS:g} s: Partition 0 has no leader",
    ]


async def test_over_several_brokers_it_finds_whoever_leads(tmp_path: Path) -> None:
    """The leader is killed, whose address it knows first; then all are, and are started again."""
    async with BrokerCluster(tmp_path, 3) as brokers:
        await brokers.start(1, 2, 3)
        await asyncio.to_thread(produce, brokers.bootstrap, b"one")
        async with Cluster(brokers.bootstrap) as client:
            leader = int((await client.partition("t", 0)).leader)
        first = ",".join(str(brokers.address(each)) for each in sorted((1, 2, 3), key=lambda each: each != leader))
        reader = consume(first, "--retry-forever", "--max", "3")
        assert reader.stdout is not None
        assert await asyncio.to_thread(reader.stdout.readline) == b"one\n"
        await brokers.kill(leader)
        await asyncio.to_thread(produce, brokers.bootstrap, b"two")
        assert await asyncio.to_thread(reader.stdout.readline) == b"two\n"
        await brokers.kill(*({1, 2, 3} - {leader}))
        await brokers.start(1, 2, 3)
        await asyncio.to_thread(produce, brokers.bootstrap, b"three")
        rest, complaints = await asyncio.to_thread(reader.communicate, timeout=TIMEOUT_S)
        assert (rest, reader.returncode) == (b"three\n", 0), complaints


def test_what_no_pause_heals_ends_it_at_once(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path) as broker:
        produce(broker.bootstrap, b"one")
        reader = consume(broker.bootstrap, "--retry-forever", "--partition", "0", "--offset", "5")
        out, complaints = reader.communicate(timeout=TIMEOUT_S)
        assert (out, reader.returncode) == (b"", 1)
        assert b"offset 5 is not there" in complaints
