"""Shortcuts remember what a client was granted: until the ACLs change, and not where each grant is to be told."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final
from uuid import UUID

import pytest

from headrace.metadata.access.acls import AclOperation, ResourceType
from headrace.wire.errors import ErrorCode
from headrace.wire.messages import create_acls, fetch, produce
from headrace.wire.messages import offset_commit as commit
from tests.broker.group_broker import RawClient
from tests.broker.guarded import GROUP, ROOT, TOPIC, Guarded, guarded
from tests.broker.random_requests import BATCH

CLIENT: Final = "127.0.0.9"
DENY: Final = 2
ALLOW: Final = 3
LITERAL: Final = 3


def writes(topic: UUID) -> produce.ProduceRequest:
    partition = produce.PartitionProduceData(0, memoryview(BATCH))
    data = produce.TopicProduceData(name=TOPIC, topic_id=topic, partition_data=(partition,))
    return produce.ProduceRequest(acks=-1, timeout_ms=10_000, topic_data=(data,))


def reads(topic: UUID) -> fetch.FetchRequest:
    partition = fetch.FetchPartition(0, fetch_offset=0, partition_max_bytes=1 << 20)
    topics = (fetch.FetchTopic(topic=TOPIC, topic_id=topic, partitions=(partition,)),)
    return fetch.FetchRequest(max_wait_ms=0, min_bytes=0, max_bytes=1 << 20, session_epoch=-1, topics=topics)


def commits(topic: UUID) -> commit.OffsetCommitRequest:
    partitions = (commit.OffsetCommitRequestPartition(0, 1, -1, ""),)
    topics = (commit.OffsetCommitRequestTopic(name=TOPIC, topic_id=topic, partitions=partitions),)
    return commit.OffsetCommitRequest(group_id=GROUP, generation_id_or_member_epoch=-1, topics=topics)


def rule(kind: ResourceType, name: str, operation: AclOperation, permission: int) -> create_acls.AclCreation:
    return create_acls.AclCreation(kind, name, LITERAL, f"User:{CLIENT}", "*", operation, permission)


Case = tuple[Callable[[UUID], Any], int, Callable[[Any], int], AclOperation, ErrorCode]
IN_TOPIC: Final = ErrorCode.TOPIC_AUTHORIZATION_FAILED
CASES: Final[dict[str, Case]] = {
    **{
        f"produce-{version}": (
            writes,
            version,
            lambda answer: answer.responses[0].partition_responses[0].error_code,
            AclOperation.WRITE,
            IN_TOPIC,
        )
        for version in (9, 13)
    },
    **{
        f"fetch-{version}": (
            reads,
            version,
            lambda answer: answer.responses[0].partitions[0].error_code,
            AclOperation.READ,
            IN_TOPIC,
        )
        for version in (12, 17)
    },
    **{
        f"commit-{version}": (
            commits,
            version,
            lambda answer: answer.topics[0].partitions[0].error_code,
            AclOperation.READ,
            IN_TOPIC,
        )
        for version in (8, 10)
    },
}


async def granted(found: Guarded, root: RawClient, operation: AclOperation) -> None:
    rules = (
        rule(ResourceType.TOPIC, TOPIC, operation, ALLOW),
        rule(ResourceType.GROUP, GROUP, AclOperation.READ, ALLOW),
    )
    await root.ask(3, create_acls.CreateAclsRequest(creations=rules))


@pytest.mark.parametrize("case", CASES)
async def test_a_grant_ends_with_its_acl(tmp_path: Path, case: str) -> None:
    request, version, error, operation, refused = CASES[case]
    async with (
        guarded(tmp_path / "data") as found,
        RawClient(found.address, host=ROOT) as root,
        RawClient(found.address, host=CLIENT) as client,
    ):
        topic = found.broker.image.topic(TOPIC)
        assert topic is not None
        assert error(await client.ask(version, request(topic.id)))
        await granted(found, root, operation)
        answers = [error(await client.ask(version, request(topic.id))) for _ in range(3)]
        deny = rule(ResourceType.TOPIC, TOPIC, operation, DENY)
        await root.ask(3, create_acls.CreateAclsRequest(creations=(deny,)))
        answers += [error(await client.ask(version, request(topic.id))) for _ in range(2)]
    assert answers == [ErrorCode.NONE] * 3 + [refused] * 2


async def test_a_group_that_is_denied_commits_no_more(tmp_path: Path) -> None:
    request, version, error, operation, _ = CASES["commit-8"]
    async with (
        guarded(tmp_path / "data") as found,
        RawClient(found.address, host=ROOT) as root,
        RawClient(found.address, host=CLIENT) as client,
    ):
        await granted(found, root, operation)
        answers = [error(await client.ask(version, request(UUID(int=0)))) for _ in range(2)]
        deny = rule(ResourceType.GROUP, GROUP, AclOperation.READ, DENY)
        await root.ask(3, create_acls.CreateAclsRequest(creations=(deny,)))
        answers.append(error(await client.ask(version, request(UUID(int=0)))))
    assert answers == [ErrorCode.NONE, ErrorCode.NONE, ErrorCode.GROUP_AUTHORIZATION_FAILED]


@pytest.mark.parametrize("case", ["produce-9", "fetch-12", "commit-8"])
async def test_each_grant_is_told_where_that_is_asked_for(tmp_path: Path, case: str) -> None:
    request, version, error, operation, _ = CASES[case]
    data = tmp_path / "data"
    async with (
        guarded(data, {"audit.log.grants": "true"}) as found,
        RawClient(found.address, host=ROOT) as root,
        RawClient(found.address, host=CLIENT) as client,
    ):
        await granted(found, root, operation)
        for _ in range(3):
            assert not error(await client.ask(version, request(UUID(int=0))))
    told = [json.loads(line) for line in (data / "audit.log").read_text().splitlines()]
    mine = [each for each in told if each.get("principal") == f"User:{CLIENT}"]
    assert [each["allowed"] for each in mine if each.get("resource") == f"TOPIC:{TOPIC}"] == [True] * 3
