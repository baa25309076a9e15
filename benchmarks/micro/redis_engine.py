"""The Redis engine beside its limit and beside local logs: `python -m benchmarks.micro.redis_engine`.

One librdkafka producer, idempotent with `acks=all`, writes batches of 16 KB to one partition, and one consumer reads
them. They take turns on three rivals:

- `bare`: a loop over our own connection to Redis that pipelines XADD, or XRANGE, with batches of the same size. It is
  the limit: no broker can be faster there.
- `redis`: `headrace up --engine redis` over a Valkey that syncs each answer (`appendfsync always`).
- `local`: `headrace up` with its own logs, which sync too.

Figures are MB of record values a second, and medians over the turns. Latencies are those of 5,000 records a second, in
milliseconds. Memory is the broker's. `--keep` appends all to benchmarks/results/redis-engine.jsonl.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Final

import confluent_kafka
import psutil
from confluent_kafka.admin import AdminClient, NewTopic

from benchmarks.load import results
from headrace.net import loops
from headrace.storage.redis.links.address import Credentials
from headrace.storage.redis.links.connection import Connection, Place, connect
from tools.broker_process import BrokerProcess
from tools.redis_servers import RedisServer, valkey

SIZES: Final = {"1k": (1024, 100_000), "100b": (100, 400_000)}
"""Bytes of a record, and records of a run."""
BATCH_BYTES: Final = 16 * 1024
WINDOW: Final = 5
"""Batches in flight, as librdkafka's idempotent producer has."""
READ_ENTRIES: Final = 64
RATE: Final = 5_000
SECONDS: Final = 4
TICK_S: Final = 0.001
MEGABYTE: Final = 1_000_000
SAFE: Final = ("--appendonly", "yes", "--appendfsync", "always")
QUIET: Final[Mapping[str, Any]] = {"log_level": 0}


def write(bootstrap: str, topic: str, size: int, count: int) -> float:
    """Send so many records; returns the seconds until the last is acknowledged."""
    options = {"bootstrap.servers": bootstrap, "enable.idempotence": True, "acks": "all", "linger.ms": 5}
    options |= {"batch.size": BATCH_BYTES, "queue.buffering.max.messages": 100_000}
    producer = confluent_kafka.Producer(options | dict(QUIET))
    value, started = os.urandom(size), time.perf_counter()
    for _ in range(count):
        while True:
            try:
                producer.produce(topic, value, partition=0)
                break
            except BufferError:
                producer.poll(0.01)
        producer.poll(0)
    assert producer.flush(120) == 0
    return time.perf_counter() - started


def read(bootstrap: str, topic: str, count: int) -> float:
    """Read them all from the start; returns the seconds."""
    options = {"bootstrap.servers": bootstrap, "group.id": "bench", "enable.auto.commit": False}
    consumer = confluent_kafka.Consumer(options | dict(QUIET))
    consumer.assign([confluent_kafka.TopicPartition(topic, 0, 0)])
    found, started = 0, time.perf_counter()
    while found < count:
        found += len(consumer.consume(10_000, timeout=0.5))
    seconds = time.perf_counter() - started
    consumer.close()
    return seconds


