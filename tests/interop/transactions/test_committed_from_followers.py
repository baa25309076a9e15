"""librdkafka and the Java client with `client.rack` read committed records from a follower. Its log has long given way
to durable history, which it reads for them. They see exactly what was committed, in order."""

from __future__ import annotations

import asyncio
import hashlib
import json
import subprocess
from pathlib import Path
from random import Random
from typing import Any

import confluent_kafka
import pytest
from confluent_kafka import KafkaError, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from headrace.metadata.config_table import RACK_AWARE
from tests import loops
from tests.broker.group_broker import until
from tests.interop import java_project
from tests.interop.support.asking import asked
from tests.interop.support.samples import described
from tests.promises.support.load import QUIET
from tools.servers.broker_cluster import BrokerCluster

DEADLINE_S = 150.0
POLL_S = 60.0
LOOK_EVERY_S = 0.05
RACKS = {1: "a", 2: "b", 3: "c"}
RECORDS = 200
VALUE_BYTES = 400
TOPIC = {
    "segment.bytes": "16384",
    "local.retention.bytes": "0",
    "durable.enable": "true",
    "min.insync.replicas": "2",
}
Rows = list[tuple[int, bytes, bytes]]


def written(bootstrap: str) -> list[bytes]:
    """Write transactions that lie in one another, and more than one segment long. Returns the committed values, in
    order."""
    random, order, lost = Random(3), list[tuple[Any, bytes]](), set[bytes]()
    servers = {"bootstrap.servers": bootstrap, "linger.ms": 0, **QUIET}
    producers = [Producer({**servers, "transactional.id": f"p{number}"}) for number in range(4)]
    pending: dict[Producer, set[bytes]] = {each: set() for each in producers}
    for each in producers:
        each.init_transactions(DEADLINE_S)
        each.begin_transaction()

    def end(one: Producer) -> None:
        commits = random.random() < 0.5
        (one.commit_transaction if commits else one.abort_transaction)(DEADLINE_S)
        lost.update(() if commits else pending[one])
        pending[one].clear()

    for number in range(RECORDS):
        chosen = random.choice(producers)
        value = (b"%d" % number).ljust(VALUE_BYTES, b".")
        chosen.produce("t", value, key=b"key", partition=0)
        assert chosen.flush(DEADLINE_S) == 0
        order.append((chosen, value))
        pending[chosen].add(value)
        if random.random() < 0.05:
            end(chosen)
            chosen.begin_transaction()
    for each in producers:
        end(each)
    return [value for _, value in order if value not in lost]


def local_start(data: Path) -> int:
    """Where a broker's log of the topic begins, by its files; -1: it has none."""
    return min((int(file.stem) for file in (data / "logs" / "t-0").glob("*.log")), default=-1)


def read(bootstrap: str, rack: str, isolation: str) -> tuple[Rows, dict[int, int]]:
    """All of the topic as librdkafka reads it in a rack, and the bytes received from each broker."""
    received: dict[int, int] = {}

    def on_statistics(text: str) -> None:
        received.update({each["nodeid"]: each["rxbytes"] for each in json.loads(text)["brokers"].values()})

    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": bootstrap,
            "client.rack": rack,
            "group.id": "by-rack",
            "auto.offset.reset": "error",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "isolation.level": isolation,
            "statistics.interval.ms": 100,
            "stats_cb": on_statistics,
            "check.crcs": True,
            **QUIET,
        }
    )
    consumer.assign([TopicPartition("t", 0, 0)])
    rows: Rows = []
    try:
        while True:
            message = consumer.poll(POLL_S)
            assert message is not None, f"nothing more comes behind {rows[-1:]}"
            if (error := message.error()) is None:
                rows.append((message.offset(), message.key(), message.value()))
                continue
            assert error.code() == KafkaError._PARTITION_EOF, error
            size = sum(len(row[2]) for row in rows)
            while sum(received.values()) < size:
                consumer.poll(LOOK_EVERY_S)
            return rows, received
    finally:
        consumer.close()


def digest(rows: Rows) -> str:
    return hashlib.sha256(b"".join(b"%d %s %s\n" % row for row in rows)).hexdigest()


@pytest.mark.skipif(not java_project.IS_POSSIBLE, reason=java_project.REASON)
def test_a_follower_gives_readers_of_history_what_was_committed(tmp_path: Path) -> None:
    async def work() -> None:
        command = await asyncio.to_thread(java_project.built)
        configs = (
            f"replica.selector.class={RACK_AWARE}",
            f"durable.url=file://{tmp_path / 'store'}",
            "log.retention.check.interval.ms=20",
        )
        options = [option for config in configs for option in ("--config", config)]
        async with BrokerCluster(tmp_path / "brokers", 3, *options, racks=RACKS) as cluster:
            await cluster.start(1, 2, 3)
            admin = AdminClient({"bootstrap.servers": cluster.bootstrap, **QUIET})
            admin.create_topics([NewTopic("t", 1, 3, config=TOPIC)])["t"].result(DEADLINE_S)
            wanted = await asyncio.to_thread(written, cluster.bootstrap)
            (partition,) = described(admin, "t", 1)
            for each in partition.replicas:
                data = cluster.nodes[each].data
                await until(lambda data=data: local_start(data) >= RECORDS // 2)  # type: ignore[misc]
            follower = next(each for each in partition.replicas if each != partition.leader)
            await asyncio.to_thread(check, cluster.bootstrap, follower, wanted, command)

    loops.run(work())


def check(bootstrap: str, follower: int, wanted: list[bytes], command: list[str]) -> None:
    process = subprocess.Popen(
        [*command, "headrace.interop.Main", bootstrap], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    with asked(process) as ask:
        for isolation in ("read_committed", "read_uncommitted"):
            rows, received = read(bootstrap, RACKS[follower], isolation)
            size = len(rows) * VALUE_BYTES
            assert received[follower] > 0.9 * size, f"{received} of {size} bytes"
            values = [row[2] for row in rows]
            assert values == wanted if isolation == "read_committed" else len(values) == RECORDS
            assert ask(f"digest t {isolation} {digest(rows)} {RACKS[follower]} {follower} {int(0.9 * size)}") == "ok"
