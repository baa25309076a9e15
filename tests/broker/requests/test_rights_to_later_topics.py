"""A topic by its id is protected also where it comes, or becomes known here, while a request is under way."""

from __future__ import annotations

from dataclasses import replace
from inspect import isawaitable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final, NamedTuple, cast
from uuid import UUID

from headrace.base.ids import NO_EPOCH, BrokerId, Offset, PartitionIndex, TopicId
from headrace.base.limits import NAMES_PER_TURN_MAX
from headrace.broker.handlers import delete_topics, offset_commit
from headrace.broker.handlers.fetch import Reader
from headrace.broker.requests.context import Admitted, Refused, RequestContext
from headrace.broker.requests.dispatch import _result
from headrace.broker.requests.fetch_sessions import FetchPlan, PartitionKey, Wanted
from headrace.metadata.access.acls import AclOperation, ResourceType
from headrace.metadata.config_table import STANDARD_AUTHORIZER
from headrace.metadata.image import EMPTY_IMAGE, MetadataImage
from headrace.wire.errors import ErrorCode
from headrace.wire.messages import create_acls, fetch
from headrace.wire.messages import offset_commit as commit
from headrace.wire.messages.create_topics import CreatableTopic
from headrace.wire.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from tests import loops
from tests.broker.clusters import running
from tests.broker.group_broker import RawClient
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

    def may_for_some(self, *_: Any) -> bool:
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
    """It may know the topic already, and would not ask for rights. For one that may delete nothing, nobody is asked."""
    access = delete_topics.HANDLER.access
    by_id = DeleteTopicsRequest(topics=(DeleteTopicState(name=None, topic_id=LATE),))
    found = access(by_id, context(6, EMPTY_IMAGE, None))
    assert isinstance(found, Refused)
    assert found.response.responses[0].error_code == ErrorCode.UNKNOWN_TOPIC_ID
    unclear = DeleteTopicsRequest(topics=(DeleteTopicState(name=None),))
    assert isinstance(access(unclear, context(6, EMPTY_IMAGE, None)), Admitted), "the handler says what is wrong"


RIGHTS: Final = {"authorizer.class.name": STANDARD_AUTHORIZER, "super.users": "User:root;User:ANONYMOUS"}


async def test_who_may_delete_hears_of_a_topic_what_the_controller_knows(tmp_path: Path) -> None:
    """Its broker may know the id later than the controller: the request comes by an image that lacks it."""
    async with running(tmp_path, 2, RIGHTS) as cluster:
        follower = next(one for one in cluster.brokers.values() if not one.parts.metadata.is_controller)
        services, early = follower.parts.requests.services, follower.image
        async with RawClient(cluster.bootstrap.split(",")[0]) as root:
            ids = {}
            for name in ("alices", "bobs"):
                ids[name] = (
                    await root.create(CreatableTopic(name=name, num_partitions=1, replication_factor=1))
                ).topic_id
            acl = create_acls.AclCreation(ResourceType.TOPIC, "alices", 3, "User:alice", "*", AclOperation.DELETE, 3)
            assert not (await root.ask(3, create_acls.CreateAclsRequest(creations=(acl,)))).results[0].error_code
        await cluster.agree()

        async def deleted(user: str, *names: str) -> list[int]:
            rights = services.authority.rights(cast("Any", Came(f"User:{user}")), delete_topics.HANDLER.key)
            states = tuple(DeleteTopicState(name=None, topic_id=ids.get(name, LATE)) for name in names)
            asked = DeleteTopicsRequest(topics=states, timeout_ms=120_000)
            found = _result(delete_topics.HANDLER, asked, replace(context(6, early, services), rights=rights))
            answer = await found if isawaitable(found) else found
            by_id = {each.topic_id: each.error_code for each in answer.responses}
            return [by_id[state.topic_id] for state in states]

        unknown = ErrorCode.UNKNOWN_TOPIC_ID
        assert await deleted("nobody", "alices", "bobs") == [unknown, unknown]
        assert await deleted("alice", "bobs", "alices", "no such topic") == [unknown, 0, unknown]
        assert follower.image.topic_names() == ["bobs"], "she may not delete it, though the controller knows it"
        assert await deleted("root", "bobs") == [0]
        assert follower.image.topic_names() == []


class Came(NamedTuple):
    """The parts of a client's connection that its rights depend on."""

    principal: str
    peer_host: str = "127.0.0.1"
    listener_name: str = "PLAINTEXT"


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
    assert reader.refused() == {LATE: ErrorCode.UNKNOWN_TOPIC_ID}, "it may come before it is read"
    services.metadata.image = LATER
    assert reader.refused() == {LATE: ErrorCode.TOPIC_AUTHORIZATION_FAILED}
