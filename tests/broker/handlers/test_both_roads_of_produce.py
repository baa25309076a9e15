"""Whole produce frames, sound and damaged, sent to two brokers, one of which lacks the short path.

Answers are equal to the byte, or the connection ends alike, and the logs are equal.
"""

from __future__ import annotations

import asyncio
import re
import struct
import tempfile
from collections.abc import Iterator
from contextlib import AsyncExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final
from unittest.mock import patch
from uuid import UUID

import pytest
from crc32c import crc32c
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.base.ids import TopicId
from headrace.broker import parts
from headrace.broker.handlers import all_handlers, plain_produce
from headrace.wire.apis import ApiKey, api
from headrace.wire.batches import CRC_START, HEADER_BYTES, encode_batch
from headrace.wire.compression import Compression
from headrace.wire.headers import encode_request_frame, encode_request_header
from headrace.wire.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from headrace.wire.records import Record
from tests.broker.data_path import create, fetch, produce
from tests.broker.group_broker import RawClient, running
from tests.tiers import examples
from tools import engine_under_test

PARTITIONS: Final = 3
TOPIC: Final = "t"
TOPIC_ID: Final = UUID("c9d782e0-abb2-4847-8075-4aafdd86693b")
"""Equal in both brokers: where damage moves it, an answer may return a part of it."""
ANSWERED_AT_ONCE: Final = {"flush.policy": "os"}
"""A timeout that damage made short then says nothing of how fast the disk is."""
LAST_HEADER: Final = encode_request_header(ApiKey.API_VERSIONS, 0, 0x7EADBEEF, "last")
LAST: Final = struct.pack(">i", len(LAST_HEADER)) + LAST_HEADER
CLOCK: Final = re.compile(rb"the broker's, \d+|within \[-?\d+, -?\d+\]")
"""In the sentence that refuses a time of the future."""
BEHIND: Final = Record(0, 1_700_000_000_000, None, b"behind", ())
"""Acknowledged at acks=all, so that all below it is shown."""
KEY_BYTES: Final = 2
"""Of the API's key, which stays: other APIs are no matter of this."""

numbers = st.sampled_from([0, 1, 2, 127, 128, 254, 255])
damages: st.SearchStrategy[list[tuple[str, int, int]]] = st.just([]) | st.lists(
    st.tuples(st.sampled_from(["set", "set", "insert", "delete"]), st.integers(0, 400), numbers | st.integers(0, 255)),
    max_size=3,
)
lies: st.SearchStrategy[list[tuple[int, int]]] = st.just([]) | st.lists(
    st.tuples(st.integers(CRC_START, HEADER_BYTES - 1), numbers), max_size=2
)


@st.composite
def batches(draw: st.DrawFn) -> bytes:
    """Sound, or with a header that lies under a CRC that is right."""
    count = draw(st.integers(1, 3))
    records = [Record(at, 1_700_000_000_000 + at, b"k", b"v" * draw(st.integers(0, 60)), ()) for at in range(count)]
    producer: dict[str, Any] = {}
    if draw(st.booleans()):
        producer = {
            "producer_id": 7,
            "producer_epoch": draw(st.integers(0, 1)),
            "base_sequence": draw(st.integers(0, 9)),
        }
    data = bytearray(encode_batch(records, compression=draw(st.sampled_from(Compression)), **producer))
    for at, value in draw(lies):
        data[at] = value
    data[17:21] = crc32c(bytes(data[CRC_START:])).to_bytes(4, "big")
    return bytes(data) + draw(st.sampled_from([b"", b"", b"", b"", b"", bytes(data), b"\0"]))


@st.composite
def requests(draw: st.DrawFn) -> ProduceRequest:
    """Often of one batch for one partition."""
    data = [
        PartitionProduceData(
            index=draw(st.sampled_from([0, 0, 0, 0, 0, 1, 1, 2, 2, -1])), records=memoryview(draw(batches()))
        )
        for _ in range(draw(st.sampled_from([1, 1, 1, 1, 2, 2, 3, 0])))
    ]
    topic = TopicProduceData(
        name=draw(st.sampled_from([TOPIC, TOPIC, TOPIC, TOPIC, TOPIC, "none", ""])), partition_data=tuple(data)
    )
    topics = (topic,) * draw(st.sampled_from([1, 1, 1, 1, 1, 1, 0, 2]))
    return ProduceRequest(acks=draw(st.sampled_from([-1, -1, -1, 1, 1, 0, 5])), timeout_ms=30_000, topic_data=topics)


