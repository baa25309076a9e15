"""Deciding on configs: each resource whole or not at all, and nothing accepted that is not honoured."""

from __future__ import annotations

import dataclasses
import uuid
from typing import Any, get_type_hints

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from headrace.base.errors import UsageError
from headrace.base.ids import BrokerId, PartitionIndex, TopicId, TopicPartition
from headrace.controller.configs import Alteration, AlterOp, ResourceAlteration, ResourceType, alter_configs
from headrace.controller.decision import Refusal
from headrace.controller.topics import NewTopic, create_topics
from headrace.metadata.configs import (
    BROKER_DEFS,
    EVERY_BROKER_DEF,
    EVERY_TOPIC_DEF,
    TOPIC_DEFS,
    ConfigSource,
    ConfigType,
    TopicConfig,
    broker_value,
    broker_values,
    check_broker_configs,
    topic_config,
    topic_values,
)
from headrace.metadata.events import ConfigChanged, SegmentPublished, TopicCreated
from headrace.metadata.image import EMPTY_IMAGE, MetadataImage
from headrace.wire.errors import ErrorCode
from tests.controller.test_brokers import register
from tests.metadata.histories import descriptor

NODE = BrokerId(1)


@pytest.fixture
def image() -> MetadataImage:
    """A broker 1 and a topic `t` with `segment.bytes` of its own."""
    image = register(EMPTY_IMAGE, 1)
    topic = NewTopic(topic_id=TopicId(uuid.UUID(int=7, version=4)), name="t", configs={"segment.bytes": "2048"})
    return image.replay(create_topics(image, [topic], broker_configs={}).events)


def change(
    image: MetadataImage, kind: int, name: str, *alterations: tuple[str, int, str | None], **rest: Any
) -> tuple[MetadataImage, Refusal | None]:
    resource = ResourceAlteration(kind, name, tuple(Alteration(*alteration) for alteration in alterations))
    decision = alter_configs(image, [resource], **rest)
    (answer,) = decision.result
    return image.replay(decision.events), answer


def own(image: MetadataImage) -> dict[str, str]:
    topic = image.topic("t")
    assert topic is not None
    return dict(topic.configs)


def effective(image: MetadataImage, **static: str) -> TopicConfig:
    topic = image.topic("t")
    assert topic is not None
    return topic_config(image, topic, {key.replace("_", "."): value for key, value in static.items()}, node=NODE)


def test_the_table_its_types_and_topic_config_say_the_same(image: MetadataImage) -> None:
    hints = get_type_hints(TopicConfig)
    assert [field.name for field in dataclasses.fields(TopicConfig)] == [key.replace(".", "_") for key in TOPIC_DEFS]
    for field, value in dataclasses.asdict(effective(image)).items():
        assert type(value) is hints[field]
    for table in (TOPIC_DEFS, BROKER_DEFS):
        for definition in table.values():
            assert definition.default is None or definition.problem(definition.default) is None, "it is honoured"
            assert definition.doc.endswith(".")


@given(st.sampled_from(sorted(EVERY_TOPIC_DEF)), st.text(max_size=12) | st.integers().map(str))
@example("delete.retention.ms", "0\x1f")
def test_what_is_accepted_is_typed_and_in_range(key: str, value: str) -> None:
    definition = EVERY_TOPIC_DEF[key]
    problem = definition.problem(value)
    if problem is not None:
        assert key in problem
        return
    read = topic_values(EMPTY_IMAGE, {key: value}, {})[key]
    assert definition.kept(value) == read.value, "what is stored is what is described"
    if definition.type in (ConfigType.INT, ConfigType.LONG):
        bits = 31 if definition.type is ConfigType.INT else 63
        assert (-1 if key != "retention.bytes" else -(2**63)) <= read.number() < 2**bits or "zstd" in key
    elif definition.type is ConfigType.DOUBLE:
        assert 0 <= read.fraction() <= 1
    elif definition.pattern is not None and definition.type is ConfigType.LIST:
        places = [place for place in read.text().split(",") if place not in ("", "*")]
        assert all(len(list(map(int, place.split(":")))) == 2 for place in places), "partition:broker"
    elif definition.pattern is None:
        assert set(read.text().split(",")) <= {*(definition.values or ()), "true", "false", ""}


