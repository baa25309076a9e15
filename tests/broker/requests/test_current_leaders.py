"""A client of the wrong broker is told where to go: the leader, its epoch and its address (KIP-951)."""

from __future__ import annotations

import uuid
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from headrace.base.ids import BrokerId, DirectoryId, LeaderEpoch, Offset, TopicId
from headrace.broker.handlers.plain_produce import _Answer, _AnswerOfMany, _Road
from headrace.broker.partitions.replica import WriteRefusal
from headrace.broker.requests.context import Services
from headrace.broker.requests.current_leaders import told_in_fetch, told_in_produce
from headrace.broker.requests.rights import Authority
from headrace.controller.brokers import fence_broker, register_broker
from headrace.controller.topics import NewTopic, create_topics
from headrace.metadata.image import EMPTY_IMAGE, MetadataImage
from headrace.metadata.values import Endpoint
from headrace.storage.engine.appending import Appended
from headrace.wire.apis import ApiKey, api
from headrace.wire.errors import ErrorCode
from headrace.wire.headers import decode_response_header
from headrace.wire.messages import fetch, produce
from headrace.wire.messages.create_topics import CreatableReplicaAssignment, CreatableTopic, CreateTopicsRequest
from headrace.wire.walking import UNWALKED
from tests import loops
from tests.broker.clusters import BY_HAND, running
from tests.broker.data_path import batch, produce_request
from tests.broker.group_broker import RawClient
from tests.broker.handlers.test_answers_of_many import Scripted

TOPIC = TopicId(uuid.UUID(int=7, version=4))
AWAY = ErrorCode.NOT_LEADER_OR_FOLLOWER
OLD_EPOCH = ErrorCode.FENCED_LEADER_EPOCH


@pytest.fixture(scope="module")
def image() -> MetadataImage:
    """t-0 is led by broker 2 in epoch 1, t-1 by broker 1 in epoch 0, gone-0 by nobody: its broker, 3, is fenced."""
    image = EMPTY_IMAGE
    for broker in (1, 2, 3):
        decision = register_broker(
            image,
            cluster_id=image.cluster_id,
            broker_id=BrokerId(broker),
            directory_id=DirectoryId(uuid.UUID(int=broker)),
            endpoints=(Endpoint(listener="PLAINTEXT", host=f"host{broker}", port=9000 + broker),),
            rack="a" if broker == 2 else None,
            unfenced=True,
        )
        image = image.replay(decision.events, index=image.index + 1)
    topics = (("t", TOPIC, ((3, 2), (1, 2))), ("gone", TopicId(uuid.UUID(int=8, version=4)), ((3,),)))
    for name, topic_id, replicas in topics:
        assignments = tuple((at, tuple(map(BrokerId, each))) for at, each in enumerate(replicas))
        wanted = NewTopic(topic_id=topic_id, name=name, assignments=assignments, configs={})
        image = image.replay(create_topics(image, [wanted], broker_configs={}).events, index=image.index + 1)
    epoch = image.brokers[BrokerId(3)].epoch
    return image.replay(fence_broker(image, broker_id=BrokerId(3), broker_epoch=epoch).events)


def produced(*errors: int, name: str = "t", topic_id: uuid.UUID | None = None) -> produce.ProduceResponse:
    """An answer with these errors for partitions 0, 1, ..."""
    parts = tuple(produce.PartitionProduceResponse(index=at, error_code=error) for at, error in enumerate(errors))
    topic = produce.TopicProduceResponse(name="" if topic_id else name, partition_responses=parts)
    return produce.ProduceResponse(responses=(topic if topic_id is None else topic._replace(topic_id=topic_id),))


def leaders_of(response: Any) -> list[tuple[int, int]]:
    (topic,) = response.responses
    parts = topic.partition_responses if isinstance(response, produce.ProduceResponse) else topic.partitions
    return [tuple(part.current_leader) for part in parts]


class Looked(str):
    """A name that counts how often it is compared."""

    __hash__ = str.__hash__
    times = 0

    def __eq__(self, other: object) -> bool:
        Looked.times += 1
        return str.__eq__(self, other)


