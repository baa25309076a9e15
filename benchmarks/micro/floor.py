"""What no broker can go below with one request in flight.

    python -m benchmarks.micro.floor [--requests 10000] [--rounds 5]

The client of the cases `single-page-cache` and `single-fsync` sends one record of 1 KB at a time to a process that
looks at nothing and always sends the same answer: one that blocks in `recv` (two system calls a request, and next to no
Python), one on the broker's event loop (uvloop, a protocol), and one on the event loop that also writes each request to
a file, as an acknowledgement from the page cache needs; then the same with two more processes, to which it sends each
request on, and which write it, too, before it answers (`replicated-single-page-cache`, `replicated-single`: with an
`fdatasync` in each of the three, on its loop, which no broker may do). In turns; prints the medians of each round's p50
and p99, in milliseconds.
"""

from __future__ import annotations

import argparse
import asyncio
import multiprocessing
import os
import socket
import statistics
import tempfile
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any, Final, cast

from benchmarks.load.catalog import CASES
from benchmarks.load.raw_client import VERSION, Raw, produce_frame
from headrace.net import loops
from headrace.wire.apis import ApiKey, api
from headrace.wire.headers import encode_response_frame
from headrace.wire.messages.produce import PartitionProduceResponse, ProduceResponse, TopicProduceResponse

CASE: Final = "single-page-cache"
TOPIC: Final = "floor"


def canned() -> bytes:
    found = api(int(ApiKey.PRODUCE))
    assert found is not None
    answers = (PartitionProduceResponse(index=0, base_offset=0, log_start_offset=0),)
    response = ProduceResponse(responses=(TopicProduceResponse(name=TOPIC, partition_responses=answers),))
    return b"".join(bytes(part) for part in encode_response_frame(found, VERSION, 7, response))


def blocking(port: Connection, request_bytes: int, answer: bytes) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port.send(server.getsockname()[1])
        connection, _ = server.accept()
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        with connection:
            while connection.recv(request_bytes, socket.MSG_WAITALL):
                connection.sendall(answer)


class Canned(asyncio.Protocol):
    def __init__(self, request_bytes: int, answer: bytes, file: int | None, over: asyncio.Event) -> None:
        self._request_bytes = request_bytes
        self._answer = answer
        self._file = file
        self._over = over
        self._missing = request_bytes

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        if self._file is not None:
            os.write(self._file, data)
        self._missing -= len(data)
        if not self._missing:
            self._missing = self._request_bytes
            self._transport.write(self._answer)

    def connection_lost(self, _: Exception | None) -> None:
        self._over.set()


def on_the_loop(port: Connection, request_bytes: int, answer: bytes, file: int | None = None) -> None:
    async def serve() -> None:
        over = asyncio.Event()
        loop = asyncio.get_running_loop()
        server = await loop.create_server(lambda: Canned(request_bytes, answer, file, over), "127.0.0.1", 0)
        port.send(server.sockets[0].getsockname()[1])
        await over.wait()
        server.close()

    loops.run(serve())


def and_writes(port: Connection, request_bytes: int, answer: bytes) -> None:
    with tempfile.TemporaryFile() as file:
        on_the_loop(port, request_bytes, answer, file.fileno())


class Copying(asyncio.Protocol):
    """In the leader: a connection to one that copies."""

    def __init__(self, on_copied: Callable[[], None]) -> None:
        self._on_copied = on_copied

    def data_received(self, _: bytes) -> None:
        self._on_copied()


class Copied(Canned):
    """In the leader: writes each request, sends it to those that copy, and answers once both have written it."""

    def __init__(
        self, request_bytes: int, answer: bytes, file: int, over: asyncio.Event, copies: list[asyncio.Transport]
    ) -> None:
        super().__init__(request_bytes, answer, None, over)
        self._log = file
        self._copies = copies
        self._syncs = False
        self.awaited = 0

    def data_received(self, data: bytes) -> None:
        self.awaited = len(self._copies)
        for copy in self._copies:
            copy.write(data)
        os.write(self._log, data)
        if self._syncs:
            os.fdatasync(self._log)

    def on_copied(self) -> None:
        self.awaited -= 1
        if not self.awaited:
            self._transport.write(self._answer)