@pytest.mark.parametrize(
    ("key", "value", "kept"),
    [
        ("cleanup.policy", "compact, delete", "compact,delete"),
        ("cleanup.policy", " delete\t,  compact ", "delete,compact"),
        ("cleanup.policy", "", ""),
        ("retention.ms", "\n 604800000 ", "604800000"),
        ("retention.ms", "+0604800000", "604800000"),
        ("retention.bytes", "-7", "-7"),
        ("min.cleanable.dirty.ratio", "5e-1", "0.5"),
        ("min.cleanable.dirty.ratio", "0x1p-2", "0.25"),
        ("min.cleanable.dirty.ratio", "1.f", "1.0"),
        ("preallocate", " FALSE", "false"),
        ("compression.type", " gzip ", "gzip"),
        ("follower.replication.throttled.replicas", "0:1 , 1:2", "0:1,1:2"),
    ],
)
def test_a_value_is_read_as_kafka_reads_it_and_kept_as_kafka_describes_it(
    image: MetadataImage, key: str, value: str, kept: str
) -> None:
    changed, answer = change(image, ResourceType.TOPIC, "t", (key, AlterOp.SET, value))
    assert answer is None
    assert own(changed)[key] == kept
    topic = NewTopic(topic_id=TopicId(uuid.UUID(int=8, version=4)), name="u", configs={key: value})
    (event,) = create_topics(image, [topic], broker_configs={}).events
    assert isinstance(event, TopicCreated)
    assert event.configs == {key: kept}


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("retention.ms", "604_800_000"),
        ("retention.ms", "١٢"),
        ("retention.ms", "\xa05"),
        ("retention.ms", "5.0"),
        ("retention.ms", "0x5"),
        ("min.cleanable.dirty.ratio", "0_0.5"),
        ("min.cleanable.dirty.ratio", "nan"),
        ("min.cleanable.dirty.ratio", "NaN"),
        ("min.cleanable.dirty.ratio", "٠"),
        ("cleanup.policy", "compact,,delete"),
        ("cleanup.policy", "Compact"),
        ("preallocate", "yes"),
        ("compression.gzip.level", "0"),
        ("follower.replication.throttled.replicas", "٠:١"),
    ],
)
def test_what_only_python_reads_is_refused(image: MetadataImage, key: str, value: str) -> None:
    changed, answer = change(image, ResourceType.TOPIC, "t", (key, AlterOp.SET, value))
    assert answer is not None
    assert answer.code is ErrorCode.INVALID_CONFIG
    assert key in answer.message
    assert changed == image


def test_what_an_earlier_version_took_is_still_understood(image: MetadataImage) -> None:
    """Java's tools are told of it in digits that they can read."""
    kept = {"retention.ms": "604_800_000", "min.cleanable.dirty.ratio": "0_0.5"}
    values = topic_values(image, kept, {})
    assert [values[key].value for key in kept] == ["604800000", "0.5"]
    topic = image.topic("t")
    assert topic is not None
    changed = ConfigChanged(topic_id=topic.id, broker_id=None, changes={**kept})
    assert effective(image.replay([changed])).retention_ms == 604_800_000


def test_lags_of_compaction_that_contradict_each_other_are_refused(image: MetadataImage) -> None:
    changed, answer = change(image, ResourceType.TOPIC, "t", ("max.compaction.lag.ms", AlterOp.SET, "5"))
    assert answer is None
    _, answer = change(changed, ResourceType.TOPIC, "t", ("min.compaction.lag.ms", AlterOp.SET, "6"))
    assert answer is not None
    assert answer.code is ErrorCode.INVALID_CONFIG
    assert change(changed, ResourceType.TOPIC, "t", ("min.compaction.lag.ms", AlterOp.SET, "5"))[1] is None


def test_setting_removing_and_listing(image: MetadataImage) -> None:
    changed, answer = change(
        image,
        ResourceType.TOPIC,
        "t",
        ("retention.ms", AlterOp.SET, "5"),
        ("segment.bytes", AlterOp.DELETE, None),
        ("cleanup.policy", AlterOp.APPEND, "delete"),
    )
    assert answer is None
    assert own(changed) == {"retention.ms": "5", "cleanup.policy": "delete"}
    assert effective(changed).retention_ms == 5
    assert effective(changed).segment_bytes == 2**30


