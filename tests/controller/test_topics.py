"""Deciding on topics: every refusal with its code and words, and the laws of placement."""

from __future__ import annotations

import base64
import uuid
from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from headrace.base.ids import BrokerEpoch, BrokerId, DirectoryId, TopicId
from headrace.base.limits import PARTITIONS_PER_REQUEST_MAX
from headrace.controller.topic_changes import NewPartitions, TopicRef, create_partitions, delete_topics
from headrace.controller.topic_names import topic_name_problem
from headrace.controller.topics import NewTopic, TopicOutcome, create_topics, topic_id_of
from headrace.metadata.events import ConfigChanged, TopicCreated
from headrace.metadata.image import EMPTY_IMAGE, MetadataImage
from headrace.metadata.values import BrokerImage, Endpoint
from headrace.wire.errors import ErrorCode


def cluster(racks: list[str | None], fenced: tuple[int, ...] = ()) -> MetadataImage:
    """An image with brokers 1, 2, ... in these racks."""
    image = EMPTY_IMAGE
    for at, rack in enumerate(racks, 1):
        broker = BrokerImage(
            id=BrokerId(at),
            epoch=BrokerEpoch(at),
            directory_id=DirectoryId(uuid.UUID(int=at)),
            endpoints=(Endpoint(listener="PLAINTEXT", host="h", port=9092),),
            rack=rack,
            fenced=at in fenced,
        )
        image = replace(image, brokers=image.brokers.set(broker.id, broker))
    return image


ONE = cluster([None])
THREE = cluster([None, None, None])


def new_topic(name: str = "t", **fields: Any) -> NewTopic:
    return NewTopic(
        **{"topic_id": TopicId(uuid.uuid5(uuid.NAMESPACE_DNS, name)), "name": name, "configs": {}, **fields}
    )


def create(image: MetadataImage, *topics: NewTopic, **rest: Any) -> tuple[MetadataImage, list[TopicOutcome]]:
    decision = create_topics(image, topics, **{"broker_configs": {}, **rest})
    return image.replay(decision.events), decision.result


def refusal(outcome: TopicOutcome) -> tuple[ErrorCode, str]:
    assert outcome.refusal is not None
    return outcome.refusal.code, outcome.refusal.message


@given(st.text(max_size=260) | st.from_regex(r"[a-zA-Z0-9._-]{0,260}", fullmatch=True))
def test_a_name_is_taken_exactly_where_kafka_takes_it(name: str) -> None:
    legal = set("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-")
    good = 1 <= len(name) <= 249 and set(name) <= legal and name not in (".", "..")
    assert (topic_name_problem(name) is None) == good
    _, (outcome,) = create(ONE, new_topic(name))
    assert (outcome.refusal is None) == good
    if not good:
        assert refusal(outcome)[0] is ErrorCode.INVALID_TOPIC_EXCEPTION


ALIKE_CHARS = st.text(alphabet="a._", min_size=1, max_size=9)


@given(st.lists(ALIKE_CHARS, max_size=3), st.lists(ALIKE_CHARS, min_size=1, max_size=3))
@example(["._._._._"], ["_._._._."])
@example([], ["a.b", "a_b"])
@example([], ["a_b", "a.b"])
@example([], ["__consumer.offsets"])
def test_names_that_differ_only_in_dots_and_underscores_never_come_to_be_two_topics(
    before: list[str], after: list[str]
) -> None:
    """Kafka's metrics write both alike."""
    there, asked = ([name for name in dict.fromkeys(names) if name not in (".", "..")] for names in (before, after))
    image, _ = create(ONE, *map(new_topic, there))
    image, outcomes = create(image, *map(new_topic, asked))
    plain = [topic.name.replace(".", "_") for topic in image.topics.values()]
    assert len(set(plain)) == len(plain)
    assert "__consumer_offsets" not in plain
    for name, outcome in zip(asked, outcomes, strict=True):
        if outcome.refusal is not None and image.topic(name) is None:
            code, words = refusal(outcome)
            assert (code, f"'{name}' collides with topic '" in words) == (ErrorCode.INVALID_TOPIC_EXCEPTION, True)
            others = [each.name for each in image.topics.values()] + ["__consumer_offsets"]
            assert any(other != name and other.replace(".", "_") == name.replace(".", "_") for other in others)