def test_many_partitions_and_many_that_were_carried_in_one_request_cost_what_they_are_together(
    image: MetadataImage,
) -> None:
    Looked.times = 0
    response = produced(*500 * [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION], name=Looked("nowhere"))
    carried = [(Looked("t"), 0) for _ in range(500)]
    told_in_produce(response, version=10, image=image, listener="PLAINTEXT", carried=carried)
    assert Looked.times < 5_000


@pytest.mark.parametrize("by_id", [False, True])
def test_an_answer_to_produce_names_the_leader_of_what_is_led_elsewhere(image: MetadataImage, by_id: bool) -> None:
    response = produced(AWAY, ErrorCode.NONE, AWAY, topic_id=TOPIC if by_id else None)
    told = told_in_produce(response, version=10, image=image, listener="PLAINTEXT")
    assert leaders_of(told) == [(2, 1), (-1, -1), (-1, -1)], "partition 2 does not exist"
    assert told.node_endpoints == (produce.NodeEndpoint(node_id=2, host="host2", port=9002, rack="a"),)
    assert told_in_produce(produced(AWAY, AWAY), version=13, image=image, listener="PLAINTEXT").node_endpoints == (
        produce.NodeEndpoint(node_id=2, host="host2", port=9002, rack="a"),
        produce.NodeEndpoint(node_id=1, host="host1", port=9001, rack=None),
    )


def test_an_answer_to_fetch_does_too_and_tells_who_has_an_old_epoch(image: MetadataImage) -> None:
    parts = tuple(
        fetch.PartitionData(partition_index=at, error_code=error) for at, error in enumerate([AWAY, OLD_EPOCH])
    )
    response = fetch.FetchResponse(responses=(fetch.FetchableTopicResponse(topic_id=TOPIC, partitions=parts),))
    told = told_in_fetch(response, version=16, image=image, listener="PLAINTEXT")
    assert leaders_of(told) == [(2, 1), (1, 0)]
    assert [node.node_id for node in told.node_endpoints] == [2, 1]
    assert told_in_fetch(response, version=15, image=image, listener="PLAINTEXT") is response


def test_nothing_is_told_where_there_is_nothing_to_tell(image: MetadataImage) -> None:
    """Before the fields; of other errors; of what nobody leads."""
    for version, response in (
        (9, produced(AWAY)),
        (10, produced(ErrorCode.NOT_ENOUGH_REPLICAS, ErrorCode.NONE)),
    ):
        assert told_in_produce(response, version=version, image=image, listener="PLAINTEXT") is response
    for name in ("gone", "never"):
        assert told_in_produce(produced(AWAY, name=name), version=10, image=image, listener="PLAINTEXT") == produced(
            AWAY, name=name
        )


def road(image: MetadataImage, version: int) -> _Road:
    parts: Any = SimpleNamespace(
        partitions=SimpleNamespace(remember_in=lambda _: None),
        metadata=SimpleNamespace(image=image),
        deadlines=None,
        on_error=lambda api, error: None,
        authority=Authority(None, None),
    )
    return _Road(cast("Services", parts), version)


def decoded(answer: Any, version: int) -> Any:
    frame = memoryview(b"".join(bytes(part) for part in answer))
    assert int.from_bytes(frame[:4], "big") == len(frame) - 4
    correlation, at = decode_response_header(int(ApiKey.PRODUCE), version, frame[4:])
    assert correlation == 7
    codec: Any = api(int(ApiKey.PRODUCE))
    return codec.decode_response(version, frame[4 + at :])


def test_the_short_road_tells_it_also_where_nothing_was_refused_at_first(image: MetadataImage) -> None:
    waiting, answer = Scripted(Appended(Offset(5), Offset(6))), _AnswerOfMany(road(image, 10), 7, "PLAINTEXT")
    answer.take(b"\2t", [(0, memoryview(b""))], cast("Any", iter([(waiting, UNWALKED, None)])), needs_isr=True)
    answer.all_are_taken()
    waiting.waiting[0].on_outcome(AWAY)
    assert leaders_of(decoded(answer.answer(), 10)) == [(2, 1)]