def test_a_list_may_lose_its_last_entry(image: MetadataImage) -> None:
    """As on Kafka: a topic without a cleanup policy keeps all that it has."""
    changed, answer = change(image, ResourceType.TOPIC, "t", ("cleanup.policy", AlterOp.SUBTRACT, "delete"))
    assert answer is None
    assert effective(changed).cleanup_policy == ""


def test_removing_what_is_not_there_changes_nothing(image: MetadataImage) -> None:
    """Kafka's own tools remove what they might have set, known here or not."""
    resources = [
        ResourceAlteration(kind, name, (Alteration(key, AlterOp.DELETE, None),))
        for kind, name, key in ((2, "t", "nope"), (4, "1", "nope"), (4, "", "log.retention.ms"))
    ]
    decision = alter_configs(image, resources)
    assert decision.result == [None, None, None]
    assert decision.events == ()


def test_the_older_request_resets_what_it_does_not_name(image: MetadataImage) -> None:
    changed, _ = change(image, ResourceType.TOPIC, "t", ("retention.ms", AlterOp.SET, "5"), replace_all=True)
    assert own(changed) == {"retention.ms": "5"}


def test_validate_only_and_no_change_at_all_commit_nothing(image: MetadataImage) -> None:
    resource = ResourceAlteration(ResourceType.TOPIC, "t", (Alteration("segment.bytes", AlterOp.SET, "2048"),))
    assert alter_configs(image, [resource]).events == ()
    resource = ResourceAlteration(ResourceType.TOPIC, "t", (Alteration("segment.bytes", AlterOp.SET, "4096"),))
    assert alter_configs(image, [resource], validate_only=True).events == ()
    assert alter_configs(image, [resource]).events != ()


@pytest.mark.parametrize(
    ("kind", "name", "alteration", "code", "words"),
    [
        (2, "x", ("retention.ms", 0, "1"), 3, "Topic 'x' does not exist"),
        (2, "t", ("nope", 0, "1"), 40, "nope"),
        (2, "t", ("nope", 2, "1"), 40, "nope"),
        (2, "t", ("retention.ms", 0, "x"), 40, "retention.ms"),
        (2, "t", ("retention.ms", 0, None), 42, "retention.ms"),
        (2, "t", ("retention.ms", 2, "1"), 40, "not a list"),
        (2, "t", ("retention.ms", 7, "1"), 42, "Unknown operation 7"),
        (2, "t", ("cleanup.policy", 0, "compress"), 40, "one of delete, compact"),
        (2, "t", ("cleanup.policy", 2, "compress"), 40, "one of delete, compact"),
        (2, "t", ("min.cleanable.dirty.ratio", 0, "1.5"), 40, "between 0 and 1"),
        (2, "t", ("min.cleanable.dirty.ratio", 0, "nan"), 40, "not a number"),
        (4, "1", ("durable.url", 0, "file:///x"), 40, "while a broker runs"),
        (4, "9", ("log.retention.ms", 0, "1"), 42, "not the id of a registered broker"),
        (4, "-1", ("log.retention.ms", 0, "1"), 42, "not the id of a registered broker"),
        (4, "", ("retention.ms", 0, "1"), 40, "Unknown broker config name: retention.ms"),
        (8, "1", ("root", 0, "DEBUG"), 42, "type 8"),
    ],
)
def test_a_bad_alteration_is_refused_and_its_resource_left_whole(
    image: MetadataImage, kind: int, name: str, alteration: tuple[str, int, str | None], code: int, words: str
) -> None:
    good = ("log.retention.ms" if kind == ResourceType.BROKER else "segment.ms", AlterOp.SET, "77")
    unchanged, answer = change(image, kind, name, good, alteration)
    if alteration[0] == "log.retention.ms" and name in ("9", "-1"):
        unchanged, answer = change(image, kind, name, alteration)
    assert answer is not None
    assert (answer.code, words in answer.message) == (code, True)
    assert unchanged == image


def test_a_key_twice_and_a_resource_twice_are_refused(image: MetadataImage) -> None:
    twice = [("retention.ms", AlterOp.SET, "1"), ("retention.ms", AlterOp.SET, "2")]
    unchanged, answer = change(image, ResourceType.TOPIC, "t", *twice)
    assert answer is not None
    assert answer.code is ErrorCode.INVALID_REQUEST
    assert unchanged == image
    resource = ResourceAlteration(ResourceType.TOPIC, "t", (Alteration("retention.ms", AlterOp.SET, "1"),))
    first, second = alter_configs(image, [resource, resource]).result
    assert first is None
    assert second is not None


