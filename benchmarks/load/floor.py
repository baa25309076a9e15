"""The floor of any broker under a producer of one partition: an event loop that writes requests to a file and answers.
With three replicas it is three of them.

A rival beside Headrace. It looks into no batch, keeps no state of producers, has no log, no roles and no metrics. A
producer sends at most so much to a broker that does nothing else, over this kernel and to this disk. Its processor time
is what sockets, files and an event loop cost.

- A request of several partitions is decoded, for its answer has to name them.
- **page cache**: each request is written before it is answered.
- **fsync**: a thread syncs the file as well. All requests that were written before a sync began are answered by it, as
  those of a journal. The file is written once before, so that a sync has no new block to note.
- **three replicas**: each request is sent to two more processes as well, which write it, and sync it, to files of their
  own. It is answered once all three have it.

Everything else that a client asks, a broker of Headrace answers behind it.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import os
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from struct import Struct
from typing import Final, cast

from benchmarks.load.clusters import HeadraceCluster
from benchmarks.load.rivals import Door, Durability, Headrace, Rival
from headrace.base.addresses import Address, parse_address
from headrace.net import loops
from headrace.wire.apis import Api, ApiKey, api, flexible_since
from headrace.wire.headers import decode_request_header, decode_response_header, encode_response_frame
from headrace.wire.messages.produce import PartitionProduceResponse, ProduceResponse, TopicProduceResponse
from headrace.wire.varint import encode_unsigned_varint

FLOOR: Final = "floor"
FLOOR_CLUSTER: Final = "floor-3"
COPIES: Final = 2
HAVE: Final = b"1"
"""Of one that copies, for each request."""
FILE_BYTES: Final = 256 << 20
"""The file is written from the start again once it is full."""
HEAD: Final = Struct(">ihhi")
"""Of a request: length, API key, version, correlation id."""
LENGTH_BYTES: Final = 4
BEHIND_ID: Final = 12
"""The place behind the correlation id of a request."""
FLEXIBLE_TAIL_BYTES: Final = 3
"""Of a produce of one partition, behind its records: the numbers of tags, which are 0."""
ANSWER_ID: Final = slice(4, 8)
"""The correlation id in an answer."""
PRODUCE: Final = int(ApiKey.PRODUCE)
JOIN_S: Final = 60.0


class Writes:
    """A file, and whoever waits for what it has."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_RDWR | os.O_CREAT)
        for at in range(0, FILE_BYTES, 1 << 20):
            os.pwrite(self._file, bytes(1 << 20), at)
        os.fsync(self._file)
        self._at = 0
        self.syncs = False
        self._syncing: list[Callable[[], object]] = []
        self._waiting: list[Callable[[], object]] = []
        self._thread = ThreadPoolExecutor(1)

    def write(self, request: memoryview) -> None:
        if self._at + len(request) > FILE_BYTES:
            self._at = 0
        self._at += os.pwrite(self._file, request, self._at)

    def then(self, have: Callable[[], object]) -> None:
        """Call this once what was written so far is there as it has to be."""
        if not self.syncs:
            have()
            return
        self._waiting.append(have)
        if not self._syncing:
            self._sync()

    def _sync(self) -> None:
        self._syncing, self._waiting = self._waiting, []
        loop = asyncio.get_running_loop()
        self._thread.submit(os.fdatasync, self._file).add_done_callback(
            lambda _: loop.call_soon_threadsafe(self._synced)
        )

    def _synced(self) -> None:
        done, self._syncing = self._syncing, []
        if self._waiting:
            self._sync()
        for have in done:
            have()


class Copy(asyncio.BufferedProtocol):
    """The leader's connection, at a process that copies: writes what comes, and tells that it has it.

    A request that comes in pieces is told of with its last one.
    """

    _transport: asyncio.Transport

    def __init__(self, writes: Writes) -> None:
        self._writes = writes
        self._buffer = bytearray(1 << 20)
        self._view = memoryview(self._buffer)
        self._filled = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def get_buffer(self, _: int) -> memoryview:
        return self._view[self._filled :]

    def buffer_updated(self, count: int) -> None:
        self._filled += count
        at = number = 0
        while self._filled - at >= LENGTH_BYTES:
            end = at + LENGTH_BYTES + int.from_bytes(self._view[at : at + LENGTH_BYTES])
            if end > self._filled:
                break
            at, number = end, number + 1
        if number:
            self._writes.write(self._view[:at])
            self._writes.then(partial(self._transport.write, HAVE * number))
            self._buffer[: self._filled - at] = self._buffer[at : self._filled]
            self._filled -= at


class Link(asyncio.Protocol):
    """A connection to one that copies."""

    transport: asyncio.Transport

    def __init__(self, have: Callable[[int], None]) -> None:
        self._have = have

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        self._have(len(data))