def steady(bootstrap: str, topic: str) -> list[float]:
    """Latencies at RATE records of 1 KB a second, in milliseconds, without the first tenth."""
    options = {"bootstrap.servers": bootstrap, "enable.idempotence": True, "acks": "all", "linger.ms": 0}
    producer = confluent_kafka.Producer(options | dict(QUIET))
    value, took = os.urandom(1024), list[float]()
    began = time.perf_counter()
    for tick in range(int(SECONDS / TICK_S)):
        sent = time.perf_counter()

        def on_delivery(error: object, _: object, sent: float = sent) -> None:
            assert error is None, error
            took.append(1000 * (time.perf_counter() - sent))

        for _ in range(int(RATE * TICK_S)):
            producer.produce(topic, value, partition=0, on_delivery=on_delivery)
        while (left := began + (tick + 1) * TICK_S - time.perf_counter()) > 0:
            producer.poll(left)
    assert producer.flush(60) == 0
    return took[len(took) // 10 :]


async def _bare_writes(connection: Connection, stream: str, data: bytes, count: int) -> float:
    """XADD with WINDOW in flight; returns the seconds."""
    over, started = asyncio.get_running_loop().create_future(), time.perf_counter()
    sent = answered = 0

    def send() -> None:
        nonlocal sent
        sent += 1
        connection.post(("XADD", stream, f"{sent}-0", "batch"), on_answer, (data,))

    def on_answer(reply: object) -> None:
        nonlocal answered
        assert not isinstance(reply, Exception), reply
        answered += 1
        if sent < count:
            send()
        elif answered == count:
            over.set_result(None)

    for _ in range(min(WINDOW, count)):
        send()
    await over
    return time.perf_counter() - started


async def _bare_reads(connection: Connection, stream: str) -> float:
    at, started = "-", time.perf_counter()
    while found := await connection.call("XRANGE", stream, at, "+", "COUNT", READ_ENTRIES):
        at = "(" + found[-1][0].decode()
    return time.perf_counter() - started


async def _bare_steady(connection: Connection) -> list[float]:
    """XADD of one tick's records in one entry; latencies in milliseconds, without the first tenth."""
    data, took = os.urandom(1024 * int(RATE * TICK_S)), list[float]()
    began, ticks = time.perf_counter(), int(SECONDS / TICK_S)
    over = asyncio.get_running_loop().create_future()

    def on_answer(sent: float, _: object) -> None:
        took.append(1000 * (time.perf_counter() - sent))
        if len(took) == ticks:
            over.set_result(None)

    for tick in range(ticks):
        done = partial(on_answer, time.perf_counter())
        connection.post(("XADD", "steady", f"{tick + 1}-0", "batch"), done, (data,))
        await asyncio.sleep(max(0.0, began + (tick + 1) * TICK_S - time.perf_counter()))
    await over
    return took[len(took) // 10 :]


def bare(server: RedisServer) -> dict[str, float]:
    """All figures of the bare loop."""

    async def work() -> dict[str, float]:
        connection = await connect(Place(path=str(server.socket)), Credentials())
        found: dict[str, float] = {}
        for name, (size, count) in SIZES.items():
            total = size * count
            wrote = await _bare_writes(connection, name, os.urandom(BATCH_BYTES), total // BATCH_BYTES)
            found[f"produce-{name}"] = total / MEGABYTE / wrote
            found[f"fetch-{name}"] = total / MEGABYTE / await _bare_reads(connection, name)
        found["p99-ms"] = _p99(await _bare_steady(connection))
        await connection.call("FLUSHALL")
        await connection.close()
        return found

    return loops.run(work())


def broker(process: BrokerProcess, turn: int) -> dict[str, float]:
    """All figures of a broker, and its memory at the end in MB."""
    admin = AdminClient({"bootstrap.servers": process.bootstrap, **QUIET})
    names = [*SIZES, "steady"]
    for made in admin.create_topics([NewTopic(f"{name}-{turn}", 1, 1) for name in names]).values():
        made.result(30)
    found: dict[str, float] = {}
    for name, (size, count) in SIZES.items():
        topic, total = f"{name}-{turn}", size * count
        found[f"produce-{name}"] = total / MEGABYTE / write(process.bootstrap, topic, size, count)
        found[f"fetch-{name}"] = total / MEGABYTE / read(process.bootstrap, topic, count)
    found["p99-ms"] = _p99(steady(process.bootstrap, f"steady-{turn}"))
    found["memory-mb"] = psutil.Process(process.pid).memory_info().rss / MEGABYTE
    for gone in admin.delete_topics([f"{name}-{turn}" for name in names]).values():
        gone.result(30)
    return found


def _p99(took: list[float]) -> float:
    return sorted(took)[int(len(took) * 0.99)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--keep", action="store_true")
    options = parser.parse_args()
    turns: dict[str, list[dict[str, float]]] = {"bare": [], "redis": [], "local": []}
    with (
        tempfile.TemporaryDirectory(prefix="hr") as place,
        tempfile.TemporaryDirectory(prefix="hr") as bare_place,
        tempfile.TemporaryDirectory() as data,
        RedisServer(valkey(), Path(place), SAFE) as server,
        RedisServer(valkey(), Path(bare_place), SAFE) as bare_server,
        BrokerProcess(_made(Path(data) / "redis"), "--engine", "redis", "--redis", server.url) as on_redis,
        BrokerProcess(_made(Path(data) / "local")) as local,
    ):
        work: dict[str, Callable[[int], dict[str, float]]] = {
            "bare": lambda turn: bare(bare_server),
            "redis": lambda turn: broker(on_redis, turn),
            "local": lambda turn: broker(local, turn),
        }
        for turn in range(options.turns + 1):  # the first warms up
            for name in list(work)[:: 1 if turn % 2 == 0 else -1]:
                found = work[name](turn)
                print(turn or "warm-up", name, {key: round(value, 2) for key, value in found.items()}, flush=True)
                if turn:
                    turns[name].append(found)
    medians = {
        name: {key: statistics.median(each[key] for each in found) for key in found[0]} for name, found in turns.items()
    }
    for key in medians["redis"]:
        figures = {name: round(of[key], 2) for name, of in medians.items() if key in of}
        ratio = f", redis/bare {medians['redis'][key] / medians['bare'][key]:.2f}" if key in medians["bare"] else ""
        print(f"{key}: {figures}{ratio}")
    if options.keep:
        results.append("redis-engine", {"case": "redis-engine", "turns": turns, "medians": medians})


def _made(directory: Path) -> Path:
    directory.mkdir(parents=True)
    return directory


if __name__ == "__main__":
    main()