def test_the_level_nearest_to_the_topic_wins_and_all_levels_are_told(image: MetadataImage) -> None:
    static = {"log.retention.ms": "40"}

    def story(image: MetadataImage) -> list[tuple[str | None, int]]:
        value = topic_values(image, own(image), static, node=NODE)["retention.ms"]
        assert value.value == value.synonyms[0][1]
        assert value.source is value.synonyms[0][2]
        return [(text, int(source)) for _, text, source in value.synonyms]

    told: list[tuple[str | None, int]] = [("604800000", 5)]
    told.insert(0, ("40", 4))
    assert story(image) == told
    for kind, name, key, text, source in [
        (ResourceType.BROKER, "", "log.retention.ms", "30", ConfigSource.DYNAMIC_DEFAULT_BROKER_CONFIG),
        (ResourceType.BROKER, "1", "log.retention.ms", "20", ConfigSource.DYNAMIC_BROKER_CONFIG),
        (ResourceType.TOPIC, "t", "retention.ms", "10", ConfigSource.DYNAMIC_TOPIC_CONFIG),
    ]:
        image, answer = change(image, kind, name, (key, AlterOp.SET, text))
        assert answer is None
        told.insert(0, (text, int(source)))
        assert story(image) == told
    other_broker = topic_values(image, {}, static, node=BrokerId(2))["retention.ms"]
    assert other_broker.value == "30", "broker 1's own config is not broker 2's"


def test_min_insync_replicas_is_two_from_three_replicas_on_where_nobody_sets_it(image: MetadataImage) -> None:
    def least(replicas: int, **topic: str) -> str:
        return topic_values(image, topic, {}, replicas=replicas)["min.insync.replicas"].text()

    assert [least(count) for count in (1, 2, 3, 4)] == ["1", "1", "2", "2"]
    assert topic_values(image, {"min.insync.replicas": "1"}, {}, replicas=3)["min.insync.replicas"].number() == 1


def test_static_broker_configs_are_checked_and_read(image: MetadataImage) -> None:
    check_broker_configs({"log.retention.ms": "1", "auto.create.topics.enable": "FALSE"})
    check_broker_configs({"broker.session.timeout.ms": "2000"})
    with pytest.raises(UsageError, match="fenced between two heartbeats"):
        check_broker_configs({"broker.session.timeout.ms": "1999"})
    with pytest.raises(UsageError, match=r"Unknown broker config name: retention\.ms\."):
        check_broker_configs({"retention.ms": "1"})
    with pytest.raises(UsageError, match=r"num\.partitions"):
        check_broker_configs({"num.partitions": "none"})
    assert not broker_value(image, {"auto.create.topics.enable": "FALSE"}, "auto.create.topics.enable").boolean()
    assert set(BROKER_DEFS) <= set(broker_values(image, {})) <= set(EVERY_BROKER_DEF)


@pytest.mark.parametrize(("op", "value"), [(AlterOp.SET, "compact"), (AlterOp.APPEND, "compact")])
def test_a_topic_with_durable_history_cannot_come_to_be_compacted(image: MetadataImage, op: int, value: str) -> None:
    """Deleted keys would come back from history."""
    topic = image.topic("t")
    assert topic is not None
    key = TopicPartition(topic.id, PartitionIndex(0))
    segment = descriptor(0, 3, 0)
    published = SegmentPublished(
        topic_id=key.topic_id, partition=key.partition, descriptor=segment, previous_hash=image.durable(key).head
    )
    with_history = image.replay([published])
    changed, answer = change(with_history, ResourceType.TOPIC, "t", ("cleanup.policy", op, value))
    assert answer is not None
    assert answer.code == ErrorCode.INVALID_CONFIG
    assert "durable history" in answer.message
    assert own(changed) == own(image)
    assert change(with_history, ResourceType.TOPIC, "t", ("cleanup.policy", AlterOp.SET, "delete"))[1] is None
    assert change(image, ResourceType.TOPIC, "t", ("cleanup.policy", op, value))[1] is None
    compacted, _ = change(image, ResourceType.TOPIC, "t", ("cleanup.policy", AlterOp.SET, "compact"))
    again, answer = change(
        compacted.replay([published]), ResourceType.TOPIC, "t", ("cleanup.policy", AlterOp.SET, "compact,delete")
    )
    assert (answer, own(again)["cleanup.policy"]) == (None, "compact,delete")


