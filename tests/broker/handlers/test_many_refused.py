"""Refused topics cost a step each, and others have their turns of the loop, however many a request names."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Generator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final, cast

import pytest

from headrace.base.limits import NAMES_PER_TURN_MAX
from headrace.broker.handlers import (
    all_handlers,
    delete_records,
    describe_groups,
    list_offsets,
    metadata,
    offset_fetch,
    produce,
)
from headrace.broker.requests.context import Admitted, Handler, Refused
from headrace.broker.requests.turns import in_turns
from headrace.metadata.access.acls import ResourceType
from headrace.wire.apis import ApiKey
from headrace.wire.errors import ErrorCode
from headrace.wire.messages.delete_records import DeleteRecordsRequest, DeleteRecordsTopic
from headrace.wire.messages.describe_groups import DescribeGroupsRequest
from headrace.wire.messages.list_offsets import ListOffsetsRequest, ListOffsetsTopic
from headrace.wire.messages.metadata import MetadataRequest, MetadataRequestTopic
from headrace.wire.messages.offset_fetch import OffsetFetchRequest, OffsetFetchRequestGroup, OffsetFetchRequestTopics
from headrace.wire.messages.produce import ProduceRequest, TopicProduceData
from tests import loops
from tests.broker.group_broker import RawClient
from tests.broker.guarded import guarded

TOPICS: Final = 300


class Name(str):
    """Counts its comparisons."""

    __slots__ = ()
    compared = 0

    def __eq__(self, other: object) -> bool:
        Name.compared += 1
        return super().__eq__(other)

    __hash__ = str.__hash__


class GroupsAlone:
    """The rights of a client that may do everything to groups, and nothing else."""

    def may(self, _: Any, kind: ResourceType, __: str) -> bool:
        return kind is ResourceType.GROUP


def test_the_cost_of_refused_topics_grows_with_their_number() -> None:
    topics = tuple(OffsetFetchRequestTopics(name=Name(number), partition_indexes=(0,)) for number in range(TOPICS))
    request = OffsetFetchRequest(groups=(OffsetFetchRequestGroup(group_id="g", topics=topics),))
    found = offset_fetch.HANDLER.access(request, cast("Any", SimpleNamespace(version=8, rights=GroupsAlone())))
    assert isinstance(found, Admitted)
    assert found.request.groups[0].topics == ()
    assert Name.compared < 10 * TOPICS


class Nothing:
    """The rights of a client that may do nothing."""

    are_bounded = True

    def may(self, *_: Any) -> bool:
        return False


MANY: Final = 4 * NAMES_PER_TURN_MAX
NAMES: Final = [f"name-{number}" for number in range(MANY)]
STRANGER: Final = "127.0.0.2"


@pytest.mark.parametrize(
    ("handler", "request_"),
    [
        (list_offsets.HANDLER, ListOffsetsRequest(topics=tuple(map(ListOffsetsTopic, NAMES)))),
        (delete_records.HANDLER, DeleteRecordsRequest(topics=tuple(map(DeleteRecordsTopic, NAMES)))),
        (describe_groups.HANDLER, DescribeGroupsRequest(groups=tuple(NAMES))),
    ],
)
def test_rights_to_many_names_are_looked_up_in_slices(handler: Handler, request_: Any) -> None:
    slices = handler.access(request_, cast("Any", SimpleNamespace(version=8, rights=Nothing())))
    assert isinstance(slices, Generator)
    turns = 1
    while True:
        try:
            next(slices)
        except StopIteration as stop:
            found = stop.value
            break
        turns += 1
    assert turns == MANY / NAMES_PER_TURN_MAX
    assert isinstance(found, Refused)
    assert sum(len(part) for part in found.response if isinstance(part, tuple)) == MANY


def test_so_are_those_to_many_groups_and_their_topics() -> None:
    topics = tuple(OffsetFetchRequestTopics(name=name) for name in NAMES)
    request = OffsetFetchRequest(groups=(OffsetFetchRequestGroup(group_id="g", topics=topics),))
    slices = offset_fetch.HANDLER.access(request, cast("Any", SimpleNamespace(version=8, rights=GroupsAlone())))
    assert isinstance(slices, Generator)
    assert 1 + sum(1 for _ in slices) == MANY / NAMES_PER_TURN_MAX
    groups = tuple(map(OffsetFetchRequestGroup, NAMES))
    slices = offset_fetch.HANDLER.access(
        OffsetFetchRequest(groups=groups), cast("Any", SimpleNamespace(version=8, rights=Nothing()))
    )
    assert isinstance(slices, Generator)
    assert 1 + sum(1 for _ in slices) == MANY / NAMES_PER_TURN_MAX


def test_requests_that_may_be_handled_while_others_are_under_way_are_checked_at_once() -> None:
    """Else a later one would overtake them."""
    request = ProduceRequest(topic_data=tuple(map(TopicProduceData, NAMES)), acks=-1)
    context = SimpleNamespace(version=9, rights=Nothing(), is_long=False)
    found = produce.HANDLER.access(request, cast("Any", context))
    assert isinstance(found, Refused)
    context.is_long = True  # nothing else of its connection is under way
    assert isinstance(produce.HANDLER.access(request, cast("Any", context)), Generator)
    of_brokers = {int(ApiKey.ENVELOPE), int(ApiKey.WRITE_TXN_MARKERS)}  # each needs one right
    assert {handler.key for handler in all_handlers() if handler.pipelined} == {produce.HANDLER.key} | of_brokers


def test_many_names_are_answered_as_few_are_and_others_have_their_turns(tmp_path: Path) -> None:
    async def work() -> None:
        async with guarded(tmp_path) as place, RawClient(place.address, host=STRANGER) as stranger:
            topics = tuple(MetadataRequestTopic(name=name) for name in NAMES)
            answer = await stranger.ask(9, MetadataRequest(topics=topics))
            assert [topic.name for topic in answer.topics] == NAMES
            assert {topic.error_code for topic in answer.topics} == {ErrorCode.TOPIC_AUTHORIZATION_FAILED}
            asked = ListOffsetsRequest(topics=tuple(map(ListOffsetsTopic, NAMES)))
            assert [topic.name for topic in (await stranger.ask(5, asked)).topics] == NAMES
            async with RawClient(place.address, host="127.0.0.1") as root:
                answer = await root.ask(9, MetadataRequest(topics=topics, allow_auto_topic_creation=False))
                assert [topic.name for topic in answer.topics] == NAMES

    loops.run(work())


def test_metadata_of_many_names_is_put_together_in_slices() -> None:
    async def work() -> None:
        turns, done = 0, False

        async def counted() -> None:
            nonlocal turns
            while not done:
                turns += 1
                await asyncio.sleep(0)

        other = asyncio.ensure_future(counted())
        found = await in_turns(iter(NAMES))
        done = True
        await other
        assert found == NAMES
        assert turns >= MANY / NAMES_PER_TURN_MAX

    loops.run(work())
    few, many = dict.fromkeys(NAMES[:1]), dict.fromkeys(NAMES)
    for topics, known in ((tuple(MetadataRequestTopic(name=name) for name in NAMES), few), (None, many)):
        context = SimpleNamespace(image=SimpleNamespace(topic_ids=known))
        answer = metadata.handle(MetadataRequest(topics=topics), cast("Any", context))
        assert isinstance(answer, Awaitable), "it waits for its turns"
        cast("Any", answer).close()
