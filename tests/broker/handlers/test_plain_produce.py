"""Both roads of produce answer alike and leave the same log: the short one, and the long one that has all the rules."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from headrace.broker import parts
from headrace.broker.handlers import all_handlers, plain_produce
from headrace.wire.batches import HEADER, BatchHeader, encode_batch
from headrace.wire.compression import Compression
from headrace.wire.errors import ErrorCode
from headrace.wire.messages.delete_topics import DeleteTopicsRequest
from headrace.wire.messages.find_coordinator import FindCoordinatorRequest
from headrace.wire.messages.metadata import MetadataRequest, MetadataRequestTopic
from headrace.wire.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from headrace.wire.records import Record
from tests.broker.data_path import batch, create, fetch
from tests.broker.group_broker import RawClient, running


def idempotent(sequence: int, epoch: int = 0) -> bytes:
    record = Record(0, 1_700_000_000_000, None, b"v%d" % sequence, ())
    return encode_batch([record], producer_id=7, producer_epoch=epoch, base_sequence=sequence)


def lying(**changes: int) -> bytes:
    whole = batch(b"a", b"b")
    header = BatchHeader._make(HEADER.unpack_from(whole))._replace(**changes)
    return HEADER.pack(*header) + whole[61:]


def requests() -> Iterator[tuple[str, int, bytes | None, dict[str, Any]]]:
    """Topic, partition, records, and what else of the request is unusual."""
    yield "plain", 0, batch(b"one"), {}
    yield "plain", 0, batch(b"two", codec=Compression.GZIP), {"acks": 1}
    for sequence in (0, 1, 2, 1, 4, 0):  # two that come again, and a gap
        yield "plain", 0, idempotent(sequence), {}
    yield "plain", 0, idempotent(0, epoch=1), {}
    yield "plain", 0, idempotent(1, epoch=0), {}
    yield "plain", 1, batch(b"no such partition"), {}
    yield "plain", -1, batch(b"no such partition"), {}
    yield "gone", 0, batch(b"no such topic"), {}
    yield "", 0, batch(b"no name"), {}
    yield "__consumer_offsets", 0, batch(b"internal"), {}
    yield "plain", 0, lying(crc=1), {}
    yield "plain", 0, lying(magic=1), {}
    yield "plain", 0, lying(attributes=0x20), {}
    yield "plain", 0, batch(b"x") + batch(b"y"), {}
    yield "plain", 0, batch(b"x")[:40], {}
    yield "plain", 0, b"", {}
    yield "plain", 0, None, {}
    yield "plain", 0, batch(bytes(2_000_000)), {}
    yield "plain", 0, batch(b"acks"), {"acks": 7}
    yield "plain", 0, batch(b"transaction"), {"transactional_id": "t"}
    yield "plain", 0, batch(b"at once"), {"timeout_ms": -1}
    yield "timed", 0, batch(b"now"), {}
    yield "timed", 0, batch(b"now"), {"acks": 1}
    yield "packed", 0, batch(b"packed"), {}
    yield "compact", 0, batch(b"no key"), {}
    yield "careful", 0, batch(b"too few replicas"), {}
    yield "careful", 0, batch(b"enough for one"), {"acks": 1}
    yield "plain", 0, batch(b"last"), {}


async def outcome(directory: Path, version: int) -> list[object]:
    """Every answer, and what was stored."""
    found: list[object] = []
    async with running(directory) as bootstrap, RawClient(bootstrap) as client, asyncio.timeout(150):
        await create(client, "plain")
        await create(client, "timed", message_timestamp_type="LogAppendTime")
        await create(client, "packed", compression_type="gzip")
        await create(client, "compact", cleanup_policy="compact")
        await create(client, "careful", min_insync_replicas="2")
        await client.ask(4, FindCoordinatorRequest(coordinator_keys=("makes the offsets topic",)))
        names = ("plain", "timed", "packed", "compact", "careful", "__consumer_offsets")
        topics = tuple(MetadataRequestTopic(name=name) for name in names)
        ids = {each.name: each.topic_id for each in (await client.ask(12, MetadataRequest(topics=topics))).topics}
        for topic, partition, records, more in requests():
            data = PartitionProduceData(partition, None if records is None else memoryview(records))
            named = TopicProduceData(name=topic, partition_data=(data,))
            if topic in ids:
                named = named._replace(topic_id=ids[topic])
            asked = ProduceRequest(acks=-1, timeout_ms=30_000, topic_data=(named,))._replace(**more)
            for _ in range(2):  # the second time from a place that is remembered
                (answer,) = (await client.ask(version, asked)).responses[0].partition_responses
                if topic.startswith("__"):
                    assert answer.error_code == ErrorCode.INVALID_TOPIC_EXCEPTION
                if topic == "timed":
                    assert answer.log_append_time_ms > 0
                    answer = answer._replace(log_append_time_ms=0)
                found.append(answer)
        found += [bytes((await fetch(client, topic, 0)).records) for topic in ("plain", "packed", "careful")]
    return found


@pytest.mark.parametrize("version", [9, 12, 13])
async def test_both_roads_lead_to_the_same_place(version: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    served: list[object] = []
    serve = plain_produce._Road.serve

    def counted(self: Any, frame: memoryview, connection: Any) -> Any:
        answer = serve(self, frame, connection)
        served.append(answer)
        return answer

    monkeypatch.setattr(plain_produce._Road, "serve", counted)
    short = await outcome(tmp_path / "short", version)
    assert sum(answer is not None for answer in served) >= 20, "the short road is taken"
    monkeypatch.setattr(parts, "OFFERED", tuple(replace(handler, shortcuts=None) for handler in all_handlers()))
    served.clear()
    assert await outcome(tmp_path / "long", version) == short
    assert not served


async def test_a_topic_of_the_same_name_is_found_anew(tmp_path: Path) -> None:
    async with running(tmp_path) as bootstrap, RawClient(bootstrap) as client, asyncio.timeout(150):
        for round_ in range(3):
            await create(client, "t")
            for offset in range(2):
                data = (PartitionProduceData(0, memoryview(batch(b"%d" % round_))),)
                topic = TopicProduceData("t", partition_data=data)
                request = ProduceRequest(acks=-1, timeout_ms=9_000, topic_data=(topic,))
                (answer,) = (await client.ask(9, request)).responses[0].partition_responses
                assert (answer.error_code, answer.base_offset) == (0, offset)
            await client.ask(4, DeleteTopicsRequest(topic_names=("t",), timeout_ms=9_000))