def test_a_topic_that_kafka_names_itself_is_never_kept_out() -> None:
    image, _ = create(ONE, new_topic("__consumer_offsets"))
    assert image.topic("__consumer_offsets") is not None


@pytest.mark.parametrize(
    ("fields", "code", "words"),
    [
        ({"partitions": 0}, 37, "Number of partitions must be larger than 0"),
        ({"partitions": -2}, 37, "Number of partitions must be larger than 0"),
        ({"replication_factor": 0}, 38, "Replication factor must be larger than 0"),
        ({"replication_factor": 4}, 38, "larger than the number of live brokers, 3"),
        ({"partitions": PARTITIONS_PER_REQUEST_MAX + 1}, 44, "split it"),
        ({"configs": {"retention.ms": "soon"}}, 40, "retention.ms"),
        ({"configs": {"retention.ms": "-2"}}, 40, "retention.ms"),
        ({"configs": {"retention.ms": None}}, 40, "retention.ms"),
        ({"configs": {"retention.msec": "1"}}, 40, "retention.msec"),
        ({"configs": {"cleanup.policy": "compress"}}, 40, "cleanup.policy: it must be one of"),
        ({"configs": {"compression.type": "brotli"}}, 40, "compression.type: it must be one of"),
        ({"configs": {"storage.compression": "snappy"}}, 40, "storage.compression"),
        ({"configs": {"message.timestamp.type": "Sometime"}}, 40, "message.timestamp.type"),
        ({"configs": {"unclean.leader.election.enable": "at times"}}, 40, "unclean.leader.election.enable"),
        ({"configs": {"min.insync.replicas": "0"}}, 40, "min.insync.replicas"),
        ({"configs": {"segment.bytes": "99999999999"}}, 40, "segment.bytes"),
        ({"assignments": ((0, (1,)),), "partitions": 1}, 42, "takes -1"),
        ({"assignments": ((0, (1,)), (0, (2,)))}, 39, "each of them once"),
        ({"assignments": ((1, (1,)),)}, 39, "from 0 on"),
        ({"assignments": ((0, ()),)}, 39, "at least one replica"),
        ({"assignments": ((0, (1, 1)),)}, 39, "repeated"),
        ({"assignments": ((0, (9,)),)}, 39, "Broker 9"),
        ({"assignments": ((0, (1, 2)), (1, (3,)))}, 39, "has not 2 replicas"),
    ],
)
def test_a_bad_topic_is_refused_with_its_code_and_the_word_at_fault(
    fields: dict[str, Any], code: int, words: str
) -> None:
    image, (outcome,) = create(THREE, new_topic(**fields))
    assert refusal(outcome)[0] == code
    assert words in refusal(outcome)[1]
    assert image == THREE


def test_an_existing_name_and_a_name_twice_are_refused() -> None:
    image, _ = create(ONE, new_topic("a"))
    _, (known,) = create(image, new_topic("a", topic_id=TopicId(uuid.uuid4())))
    assert refusal(known) == (ErrorCode.TOPIC_ALREADY_EXISTS, "Topic 'a' already exists.")
    unchanged, outcomes = create(ONE, new_topic("b"), new_topic("b"))
    assert {refusal(outcome)[0] for outcome in outcomes} == {ErrorCode.INVALID_REQUEST}
    assert unchanged == ONE


def test_without_a_live_broker_nothing_is_placed() -> None:
    image = cluster([None, None], fenced=(1, 2))
    assigned = new_topic("b", assignments=((0, (BrokerId(1),)),))
    _, (placed, chosen) = create(image, new_topic("a"), assigned)
    assert refusal(placed)[0] is ErrorCode.BROKER_NOT_AVAILABLE
    assert refusal(chosen)[0] is ErrorCode.INVALID_REPLICA_ASSIGNMENT


def test_the_isr_at_creation_is_all_replicas_that_are_live() -> None:
    image = cluster([None, None, None], fenced=(1,))
    image, _ = create(image, new_topic(assignments=((0, (BrokerId(1), BrokerId(3), BrokerId(2))),)))
    partition = image.partition_info("t", 0)
    assert partition is not None
    assert (partition.leader, partition.isr, partition.replicas) == (3, (3, 2), (1, 3, 2))


