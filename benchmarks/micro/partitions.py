"""How a broker bears many partitions: `python -m benchmarks.micro.partitions [--partitions 10000] [--kill]`.

Makes them, each with one batch, ends the broker (cleanly, or with `--kill` by SIGKILL), and starts it again: seconds to
ready, resident memory, seconds and bytes of a full Metadata answer (the median of five), and open files, each beside
what is promised for 10,000. Linux only: it reads /proc.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Final, NamedTuple

from headrace.base.limits import OPEN_SEGMENT_FILES_MAX
from headrace.wire.batches import encode_batch
from headrace.wire.messages.metadata import MetadataRequest
from headrace.wire.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from headrace.wire.records import Record
from tests.broker.data_path import create
from tests.broker.group_broker import RawClient
from tools.broker_process import BrokerProcess

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


async def fill(bootstrap: str, partitions: int) -> None:
    """Topics of 1,000 partitions, one batch in each."""
    records = memoryview(encode_batch([Record(0, -1, None, b"v" * 100, ())]))
    async with RawClient(bootstrap) as client:
        for first in range(0, partitions, PER_TOPIC):
            count = min(PER_TOPIC, partitions - first)
            name = f"many-{first // PER_TOPIC}"
            await create(client, name, count)
            data = tuple(PartitionProduceData(index=index, records=records) for index in range(count))
            request = ProduceRequest(
                acks=-1, timeout_ms=120_000, topic_data=(TopicProduceData(name=name, partition_data=data),)
            )
            (answer,) = (await client.ask(9, request)).responses
            assert all(partition.error_code == 0 for partition in answer.partition_responses)


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
    files = len(list((process / "fd").iterdir()))
    return [
        Figure("start", seconds_to_ready, 5, "s"),
        Figure("resident", pages * 4096 / 1e6, 400, "MB"),
        Figure("metadata", answer_s * 1000, 100, "ms"),
        Figure("open files", files, OPEN_SEGMENT_FILES_MAX + FILES_BESIDES_SEGMENTS, ""),
    ]


def run(directory: Path, partitions: int, *, kill: bool) -> list[Figure]:
    """Fill, end, start again."""
    with BrokerProcess(directory, stop_timeout_s=STOP_S_MAX) as broker:
        asyncio.run(fill(broker.bootstrap, partitions))
        if kill:
            broker.kill()
    begun = time.perf_counter()
    with BrokerProcess(directory, stop_timeout_s=STOP_S_MAX) as broker:
        return measure(broker, partitions, time.perf_counter() - begun)


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--partitions", type=int, default=10_000)
    parser.add_argument("--kill", action="store_true")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as directory:
        figures = run(Path(directory), options.partitions, kill=options.kill)
    for figure in figures:
        verdict = "" if figure.value <= figure.most else "  MISSED"
        print(f"{figure.name:12} {figure.value:10.1f} {figure.unit:3} (at most {figure.most:g}){verdict}")
    return int(any(figure.value > figure.most for figure in figures))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
