"""The cost of many partitions in a broker: `make partitions`, `python -m benchmarks.micro.partitions [--partitions
10000]`.

Makes them, each with one batch, stops the broker, and starts it again. Then it writes one more batch to each, kills the
broker (SIGKILL), and starts it again. After each start it reports seconds to ready, resident memory, milliseconds of a
full Metadata answer (the median of five), and open files. Each is beside its promise for 10,000 after a clean stop.
`--kill` kills it already at the end of its first life, when no log has ever been closed. Linux only: it reads /proc.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

from headrace.base.limits import OPEN_SEGMENT_FILES_MAX
from headrace.wire.batches import encode_batch
from headrace.wire.messages.metadata import MetadataRequest
from headrace.wire.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from headrace.wire.records import Record
from tests.broker.data_path import create
from tests.broker.group_broker import RawClient
from tools.servers.broker_process import BrokerProcess

PER_TOPIC: Final = 1_000
STOP_S_MAX: Final = 600.0
"""A clean stop syncs every log."""
FILES_BESIDES_SEGMENTS: Final = 100
"""Sockets, the commit log, what the interpreter has open."""


class Figure(NamedTuple):
    """One measurement beside its promise."""

    name: str
    value: float
    most: float
    unit: str


async def make(bootstrap: str, partitions: int) -> None:
    """Topics of 1,000 partitions."""
    async with RawClient(bootstrap) as client:
        for name, count in topics(partitions):
            await create(client, name, count)


async def fill(bootstrap: str, partitions: int) -> None:
    """One batch more in each."""
    records = memoryview(encode_batch([Record(0, -1, None, b"v" * 100, ())]))
    async with RawClient(bootstrap) as client:
        for name, count in topics(partitions):
            data = tuple(PartitionProduceData(index=index, records=records) for index in range(count))
            request = ProduceRequest(
                acks=-1, timeout_ms=120_000, topic_data=(TopicProduceData(name=name, partition_data=data),)
            )
            (answer,) = (await client.ask(9, request)).responses
            assert all(partition.error_code == 0 for partition in answer.partition_responses)


def topics(partitions: int) -> list[tuple[str, int]]:
    """Names, and how many partitions each has."""
    firsts = range(0, partitions, PER_TOPIC)
    return [(f"many-{first // PER_TOPIC}", min(PER_TOPIC, partitions - first)) for first in firsts]


async def metadata_seconds(bootstrap: str, partitions: int) -> float:
    """The median of five, all topics, decoding left out."""
    seconds = []
    async with RawClient(bootstrap) as client:
        for _ in range(5):
            begun = time.perf_counter()
            frame = await client.ask_undecoded(12, MetadataRequest(topics=None))
            seconds.append(time.perf_counter() - begun)
            assert len(frame) > 20 * partitions
    return statistics.median(seconds)


def measure(broker: BrokerProcess, partitions: int, seconds_to_ready: float) -> list[Figure]:
    """Of a broker that has just started."""
    process = Path(f"/proc/{broker.pid}")
    answer_s = asyncio.run(metadata_seconds(broker.bootstrap, partitions))
    pages = int((process / "statm").read_text().split()[1])
    return [
        Figure("start", seconds_to_ready, 5, "s"),
        Figure("resident", pages * 4096 / 1e6, 400, "MB"),
        Figure("metadata", answer_s * 1000, 100, "ms"),
        files_of(broker)._replace(name="open files"),
    ]


def files_of(broker: BrokerProcess) -> Figure:
    """Open now, after all were written to."""
    files = len(list(Path(f"/proc/{broker.pid}/fd").iterdir()))
    return Figure("files then", files, OPEN_SEGMENT_FILES_MAX + FILES_BESIDES_SEGMENTS, "")


def run(directory: Path, partitions: int, *, kill: bool = False) -> Iterator[tuple[str, list[Figure]]]:
    """The event before each start, and the figures after it."""
    with BrokerProcess(directory, stop_timeout_s=STOP_S_MAX) as broker:
        asyncio.run(make(broker.bootstrap, partitions))
        asyncio.run(fill(broker.bootstrap, partitions))
        written = files_of(broker)
        if kill:
            broker.kill()
            yield "killed in its first life", [written, *started_again(broker, partitions)]
            return
        begun = time.perf_counter()
        broker.stop()
        stopped_s = time.perf_counter() - begun
        yield f"stopped cleanly, in {stopped_s:.1f} s", [written, *started_again(broker, partitions)]
        asyncio.run(fill(broker.bootstrap, partitions))
        broker.kill()
        yield "killed in its second life, each log written to", started_again(broker, partitions)


def started_again(broker: BrokerProcess, partitions: int) -> list[Figure]:
    begun = time.perf_counter()
    broker.start()
    return measure(broker, partitions, time.perf_counter() - begun)


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--partitions", type=int, default=10_000)
    parser.add_argument("--kill", action="store_true")
    options = parser.parse_args(arguments)
    missed = False
    with tempfile.TemporaryDirectory() as directory:
        for before, figures in run(Path(directory), options.partitions, kill=options.kill):
            print(f"{options.partitions} partitions, {before}", flush=True)
            for figure in figures:
                verdict = "" if figure.value <= figure.most else "  MISSED"
                print(f"  {figure.name:12} {figure.value:10.1f} {figure.unit:3} (at most {figure.most:g}){verdict}")
                missed = missed or figure.value > figure.most
    return int(missed)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
