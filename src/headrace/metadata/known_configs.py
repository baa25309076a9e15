"""Configs of Kafka that nothing here reads, known by name: which of their values are accepted, stored and described.

Promises: every config of the Kafka version in `kafka_configs` is either honoured (`config_table`) or listed here. Any
value of a config is accepted if the config tunes something that only Kafka has, or a part of it that is off. Otherwise
only Kafka's default is. Another value would ask for something that is not done, and is refused by name.
"""

from __future__ import annotations

from collections.abc import Container, Mapping
from typing import Final, NamedTuple

from headrace.metadata.config_defs import ConfigDef, ConfigType
from headrace.metadata.kafka_configs import BROKER_FACTS, TOPIC_FACTS, Fact


class _Free(NamedTuple):
    """Configs for which any value that Kafka accepts changes nothing here. They are listed by name, or by a prefix that
    ends with a dot."""

    doc: str
    names: tuple[str, ...]


FREE: Final = (
    _Free(
        "It is for Kafka's threads, buffers, timers and caches, which Headrace does not have: any value is accepted.",
        (
            *("background.threads", "num.io.threads", "num.network.threads", "num.recovery.threads.per.data.dir"),
            *("num.replica.alter.log.dirs.threads", "num.replica.fetchers", "queued.max.requests"),
            *("controller.performance.", "controller.socket.timeout.ms", "request.timeout.ms"),
            *("delete.records.purgatory.purge.interval.requests", "fetch.purgatory.purge.interval.requests"),
            *("producer.purgatory.purge.interval.requests", "producer.id.expiration.check.interval.ms"),
            *("group.coordinator.append.linger.ms", "group.coordinator.background.threads"),
            *("group.coordinator.cached.buffer.max.bytes", "group.coordinator.threads"),
            *("group.consumer.assignor.offload.enable", "group.consumer.regex.refresh.interval.ms"),
            *("initial.broker.registration.timeout.ms", "server.max.startup.time.ms", "log.initial.task.delay.ms"),
            *("log.cleaner.dedupe.buffer.size", "log.cleaner.io.buffer.load.factor", "log.cleaner.io.buffer.size"),
            *("log.dir.failure.timeout.ms", "log.flush.offset.checkpoint.interval.ms"),
            *("log.flush.start.offset.checkpoint.interval.ms", "offsets.load.buffer.size"),
            *("replica.fetch.", "replica.high.watermark.", "replica.socket.", "socket.connection.setup."),
            *("socket.listen.backlog.size", "socket.receive.buffer.bytes", "socket.send.buffer.bytes"),
            *("kafka.metrics.polling.interval.secs", "metrics.num.samples", "metrics.recording.level"),
            *("metrics.sample.window.ms", "telemetry.max.bytes", "unclean.leader.election.interval.ms"),
        ),
    ),
    _Free(
        "Compacted topics are cleaned one at a time, in a separate process: any number from 1 on is accepted.",
        ("log.cleaner.threads",),
    ),
    _Free(
        "Files of deleted segments go at once, and readers keep their open files: any value is accepted.",
        ("file.delete.delay.ms", "log.segment.delete.delay.ms"),
    ),
    _Free(
        "The metadata log is Headrace's own, and Kafka's timers and sizes for it change nothing: any value is "
        "accepted.",
        (
            *("metadata.log.max.", "metadata.log.segment.", "metadata.max.", "internal.metadata."),
            *("controller.quorum.append.", "controller.quorum.election.", "controller.quorum.fetch."),
            *("controller.quorum.request.", "controller.quorum.retry."),
        ),
    ),
    _Free(
        "It is for Kafka's tiered storage, which is off (durable.enable is Headrace's): as there, any value is "
        "accepted.",
        ("remote.copy.", "remote.fetch.", "remote.list.", "remote.log.", "log.remote."),
    ),
    _Free(
        "It is for share groups, which Headrace does not have: any value is accepted.",
        ("errors.deadletterqueue.", "group.share.", "share."),
    ),
    _Free(
        "It is for Streams groups (KIP-1071), which Headrace does not have: any value is accepted.", ("group.streams.",)
    ),
    _Free(
        "Transactions are timed one by one, loaded in pieces, and as safe as the topic's min.insync.replicas: any "
        "value is accepted.",
        ("add.partitions.to.txn.", "transaction.abort.", "transaction.state.log.load.", "transaction.state.log.min."),
    ),
    _Free(
        "A broker has one log directory, so nothing is moved between several: any value is accepted.",
        ("alter.log.dirs.", "replica.alter.log.dirs.io.max.bytes.per.second"),
    ),
    _Free(
        "There are no delegation tokens to expire: any value is accepted.",
        ("delegation.token.expiry.", "delegation.token.max."),
    ),
    _Free(
        "Assignments are made at once, so bounds for their intervals change nothing: any value is accepted.",
        ("group.consumer.max.assignment.interval.ms", "group.consumer.min.assignment.interval.ms"),
    ),
)

NOT_FREE: Final = frozenset({"remote.log.storage.system.enable"})
"""Switches under one of the prefixes above. Turned on, they would ask for something that does not exist here."""

LEAST: Final = {"log.cleaner.threads": 1}
"""Minimum values. Kafka accepts lower ones, but these would ask for something."""

