"""The least that can stand between a Kafka client and a store: the floors of `benchmarks.redis_engine`.

A `Sink` reads produce requests and answers them. It checks nothing and keeps nothing, except for one batch, of which it
makes what consumers read. A `Relay` sends each batch to Redis by one XADD, answers once Redis has, and reads by XRANGE.
It checks nothing either; `checking.py` has one that does. Each is one process on one event loop, as a broker is: what
one of them takes, no broker in Python can do without.
"""

from __future__ import annotations

import asyncio
import multiprocessing
from collections import defaultdict
from collections.abc import Awaitable, Callable
from functools import partial
from itertools import count
from multiprocessing.connection import Connection as Pipe
from types import TracebackType
from typing import Any, Final, Self, TypeAlias, cast

from headrace.base.ports import Buffer
from headrace.net import loops
from headrace.storage.redis.entries import number_of
from headrace.storage.redis.links.connection import Connection
from headrace.wire.apis import ApiKey, api
from headrace.wire.batches import PREFIX, parse_header
from headrace.wire.errors import ErrorCode
from headrace.wire.headers import decode_request_header, encode_response_frame
from headrace.wire.messages.api_versions import ApiVersion, ApiVersionsResponse
from headrace.wire.messages.fetch import FetchableTopicResponse, FetchRequest, FetchResponse, PartitionData
from headrace.wire.messages.init_producer_id import InitProducerIdResponse
from headrace.wire.messages.list_offsets import (
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopicResponse,
)
from headrace.wire.messages.metadata import (
    MetadataRequest,
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)
from headrace.wire.plain_produce import read_plain_produce, topic_of, write_single_answer

VERSIONS: Final = {
    ApiKey.PRODUCE: (3, 9),
    ApiKey.FETCH: (4, 12),
    ApiKey.LIST_OFFSETS: (1, 7),
    ApiKey.METADATA: (0, 12),
    ApiKey.API_VERSIONS: (0, 3),
    ApiKey.INIT_PRODUCER_ID: (0, 4),
}
"""The last ones are served. Clients look whether older ones are known."""
HOST: Final = "127.0.0.1"
READ_BYTES: Final = 1_000_000
READ_ENTRIES: Final = 64
EMPTY_WAIT_S: Final = 0.1
ONE: Final = ".one"
"""A topic whose name ends so has one partition: Java's tool writes to all that there are."""
START_TIMEOUT_S: Final = 30.0

Done: TypeAlias = Callable[[int, ErrorCode], object]
"""Called with the base offset and the outcome of a batch, now or later."""


class Sink:
    """Answers for all connections."""

    def __init__(self, partitions: int) -> None:
        self.port = 0
        self._partitions = partitions
        self._ends: defaultdict[tuple[str, int], int] = defaultdict(int)
        self._batch: bytes = b""
        self._producer_ids = count(1)

    def append(self, topic: str, index: int, batch: memoryview, done: Done) -> None:
        base = self._ends[topic, index]
        self._ends[topic, index] = base + parse_header(batch).last_offset_delta + 1
        self._batch = self._batch or bytes(batch)
        done(base, ErrorCode.NONE)

    async def read(self, topic: str, index: int, offset: int) -> list[Buffer]:
        end, found, size = self._ends[topic, index], list[Buffer](), 0
        header = parse_header(self._batch)
        rest = memoryview(self._batch)[PREFIX.size :]
        while offset < end and size < READ_BYTES:
            found += (PREFIX.pack(offset, header.batch_length, 0), rest)
            offset += header.last_offset_delta + 1
            size += len(self._batch)
        return found

    # the other requests

    def answers(self, key: int, request: Any) -> object:
        """The answer to any request but Produce and Fetch."""
        if key == ApiKey.API_VERSIONS:
            return ApiVersionsResponse(api_keys=tuple(ApiVersion(int(key), *some) for key, some in VERSIONS.items()))
        if key == ApiKey.INIT_PRODUCER_ID:
            return InitProducerIdResponse(producer_id=next(self._producer_ids), producer_epoch=0)
        return self._metadata(request) if key == ApiKey.METADATA else self._offsets(request)

    def _metadata(self, request: MetadataRequest) -> MetadataResponse:
        parts = tuple(
            MetadataResponsePartition(partition_index=at, leader_epoch=0, replica_nodes=(0,), isr_nodes=(0,))
            for at in range(self._partitions)
        )
        names = [each.name or "" for each in request.topics or ()]
        topics = tuple(
            MetadataResponseTopic(name=name, partitions=parts[:1] if name.endswith(ONE) else parts) for name in names
        )
        broker = MetadataResponseBroker(node_id=0, host=HOST, port=self.port)
        return MetadataResponse(brokers=(broker,), cluster_id="sink", controller_id=0, topics=topics)

    def _offsets(self, request: ListOffsetsRequest) -> ListOffsetsResponse:
        topics = []
        for topic in request.topics:
            parts = tuple(
                ListOffsetsPartitionResponse(
                    partition_index=each.partition_index,
                    offset=self._ends[topic.name, each.partition_index] if each.timestamp == -1 else 0,
                )
                for each in topic.partitions
            )
            topics.append(ListOffsetsTopicResponse(name=topic.name, partitions=parts))
        return ListOffsetsResponse(topics=tuple(topics))


