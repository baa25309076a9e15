"""The cost of open consoles: how long a steady producer waits with nobody at the console, and with VIEWERS.

Three brokers, each a process, hold eight topics of four partitions. A producer of librdkafka sends records of 1 KB to
one of them, at a steady pace, with acks=all. A console is asked for its pages by VIEWERS (20) streams, in a process of
their own: overview, topics, one topic, groups and moves. With CONSOLES each is a process, and the viewers are shared
out among them. 20 consoles ask the brokers as often as 20 sessions of one that has its viewers log in.

Turns of SECONDS with none and with all of them follow each other, PAIRS times. It tells p50, p99 and the slowest record
of both kinds of turns, and what the consoles cost. The result goes to benchmarks/results/console-viewers.jsonl.

    python -m benchmarks.micro.viewers [--viewers 20] [--consoles 1] [--pairs 5] [--seconds 15] [--unkept]
"""

from __future__ import annotations

import argparse
import asyncio
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from statistics import median
from typing import Any, Final, NamedTuple
from urllib.parse import urlsplit

from benchmarks.load.clusters import HeadraceCluster
from benchmarks.load.results import append
from benchmarks.micro.restarts import spent
from benchmarks.micro.steady import Librdkafka, wait_for
from headrace.net.client.admin import Admin
from headrace.net.client.cluster import Cluster
from headrace.net.client.groups import Groups, TopicPartition

TOPICS: Final = 8
PARTITIONS: Final = 4
GROUPS: Final = 5
PER_SECOND: Final = 500.0
PAGES: Final = ("/live/", "/live/topics", "/live/topics/load-0", "/live/groups", "/live/moves")
SETTLE_S: Final = 2.0
"""At the begin of each turn, which is not counted."""
VIEW: Final = "--view"


class Turn(NamedTuple):
    """Of one turn, in milliseconds, and in processor seconds of the brokers and the consoles."""

    viewers: int
    p50_ms: float
    p99_ms: float
    slowest_ms: float
    records: int
    brokers_cpu_s: float
    consoles_cpu_s: float


async def prepare(bootstrap: str) -> None:
    """Topics, and groups that have committed something."""
    async with Cluster(bootstrap) as cluster:
        admin = Admin(cluster)
        for number in range(TOPICS):
            await admin.create_topic(f"load-{number}", partitions=PARTITIONS, replication_factor=3)
        for number in range(GROUPS):
            places = {
                TopicPartition(f"load-{topic}", index): 0 for topic in range(TOPICS) for index in range(PARTITIONS)
            }
            await Groups(cluster).commit(f"group-{number}", places)


async def view(urls: Sequence[str], count: int) -> None:
    """Read so many streams until this process is ended. Says `viewing` once each has had its first event."""
    told = [asyncio.Event() for _ in range(count)]
    streams = [
        asyncio.ensure_future(_stream(urls[at % len(urls)], PAGES[at % len(PAGES)], told[at])) for at in range(count)
    ]
    await asyncio.gather(*(each.wait() for each in told))
    print("viewing", flush=True)
    await asyncio.gather(*streams)


async def _stream(url: str, page: str, told: asyncio.Event) -> None:
    parts = urlsplit(url)
    reader, writer = await asyncio.open_connection(parts.hostname, parts.port)
    writer.write(f"GET {page} HTTP/1.1\r\nHost: {parts.netloc}\r\nAccept: text/event-stream\r\n\r\n".encode())
    while line := await reader.readline():
        if line.startswith(b"data: "):
            told.set()
    raise EOFError(f"{page} ended")


@contextmanager
def started(command: Sequence[str], word: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A process, and what it says behind the word with which it says that it is ready."""
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stdin=subprocess.DEVNULL, text=True)
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line.startswith(word), f"{command} said {line!r}"
        yield process, line.removeprefix(word).strip()
    finally:
        process.terminate()
        process.wait()


def turn(cluster: HeadraceCluster, consoles: Sequence[int], producer: Librdkafka, viewers: int, seconds: float) -> Turn:
    """The records of one turn, once it has settled."""
    time.sleep(SETTLE_S)
    begun, before = time.monotonic(), _cpu(cluster, consoles)
    time.sleep(seconds)
    ended, after = time.monotonic(), _cpu(cluster, consoles)
    time.sleep(SETTLE_S)  # until the last of them are acknowledged
    took = sorted(one.took_ms for one in list(producer.known) if begun <= one.sent <= ended)
    return Turn(
        viewers,
        round(took[len(took) // 2], 3),
        round(took[len(took) * 99 // 100], 3),
        round(took[-1], 3),
        len(took),
        round(after[0] - before[0], 2),
        round(after[1] - before[1], 2),
    )


def _cpu(cluster: HeadraceCluster, consoles: Sequence[int]) -> tuple[float, float]:
    return sum(spent(pid).cpu_s for pid in cluster.pids), sum(spent(pid).cpu_s for pid in consoles)


def measured(directory: Path, viewers: int, count: int, pairs: int, seconds: float) -> tuple[list[Turn], float]:
    """The turns, and the most memory of a console, in MB. `count`: of consoles."""
    cluster = HeadraceCluster(directory / "cluster")
    python = (sys.executable, "-m")
    try:
        cluster.start()
        asyncio.run(prepare(cluster.bootstrap))
        at = ("--bootstrap", cluster.bootstrap, "--listen", "127.0.0.1:0")
        with ExitStack() as stack, Librdkafka(cluster.bootstrap, "load-0", PER_SECOND) as producer:
            begun = [
                stack.enter_context(started([*python, "headrace.cli.main", "console", *at], "ready "))
                for _ in range(count)
            ]
            consoles = [process.pid for process, _ in begun]
            wait_for(producer)
            watched = [*python, "benchmarks.micro.viewers", "--viewers", str(viewers)]
            watched += [word for _, url in begun for word in (VIEW, url)]
            turns: list[Turn] = []
            for _ in range(pairs):
                turns.append(turn(cluster, consoles, producer, 0, seconds))
                with started(watched, "viewing"):
                    turns.append(turn(cluster, consoles, producer, viewers, seconds))
                print(f"  {turns[-2]}\n  {turns[-1]}", flush=True)
            assert not producer.failures, producer.failures[0]
            return turns, max(spent(pid).peak_mb for pid in consoles)
    finally:
        cluster.stop()


def told(turns: Sequence[Turn], viewers: int) -> dict[str, Any]:
    """The medians of both kinds of turns."""
    kinds = {count: [each for each in turns if each.viewers == count] for count in (0, viewers)}
    return {
        str(count): {name: median(getattr(each, name) for each in some) for name in Turn._fields[1:]}
        for count, some in kinds.items()
    }


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--viewers", type=int, default=20)
    parser.add_argument("--consoles", type=int, default=1)
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=15.0)
    parser.add_argument("--unkept", action="store_true", help="keep no result")
    parser.add_argument(VIEW, metavar="URL", action="append", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.view is not None:
        asyncio.run(view(options.view, options.viewers))
        return 0
    with tempfile.TemporaryDirectory() as directory:
        turns, peak_mb = measured(Path(directory), options.viewers, options.consoles, options.pairs, options.seconds)
    medians = told(turns, options.viewers)
    print(f"medians {medians}, console {peak_mb:.0f} MB at most")
    if not options.unkept:
        outcome = {"case": "console-viewers", "consoles": options.consoles, "per_second": PER_SECOND}
        append(
            "console-viewers",
            {
                **outcome,
                "seconds": options.seconds,
                "medians": medians,
                "turns": [each._asdict() for each in turns],
                "console_mb": round(peak_mb),
            },
        )
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
