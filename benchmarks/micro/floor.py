"""The floor of any broker with one request in flight.

python -m benchmarks.micro.floor [--requests 10000] [--rounds 5]

The client of the cases `single-page-cache` and `single-fsync` sends one record of 1 KB at a time. The other side reads
nothing and always sends one answer. The processes are:
- one that blocks in `recv` (two system calls a request, and next to no Python);
- one on the broker's event loop (uvloop, a protocol);
- one on the event loop that also writes each request to a file, as an acknowledgement from the page cache needs;
- that one with two more processes, to which it sends each request, and which write it, too, before they answer
  (`replicated-single-page-cache`);
- those three with an `fdatasync` in each, on its loop, which no broker may do (`replicated-single`).

They run in turns. Prints the medians of each round's p50 and p99, in milliseconds.
"""

from __future__ import annotations

import argparse
import asyncio
import multiprocessing
import os
import socket
import statistics
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from multiprocessing.connection import Connection
from typing import Any, Final, TypeAlias, cast

from benchmarks.load.catalog import CASES
from benchmarks.load.raw.raw_client import VERSION, Raw, produce_frame
from headrace.net import loops
from headrace.wire.apis import ApiKey, api
from headrace.wire.headers import encode_response_frame
from headrace.wire.messages.produce import PartitionProduceResponse, ProduceResponse, TopicProduceResponse

CASE: Final = "single-page-cache"
TOPIC: Final = "floor"
COPIES: Final = 2
COPIED: Final = b"1"


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


Write: TypeAlias = Callable[[bytes], object]
"""Of a request, before it is answered."""


class Canned(asyncio.Protocol):
    """Writes each request, where it is to, and answers it."""

    def __init__(self, request_bytes: int, answer: bytes, write: Write, over: asyncio.Event) -> None:
        self._request_bytes = request_bytes
        self._answer = answer
        self._write = write
        self._over = over
        self._missing = request_bytes

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        self._write(data)
        self._missing -= len(data)
        if not self._missing:
            self._missing = self._request_bytes
            self.on_written()

    def on_written(self) -> None:
        """The whole request."""
        self.answer()

    def answer(self) -> None:
        self._transport.write(self._answer)

    def connection_lost(self, _: Exception | None) -> None:
        self._over.set()


class Replicated(Canned):
    """Answers once two others, to whom `write` sends it, have it as well."""

    _missing_copies = COPIES

    def on_written(self) -> None:
        self.on_copied()

    def on_copied(self) -> None:
        """One of those that write it has: this process, or one that copies."""
        if self._missing_copies:
            self._missing_copies -= 1
        else:
            self._missing_copies = COPIES
            self.answer()


class Copying(asyncio.Protocol):
    """A connection to one that copies, which answers what it has written."""

    def __init__(self, leader: Replicated) -> None:
        self._leader = leader

    def data_received(self, _: bytes) -> None:
        self._leader.on_copied()


async def serve(port: Connection, protocol: Canned, over: asyncio.Event) -> None:
    """One connection, to its end."""
    server = await asyncio.get_running_loop().create_server(lambda: protocol, "127.0.0.1", 0)
    port.send(server.sockets[0].getsockname()[1])
    await over.wait()
    server.close()


def on_the_loop(port: Connection, request_bytes: int, answer: bytes, write: Write = len) -> None:
    async def work() -> None:
        over = asyncio.Event()
        await serve(port, Canned(request_bytes, answer, write, over), over)

    loops.run(work())


@contextmanager
def written(*, syncs: bool) -> Iterator[Write]:
    """To a file."""
    with tempfile.TemporaryFile() as file:
        at = file.fileno()

        def write(data: bytes) -> None:
            os.write(at, data)
            if syncs:
                os.fdatasync(at)

        yield write


def and_writes(port: Connection, request_bytes: int, answer: bytes, *, syncs: bool = False) -> None:
    with written(syncs=syncs) as write:
        on_the_loop(port, request_bytes, answer, write)


def replicated(port: Connection, request_bytes: int, answer: bytes, *, syncs: bool = False) -> None:
    context = multiprocessing.get_context("spawn")
    pipes = [context.Pipe() for _ in range(COPIES)]
    copy = partial(and_writes, syncs=syncs)
    others = [context.Process(target=copy, args=(there, request_bytes, COPIED)) for _, there in pipes]
    for other in others:
        other.start()

    async def work() -> None:
        links: list[asyncio.Transport] = []

        def send_and_write(data: bytes) -> None:
            for link in links:
                link.write(data)
            write(data)

        over, loop = asyncio.Event(), asyncio.get_running_loop()
        leader = Replicated(request_bytes, answer, send_and_write, over)
        for here, _ in pipes:
            link, _ = await loop.create_connection(lambda: Copying(leader), "127.0.0.1", here.recv())
            links.append(link)
        await serve(port, leader, over)
        for link in links:
            link.close()

    with written(syncs=syncs) as write:
        loops.run(work())
    for other in others:
        other.join()


SERVERS: Final[dict[str, Callable[..., None]]] = {
    "blocks in recv": blocking,
    "event loop": on_the_loop,
    "event loop, writes to a file": and_writes,
    "three event loops, three files": replicated,
    "the same, with fdatasync": partial(replicated, syncs=True),
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
