"""A request that names very much is handled in turns of the event loop, and answered as if it were not."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from inspect import isawaitable
from pathlib import Path
from typing import Any, Final, cast
from uuid import UUID

import pytest

from headrace.base.limits import NAMES_PER_TURN_MAX, REQUEST_ELEMENTS_AT_ONCE_MAX
from headrace.broker.handlers import all_handlers
from headrace.broker.kit.deferred import settled
from headrace.broker.requests.context import RequestContext
from headrace.broker.requests.dispatch import _result
from headrace.broker.requests.rights import EVERYTHING
from headrace.broker.requests.turns import names_very_much
from headrace.wire.errors import ErrorCode
from headrace.wire.messages import (
    consumer_group_describe,
    create_acls,
    create_topics,
    delete_acls,
    delete_groups,
    delete_records,
    describe_groups,
    describe_topic_partitions,
    describe_transactions,
    fetch,
    find_coordinator,
    incremental_alter_configs,
    list_offsets,
    metadata,
    offset_commit,
    offset_fetch,
    produce,
)
from tests import loops
from tests.broker.group_broker import RawClient, _codec
from tests.broker.guarded import GROUP, ROOT, TOPIC, Guarded, guarded
from tests.broker.random_requests import BATCH

MANY: Final = REQUEST_ELEMENTS_AT_ONCE_MAX + NAMES_PER_TURN_MAX
NAMES: Final = [f"name-{number}" for number in range(MANY)]
IDS: Final = [UUID(int=1 + number) for number in range(MANY)]
PART: Final = fetch.FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1000)
DATA: Final = (produce.PartitionProduceData(7, memoryview(BATCH)),)
BAD: Final = (incremental_alter_configs.AlterableConfig("no.such.config", 0, "1"),)
REQUESTS: Final[dict[str, tuple[int, Any]]] = {
    "Produce": (
        9,
        produce.ProduceRequest(
            acks=-1,
            topic_data=tuple(produce.TopicProduceData(name=each, partition_data=DATA) for each in (TOPIC, *NAMES)),
        ),
    ),
    "Produce by id": (
        13,
        produce.ProduceRequest(
            acks=-1, topic_data=tuple(produce.TopicProduceData(topic_id=each, partition_data=DATA) for each in IDS)
        ),
    ),
    "Fetch": (
        12,
        fetch.FetchRequest(topics=tuple(fetch.FetchTopic(topic=each, partitions=(PART,)) for each in (TOPIC, *NAMES))),
    ),
    "Fetch by id": (
        13,
        fetch.FetchRequest(topics=tuple(fetch.FetchTopic(topic_id=each, partitions=(PART,)) for each in IDS)),
    ),
    "Fetch of indexes": (
        12,
        fetch.FetchRequest(
            topics=(fetch.FetchTopic(topic=TOPIC, partitions=tuple(PART._replace(partition=at) for at in range(MANY))),)
        ),
    ),
    "ListOffsets": (
        6,
        list_offsets.ListOffsetsRequest(
            topics=tuple(
                list_offsets.ListOffsetsTopic(each, (list_offsets.ListOffsetsPartition(0, -1, -1),))
                for each in (TOPIC, *NAMES)
            )
        ),
    ),
    "OffsetFetch": (
        7,
        offset_fetch.OffsetFetchRequest(
            group_id=GROUP, topics=tuple(offset_fetch.OffsetFetchRequestTopic(each, (0,)) for each in (TOPIC, *NAMES))
        ),
    ),
    "OffsetFetch of topics": (
        8,
        offset_fetch.OffsetFetchRequest(
            groups=(
                offset_fetch.OffsetFetchRequestGroup(
                    group_id=GROUP,
                    topics=tuple(
                        offset_fetch.OffsetFetchRequestTopics(name=each, partition_indexes=(0,))
                        for each in (TOPIC, *NAMES)
                    ),
                ),
            )
        ),
    ),
    "OffsetFetch of groups": (
        8,
        offset_fetch.OffsetFetchRequest(
            groups=tuple(offset_fetch.OffsetFetchRequestGroup(group_id=each, topics=None) for each in (GROUP, *NAMES))
        ),
    ),
    "OffsetCommit": (
        8,
        offset_commit.OffsetCommitRequest(
            group_id=GROUP,
            topics=tuple(
                offset_commit.OffsetCommitRequestTopic(
                    name=each, partitions=(offset_commit.OffsetCommitRequestPartition(0, 1, -1, ""),)
                )
                for each in NAMES
            ),
        ),
    ),
    "FindCoordinator": (4, find_coordinator.FindCoordinatorRequest(coordinator_keys=tuple(NAMES))),
    "DescribeGroups": (
        5,
        describe_groups.DescribeGroupsRequest(groups=(GROUP, *NAMES), include_authorized_operations=True),
    ),
    "ConsumerGroupDescribe": (
        0,
        consumer_group_describe.ConsumerGroupDescribeRequest(
            group_ids=(GROUP, *NAMES), include_authorized_operations=True
        ),
    ),
    "DescribeTransactions": (0, describe_transactions.DescribeTransactionsRequest(transactional_ids=tuple(NAMES))),
    "DescribeTopicPartitions": (
        0,
        describe_topic_partitions.DescribeTopicPartitionsRequest(
            topics=tuple(map(describe_topic_partitions.TopicRequest, (TOPIC, *NAMES)))
        ),
    ),
    "Metadata": (
        9,
        metadata.MetadataRequest(
            topics=tuple(metadata.MetadataRequestTopic(name=each) for each in (TOPIC, *NAMES)),
            allow_auto_topic_creation=False,
        ),
    ),
    "DeleteGroups": (2, delete_groups.DeleteGroupsRequest(groups_names=tuple(NAMES))),
    "DeleteRecords": (
        2,
        delete_records.DeleteRecordsRequest(
            topics=tuple(
                delete_records.DeleteRecordsTopic(each, (delete_records.DeleteRecordsPartition(0, 0),))
                for each in NAMES
            )
        ),
    ),
    "CreateTopics": (
        7,
        create_topics.CreateTopicsRequest(
            topics=tuple(create_topics.CreatableTopic(name=each) for each in NAMES), timeout_ms=30_000
        ),
    ),
    "IncrementalAlterConfigs": (
        1,
        incremental_alter_configs.IncrementalAlterConfigsRequest(
            resources=tuple(incremental_alter_configs.AlterConfigsResource(2, each, BAD) for each in NAMES)
        ),
    ),
    "CreateAcls": (3, create_acls.CreateAclsRequest(creations=(create_acls.AclCreation(),) * MANY)),
    "DeleteAcls": (
        3,
        delete_acls.DeleteAclsRequest(
            filters=tuple(delete_acls.DeleteAclsFilter(2, each, 3, None, None, 1, 1) for each in NAMES)
        ),
    ),
}


class Nothing:
    """The rights of a client that may do nothing."""

    are_bounded = True

    def may(self, *_: Any) -> bool:
        return False

    sees = may_for_some = may

    def operations(self, *_: Any) -> int:
        return 0


def context(place: Guarded, version: int, rights: Any) -> RequestContext:
    services = place.broker.parts.requests.services
    return RequestContext(
        services=services,
        image=services.metadata.image,
        version=version,
        client_id="",
        client_host=ROOT,
        listener="PLAINTEXT",
        received_bytes=0,
        rights=rights,
        principal="User:somebody",
    )


async def answer(request: Any, asked: RequestContext) -> Any:
    handler = next(each for each in all_handlers() if each.key == _codec(request).key)
    found = _result(handler, request, asked)
    return await found if isawaitable(found) else await settled(found)


def ordered(message: Any) -> Any:
    """The message, whatever the order of its answers: refused topics are told last."""
    parts = tuple(map(ordered, message)) if isinstance(message, tuple) else message
    return tuple(sorted(parts, key=repr)) if type(message) is tuple else parts


@pytest.mark.parametrize("name", REQUESTS)
def test_it_is_handled_in_turns_and_answered_as_at_once(tmp_path: Path, name: str) -> None:
    version, request = REQUESTS[name]
    turns = 0

    async def count() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    async def work() -> None:
        nonlocal turns
        async with guarded(tmp_path) as place:
            for rights in (Nothing(), EVERYTHING):
                asked = context(place, version, rights)
                at_once = await answer(request, asked)
                turns, other = 0, asyncio.ensure_future(count())
                in_turns = await answer(request, replace(asked, is_long=True))
                other.cancel()
                assert ordered(in_turns) == ordered(at_once)
                if rights is EVERYTHING or name in ("Produce", "Fetch", "Metadata"):
                    assert turns >= MANY / NAMES_PER_TURN_MAX - 1, "others have their turns"

    loops.run(work())


def test_it_is_known_by_the_elements_of_its_arrays() -> None:
    assert all(names_very_much(request) for _, request in REQUESTS.values())
    few = REQUEST_ELEMENTS_AT_ONCE_MAX // 2
    topics = tuple(fetch.FetchTopic(topic=each, partitions=(PART,)) for each in NAMES[:few])
    assert not names_very_much(fetch.FetchRequest(topics=topics))
    assert names_very_much(fetch.FetchRequest(topics=(*topics, fetch.FetchTopic())))
    assert not names_very_much(delete_groups.DeleteGroupsRequest(groups_names=tuple(NAMES[: 2 * few])))


def test_later_batches_of_its_connection_do_not_overtake_it(tmp_path: Path) -> None:
    """Produce is the one API of clients whose connection goes on meanwhile."""
    own = (produce.PartitionProduceData(0, memoryview(BATCH)),)
    last = produce.TopicProduceData(name=TOPIC, partition_data=own)
    others = tuple(produce.TopicProduceData(name=each, partition_data=own) for each in NAMES)
    long = produce.ProduceRequest(acks=-1, timeout_ms=10_000, topic_data=(*others, last))
    short = produce.ProduceRequest(acks=-1, timeout_ms=10_000, topic_data=(last,))

    async def work() -> None:
        async with guarded(tmp_path) as place, RawClient(place.address, host=ROOT) as client:
            codec, offsets = client.send(9, long), []
            client.send(9, short)
            client._sent -= 1
            for _ in range(2):
                told = codec.decode_response(9, await client.receive(9, codec)).responses
                client._sent += 1
                (own,) = (each.partition_responses[0] for each in told if each.name == TOPIC)
                assert own.error_code == 0
                offsets.append(own.base_offset)
            assert offsets == [1, 2], "one was there before"

    loops.run(work())


def test_a_session_names_as_much_with_a_short_request(tmp_path: Path) -> None:
    async def work() -> None:
        async with guarded(tmp_path) as place, RawClient(place.address, host="127.0.0.2") as stranger:
            _, request = REQUESTS["Fetch"]
            first = await stranger.ask(12, request._replace(session_epoch=0))
            asked = context(place, 12, Nothing())
            more = fetch.FetchRequest(session_id=first.session_id, session_epoch=1)
            handler = next(each for each in all_handlers() if each.key == _codec(more).key)
            found = _result(handler, more, asked)
            assert isawaitable(found)
            told = cast("fetch.FetchResponse", await found)
            errors = {part.error_code for topic in told.responses for part in topic.partitions}
            assert errors == {ErrorCode.TOPIC_AUTHORIZATION_FAILED}
            assert len(told.responses) == MANY + 1

    loops.run(work())


def test_a_partition_that_is_named_again_is_read_once_as_it_was_named_last(tmp_path: Path) -> None:
    async def work() -> None:
        async with guarded(tmp_path) as place, RawClient(place.address, host=ROOT) as client:
            topic = fetch.FetchTopic(topic=TOPIC, partitions=(PART._replace(fetch_offset=99), PART, PART))
            told = await client.ask(12, fetch.FetchRequest(max_bytes=1000, topics=(topic, topic)))
            ((part,),) = (each.partitions for each in told.responses)
            assert (part.error_code, bytes(part.records or b"")) == (0, BATCH[:8] + bytes(part.records)[8:])

    loops.run(work())
