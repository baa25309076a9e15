"""A topic by its id is protected also where it comes, or becomes known here, while a request is under way."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, Final, cast
from uuid import UUID

from headrace.base.ids import NO_EPOCH, BrokerId, Offset, PartitionIndex, TopicId
from headrace.base.limits import NAMES_PER_TURN_MAX
from headrace.broker.handlers import delete_topics, offset_commit
from headrace.broker.handlers.fetch import Reader
from headrace.broker.requests.context import Admitted, Refused, RequestContext
from headrace.broker.requests.dispatch import _result
from headrace.broker.requests.fetch_sessions import FetchPlan, PartitionKey, Wanted
from headrace.metadata.access.acls import ResourceType
from headrace.metadata.image import EMPTY_IMAGE, MetadataImage
from headrace.wire.errors import ErrorCode
from headrace.wire.messages import fetch
from headrace.wire.messages import offset_commit as commit
from headrace.wire.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from tests import loops
from tests.metadata.test_metadata_cache import partition, topic

LATE: Final = TopicId(UUID(int=77))
LATER: Final = EMPTY_IMAGE.replay([topic(LATE, "late", partition(0, BrokerId(1)))], index=1)


class NoTopic:
    """The rights of a client that may do everything to groups, and nothing to topics."""

    are_bounded = True

    def may(self, _: Any, kind: ResourceType, __: str) -> bool:
        return kind is not ResourceType.TOPIC

    def sees(self, *_: Any) -> bool:
        return False


def context(version: int, image: MetadataImage, services: Any) -> RequestContext:
    return RequestContext(
        services=services,
        image=image,
        version=version,
        client_id="",
        client_host="127.0.0.1",
        listener="PLAINTEXT",
        received_bytes=0,
        rights=cast("Any", NoTopic()),
        principal="User:nobody",
    )


def test_the_controller_is_not_asked_to_delete_a_topic_by_an_id_that_is_not_known_here() -> None:
    """It may know the topic already, and would not ask for rights."""
    access = delete_topics.HANDLER.access
    by_id = DeleteTopicsRequest(topics=(DeleteTopicState(name=None, topic_id=LATE),))
    found = access(by_id, context(6, EMPTY_IMAGE, None))
    assert isinstance(found, Refused)
    assert found.response.responses[0].error_code == ErrorCode.UNKNOWN_TOPIC_ID
    unclear = DeleteTopicsRequest(topics=(DeleteTopicState(name=None),))
    assert isinstance(access(unclear, context(6, EMPTY_IMAGE, None)), Admitted), "the handler says what is wrong"


def test_a_request_that_is_checked_in_slices_is_handled_by_the_image_it_was_checked_by() -> None:
    """Its client may have no right to what a later image has."""
    partitions = (commit.OffsetCommitRequestPartition(0, 1, -1, ""),)
    others = (TopicId(UUID(int=1000 + number)) for number in range(2 * NAMES_PER_TURN_MAX))
    topics = tuple(commit.OffsetCommitRequestTopic(topic_id=each, partitions=partitions) for each in (LATE, *others))
    request = commit.OffsetCommitRequest(group_id="g", generation_id_or_member_epoch=-1, topics=topics)
    services = SimpleNamespace(metadata=SimpleNamespace(image=EMPTY_IMAGE), groups=None)

    async def work() -> Any:
        answering = _result(offset_commit.HANDLER, request, context(10, EMPTY_IMAGE, services))
        services.metadata.image = LATER
        return await answering

    answer = loops.run(work())
    assert answer.topics[0].topic_id == LATE
    assert answer.topics[0].partitions[0].error_code == ErrorCode.UNKNOWN_TOPIC_ID


def test_a_fetch_that_has_waited_asks_for_rights_to_topics_that_came_meanwhile() -> None:
    """Partitions are found by the id, whatever the image."""
    plan = FetchPlan([(PartitionKey(LATE, PartitionIndex(0)), Wanted(Offset(0), 1, NO_EPOCH))], None, incremental=False)
    services = SimpleNamespace(metadata=SimpleNamespace(image=EMPTY_IMAGE))
    reader = Reader(fetch.FetchRequest(), context(13, EMPTY_IMAGE, services), plan)
    assert not reader._forbidden()
    services.metadata.image = LATER
    assert set(reader._forbidden()) == {LATE}