class Synced(Canned):
    """In one that copies, with fsync."""

    def data_received(self, data: bytes) -> None:
        assert self._file is not None
        os.write(self._file, data)
        os.fdatasync(self._file)
        self._transport.write(self._answer)


def copies(port: Connection, request_bytes: int, kind: type[Canned]) -> None:
    with tempfile.TemporaryFile() as file:

        async def serve() -> None:
            over = asyncio.Event()
            loop = asyncio.get_running_loop()
            server = await loop.create_server(lambda: kind(request_bytes, b"1", file.fileno(), over), "127.0.0.1", 0)
            port.send(server.sockets[0].getsockname()[1])
            await over.wait()
            server.close()

        loops.run(serve())


def replicated(port: Connection, request_bytes: int, answer: bytes, *, syncs: bool = False) -> None:
    spawn = multiprocessing.get_context("spawn")
    ends = [multiprocessing.Pipe() for _ in range(2)]
    others = [
        spawn.Process(target=copies, args=(there, request_bytes, Synced if syncs else Canned)) for _, there in ends
    ]
    for other in others:
        other.start()
    ports = [here.recv() for here, _ in ends]
    with tempfile.TemporaryFile() as file:

        async def serve() -> None:
            over = asyncio.Event()
            loop = asyncio.get_running_loop()
            links: list[asyncio.Transport] = []
            leader = Copied(request_bytes, answer, file.fileno(), over, links)
            leader._syncs = syncs
            for at in ports:
                link, _ = await loop.create_connection(lambda: Copying(leader.on_copied), "127.0.0.1", at)
                links.append(link)
            server = await loop.create_server(lambda: leader, "127.0.0.1", 0)
            port.send(server.sockets[0].getsockname()[1])
            await over.wait()
            for link in links:
                link.close()
            server.close()

        loops.run(serve())
    for other in others:
        other.join()


def replicated_with_syncs(port: Connection, request_bytes: int, answer: bytes) -> None:
    replicated(port, request_bytes, answer, syncs=True)


SERVERS: Final[dict[str, Callable[..., None]]] = {
    "blocks in recv": blocking,
    "event loop": on_the_loop,
    "event loop, writes to a file": and_writes,
    "three event loops, three files": replicated,
    "the same, with fdatasync": replicated_with_syncs,
}


def measured(serve: Callable[..., None], case: Raw) -> list[float]:
    """p50 and p99, ms."""
    request = produce_frame(TOPIC, [0], case.records, case.record_bytes)
    here, there = multiprocessing.Pipe()
    process = multiprocessing.get_context("spawn").Process(target=serve, args=(there, len(request), canned()))
    process.start()
    with socket.create_connection(("127.0.0.1", here.recv())) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        latencies, _ = case.load(connection, [request])
    process.join()
    cuts = statistics.quantiles(latencies, n=1000)
    return [cuts[499] * 1000, cuts[989] * 1000]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=10_000)
    parser.add_argument("--rounds", type=int, default=5)
    wanted = parser.parse_args()
    case: Any = next(each for each in CASES if each.about.name == CASE)
    case = case.scaled(wanted.requests / case.requests)
    figures: dict[str, list[list[float]]] = {name: [] for name in SERVERS}
    for _ in range(wanted.rounds):
        for name, serve in SERVERS.items():
            figures[name].append(measured(serve, case))
    for name, rounds in figures.items():
        p50, p99 = (statistics.median(each) for each in zip(*rounds, strict=True))
        print(f"{name:32} p50 {p50:.3f} ms   p99 {p99:.3f} ms")


if __name__ == "__main__":
    main()
