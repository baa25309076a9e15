"""Every config of Kafka is known by name, and what it asks for here is honoured, changes nothing, or is refused."""

from __future__ import annotations

import pytest

from headrace.metadata.access.tls_configs import TLS_DEFS
from headrace.metadata.config_defs import ConfigDef, ConfigType
from headrace.metadata.config_table import BROKER_DEFS, EVERY_BROKER_DEF, EVERY_TOPIC_DEF, TOPIC_DEFS
from headrace.metadata.configs import ConfigSource, topic_values
from headrace.metadata.image import EMPTY_IMAGE
from headrace.metadata.kafka_configs import BROKER_FACTS, TOPIC_FACTS, Fact
from headrace.metadata.known_configs import ALSO, FREE, INSTEAD, LEAST, NOT_FREE, TOLD_OTHERWISE

OTHER_DEFAULTS = {
    "broker.session.timeout.ms",
    "default.replication.factor",
    "group.max.size",
    "internal.segment.bytes",
    "log.flush.interval.ms",
    "log.retention.ms",
    "log.roll.jitter.ms",
    "log.roll.ms",
    "replica.selector.class",
}
"""Documented as other than Kafka's, or null there for another name that gives it."""
NARROWER = {
    "broker.heartbeat.interval.ms",
    "broker.session.timeout.ms",
    "connections.max.idle.ms",
    "default.replication.factor",
    "follower.replication.throttled.rate",
    "group.initial.rebalance.delay.ms",
    "group.max.session.timeout.ms",
    "group.min.session.timeout.ms",
    "internal.segment.bytes",
    "leader.replication.throttled.rate",
    "log.cleaner.io.max.bytes.per.second",
    "log.cleaner.threads",
    "log.flush.interval.ms",
    "log.retention.ms",
    "log.roll.jitter.ms",
    "log.roll.ms",
    "max.connections",
    "max.connections.per.ip",
    "offset.metadata.max.bytes",
    "offsets.topic.replication.factor",
    "offsets.topic.segment.bytes",
    "transaction.state.log.segment.bytes",
    "quota.window.num",
    "quota.window.size.seconds",
    "replica.lag.time.max.ms",
    "sasl.oauthbearer.clock.skew.seconds",
    "sasl.oauthbearer.jwks.endpoint.refresh.ms",
    "sasl.oauthbearer.jwks.endpoint.retry.backoff.max.ms",
    "sasl.oauthbearer.jwks.endpoint.retry.backoff.ms",
    "sasl.server.max.receive.size",
}
"""Configs that have bounds here which Kafka does not have, or checks elsewhere."""
FIXED = {
    "listeners",
    "listener.security.protocol.map",
    "sasl.mechanism.inter.broker.protocol",
    *(each.key for each in TLS_DEFS),
}
"""Changed by a restart here, or by a change of the files that they name."""


def pairs() -> list[tuple[Fact, ConfigDef]]:
    topics = [(fact, EVERY_TOPIC_DEF[fact.key]) for fact in TOPIC_FACTS]
    return topics + [(fact, EVERY_BROKER_DEF[fact.key]) for fact in BROKER_FACTS]


def test_every_config_of_kafka_is_known_with_its_type_and_takes_its_default() -> None:
    for fact, definition in pairs():
        assert definition.type is fact.type, fact.key
        if fact.default is None or fact.key in TOLD_OTHERWISE:
            continue
        assert definition.problem(fact.default) is None, fact.key
        assert definition.kept(fact.default) == fact.default
        assert definition.default == fact.default or fact.key in OTHER_DEFAULTS, fact.key


@pytest.mark.parametrize(
    ("key", "static", "value"),
    [
        ("flush.ms", {"log.flush.scheduler.interval.ms": "1000"}, "1000"),
        ("flush.ms", {"log.flush.scheduler.interval.ms": "1000", "log.flush.interval.ms": "5000"}, "5000"),
        ("retention.ms", {"log.retention.hours": "1", "log.retention.minutes": "2"}, "120000"),
        ("segment.ms", {"log.roll.hours": "1"}, "3600000"),
        ("segment.jitter.ms", {"log.roll.jitter.hours": "1"}, "3600000"),
    ],
)
def test_a_broker_s_other_name_gives_a_topic_s_default(key: str, static: dict[str, str], value: str) -> None:
    """As KafkaConfig's logFlushIntervalMs and its like do."""
    found = topic_values(EMPTY_IMAGE, {}, static)[key]
    assert (found.value, found.source) == (value, ConfigSource.STATIC_BROKER_CONFIG)


