"""The bytes that a new replica of a partition with durable history takes from its leader.

python -m benchmarks.micro.new_replica [--mb 5000] [--without-history]

Two brokers run as processes, with page cache (flush.policy=os), segments of 64 MB, and a directory as the store. The
partition is filled, all of it is exported, and the other broker becomes a replica.

Prints the bytes of all the leader's answers from then until the replica was in sync (sent to anybody, so an upper
bound). It also prints how long that took, and the size of the replica's log.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import shutil
import tempfile
import time
import urllib.request
from pathlib import Path
from typing import Any

import confluent_kafka
from confluent_kafka.admin import AdminClient, NewTopic

from headrace.net import loops
from headrace.net.client.cluster import Cluster as Client
from headrace.net.client.replicas.reassignments import reassign
from tools.servers.broker_cluster import BrokerCluster

VALUE_BYTES = 900_000
TOPIC = "history"
OUT = "kafka_network_socketserver_bytesout_total"


def fill(bootstrap: str, count: int) -> None:
    producer = confluent_kafka.Producer(
        {"bootstrap.servers": bootstrap, "acks": "all", "linger.ms": 0, "queue.buffering.max.kbytes": 64_000}
    )
    value = b"v" * VALUE_BYTES
    for _ in range(count):
        while True:
            try:
                producer.produce(TOPIC, value, partition=0)
                break
            except BufferError:
                producer.poll(0.05)
        producer.poll(0)
    assert producer.flush(300) == 0


def sent(cluster: BrokerCluster, broker: int) -> int:
    """Bytes of answers, as its metrics say."""
    lines = (json.loads(line) for line in cluster.log(broker).read_text().splitlines() if line.startswith("{"))
    url = [line["url"] for line in lines if line.get("event") == "metrics"][-1]
    with urllib.request.urlopen(url) as answer:
        text = answer.read().decode()
    return int(float(next(line.split()[-1] for line in text.splitlines() if line.startswith(OUT))))


def bytes_in(directory: Path, pattern: str) -> int:
    return sum(path.stat().st_size for path in directory.rglob(pattern))


async def until(true: Any) -> None:
    while not await asyncio.get_running_loop().run_in_executor(None, true):  # noqa: ASYNC110
        await asyncio.sleep(0.1)


async def measured(root: Path, size: int, *, with_history: bool) -> None:
    configs = ["metrics.listen=127.0.0.1:0", "flush.policy=os", "log.retention.check.interval.ms=3600000"]
    options = ["--json", *(part for each in configs for part in ("--config", each))]
    if with_history:
        options += ["--durable", f"file://{root / 'store'}"]
    async with BrokerCluster(root, 2, *options) as cluster:
        await cluster.start(*cluster.nodes)
        admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
        config = {"segment.bytes": str(64 << 20), "durable.export.max.lag.ms": "1000"}
        loop = asyncio.get_running_loop()
        made = admin.create_topics([NewTopic(TOPIC, 1, 1, config=config)])[TOPIC]
        await loop.run_in_executor(None, made.result)
        count = size // VALUE_BYTES
        await loop.run_in_executor(None, fill, cluster.bootstrap, count)
        if with_history:
            await until(lambda: bytes_in(root / "store", "*.segment") >= count * VALUE_BYTES)

        def state() -> Any:
            return admin.list_topics(TOPIC, timeout=30).topics[TOPIC].partitions[0]

        leader = (await loop.run_in_executor(None, state)).leader
        (new,) = {1, 2} - {leader}
        before, begun = await loop.run_in_executor(None, sent, cluster, leader), time.perf_counter()
        async with Client(cluster.bootstrap) as client:
            await reassign(client, TOPIC, {0: (leader, new)})
        await until(lambda: len(state().isrs) == 2)
        seconds = time.perf_counter() - begun
        taken = await loop.run_in_executor(None, sent, cluster, leader) - before
        whole = bytes_in(cluster.nodes[leader].data / "logs" / f"{TOPIC}-0", "*.log")
        copied = bytes_in(cluster.nodes[new].data / "logs" / f"{TOPIC}-0", "*.log")
        print(
            f"partition of {whole / 1e6:.0f} MB: the leader sent {taken / 1e3:.1f} kB until the replica was in sync "
            f"({100 * taken / whole:.4f} %), in {seconds:.1f} s; its log holds {copied / 1e3:.1f} kB"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mb", type=int, default=5000)
    parser.add_argument("--without-history", action="store_true")
    arguments = parser.parse_args()
    root = Path(tempfile.mkdtemp(prefix="headrace-replica-"))
    try:
        loops.run(measured(root, arguments.mb * 1_000_000, with_history=not arguments.without_history))
    finally:
        shutil.rmtree(root)


if __name__ == "__main__":
    main()
