"""Connections that cost next to nothing: one request in flight on each, many of them served by one `drive`.

A fetch names its partitions each time, without a session, like librdkafka's; only its offsets change, in place. Only
the batch headers of an answer are read, to find the next offset.
"""

from __future__ import annotations

import selectors
import socket
import time
from collections.abc import Iterable, Iterator, Sequence
from struct import Struct
from typing import Any, Final, NamedTuple, Protocol

from headrace.wire.apis import Api, ApiKey, api
from headrace.wire.headers import decode_response_header, encode_request_frame
from headrace.wire.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from headrace.wire.messages.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic

TIMEOUT_S: Final = 60.0
LEADER_POLL_S: Final = 0.05
LENGTH_BYTES: Final = 4
RECEIVED_BYTES: Final = 256 * 1024
"""First buffer size of a connection; it grows with the answers."""
LIST_OFFSETS_VERSION: Final = 5
LATEST: Final = -1
FETCH_VERSION: Final = 11
FETCH_WAIT_MS: Final = 500
FETCH_BYTES_MAX: Final = 50 * 1024 * 1024
PARTITION_BYTES_MAX: Final = 1024 * 1024
"""As consumers of Java and librdkafka ask by default."""

_WANTED_BYTES: Final = 28
"""A partition in the request: index 4, leader epoch 4, fetch offset 8, log start offset 8, limit 4."""
_WANTED_OFFSET_AT: Final = 8
_WANTED_TAIL_BYTES: Final = 6
"""No forgotten topics 4, no rack 2."""
_OFFSET: Final = Struct(">q")
_ANSWER: Final = Struct(">iihii")
"""Correlation id, throttle time, error, session, count of topics."""
_NAME: Final = Struct(">h")
_COUNT: Final = Struct(">i")
_PARTITION: Final = Struct(">ihqqqi")
"""Index, error, high watermark, last stable offset, log start offset, count of aborted transactions."""
_RECORDS: Final = Struct(">ii")
"""Preferred replica, bytes of records."""
_ABORTED_BYTES: Final = 16
_BATCH: Final = Struct(">qi11xi")
"""Base offset, length; last offset delta."""
_BATCH_LENGTH_END: Final = 12


class Link:
    """One connection. Of its two ends only the receiving one is expected to wait."""

    def __init__(self, bootstrap: str) -> None:
        host, _, port = bootstrap.partition(":")
        self._socket = socket.create_connection((host, int(port)), TIMEOUT_S)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._buffer = bytearray(RECEIVED_BYTES)
        self._filled = 0

    def fileno(self) -> int:
        return self._socket.fileno()

    def close(self) -> None:
        self._socket.close()

    def send(self, frame: bytes | bytearray) -> None:
        self._socket.sendall(frame)

    def receive(self) -> memoryview | None:
        """Read once; the answer, without its length, if that was the last of it. Valid until the next call."""
        count = self._socket.recv_into(memoryview(self._buffer)[self._filled :])
        if count == 0:
            raise ConnectionError("the broker has closed the connection")
        self._filled += count
        if self._filled < LENGTH_BYTES:
            return None
        size = LENGTH_BYTES + int.from_bytes(self._buffer[:LENGTH_BYTES], "big")
        if self._filled < size:
            if size > len(self._buffer):
                self._buffer = self._buffer[: self._filled] + bytearray(size - self._filled)
            return None
        self._filled = 0
        return memoryview(self._buffer)[LENGTH_BYTES:size]

    def ask(self, codec: Api, version: int, request: Any) -> Any:
        """One request of any API, and its response."""
        self.send(b"".join(bytes(part) for part in encode_request_frame(codec, version, 1, "raw", request)))
        while (frame := self.receive()) is None:
            pass
        _, at = decode_response_header(codec.key, version, frame)
        return codec.decode_response(version, frame[at:])