def test_what_kafka_takes_is_in_bounds_here() -> None:
    for fact, definition in pairs():
        if fact.key in NARROWER:
            continue
        assert definition.low is None or fact.low is not None, fact.key
        if definition.low is not None and fact.low is not None:
            assert definition.low <= fact.low, fact.key
        assert definition.high == fact.high, fact.key
        assert {each.lower() for each in definition.values or fact.values} >= {each.lower() for each in fact.values}


def test_a_topic_s_default_comes_from_kafka_s_broker_config() -> None:
    for fact in TOPIC_FACTS:
        assert EVERY_TOPIC_DEF[fact.key].broker_key == fact.broker_key, fact.key
        assert fact.broker_key is None or fact.broker_key in EVERY_BROKER_DEF


def test_what_kafka_changes_while_it_runs_can_be_changed_here() -> None:
    for fact in BROKER_FACTS:
        is_fixed = fact.updates == "read-only" or fact.key in FIXED
        assert EVERY_BROKER_DEF[fact.key].dynamic is not is_fixed or fact.updates == "read-only", fact.key


def test_what_is_written_of_kafka_s_configs_names_ones_that_are_not_honoured() -> None:
    """Else an entry does nothing, and hides that the config came to be honoured, or went."""
    known = {*EVERY_TOPIC_DEF, *EVERY_BROKER_DEF} - {*TOPIC_DEFS, *BROKER_DEFS}
    named = {name for free in FREE for name in free.names}
    for name in (*named, *NOT_FREE, *LEAST, *ALSO, *INSTEAD, *TOLD_OTHERWISE):
        assert any(key.startswith(name) if name.endswith(".") else key == name for key in known), name


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        ("preallocate", "true", "only false is"),
        ("remote.storage.enable", "true", "durable.enable has history kept in a store"),
        ("max.decompressed.message.bytes", "1", "only 2147483639 is"),
        ("message.timestamp.difference.max.ms", "5", "message.timestamp.before.max.ms"),
    ],
)
def test_what_would_change_something_that_is_not_done_is_refused_by_name(key: str, value: str, words: str) -> None:
    problem = EVERY_TOPIC_DEF[key].problem(value)
    assert problem is not None
    assert problem.startswith(f"Invalid value {value} for configuration {key}: ")
    assert words in problem


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        ("broker.id", "7", "start the broker with --id"),
        ("log.dirs", "/tmp/kafka-logs", "start the broker with --data"),
        ("log.cleaner.enable", "false", "only true is"),
        ("log.cleaner.threads", "0", "between 1 and"),
        ("ssl.engine.factory.class", "k", "it is not supported"),
        ("sasl.jaas.config", "x", "it is not supported"),
        ("authorizer.class.name", "com.example.MyAuthorizer", "StandardAuthorizer"),
        ("group.coordinator.rebalance.protocols", "classic,consumer,share", "classic,consumer,streams or"),
        ("queued.max.request.bytes", "5", "queued.max.bytes bounds what waits"),
    ],
)
def test_and_so_it_is_of_a_broker(key: str, value: str, words: str) -> None:
    problem = EVERY_BROKER_DEF[key].problem(value)
    assert problem is not None
    assert key in problem
    assert words in problem


def test_what_changes_nothing_is_taken() -> None:
    for key, value in (("num.io.threads", "16"), ("log.cleaner.threads", "4"), ("remote.log.reader.threads", "3")):
        assert EVERY_BROKER_DEF[key].problem(value) is None
    for key, value in (("file.delete.delay.ms", "1"), ("flush.messages", "1"), ("message.format.version", "2.8")):
        assert EVERY_TOPIC_DEF[key].problem(value) is None


def test_a_null_default_is_no_value_that_can_be_given() -> None:
    for definition in (*EVERY_TOPIC_DEF.values(), *EVERY_BROKER_DEF.values()):
        if definition.default is None and definition.honoured == () and definition.type is ConfigType.STRING:
            assert definition.problem("x") is not None