class Relay(Sink):
    """In Redis. Streams are named as topic and partition."""

    def __init__(self, partitions: int, redis: Connection) -> None:
        super().__init__(partitions)
        self._redis = redis

    def append(self, topic: str, index: int, batch: memoryview, done: Done) -> None:
        base, header = self._ends[topic, index], parse_header(batch)
        end = self._ends[topic, index] = base + header.last_offset_delta + 1
        data = PREFIX.pack(base, header.batch_length, 0) + batch[PREFIX.size :]

        def on_answer(reply: object) -> None:
            assert not isinstance(reply, Exception), reply
            done(base, ErrorCode.NONE)

        self._redis.post(("XADD", f"{topic}:{index}", f"{end}-0", "batch"), on_answer, (data,))

    async def read(self, topic: str, index: int, offset: int) -> list[Buffer]:
        found = await self._redis.call("XRANGE", f"{topic}:{index}", f"({offset}-0", "+", "COUNT", READ_ENTRIES)
        assert not found or number_of(found[-1][0]) > offset
        return [fields[1] for _, fields in found]


class Client(asyncio.Protocol):
    """One connection. Requests are answered as their answers come."""

    def __init__(self, sink: Sink) -> None:
        self._sink = sink
        self._received = b""
        self._reads = set[asyncio.Task[None]]()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        received = self._received + data if self._received else data
        view, at = memoryview(received), 0
        while len(received) - at >= 4 and (end := at + 4 + int.from_bytes(view[at : at + 4], "big")) <= len(received):
            self._serve(view[at + 4 : end])
            at = end
        self._received = received[at:]

    def _serve(self, frame: memoryview) -> None:
        key = int.from_bytes(frame[:2], "big")
        if key == ApiKey.PRODUCE and (wanted := read_plain_produce(frame)) is not None:
            ((topic, ((index, records),)),) = wanted.topics
            done = partial(self._answer_produce, wanted.correlation_id, topic, index)
            self._sink.append(topic_of(topic, by_id=False).decode(), index, records, done)
            return
        header, at = decode_request_header(frame)
        found = api(header.api_key)
        assert found is not None, header
        request = found.decode_request(header.api_version, frame[at:])
        if key == ApiKey.FETCH:
            task = asyncio.get_running_loop().create_task(self._fetch(found, header.correlation_id, request))
            self._reads.add(task)
            task.add_done_callback(self._reads.discard)
            return
        answer = self._sink.answers(key, request)
        self._transport.writelines(encode_response_frame(found, header.api_version, header.correlation_id, answer))

    def _answer_produce(self, correlation_id: int, topic: bytes, index: int, base: int, error: ErrorCode) -> None:
        self._transport.write(write_single_answer(correlation_id, topic, index, error, base, -1, 0))

    async def _fetch(self, found: Any, correlation_id: int, request: FetchRequest) -> None:
        responses = []
        for topic in request.topics:
            parts = []
            for each in topic.partitions:
                buffers = await self._sink.read(topic.topic, each.partition, each.fetch_offset)
                records = b"".join(buffers)
                parts.append(PartitionData(partition_index=each.partition, high_watermark=1 << 40, records=records))
            responses.append(FetchableTopicResponse(topic=topic.topic, partitions=tuple(parts)))
        if not any(part.records for response in responses for part in response.partitions):
            await asyncio.sleep(EMPTY_WAIT_S)
        answer = FetchResponse(responses=tuple(responses))
        if not self._transport.is_closing():
            version = VERSIONS[ApiKey.FETCH][1]
            self._transport.writelines(encode_response_frame(found, version, correlation_id, answer))


Make: TypeAlias = Callable[[], Awaitable[Sink]]
"""Makes what a process serves, on its loop. Another process can import it."""


async def _serve(port: Pipe, make: Make) -> None:
    sink = await make()
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: Client(sink), HOST, 0)
    sink.port = server.sockets[0].getsockname()[1]
    port.send(sink.port)
    over = asyncio.Event()
    loop.add_reader(port.fileno(), over.set)  # the other end is closed
    await over.wait()
    server.close()


def _run(port: Pipe, there: Pipe, make: Make) -> None:
    there.close()
    loops.run(_serve(port, make))


class SinkProcess:
    """A process of its own."""

    def __init__(self, make: Make) -> None:
        self._make = make

    @property
    def pid(self) -> int:
        assert self._process.pid is not None, "it is started"
        return self._process.pid

    def __enter__(self) -> Self:
        context = multiprocessing.get_context("spawn")
        self._here, there = context.Pipe()
        self._process = context.Process(target=_run, args=(there, self._here, self._make))
        self._process.start()
        there.close()
        assert self._here.poll(START_TIMEOUT_S), "it does not start"
        self.bootstrap = f"{HOST}:{self._here.recv()}"
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._here.close()
        self._process.join()