ALSO: Final = {
    "group.consumer.assignment.interval.ms": ("0",),
    "group.coordinator.rebalance.protocols": ("classic,consumer", "consumer,classic"),
    "metric.reporters": ("",),
    "sasl.server.callback.handler.class": (
        "org.apache.kafka.common.security.oauthbearer.OAuthBearerValidatorCallbackHandler",
    ),
}
"""Values beside Kafka's default that describe what happens anyway."""

TOLD_OTHERWISE: Final = {
    "broker.id": "start the broker with --id",
    "broker.rack": "start the broker with --rack",
    "controller.listener.names": "every broker may be the controller",
    "controller.quorum.bootstrap.servers": "start the broker with --join",
    "controller.quorum.voters": "start the broker with --join",
    "log.dir": "start the broker with --data",
    "log.dirs": "start the broker with --data",
    "metadata.log.dir": "start the broker with --data",
    "node.id": "start the broker with --id",
    "process.roles": "every broker may be the controller",
}
"""Kafka configs for which Headrace has an option, or nothing: no value is accepted, and none described."""

INSTEAD: Final = {
    "early.start.listeners": "the listener between brokers always serves super users before ACLs are known",
    "max.connection.creation.rate": "max.connections and max.connections.per.ip bound connections",
    "sasl.mechanism.controller.protocol": "sasl.mechanism.inter.broker.protocol is for the quorum, too",
    "ssl.keystore.password": "a PEM file has none, and ssl.key.password opens its key",
    "ssl.truststore.password": "a PEM file has none",
    "queued.max.request.bytes": "queued.max.bytes bounds what waits",
    "sasl.jaas.config": "set it for a mechanism, as listener.name.NAME.plain.sasl.jaas.config",
    "remote.storage.enable": "durable.enable has history kept in a store",
    "remote.log.storage.system.enable": "durable.url has history kept in a store",
}

_VERSION: Final = r"[0-9]+\.[0-9]+(\.[0-9]+)?(-IV[0-9]+)?"
OF_KAFKA_3: Final = (
    ConfigDef(
        key="message.downconversion.enable",
        type=ConfigType.BOOLEAN,
        default="true",
        doc="It is for Kafka 3. Records are never converted: any value is accepted.",
        topic=True,
        broker_key="log.message.downconversion.enable",
        is_hidden=True,
    ),
    ConfigDef(
        key="message.format.version",
        type=ConfigType.STRING,
        default="3.0-IV1",
        doc="It is for Kafka 3. Records are always kept in today's format: any version is accepted.",
        topic=True,
        broker_key="log.message.format.version",
        pattern=_VERSION,
        form="a version of Kafka, as 3.0-IV1",
        is_hidden=True,
    ),
    ConfigDef(
        key="message.timestamp.difference.max.ms",
        type=ConfigType.LONG,
        default="9223372036854775807",
        doc="It is for Kafka 3. message.timestamp.before.max.ms and message.timestamp.after.max.ms are heeded instead.",
        topic=True,
        broker_key="log.message.timestamp.difference.max.ms",
        low=0,
        honoured=("9223372036854775807",),
        instead="set message.timestamp.before.max.ms and message.timestamp.after.max.ms",
        is_hidden=True,
    ),
)
"""Topics from MirrorMaker or a backup may still have these."""


def known_topic_defs(honoured: Container[str]) -> Mapping[str, ConfigDef]:
    """Every topic config of Kafka that is not in `honoured`, by name."""
    defs = [_definition(fact, is_topic=True) for fact in TOPIC_FACTS if fact.key not in honoured]
    return {each.key: each for each in (*defs, *OF_KAFKA_3)}


def known_broker_defs(honoured: Container[str]) -> Mapping[str, ConfigDef]:
    """Every broker config of Kafka that is not in `honoured`, under the broker's names."""
    return {fact.key: _definition(fact, is_topic=False) for fact in BROKER_FACTS if fact.key not in honoured} | {
        each.broker_key: each for each in OF_KAFKA_3 if each.broker_key is not None
    }


def _definition(fact: Fact, *, is_topic: bool) -> ConfigDef:
    free = None if fact.key in NOT_FREE else _free(fact.key)
    told = TOLD_OTHERWISE.get(fact.key)
    instead = told or INSTEAD.get(fact.key, "")
    taken = (() if fact.default is None else (fact.default,)) + ALSO.get(fact.key, ())
    default_only = "Only Kafka's default is accepted: nothing in Headrace would heed another value."
    return ConfigDef(
        key=fact.key,
        type=fact.type,
        default=fact.default,
        doc=free or (f"Not accepted: {told}." if told else default_only),
        topic=is_topic,
        broker_key=fact.broker_key,
        dynamic=fact.updates != "read-only",
        low=LEAST.get(fact.key, fact.low),
        high=fact.high,
        values=fact.values or None,
        honoured=None if free else () if told else taken,
        instead=instead,
        is_hidden=fact.is_internal or told is not None,
    )


_FREE_DOCS: Final = {name: doc for doc, names in FREE for name in names}
_FREE_PREFIXES: Final = tuple(name for name in _FREE_DOCS if name.endswith("."))


def _free(key: str) -> str | None:
    """Why any value is accepted; None where it is not."""
    if key in _FREE_DOCS or not key.startswith(_FREE_PREFIXES):
        return _FREE_DOCS.get(key)
    return next(_FREE_DOCS[prefix] for prefix in _FREE_PREFIXES if key.startswith(prefix))