def test_good_topics_of_a_request_are_made_beside_bad_ones_and_validate_only_makes_none() -> None:
    topics = (new_topic("a", partitions=2), new_topic("b", partitions=0), new_topic("c"))
    image, outcomes = create(ONE, *topics)
    assert [outcome.refusal is None for outcome in outcomes] == [True, False, True]
    assert set(image.topic_ids) == {"a", "c"}
    assert outcomes[0].topic == image.topic("a")
    validated, again = create(ONE, *topics, validate_only=True)
    assert validated == ONE
    assert again == outcomes, "validated as if made"


def test_defaults_come_from_the_broker_and_a_request_s_configs_are_its_own() -> None:
    image, _ = create(
        THREE,
        new_topic(configs={"retention.ms": "5"}),
        broker_configs={"num.partitions": "6", "default.replication.factor": "2"},
    )
    topic = image.topic("t")
    assert topic is not None
    assert [len(partition.replicas) for partition in topic.partitions] == [2] * 6
    assert dict(topic.configs) == {"retention.ms": "5"}


def test_three_replicas_are_the_default_as_far_as_there_are_live_brokers() -> None:
    for brokers, fenced, replicas in (
        (5, (), (1, 2, 3)),
        (3, (2,), (1, 3)),
        (1, (), (1,)),
    ):
        image, _ = create(cluster([None] * brokers, fenced=fenced), new_topic())
        topic = image.topic("t")
        assert topic is not None
        assert topic.partitions[0].replicas == topic.partitions[0].isr == replicas


@pytest.mark.parametrize("where", ["static", "dynamic", "request"])
def test_a_replication_factor_that_was_asked_for_is_had_or_refused(where: str) -> None:
    """Not made smaller without a word."""
    image, wanted = cluster([None, None, None], fenced=(2,)), {"default.replication.factor": "3"}
    if where == "dynamic":
        image = image.replay([ConfigChanged(changes=wanted)], index=image.index + 1)
    topic = new_topic(replication_factor=3 if where == "request" else -1)
    _, (outcome,) = create(image, topic, broker_configs=wanted if where == "static" else {})
    assert refusal(outcome) == (
        ErrorCode.INVALID_REPLICATION_FACTOR,
        "Replication factor 3 is larger than the number of live brokers, 2.",
    )


def test_replicas_may_be_assigned() -> None:
    assignments = ((1, (BrokerId(1), BrokerId(2))), (0, (BrokerId(3), BrokerId(1))))
    image, _ = create(THREE, new_topic(assignments=assignments))
    topic = image.topic("t")
    assert topic is not None
    assert [(part.replicas, part.leader) for part in topic.partitions] == [((3, 1), 3), ((1, 2), 1)]


racks = st.lists(st.sampled_from([None, "a", "b", "c"]), min_size=1, max_size=6)


@given(racks, st.lists(st.tuples(st.integers(1, 8), st.integers(1, 6)), min_size=1, max_size=4))
def test_placement_spreads_leaders_and_racks_and_is_deterministic(
    racks: list[str | None], sizes: list[tuple[int, int]]
) -> None:
    image = cluster(racks)
    for at, (count, factor) in enumerate(sizes):
        topic = new_topic(f"t{at}", partitions=count, replication_factor=min(factor, len(racks)))
        assert create_topics(image, [topic], broker_configs={}) == create_topics(image, [topic], broker_configs={})
        image, _ = create(image, topic)
    partitions = [partition for topic in image.topics.values() for partition in topic.partitions]
    leaders = Counter(dict.fromkeys(image.brokers, 0)) + Counter(part.leader for part in partitions)
    counts = [leaders[broker] for broker in image.brokers]
    assert max(counts) - min(counts) <= 1, "each leads as many as any other, give or take one"
    named = {rack for rack in racks if rack is not None}
    for partition in partitions:
        assert partition.leader == partition.replicas[0]
        assert partition.isr == partition.replicas
        assert len(set(partition.replicas)) == len(partition.replicas)
        if None not in racks:
            spread = {image.brokers[replica].rack for replica in partition.replicas}
            assert len(spread) == min(len(named), len(partition.replicas))