def log_ends(link: Link, topic: str, partitions: Sequence[int]) -> dict[int, int]:
    """Where each partition ends; waits until the broker leads all of them, which it may not when a topic is made."""
    codec = api(int(ApiKey.LIST_OFFSETS))
    assert codec is not None
    asked = tuple(ListOffsetsPartition(partition_index=index, timestamp=LATEST) for index in partitions)
    request = ListOffsetsRequest(replica_id=-1, topics=(ListOffsetsTopic(name=topic, partitions=asked),))
    deadline = time.monotonic() + TIMEOUT_S
    while True:
        found = link.ask(codec, LIST_OFFSETS_VERSION, request).topics[0].partitions
        if all(partition.error_code == 0 for partition in found):
            return {partition.partition_index: partition.offset for partition in found}
        assert time.monotonic() < deadline, f"the broker does not lead {topic}"
        time.sleep(LEADER_POLL_S)


class Actor(Protocol):
    """A user of a link."""

    @property
    def link(self) -> Link: ...

    def begin(self) -> None:
        """Send the first request."""
        ...

    def on_answer(self, answer: memoryview) -> bool:
        """Send the next, or return True: there is none."""
        ...


def drive(actors: Iterable[Actor]) -> None:
    """Until every one is done, in this thread. Raises TimeoutError where nothing is answered any more."""
    with selectors.DefaultSelector() as selector:
        for actor in actors:
            selector.register(actor.link, selectors.EVENT_READ, actor)
            actor.begin()
        while selector.get_map():
            ready = selector.select(TIMEOUT_S)
            if not ready:
                raise TimeoutError(f"no answer within {TIMEOUT_S:.0f} s on {len(selector.get_map())} connections")
            for key, _ in ready:
                answer = key.data.link.receive()
                if answer is not None and key.data.on_answer(answer):
                    selector.unregister(key.fileobj)


class Fetched(NamedTuple):
    """The part of an answer for one partition."""

    partition: int
    error: int
    next_offset: int
    """After the last whole batch; -1 where there is none."""


class FetchFrame:
    """A request for some partitions of one topic."""

    def __init__(self, codec: Api, topic: str, offsets: Sequence[tuple[int, int]]) -> None:
        """`offsets`: each partition with the offset to begin at."""
        wanted = tuple(
            FetchPartition(partition=index, fetch_offset=offset, partition_max_bytes=PARTITION_BYTES_MAX)
            for index, offset in offsets
        )
        request = FetchRequest(
            max_wait_ms=FETCH_WAIT_MS,
            min_bytes=1,
            max_bytes=FETCH_BYTES_MAX,
            session_epoch=-1,
            topics=(FetchTopic(topic=topic, partitions=wanted),),
        )
        parts = encode_request_frame(codec, FETCH_VERSION, 1, "raw", request)
        self.frame: Final = bytearray(b"".join(bytes(part) for part in parts))
        first = len(self.frame) - _WANTED_TAIL_BYTES - _WANTED_BYTES * len(offsets) + _WANTED_OFFSET_AT
        self._places = {index: first + at * _WANTED_BYTES for at, (index, _) in enumerate(offsets)}
        for index, offset in offsets:
            assert _OFFSET.unpack_from(self.frame, self._places[index]) == (offset,), "a Fetch of another layout"

    def move(self, partition: int, offset: int) -> None:
        """Go on from there."""
        _OFFSET.pack_into(self.frame, self._places[partition], offset)


def fetched(answer: memoryview) -> Iterator[Fetched]:
    """Every partition in the answer to a `FetchFrame`. Raises AssertionError for an error of the whole answer."""
    _, _, error, _, topics = _ANSWER.unpack_from(answer)
    assert error == 0, f"fetch was answered with error {error}"
    at = _ANSWER.size
    for _ in range(topics):
        at += _NAME.size + _NAME.unpack_from(answer, at)[0]
        (partitions,) = _COUNT.unpack_from(answer, at)
        at += _COUNT.size
        for _ in range(partitions):
            index, error, _, _, _, aborted = _PARTITION.unpack_from(answer, at)
            at += _PARTITION.size + _ABORTED_BYTES * max(aborted, 0)
            _, size = _RECORDS.unpack_from(answer, at)
            at += _RECORDS.size
            yield Fetched(index, error, _next_offset(answer, at, at + max(size, 0)))
            at += max(size, 0)


def _next_offset(answer: memoryview, at: int, end: int) -> int:
    found = -1
    while at + _BATCH.size <= end:
        base, length, delta = _BATCH.unpack_from(answer, at)
        at += _BATCH_LENGTH_END + length
        if at <= end:  # a broker may cut the last one off
            found = base + delta + 1
    return found