class Replicas:
    """This process's file, and those that copy it. Requests are answered in their order, once all have them."""

    def __init__(self, writes: Writes) -> None:
        self._writes = writes
        self._links: list[Link] = []
        self._have = [0]
        self._answered = 0
        self._answers: deque[Callable[[], object]] = deque()

    async def copied_to(self, addresses: Sequence[Address]) -> None:
        loop = asyncio.get_running_loop()
        for number, at in enumerate(addresses, 1):
            self._have.append(0)
            made = partial(Link, partial(self._has, number))
            _, link = await loop.create_connection(made, at.host, at.port)
            self._links.append(link)

    def take(self, request: memoryview, answer: Callable[[], object]) -> None:
        for link in self._links:
            link.transport.write(request)
        self._answers.append(answer)
        self._writes.write(request)
        self._writes.then(partial(self._has, 0, 1))

    def _has(self, who: int, more: int) -> None:
        self._have[who] += more
        for _ in range(min(self._have) - self._answered):
            self._answered += 1
            self._answers.popleft()()


class Behind(asyncio.Protocol):
    """A client's other connection: to the broker that answers all but produces."""

    def __init__(self, front: Front) -> None:
        self._front = front
        self._received = b""

    def data_received(self, data: bytes) -> None:
        self._received += data
        while frame := whole(self._received):
            self._received = self._received[len(frame) :]
            self._front.answered(frame)


def whole(received: bytes) -> bytes:
    """The first frame, if all of it is there."""
    size = LENGTH_BYTES + int.from_bytes(received[:LENGTH_BYTES])
    return received[:size] if LENGTH_BYTES <= len(received) >= size else b""


class Front(asyncio.BufferedProtocol):
    """A client's connection."""

    _transport: asyncio.Transport
    _behind: asyncio.Transport

    def __init__(self, replicas: Replicas, behind: Address) -> None:
        self._replicas = replicas
        self._broker = behind
        self._buffer = bytearray(1 << 20)
        self._view = memoryview(self._buffer)
        self._filled = 0
        self._canned: dict[tuple[int, bytes], tuple[bytes, bytes]] = {}
        """The answer to a produce of one partition, by its version and the bytes that it begins with."""
        self._alike = 0
        """So far requests that are answered alike are the same, but for their correlation id."""
        self._asked: dict[int, tuple[Api, int]] = {}
        self._late: list[bytes] = []

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop's is none of asyncio's classes
        self._opening = asyncio.get_running_loop().create_task(self._open())

    async def _open(self) -> None:
        loop = asyncio.get_running_loop()
        behind, _ = await loop.create_connection(lambda: Behind(self), self._broker.host, self._broker.port)
        self._behind = behind
        for frame in self._late:
            behind.write(frame)

    def connection_lost(self, _: Exception | None) -> None:
        if hasattr(self, "_behind"):
            self._behind.close()

    def get_buffer(self, _: int) -> memoryview:
        return self._view[self._filled :]

    def buffer_updated(self, count: int) -> None:
        self._filled += count
        at = 0
        while self._filled - at >= HEAD.size:
            length, key, version, number = HEAD.unpack_from(self._buffer, at)
            end = at + LENGTH_BYTES + length
            if end > self._filled:
                break
            frame = self._view[at:end]
            if key == PRODUCE:
                head, tail = self._answer(frame, version)
                self._replicas.take(frame, partial(self._transport.write, head + number.to_bytes(4) + tail))
            else:
                self._forward(frame, key, version, number)
            at = end
        if at:
            self._buffer[: self._filled - at] = self._buffer[at : self._filled]
            self._filled -= at

    def _answer(self, frame: memoryview, version: int) -> tuple[bytes, bytes]:
        """Before the correlation id, and behind. A request of one partition is looked into once: the others that begin
        like it are answered alike.
        """
        beginning = bytes(frame[BEHIND_ID : self._alike])
        return self._canned.get((version, beginning)) or self._learned(frame, version)

    def _learned(self, frame: memoryview, version: int) -> tuple[bytes, bytes]:
        produce = known(PRODUCE)
        _, body = decode_request_header(frame[LENGTH_BYTES:])
        asked = produce.decode_request(version, frame[LENGTH_BYTES:][body:])
        topics = [
            TopicProduceResponse(
                **{field: getattr(topic, field) for field in ("name", "topic_id") if hasattr(topic, field)},
                partition_responses=tuple(
                    PartitionProduceResponse(index=each.index, base_offset=0, log_start_offset=0)
                    for each in topic.partition_data
                ),
            )
            for topic in asked.topic_data
        ]
        canned = b"".join(
            bytes(each) for each in encode_response_frame(produce, version, 0, ProduceResponse(responses=tuple(topics)))
        )
        answer = canned[: ANSWER_ID.start], canned[ANSWER_ID.stop :]
        parts = [each for topic in asked.topic_data for each in topic.partition_data]
        if len(parts) == 1:
            self._alike = _begin_of(len(parts[0].records), len(frame), version)
            self._canned[version, bytes(frame[BEHIND_ID : self._alike])] = answer
        return answer

    def _forward(self, frame: memoryview, key: int, version: int, number: int) -> None:
        self._asked[number] = known(key), version
        if hasattr(self, "_behind"):
            self._behind.write(bytes(frame))
        else:
            self._late.append(bytes(frame))

    def answered(self, frame: bytes) -> None:
        """The broker behind says this. Its address is this one's."""
        number = int.from_bytes(frame[ANSWER_ID])
        asked, version = self._asked.pop(number)
        if asked.key == int(ApiKey.METADATA):
            told = memoryview(frame)[LENGTH_BYTES:]
            _, at = decode_response_header(asked.key, version, told)
            response = asked.decode_response(version, told[at:])
            host, port = self._transport.get_extra_info("sockname")[:2]
            brokers = tuple(each._replace(host=host, port=port) for each in response.brokers)
            parts = encode_response_frame(asked, version, number, response._replace(brokers=brokers))
            frame = b"".join(bytes(each) for each in parts)
        self._transport.write(frame)


