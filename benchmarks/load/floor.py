"""The floor of any broker under a producer of one partition: an event loop that writes requests to a file and answers.

A rival beside Headrace. It looks into no batch, keeps no state of producers, has no log, no roles and no metrics. A
producer sends at most so much to a broker that does nothing else, over this kernel and to this disk. Its processor time
is what sockets, files and an event loop cost.

- **page cache**: each request is written before it is answered.
- **fsync**: a thread syncs the file as well. All requests that were written before a sync began are answered by it, as
  those of a journal. The file is written once before, so that a sync has no new block to note.

Everything else that a client asks, a broker of Headrace answers behind it.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import os
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.connection import Connection
from pathlib import Path
from struct import Struct
from typing import Final, cast

from benchmarks.load.rivals import Door, Durability, Headrace
from headrace.base.addresses import Address, parse_address
from headrace.net import loops
from headrace.wire.apis import Api, ApiKey, api
from headrace.wire.headers import decode_request_header, decode_response_header, encode_response_frame
from headrace.wire.messages.produce import PartitionProduceResponse, ProduceResponse, TopicProduceResponse

FLOOR: Final = "floor"
FILE_BYTES: Final = 256 << 20
"""The file is written from the start again once it is full."""
HEAD: Final = Struct(">ihhi")
"""Of a request: length, API key, version, correlation id."""
LENGTH_BYTES: Final = 4
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
        self._syncing: list[tuple[asyncio.Transport, bytes]] = []
        self._waiting: list[tuple[asyncio.Transport, bytes]] = []
        self._thread = ThreadPoolExecutor(1)

    def write(self, request: memoryview) -> None:
        if self._at + len(request) > FILE_BYTES:
            self._at = 0
        self._at += os.pwrite(self._file, request, self._at)

    def answer(self, transport: asyncio.Transport, answer: bytes) -> None:
        if not self.syncs:
            transport.write(answer)
            return
        self._waiting.append((transport, answer))
        if not self._syncing:
            self._sync()

    def _sync(self) -> None:
        self._syncing, self._waiting = self._waiting, []
        loop = asyncio.get_running_loop()
        self._thread.submit(os.fdatasync, self._file).add_done_callback(
            lambda _: loop.call_soon_threadsafe(self._synced)
        )

    def _synced(self) -> None:
        answered, self._syncing = self._syncing, []
        if self._waiting:
            self._sync()
        for transport, answer in answered:
            transport.write(answer)


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

    def __init__(self, writes: Writes, behind: Address) -> None:
        self._writes = writes
        self._broker = behind
        self._buffer = bytearray(1 << 20)
        self._view = memoryview(self._buffer)
        self._filled = 0
        self._canned: dict[int, tuple[bytes, bytes]] = {}
        """An answer to a produce of each version: what is before its correlation id, and behind."""
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
                self._writes.write(frame)
                head, tail = self._canned.get(version) or self._learned(frame, version)
                self._writes.answer(self._transport, head + number.to_bytes(4) + tail)
            else:
                self._forward(frame, key, version, number)
            at = end
        if at:
            self._buffer[: self._filled - at] = self._buffer[at : self._filled]
            self._filled -= at

    def _learned(self, frame: memoryview, version: int) -> tuple[bytes, bytes]:
        """The answer to this request, and from now on to all of its version: there is one partition."""
        produce = known(PRODUCE)
        _, body = decode_request_header(frame[LENGTH_BYTES:])
        ((topic),) = produce.decode_request(version, frame[LENGTH_BYTES:][body:]).topic_data
        ((partition),) = topic.partition_data
        done = PartitionProduceResponse(index=partition.index, base_offset=0, log_start_offset=0)
        ids = {field: getattr(topic, field) for field in ("name", "topic_id") if hasattr(topic, field)}
        response = ProduceResponse(responses=(TopicProduceResponse(**ids, partition_responses=(done,)),))
        canned = b"".join(bytes(each) for each in encode_response_frame(produce, version, 0, response))
        self._canned[version] = canned[: ANSWER_ID.start], canned[ANSWER_ID.stop :]
        return self._canned[version]

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


def known(key: int) -> Api:
    found = api(key)
    assert found is not None
    return found


def serve(port: Connection, behind: Address, path: Path) -> None:
    """A process: tells its port, and hears whether it syncs, until the other end of `port` is closed."""

    async def work() -> None:
        loop, over = asyncio.get_running_loop(), asyncio.Event()
        writes = Writes(path)

        def hear() -> None:
            try:
                writes.syncs = port.recv()
            except EOFError:
                over.set()
            else:
                port.send(True)

        server = await loop.create_server(lambda: Front(writes, behind), behind.host, 0)
        port.send(server.sockets[0].getsockname()[1])
        loop.add_reader(port.fileno(), hear)
        await over.wait()
        os._exit(0)  # with all of its connections

    loops.run(work())


class Floor(Headrace):
    """This floor, and the broker behind it."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory, name=FLOOR)
        self._path = directory / "requests"

    @property
    def pids(self) -> list[int]:
        """Of the floor alone: that is what is measured."""
        assert self._process.pid is not None
        return [self._process.pid]

    @property
    def door(self) -> Door:
        return Door(f"{self._at.host}:{self._at.port}")

    def topic_config(self, durability: Durability) -> Mapping[str, str]:
        self._port.send(durability is Durability.FSYNC)
        self._port.recv()
        return super().topic_config(durability)

    def start(self) -> None:
        super().start()
        behind = parse_address(self.bootstrap)
        context = multiprocessing.get_context("spawn")
        self._port, there = context.Pipe()
        self._process = context.Process(target=serve, args=(there, behind, self._path), daemon=True)
        self._process.start()
        there.close()
        self._at = Address(behind.host, self._port.recv())

    def stop(self) -> None:
        self._port.close()
        self._process.join(JOIN_S)
        super().stop()
