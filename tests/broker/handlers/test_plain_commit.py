"""Both paths of OffsetCommit answer alike and leave equal logs, to the byte: the short one, and the long one with all
rules."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any, NamedTuple, cast
from uuid import UUID

import pytest

from headrace.base.ports import Random as RandomPort
from headrace.broker import parts
from headrace.broker.boot import Broker
from headrace.broker.config import BrokerConfig
from headrace.broker.groups.shard import GroupShard
from headrace.broker.handlers import all_handlers, plain_commit
from headrace.broker.system import SystemClock
from headrace.storage.disk import LocalDisk
from headrace.wire.errors import ErrorCode
from headrace.wire.messages.delete_topics import DeleteTopicsRequest
from headrace.wire.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from tests.broker.group_broker import QUICK, RawClient
from tests.broker.groups.test_consumer_groups_wire import joining
from tests.broker.groups.test_wire import find, join, sync, topic_id

STAYS_MS = 1_700_000_000_000


class Stopped(SystemClock):
    """A stopped clock, so that both brokers write equal times."""

    def now_ms(self) -> int:
        return STAYS_MS


class World(NamedTuple):
    client: RawClient
    shard: GroupShard

    @property
    def log(self) -> bytes:
        log = self.shard.partition.log
        return bytes(self.shard.partition.read(log.log_start_offset, 1 << 20, committed_only=True, at_least_one=True))


@asynccontextmanager
async def world(directory: Path) -> AsyncIterator[World]:
    """A broker that does the same each time, with a topic `t` of two partitions, and one for offsets."""
    config = BrokerConfig(data=directory, port=0, configs={**QUICK, "offsets.topic.num.partitions": "1"})
    chance = cast("RandomPort", Random(7))
    async with (
        Broker(config, clock=Stopped(), random=chance, disk=LocalDisk()) as broker,
        RawClient(f"{broker.host}:{broker.port}") as client,
        asyncio.timeout(150),
    ):
        await client.create_topic("t", 2)
        await client.create_topic("u")
        await find(client)
        assert broker._parts is not None
        (shard,) = broker._parts.requests.services.groups.shards
        yield World(client, shard)


def commits(ids: dict[str, UUID], classic: Any, epoch: int) -> list[OffsetCommitRequest]:
    """Commits that members and others may send, and those that they may not."""
    found: list[OffsetCommitRequest] = []

    def add(group: str, member_id: str, generation: int, *positions: tuple[str, int, str | None], **more: Any) -> None:
        topics = tuple(
            OffsetCommitRequestTopic(
                name=name,
                topic_id=ids.get(name, UUID(int=9)),
                partitions=(OffsetCommitRequestPartition(index, 40 + len(found), 2, said),),
            )
            for name, index, said in positions
        )
        found.append(OffsetCommitRequest(group, generation, member_id, topics=topics)._replace(**more))

    for group, member_id, generation in (
        ("alone", "", -1),
        ("alone", "m", 1),
        ("nobody", "m", 3),
        ("g", classic.member_id, classic.generation_id),
        ("g", classic.member_id, classic.generation_id - 1),
        ("g", "another", classic.generation_id),
        ("g", "", -1),
        ("new", "m", epoch),
        ("new", "m", epoch + 1),
        ("new", "m", -1),
        ("new", "another", epoch),
        ("", "", -1),
    ):
        add(group, member_id, generation, ("t", 0, ""))
        add(group, member_id, generation, ("t", 1, "said"), ("u", 0, None), ("t", 0, "x" * 127))
        add(group, member_id, generation, ("t", 0, "ü" * 70))
        add(group, member_id, generation, ("t", 0, "x" * 5_000), ("u", 0, ""))
        add(group, member_id, generation, ("t", 0, "x" * 5_000))
        add(group, member_id, generation, ("t", 2, ""))
        add(group, member_id, generation, ("t", 0, ""), ("gone", 0, ""))
        add(group, member_id, generation, ("", 0, ""))
        add(group, member_id, generation)
        add(group, member_id, generation, ("t", 0, ""), group_instance_id="one")
    add("g" * 200, "", -1, ("t", 0, ""))
    add("g" * 32_000, "", -1, ("t", 0, ""))
    add("alone", "", -1, ("t", 0, ""))
    return found


async def outcome(directory: Path, version: int) -> tuple[list[tuple[OffsetCommitRequest, bytes]], bytes]:
    """Every answer, and what was stored."""
    async with world(directory) as w:
        ids = {name: await topic_id(w.client, name) for name in ("t", "u")}
        joined = await join(w.client)
        await sync(w.client, joined)
        consumer = await w.client.ask(1, joining("new"))
        assert consumer.error_code == ErrorCode.NONE
        answers = [
            (request, bytes(await w.client.ask_undecoded(version, request)))
            for request in commits(ids, joined, consumer.member_epoch)
            for _ in range(2)  # the second time for a place that is remembered
        ]
        return answers, w.log


@pytest.mark.parametrize("version", [8, 9, 10])
async def test_both_roads_lead_to_the_same_place(version: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    served: list[object] = []
    serve = plain_commit._Road.serve

    def counted(self: Any, frame: memoryview, connection: Any) -> Any:
        answer = serve(self, frame, connection)
        served.append(answer)
        return answer

    monkeypatch.setattr(plain_commit._Road, "serve", counted)
    short, log = await outcome(tmp_path / "short", version)
    assert sum(answer is not None for answer in served) >= 50, "the short road is taken"
    monkeypatch.setattr(parts, "OFFERED", tuple(replace(handler, shortcuts=None) for handler in all_handlers()))
    served.clear()
    answers, other_log = await outcome(tmp_path / "long", version)
    assert not served
    for (request, told), (_, expected) in zip(short, answers, strict=True):
        assert told == expected, request
    assert log == other_log
    assert log.count(b"said") > 2


async def test_a_topic_of_the_same_name_is_another(tmp_path: Path) -> None:
    """A place that is remembered is so while the cluster does not change."""
    async with world(tmp_path) as w:
        for _ in range(2):
            topic = OffsetCommitRequestTopic(name="t", partitions=(OffsetCommitRequestPartition(0, 5),))
            answer = await w.client.ask(9, OffsetCommitRequest("g", -1, "", topics=(topic,)))
            assert answer.topics[0].partitions[0].error_code == ErrorCode.NONE
            (group,) = w.shard.groups.values()
            (commit,) = group.offsets.values()
            assert commit.topic_id == await topic_id(w.client, "t")
            deleted = await w.client.ask(4, DeleteTopicsRequest(topic_names=("t",), timeout_ms=9_000))
            assert deleted.responses[0].error_code == ErrorCode.NONE
            await w.client.create_topic("t", 2)