def frame(version: int, request: ProduceRequest) -> bytes:
    """Without its length."""
    codec = api(int(ApiKey.PRODUCE))
    assert codec is not None
    if version >= 13:
        named = [topic._replace(topic_id=TOPIC_ID) if topic.name == TOPIC else topic for topic in request.topic_data]
        request = request._replace(topic_data=tuple(named))
    return b"".join(bytes(part) for part in encode_request_frame(codec, version, 7, "road", request))[4:]


def damaged(body: bytes, damage: list[tuple[str, int, int]]) -> bytes:
    data = bytearray(body)
    for what, where, value in damage:
        at = KEY_BYTES + where % (len(data) - KEY_BYTES)
        match what:
            case "set":
                data[at] = value
            case "insert":
                data[at:at] = bytes([value])
            case _:
                del data[at]
    return bytes(data)


@dataclass
class Road:
    """One broker and a client of it."""

    bootstrap: str
    ends: list[int] = field(default_factory=lambda: [0] * PARTITIONS)

    async def ask(self, body: bytes) -> list[bytes]:
        """All that comes back, up to the answer to a last request or the end of the connection."""
        host, _, port = self.bootstrap.partition(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        found: list[bytes] = []
        try:
            writer.write(struct.pack(">i", len(body)) + body + LAST)
            async with asyncio.timeout(150):
                while True:
                    size = int.from_bytes(await reader.readexactly(4), "big")
                    answer = await reader.readexactly(size)
                    if answer[:4] == LAST[8:12]:
                        return [*found, b"served on"]
                    found.append(CLOCK.sub(b"", answer))
        except (ConnectionError, asyncio.IncompleteReadError):
            return found
        finally:
            writer.close()

    async def written(self) -> bytes:
        """The data stored since the last call."""
        found = b""
        async with RawClient(self.bootstrap) as client:
            for partition, end in enumerate(self.ends):
                if engine_under_test.is_redis():  # there, what is answered at acks=1 may be shown a moment later
                    await produce(client, TOPIC, encode_batch([BEHIND]), partition=partition)
                answer = await fetch(client, TOPIC, end, partition=partition)
                assert answer.error_code == 0
                self.ends[partition] = answer.high_watermark
                found += bytes(answer.records)
        return found


@dataclass
class Roads:
    runner: asyncio.Runner
    short: Road
    long: Road


EXAMPLES = examples(400)


@pytest.fixture(scope="module")
def roads(engine: str) -> Iterator[Roads]:
    served: list[bool] = []
    serve = plain_produce._Road.serve

    def counted(self: Any, received: memoryview, connection: Any) -> Any:
        answer = serve(self, received, connection)
        served.append(answer is not None)
        return answer

    with tempfile.TemporaryDirectory() as directory, asyncio.Runner() as runner:
        stack = AsyncExitStack()

        async def start(name: str) -> Road:
            bootstrap = await stack.enter_async_context(running(Path(directory) / name, ANSWERED_AT_ONCE))
            async with RawClient(bootstrap) as client:
                await create(client, TOPIC, PARTITIONS)
            return Road(bootstrap)

        same = patch("headrace.broker.handlers.create_topics.new_topic_id", lambda _: TopicId(TOPIC_ID))
        with patch.object(plain_produce._Road, "serve", counted), same:
            short = runner.run(start("short"))
            with patch.object(parts, "OFFERED", tuple(replace(handler, shortcuts=None) for handler in all_handlers())):
                long = runner.run(start("long"))
            yield Roads(runner, short, long)
            runner.run(stack.aclose())
            assert served.count(True) >= EXAMPLES // 20, "the short road is taken"
            assert served.count(False) >= EXAMPLES // 20, "and left"


@settings(max_examples=EXAMPLES, deadline=None)
@given(st.integers(9, 13), requests(), damages)
def test_damaged_frames_get_the_same_on_both_roads(
    roads: Roads, version: int, request: ProduceRequest, damage: list[tuple[str, int, int]]
) -> None:
    async def sent(road: Road) -> tuple[list[bytes], bytes]:
        answers = await road.ask(damaged(frame(version, request), damage))
        return answers, await road.written()

    assert roads.runner.run(sent(roads.short)) == roads.runner.run(sent(roads.long))