def _begin_of(records: int, frame: int, version: int) -> int:
    """The place in a produce of one partition where the length of its records is. All are numbers of bytes."""
    if version >= cast("int", flexible_since(PRODUCE)):
        return frame - FLEXIBLE_TAIL_BYTES - records - len(encode_unsigned_varint(records + 1))
    return frame - records - LENGTH_BYTES


def known(key: int) -> Api:
    found = api(key)
    assert found is not None
    return found


def serve(port: Connection, behind: Address | None, path: Path, copies: Sequence[Address]) -> None:
    """A process: tells its port, and hears whether it syncs, until the other end of `port` is closed. `behind`: the
    broker that answers all but produces; None: it copies.
    """

    async def work() -> None:
        loop, over = asyncio.get_running_loop(), asyncio.Event()
        writes = Writes(path)
        replicas = Replicas(writes)
        await replicas.copied_to(copies)

        def hear() -> None:
            try:
                writes.syncs = port.recv()
            except EOFError:
                over.set()
            else:
                port.send(True)

        server = await loop.create_server(
            lambda: Copy(writes) if behind is None else Front(replicas, behind), "127.0.0.1", 0
        )
        port.send(server.sockets[0].getsockname()[1])
        loop.add_reader(port.fileno(), hear)
        await over.wait()
        os._exit(0)  # with all of its connections

    loops.run(work())


class Processes:
    """The processes of a floor: those that copy, and the one that clients reach."""

    def __init__(self, directory: Path, copies: int) -> None:
        self._directory = directory
        self._copies = copies
        self._running: list[tuple[Connection, BaseProcess]] = []
        self._addresses: list[Address] = []

    @property
    def pids(self) -> list[int]:
        return [process.pid for _, process in self._running if process.pid is not None]

    @property
    def door(self) -> Door:
        return Door(str(self._addresses[-1]))

    def sync(self, durability: Durability) -> None:
        for port, _ in self._running:
            port.send(durability is Durability.FSYNC)
            port.recv()

    def start(self, behind: Address) -> None:
        for number in range(self._copies):
            self._start(None, self._directory / f"copied-{number}", ())
        self._start(behind, self._directory / "requests", tuple(self._addresses))

    def _start(self, behind: Address | None, path: Path, copies: Sequence[Address]) -> None:
        context = multiprocessing.get_context("spawn")
        port, there = context.Pipe()
        process = context.Process(target=serve, args=(there, behind, path, copies), daemon=True)
        process.start()
        there.close()
        self._running.append((port, process))
        self._addresses.append(Address("127.0.0.1", port.recv()))

    def stop(self) -> None:
        for port, process in reversed(self._running):
            port.close()
            process.join(JOIN_S)
        self._running.clear()
        self._addresses.clear()


class Floor:
    """A floor, and the brokers behind it."""

    def __init__(self, directory: Path, name: str, behind: Rival, copies: int) -> None:
        self.name = name
        self._behind = behind
        self._floor = Processes(directory, copies)

    @property
    def version(self) -> str:
        return self._behind.version

    @property
    def bootstrap(self) -> str:
        return self._behind.bootstrap

    @property
    def pids(self) -> list[int]:
        """Of the floor alone: that is what is measured."""
        return self._floor.pids

    @property
    def door(self) -> Door:
        return self._floor.door

    def topic_config(self, durability: Durability) -> Mapping[str, str]:
        self._floor.sync(durability)
        return self._behind.topic_config(durability)

    def start(self) -> None:
        self._behind.start()
        self._floor.start(parse_address(self.bootstrap.split(",")[0]))

    def stop(self) -> None:
        self._floor.stop()
        self._behind.stop()


def one(directory: Path) -> Floor:
    """The floor of one broker."""
    return Floor(directory, FLOOR, Headrace(directory), 0)


def three(directory: Path) -> Floor:
    """The floor of three brokers that hold three replicas."""
    return Floor(directory, FLOOR_CLUSTER, HeadraceCluster(directory), COPIES)


FLOORS: Final[Mapping[str, Callable[[Path], Rival]]] = {FLOOR: one, FLOOR_CLUSTER: three}