@pytest.mark.parametrize("version", range(9, 14))
def test_the_short_road_tells_it_of_what_waited_when_the_leadership_ended(image: MetadataImage, version: int) -> None:
    topic = TOPIC.bytes if version >= 13 else b"\2t"
    taken = Appended(Offset(5), Offset(6))
    one = _Answer(road(image, version), 7, topic, 0, taken, Offset(0), "PLAINTEXT")
    one.on_outcome(AWAY)
    many = _AnswerOfMany(road(image, version), 7, "PLAINTEXT")
    parts = [Scripted(taken), Scripted(taken), Scripted(WriteRefusal(ErrorCode.CORRUPT_MESSAGE, "It is."))]
    places = cast("Any", iter([(part, UNWALKED, None) for part in parts]))
    many.take(topic, [(at, memoryview(b"")) for at in range(3)], places, needs_isr=True)
    many.all_are_taken()
    parts[0].waiting[0].on_outcome(AWAY)
    parts[1].waiting[0].on_outcome(ErrorCode.NONE)
    known, nodes = ((2, 1), [2]) if version >= 10 else ((-1, -1), [])
    response = decoded(one.answer(), version)
    assert leaders_of(response) == [known]
    assert [node.node_id for node in response.node_endpoints] == nodes
    response = decoded(many.answer(), version)
    assert leaders_of(response) == [known, (-1, -1), (-1, -1)]
    assert [node.node_id for node in response.node_endpoints] == nodes
    (told,) = response.responses
    assert (told.name, told.topic_id) == (("", TOPIC) if version >= 13 else ("t", uuid.UUID(int=0)))
    assert [(part.error_code, part.base_offset) for part in told.partition_responses] == [(6, -1), (0, 5), (2, -1)]
    assert told.partition_responses[2].error_message == "It is."


def test_a_broker_sends_clients_to_the_leader_and_tells_of_new_epochs(tmp_path: Path) -> None:
    async def work() -> None:
        async with (
            running(tmp_path, 2, BY_HAND) as cluster,
            RawClient(str(cluster.address(1))) as one,
            RawClient(str(cluster.address(2))) as two,
        ):
            wanted = CreatableTopic(
                name="t",
                num_partitions=-1,
                replication_factor=-1,
                assignments=(CreatableReplicaAssignment(0, (1,)),),
            )
            (made,) = (await one.ask(7, CreateTopicsRequest(topics=(wanted,), timeout_ms=10_000))).topics
            assert made.error_code == 0
            await cluster.agree()
            await cluster.settled(1)
            for version in (9, 10, 13):
                asked = produce_request("t", batch(b"x"))
                (topic,) = asked.topic_data
                asked = asked._replace(topic_data=(topic._replace(topic_id=made.topic_id),))
                check(await two.ask(version, asked), version >= 10, cluster.address(1).port, LeaderEpoch(0))
            for version in (15, 16, 17):
                asked_of = fetch_request(made.topic_id, -1)
                check(await two.ask(version, asked_of), version >= 16, cluster.address(1).port, LeaderEpoch(0))
            assert await cluster.fence(1) is None
            assert await cluster.unfence(1) is None
            await cluster.agree()
            await cluster.settled(1)
            response = await one.ask(17, fetch_request(made.topic_id, 0))
            assert response.responses[0].partitions[0].error_code == OLD_EPOCH
            check(response, True, cluster.address(1).port, LeaderEpoch(2))

    loops.run(work())


def fetch_request(topic_id: uuid.UUID, believed: int) -> fetch.FetchRequest:
    partition = fetch.FetchPartition(partition=0, current_leader_epoch=believed, partition_max_bytes=1000)
    topic = fetch.FetchTopic(topic_id=topic_id, partitions=(partition,))
    return fetch.FetchRequest(max_wait_ms=0, min_bytes=1, topics=(topic,))


def check(response: Any, told: bool, port: int, epoch: LeaderEpoch) -> None:
    assert leaders_of(response) == [(1, epoch) if told else (-1, -1)]
    assert [(node.node_id, node.port) for node in response.node_endpoints] == ([(1, port)] if told else [])