def test_deleting_by_name_and_by_id() -> None:
    image, (a, b) = create(ONE, new_topic("a"), new_topic("b"))
    unknown = TopicId(uuid.uuid4())
    refs = [TopicRef(name="x"), TopicRef(name="a"), TopicRef(topic_id=b.topic_id), TopicRef(topic_id=unknown)]
    decision = delete_topics(image, refs, broker_configs={})
    assert refusal(decision.result[0]) == (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "Topic 'x' does not exist")
    assert (decision.result[1].name, decision.result[1].topic_id) == ("a", a.topic_id)
    assert decision.result[2].name == "b"
    assert refusal(decision.result[3])[0] == ErrorCode.UNKNOWN_TOPIC_ID
    assert image.replay(decision.events).topics == EMPTY_IMAGE.topics


def test_a_topic_meant_twice_is_deleted_once_and_nothing_where_deletion_is_off() -> None:
    image, (a,) = create(ONE, new_topic("a"))
    twice = delete_topics(image, [TopicRef(name="a"), TopicRef(topic_id=a.topic_id)], broker_configs={})
    assert len(twice.events) == 1
    assert refusal(twice.result[1])[0] == ErrorCode.INVALID_REQUEST
    off = delete_topics(image, [TopicRef(name="a")], broker_configs={"delete.topic.enable": "false"})
    assert off.events == ()
    assert refusal(off.result[0])[0] == ErrorCode.TOPIC_DELETION_DISABLED


@pytest.mark.parametrize(
    ("request_", "code"),
    [
        (NewPartitions(name="x", count=9), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        (NewPartitions(name="t", count=2), ErrorCode.INVALID_PARTITIONS),
        (NewPartitions(name="t", count=1), ErrorCode.INVALID_PARTITIONS),
        (NewPartitions(name="t", count=-1), ErrorCode.INVALID_PARTITIONS),
        (NewPartitions(name="t", count=PARTITIONS_PER_REQUEST_MAX + 3), ErrorCode.POLICY_VIOLATION),
        (NewPartitions(name="t", count=4, assignments=((BrokerId(1),),)), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        (NewPartitions(name="t", count=3, assignments=((BrokerId(9),),)), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        (NewPartitions(name="__consumer_offsets", count=9), ErrorCode.INVALID_REQUEST),
    ],
)
def test_partitions_that_cannot_be_are_refused(request_: NewPartitions, code: ErrorCode) -> None:
    image, _ = create(
        THREE,
        new_topic("t", partitions=2, replication_factor=1),
        new_topic("__consumer_offsets", partitions=2),
    )
    decision = create_partitions(image, [request_])
    assert refusal(decision.result[0])[0] == code
    assert decision.events == ()


def test_partitions_are_added_after_those_that_are_there() -> None:
    image, _ = create(THREE, new_topic("t", partitions=2, replication_factor=1))
    before = image.topic("t")
    assert before is not None
    decision = create_partitions(image, [NewPartitions(name="t", count=3, assignments=((BrokerId(2),),))])
    image = image.replay(decision.events)
    after = image.topic("t")
    assert after is not None
    assert after.partitions[:2] == before.partitions
    assert (after.partitions[2].index, after.partitions[2].replicas) == (2, (2,))
    grown = image.replay(create_partitions(image, [NewPartitions(name="t", count=6)]).events).topic("t")
    assert grown is not None
    assert Counter(part.leader for part in grown.partitions) == {1: 2, 2: 2, 3: 2}


@given(st.integers(0, 2**128 - 1))
def test_a_topic_id_reads_well_and_is_never_the_zero_one(bits: int) -> None:
    topic_id = topic_id_of(bits)
    if topic_id is None:
        assert base64.urlsafe_b64encode(uuid.UUID(int=bits, version=4).bytes).startswith(b"-")
    else:
        assert topic_id.version == 4
        assert not base64.urlsafe_b64encode(topic_id.bytes).startswith(b"-")


def test_ten_thousand_partitions_are_one_event() -> None:
    decision = create_topics(ONE, [new_topic(partitions=PARTITIONS_PER_REQUEST_MAX)], broker_configs={})
    (event,) = decision.events
    assert isinstance(event, TopicCreated)
    assert len(event.partitions) == PARTITIONS_PER_REQUEST_MAX
