"""Durable history read through a broker, beside equal records read from its log, by librdkafka, in one run.

python -m benchmarks.micro.history [--mb 1000] [--s3]

Prints MB/s of the hot and of the cold read, and the 50th and 99th percentile of a produce with acks=all. That is
measured alone, beside a reader of the log, and beside one of history. Each reader is a process of its own and reads as
fast as it can. The store is a directory, or the S3-compatible server of the tests, on the same cores.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import confluent_kafka
from confluent_kafka.admin import AdminClient, ConfigEntry, ConfigResource, NewTopic, ResourceType

from headrace.base.ids import PartitionIndex
from headrace.storage.tier.reader import Store
from tools.servers.broker_process import BrokerProcess
from tools.servers.s3_server import S3Server

RECORD_BYTES = 1024
TOPIC, HOT = "history", "hot"


def produce(bootstrap: str, count: int) -> None:
    producer = confluent_kafka.Producer(
        {"bootstrap.servers": bootstrap, "acks": "all", "linger.ms": 5, "queue.buffering.max.kbytes": 200_000}
    )
    value = b"v" * RECORD_BYTES
    for _ in range(count):
        while True:
            try:
                producer.produce(TOPIC, value, partition=0)
                break
            except BufferError:
                producer.poll(0.1)
        producer.poll(0)
    assert producer.flush(120) == 0


def read(bootstrap: str, count: int) -> float:
    """Read records from offset 0; returns MB/s of their values. When more arrives than is taken out, librdkafka stops
    fetching, by its own settings for a second. Then the faster side would be measured as slower."""
    options = {"enable.auto.commit": False, "auto.offset.reset": "error", "fetch.queue.backoff.ms": 1}
    consumer: Any = confluent_kafka.Consumer({"bootstrap.servers": bootstrap, "group.id": "g", **options})
    consumer.assign([confluent_kafka.TopicPartition(TOPIC, 0, 0)])
    begun, seen = time.perf_counter(), 0
    while seen < count:
        messages = consumer.consume(min(10_000, count - seen), 10)
        assert messages
        assert all(message.error() is None for message in messages)
        seen += len(messages)
    seconds = time.perf_counter() - begun
    consumer.close()
    return count * RECORD_BYTES / seconds / 1e6


def latencies(bootstrap: str, seconds: float) -> tuple[float, float]:
    """Of single produces, one after the other, in milliseconds: 50th and 99th percentile."""
    producer = confluent_kafka.Producer({"bootstrap.servers": bootstrap, "acks": "all", "linger.ms": 0})
    taken, end = [], time.perf_counter() + seconds
    while time.perf_counter() < end:
        begun = time.perf_counter()
        producer.produce(HOT, b"v" * 100, partition=0)
        assert producer.flush(30) == 0
        taken.append((time.perf_counter() - begun) * 1000)
    taken.sort()
    return taken[len(taken) // 2], taken[len(taken) * 99 // 100]


def read_on(bootstrap: str, count: int, under_way: Any) -> None:
    while True:
        read(bootstrap, count)
        under_way.set()


@contextmanager
def reader(bootstrap: str, count: int) -> Iterator[None]:
    """Somebody who reads all, over and over, in another process, and has done so once."""
    context = multiprocessing.get_context("spawn")
    under_way = context.Event()
    process = context.Process(target=read_on, args=(bootstrap, count, under_way))
    process.start()
    try:
        assert under_way.wait(120)
        yield
    finally:
        process.kill()
        process.join()


def keep_little(admin: AdminClient) -> None:
    entry = ConfigEntry("local.retention.bytes", "0", incremental_operation=confluent_kafka.admin.AlterConfigOpType.SET)
    resource = ConfigResource(ResourceType.TOPIC, TOPIC, incremental_configs=[entry])
    for future in admin.incremental_alter_configs([resource]).values():
        future.result()


def wait_for_export(url: str, count: int) -> None:
    """Until the mirror has so many records."""
    store = Store.open(url)
    while not any(topic.name == TOPIC for topic in store.topics()):
        time.sleep(0.5)
    topic = next(each for each in store.topics() if each.name == TOPIC)
    while store.catalog(topic, PartitionIndex(0)).next_offset < count:
        time.sleep(0.5)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mb", type=int, default=1000)
    parser.add_argument("--s3", action="store_true")
    arguments = parser.parse_args()
    count = arguments.mb * 1_000_000 // RECORD_BYTES
    root = Path(tempfile.mkdtemp(prefix="headrace-history-"))
    with ExitStack() as stack:
        stack.callback(shutil.rmtree, root)
        url = f"file://{root / 'store'}"
        if arguments.s3:
            server = stack.enter_context(S3Server(root / "s3"))
            os.environ.update(server.environment)
            url = server.url()
        measure(root, url, count)


def measure(root: Path, url: str, count: int) -> None:
    options = ("--durable", url, "--config", "log.retention.check.interval.ms=200")
    with BrokerProcess(root, *options) as broker:
        admin = AdminClient({"bootstrap.servers": broker.bootstrap})
        configs = {"segment.bytes": str(64 << 20), "durable.export.max.lag.ms": "500"}
        for name in (TOPIC, HOT):
            admin.create_topics([NewTopic(name, 1, 1, config=configs)])[name].result()
        produce(broker.bootstrap, count)
        wait_for_export(url, count)
        hot = [read(broker.bootstrap, count) for _ in range(2)][-1]
        waits = {"alone": latencies(broker.bootstrap, 10)}
        with reader(broker.bootstrap, count):
            waits["beside a reader of the log"] = latencies(broker.bootstrap, 10)
        keep_little(admin)
        log = broker.data / "logs" / f"{TOPIC}-0"
        while sum(file.stat().st_size for file in log.glob("*.log")) > 64 << 20:
            time.sleep(0.5)
        cold = [read(broker.bootstrap, count) for _ in range(2)][-1]
        with reader(broker.bootstrap, count):
            waits["beside a reader of history"] = latencies(broker.bootstrap, 10)
    print(f"hot read {hot:.0f} MB/s, cold read {cold:.0f} MB/s: {cold / hot:.2f} of it")
    for when, (median, slow) in waits.items():
        print(f"produce {when}: {median:.2f} ms at 50 %, {slow:.2f} at 99 %")


if __name__ == "__main__":
    main()