def test_a_group_has_what_is_within_the_bounds_of_the_controller_s_broker(image: MetadataImage) -> None:
    key = "consumer.session.timeout.ms"
    after, refused = change(image, 32, "g", (key, 0, "50000"))
    assert (refused, dict(after.group_configs["g"])) == (None, {key: "50000"})
    wide = {"broker_configs": {"group.consumer.max.session.timeout.ms": "90000"}, "node": NODE}
    _, refused = change(image, 32, "g", (key, 0, "90000"))
    assert refused is not None
    assert "at most 60000, as group.consumer.max.session.timeout.ms says" in refused.message
    after, refused = change(after, 32, "g", (key, 0, "90000"), **wide)
    assert (refused, dict(after.group_configs["g"])) == (None, {key: "90000"})
    after, _ = change(after, 32, "g", (key, 1, None))
    assert "g" not in after.group_configs


def test_a_group_s_session_is_longer_than_the_interval_of_its_heartbeats(image: MetadataImage) -> None:
    """Kafka's GroupConfig refuses it: members would be put out between two heartbeats."""
    session, interval = "consumer.session.timeout.ms", "consumer.heartbeat.interval.ms"
    wide: dict[str, Any] = {"broker_configs": {"group.consumer.min.session.timeout.ms": "1"}, "node": NODE}
    for values in ((session, 0, "10000"), (interval, 0, "10000")), ((session, 0, "5000"),):
        _, refused = change(image, 32, "g", *values, **wide)
        assert refused is not None
        assert refused.code is ErrorCode.INVALID_CONFIG
        assert refused.message.startswith("consumer.session.timeout.ms")
        assert "must be greater than consumer.heartbeat.interval.ms" in refused.message
    image, refused = change(image, 32, "g", (session, 0, "11000"), (interval, 0, "10000"), **wide)
    assert refused is None
    _, refused = change(image, 32, "g", (session, 0, "10000"), **wide)
    assert refused is not None
    image, refused = change(image, 32, "g", (session, 1, None), (interval, 1, None), **wide)
    assert (refused, "g" in image.group_configs) == (None, False)


def test_no_more_than_so_many_groups_have_configs(image: MetadataImage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headrace.controller.configs.GROUP_CONFIGS_MAX", 1)
    given = ("consumer.session.timeout.ms", 0, "50000")
    image, _ = change(image, 32, "g", given)
    _, refused = change(image, 32, "h", given)
    assert refused is not None
    assert refused.code is ErrorCode.POLICY_VIOLATION
    _, refused = change(image, 32, "g", ("consumer.session.timeout.ms", 0, "51000"))
    assert refused is None


@pytest.mark.parametrize("op", [AlterOp.SET, AlterOp.APPEND])
def test_a_config_of_one_listener_is_set_where_the_broker_is_started(image: MetadataImage, op: int) -> None:
    known = ("plaintext.sasl.enabled.mechanisms", "plaintext.plain.sasl.jaas.config", "metrics.ssl.keystore.location")
    for key in known:
        refusal = refused(image, f"listener.name.{key}", op)
        assert "cannot be changed while a broker runs" in refusal.message


@pytest.mark.parametrize("op", [AlterOp.SET, AlterOp.APPEND])
def test_a_config_for_a_listener_that_there_is_not_is_refused_with_its_name(image: MetadataImage, op: int) -> None:
    for key in ("listener.name.foo.ssl.keystore.location", "listener.name.plaintex.sasl.enabled.mechanisms"):
        for broker, whose in (("", "any broker"), ("1", "broker 1")):
            said = refused(image, key, op, broker).message
            assert said == f"Config {key} is for no listener of {whose}: after listener.name. comes one of plaintext."


def refused(image: MetadataImage, key: str, op: int, broker: str = "") -> Refusal:
    resource = ResourceAlteration(ResourceType.BROKER, broker, (Alteration(key, op, "PLAIN"),))
    decision = alter_configs(image, [resource])
    (refusal,) = decision.result
    assert not decision.events
    assert refusal is not None
    assert refusal.code == ErrorCode.INVALID_CONFIG
    return refusal
