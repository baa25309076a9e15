"""The one table of configs: the name, the allowed values and the default of each.

Promises: a value that is accepted is honoured, or changes nothing. A value that no code honours yet is refused by name,
never ignored. To add a config, add one `ConfigDef` here and the code that honours it. A topic's config also needs one
field in `headrace.metadata.configs.TopicConfig`. Source: Kafka's TopicConfig and AbstractKafkaConfig.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from headrace.base.reading import INT_MAX, LONG_MAX
from headrace.metadata.access.endpoint_configs import ENDPOINT_DEFS
from headrace.metadata.access.sasl_configs import SASL_DEFS
from headrace.metadata.access.tls_configs import TLS_DEFS
from headrace.metadata.config_defs import NUMBERS, ConfigDef, ConfigType
from headrace.metadata.known_configs import known_broker_defs, known_topic_defs
from headrace.metadata.throttled import FORM, PATTERN

__all__ = [
    "BROKER_DEFS",
    "EVERY_BROKER_DEF",
    "EVERY_TOPIC_DEF",
    "GROUP_DEFS",
    "INT_MAX",
    "LONG_MAX",
    "NUMBERS",
    "RACK_AWARE",
    "TOPIC_DEFS",
    "ConfigDef",
    "ConfigType",
]

RACK_AWARE: Final = "org.apache.kafka.common.replica.RackAwareReplicaSelector"
"""Kafka's name for it, so that its operators need not change theirs."""
STANDARD_AUTHORIZER: Final = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"
"""As RACK_AWARE."""
HOUR_MS: Final = 3_600_000


def _topic(
    key: str, type_: ConfigType, default: str | None, broker_key: str | None, doc: str, **rest: object
) -> ConfigDef:
    return ConfigDef(key=key, type=type_, default=default, broker_key=broker_key, doc=doc, topic=True, **rest)  # type: ignore[arg-type]  # a table's short form


TOPIC_DEFS: Final[Mapping[str, ConfigDef]] = {
    definition.key: definition
    for definition in (
        _topic(
            "cleanup.policy",
            ConfigType.LIST,
            "delete",
            "log.cleanup.policy",
            "Fate of old segments: delete drops them by age and size, compact keeps each key's last record. "
            "Without both, everything is kept.",
            values=("delete", "compact"),
        ),
        _topic(
            "compression.gzip.level",
            ConfigType.INT,
            "-1",
            "compression.gzip.level",
            "Level of compression.type gzip where the broker recompresses: 1 is fastest, 9 smallest, -1 is 6.",
            values=("-1", *map(str, range(1, 10))),
        ),
        _topic(
            "compression.lz4.level",
            ConfigType.INT,
            "9",
            "compression.lz4.level",
            "Level of compression.type lz4 where the broker recompresses. As in Kafka, 9 is the fast compressor, "
            "and all others are high compression. That has levels 3 to 12; values below and above mean 3 and 12.",
            low=1,
            high=17,
        ),
        _topic(
            "compression.type",
            ConfigType.STRING,
            "producer",
            "compression.type",
            "The codec that batches are kept in. producer keeps each as it came. With any other value, a batch of "
            "another codec is checked record by record and recompressed.",
            values=("producer", "uncompressed", "gzip", "snappy", "lz4", "zstd"),
        ),
        _topic(
            "compression.zstd.level",
            ConfigType.INT,
            "3",
            "compression.zstd.level",
            "Level of compression.type zstd where the broker recompresses: from -131072, fastest, to 22, smallest.",
            low=-131072,
            high=22,
        ),
        _topic(
            "delete.retention.ms",
            ConfigType.LONG,
            "86400000",
            "log.cleaner.delete.retention.ms",
            "Time that a compacted topic keeps a record without value, which deletes its key, from its first cleaning.",
            low=0,
        ),
        _topic(
            "durable.compacted.enable",
            ConfigType.BOOLEAN,
            "false",
            "durable.compacted.enable",
            "Whether compacted topics with durable.enable are exported, too. Their segments are exported as they "
            "were written, and the log is compacted behind them. headrace durable merge compacts the exported "
            "ones.",
        ),
        _topic(
            "durable.enable",
            ConfigType.BOOLEAN,
            "true",
            "durable.enable",
            "Whether closed segments are exported to the durable store, if the broker has one (durable.url). Those "
            "of compacted topics need durable.compacted.enable, too.",
        ),
        _topic(
            "durable.export.max.lag.ms",
            ConfigType.LONG,
            "-1",
            "durable.export.max.lag.ms",
            "Longest time that a record waits in an open segment before it is exported; -1: until the segment closes.",
            low=-1,
        ),
        _topic(
            "flush.messages",
            ConfigType.LONG,
            str(LONG_MAX),
            "log.flush.interval.messages",
            "Number of records after which a topic is flushed. flush.policy=fsync meets any value, because it "
            "flushes before acks=all is answered. With flush.policy=os a value below the default counts.",
            low=1,
        ),
        _topic(
            "flush.ms",
            ConfigType.LONG,
            str(LONG_MAX),
            "log.flush.interval.ms",
            "Time after which records are flushed; as for flush.messages, flush.policy=fsync meets any value.",
            low=0,
            coarser=(("log.flush.scheduler.interval.ms", 1),),
        ),
        _topic(
            "flush.policy",
            ConfigType.STRING,
            "fsync",
            "flush.policy",
            "When acks=all is answered. fsync: once the disk has the records. os: once the page cache has them "
            "(weaker).",
            values=("fsync", "os"),
        ),
        _topic(
            "follower.replication.throttled.replicas",
            ConfigType.LIST,
            "",
            None,
            "Replicas, as partition:broker, that copy at follower.replication.throttled.rate at most while they "
            "are not in sync. *: all.",
            pattern=PATTERN,
            form=FORM,
        ),
        _topic(
            "headrace.validate.records",
            ConfigType.BOOLEAN,
            "true",
            "headrace.validate.records",
            "Whether each record of uncompressed batches is checked before it is acknowledged. Compressed ones "
            "always are. With false, a faulty client can write records that no consumer can read.",
        ),
        _topic(
            "index.interval.bytes",
            ConfigType.INT,
            "4096",
            "log.index.interval.bytes",
            "Bytes of log between two entries of its offset index.",
            low=0,
        ),
        _topic(
            "internal.segment.bytes",
            ConfigType.INT,
            "0",
            None,
            "As segment.bytes, and it takes precedence. It has no minimum, and Kafka's own tests set it. 0: none.",
            low=0,
            is_hidden=True,
        ),
        _topic(
            "leader.replication.throttled.replicas",
            ConfigType.LIST,
            "",
            None,
            "Leaders, as partition:broker, that send at leader.replication.throttled.rate at most to followers "
            "that are not in sync. *: all.",
            pattern=PATTERN,
            form=FORM,
        ),
        _topic(
            "local.retention.bytes",
            ConfigType.LONG,
            "-2",
            "log.local.retention.bytes",
            "Bytes that a broker keeps of an exported partition; -2: as many as retention.bytes.",
            low=-2,
        ),
        _topic(
            "local.retention.ms",
            ConfigType.LONG,
            "-2",
            "log.local.retention.ms",
            "Time that a broker keeps an exported record; -2: as long as retention.ms.",
            low=-2,
        ),
        _topic(
            "max.compaction.lag.ms",
            ConfigType.LONG,
            "9223372036854775807",
            "log.cleaner.max.compaction.lag.ms",
            "Longest time that a record of a compacted topic waits for a cleaning.",
            low=1,
        ),
        _topic(
            "max.message.bytes",
            ConfigType.INT,
            "1048588",
            "message.max.bytes",
            "Largest record batch that a topic accepts, in bytes as stored.",
            low=0,
        ),
        _topic(
            "message.timestamp.after.max.ms",
            ConfigType.LONG,
            "3600000",
            "log.message.timestamp.after.max.ms",
            "How far ahead of the broker's clock a batch's highest time may be; beyond, it is refused. Not for"
            " LogAppendTime.",
            low=0,
        ),
        _topic(
            "message.timestamp.before.max.ms",
            ConfigType.LONG,
            str(LONG_MAX),
            "log.message.timestamp.before.max.ms",
            "How far behind the broker's clock a batch's first and highest times may be; beyond, it is refused. Not for"
            " LogAppendTime.",
            low=0,
        ),
        _topic(
            "message.timestamp.type",
            ConfigType.STRING,
            "CreateTime",
            "log.message.timestamp.type",
            "The time that a record carries: its producer's (CreateTime) or the broker's (LogAppendTime).",
            values=("CreateTime", "LogAppendTime"),
        ),
        _topic(
            "min.cleanable.dirty.ratio",
            ConfigType.DOUBLE,
            "0.5",
            "log.cleaner.min.cleanable.ratio",
            "The share of a compacted topic's closed segments that must be new since its last cleaning, before the "
            "next one.",
            low=0,
            high=1,
        ),
        _topic(
            "min.compaction.lag.ms",
            ConfigType.LONG,
            "0",
            "log.cleaner.min.compaction.lag.ms",
            "Shortest time that a record of a compacted topic stays as it was written.",
            low=0,
        ),
        _topic(
            "min.insync.replicas",
            ConfigType.INT,
            "1",
            "min.insync.replicas",
            "Fewest in-sync replicas for acks=all. Where nobody sets it: 2 from 3 replicas on, else 1.",
            low=1,
        ),
        _topic(
            "retention.bytes",
            ConfigType.LONG,
            "-1",
            "log.retention.bytes",
            "Bytes that a partition keeps before its oldest segments are deleted; -1, or less: no limit.",
        ),
        _topic(
            "retention.ms",
            ConfigType.LONG,
            "604800000",
            "log.retention.ms",
            "Time that a record is kept before its segment is deleted; -1: for ever.",
            low=-1,
            coarser=(("log.retention.minutes", 60_000), ("log.retention.hours", HOUR_MS)),
        ),
        _topic(
            "segment.bytes",
            ConfigType.INT,
            "1073741824",
            "log.segment.bytes",
            "Bytes at which a log segment is closed and the next begun.",
            low=1024,
        ),
        _topic(
            "segment.index.bytes",
            ConfigType.INT,
            "10485760",
            "log.index.size.max.bytes",
            "Bytes of an offset index or a time index at which its segment is closed.",
            low=4,
        ),
        _topic(
            "segment.jitter.ms",
            ConfigType.LONG,
            "0",
            "log.roll.jitter.ms",
            "Most time by which a segment is closed before segment.ms, at random, so that partitions do not close "
            "theirs at once.",
            low=0,
            coarser=(("log.roll.jitter.hours", HOUR_MS),),
        ),
        _topic(
            "segment.ms",
            ConfigType.LONG,
            "604800000",
            "log.roll.ms",
            "Time after which a segment is closed even where it is not full.",
            low=1,
            coarser=(("log.roll.hours", HOUR_MS),),
        ),
        _topic(
            "storage.compression",
            ConfigType.STRING,
            "none",
            "storage.compression",
            "The codec of durable segments that are made from now on, beyond that of the batches inside. Blocks that"
            " would be hardly smaller stay as they are.",
            values=("none", "lz4", "zstd"),
        ),
        _topic(
            "unclean.leader.election.enable",
            ConfigType.BOOLEAN,
            "false",
            "unclean.leader.election.enable",
            "Whether a replica that is not in sync may lead if no other is left. Acknowledged records may be lost "
            "then.",
        ),
    )
}
"""Every topic config, by name, in the order of the names."""

_BROKER_ONLY: Final = (
    ConfigDef(
        key="auto.create.topics.enable",
        type=ConfigType.BOOLEAN,
        default="true",
        doc="Whether a metadata request that allows it creates a missing topic.",
    ),
    ConfigDef(
        key="auto.leader.rebalance.enable",
        type=ConfigType.BOOLEAN,
        default="true",
        doc="Whether the controller makes the first replica of a partition lead it again, if that is in sync.",
    ),
    ConfigDef(
        key="broker.heartbeat.interval.ms",
        type=ConfigType.INT,
        default="2000",
        low=10,
        dynamic=False,
        doc="How often a broker tells the controller that it lives.",
    ),
    ConfigDef(
        key="replica.lag.time.max.ms",
        type=ConfigType.LONG,
        default="30000",
        low=100,
        dynamic=False,
        doc="Time after which a follower that has not caught up leaves the in-sync replicas.",
    ),
    ConfigDef(
        key="authorizer.class.name",
        type=ConfigType.STRING,
        default="",
        values=("", STANDARD_AUTHORIZER),
        dynamic=False,
        doc="StandardAuthorizer: clients may do what ACLs allow them (`headrace acl`). Empty: whoever reaches a broker "
        "may do everything.",
    ),
    ConfigDef(
        key="super.users",
        type=ConfigType.STRING,
        default="",
        dynamic=False,
        doc="Principals that may do everything, as User:alice;User:bob. The brokers' own has to be among them: "
        "brokers know no ACLs before they have come together.",
    ),
    ConfigDef(
        key="allow.everyone.if.no.acl.found",
        type=ConfigType.BOOLEAN,
        default="false",
        dynamic=False,
        doc="Whether everybody may do everything to a resource that no ACL is about.",
    ),
    ConfigDef(
        key="audit.log.file",
        type=ConfigType.STRING,
        default="",
        dynamic=False,
        doc="Where an authorizer's denials are written, a line of JSON each. Empty: audit.log in the data directory.",
    ),
    ConfigDef(
        key="audit.log.grants",
        type=ConfigType.BOOLEAN,
        default="false",
        dynamic=False,
        doc="Whether the audit log has what was allowed, too.",
    ),
    ConfigDef(
        key="audit.log.max.bytes",
        type=ConfigType.LONG,
        default="104857600",
        low=4096,
        dynamic=False,
        doc="Size at which a file of the audit log is put aside, with a number, for a new one.",
    ),
    ConfigDef(
        key="audit.log.max.files",
        type=ConfigType.INT,
        default="10",
        low=1,
        dynamic=False,
        doc="How many files of the audit log are kept beside the one that is written.",
    ),
    ConfigDef(
        key="replica.selector.class",
        type=ConfigType.STRING,
        default="",
        values=("", RACK_AWARE),
        dynamic=False,
        doc="RackAwareReplicaSelector sends consumers that name their rack (client.rack) to an in-sync replica in "
        "it (KIP-392). Empty: they read from the leader.",
    ),
    ConfigDef(
        key="broker.session.timeout.ms",
        type=ConfigType.INT,
        default="6000",
        low=100,
        dynamic=False,
        doc="Silence after which the controller fences a broker. Others then lead its partitions.",
    ),
    ConfigDef(
        key="connections.max.idle.ms",
        type=ConfigType.LONG,
        default="600000",
        low=-1,
        dynamic=False,
        doc="Time of silence after which a client's connection is closed; -1: never.",
    ),
    ConfigDef(
        key="controller.voters",
        type=ConfigType.INT,
        default="3",
        low=1,
        high=9,
        dynamic=False,
        doc="Number of voters. While there are fewer, a live broker that has caught up becomes one, unless it was "
        "demoted by hand.",
    ),
    ConfigDef(
        key="default.replication.factor",
        type=ConfigType.INT,
        default="3",
        low=1,
        high=32767,
        doc="Replicas of a partition whose creator gives no number. Unless it is set, fewer while fewer brokers "
        "are live.",
    ),
    ConfigDef(
        key="delete.topic.enable",
        type=ConfigType.BOOLEAN,
        default="true",
        doc="Whether topics can be deleted.",
    ),
    ConfigDef(
        key="durable.cache.bytes",
        type=ConfigType.LONG,
        default=str(128 * 1024 * 1024),
        low=0,
        dynamic=False,
        doc="Memory for blocks of durable history, for all readers together.",
    ),
    ConfigDef(
        key="durable.export.io.max.bytes.per.second",
        type=ConfigType.LONG,
        default=str(LONG_MAX),
        low=1,
        dynamic=False,
        doc="Most that a broker exports to the durable store in a second, on the average over whole segments.",
    ),
    ConfigDef(
        key="durable.sweep.grace.ms",
        type=ConfigType.LONG,
        default="3600000",
        low=0,
        dynamic=False,
        doc="Age, by the store's clock, at which an object that nothing refers to is removed from the durable "
        "store. A deleted topic's history stays there as long.",
    ),
    ConfigDef(
        key="durable.sweep.interval.ms",
        type=ConfigType.LONG,
        default="3600000",
        low=1,
        dynamic=False,
        doc="Time between two looks for objects of the durable store that nothing refers to.",
    ),
    ConfigDef(
        key="durable.url",
        type=ConfigType.STRING,
        default="",
        dynamic=False,
        doc="The durable store, as a file:// or object store URL. Empty: nothing is exported.",
    ),
    ConfigDef(
        key="follower.replication.throttled.rate",
        type=ConfigType.LONG,
        default=str(LONG_MAX),
        low=1,
        doc="Most bytes that this broker copies in a second. It counts partitions of "
        "follower.replication.throttled.replicas in which the broker is not in sync.",
    ),
    ConfigDef(
        key="group.consumer.assignors",
        type=ConfigType.LIST,
        default="uniform,range",
        values=("uniform", "range"),
        pattern=".+",
        form="one of uniform, range, or both",
        dynamic=False,
        doc="Assignors of consumer groups. The first one is used unless members ask for another.",
    ),
    ConfigDef(
        key="group.consumer.heartbeat.interval.ms",
        type=ConfigType.INT,
        default="5000",
        low=1,
        dynamic=False,
        doc="Time between two heartbeats of a member of a consumer group.",
    ),
    ConfigDef(
        key="group.consumer.max.heartbeat.interval.ms",
        type=ConfigType.INT,
        default="15000",
        low=1,
        dynamic=False,
        doc="Longest consumer.heartbeat.interval.ms that a group may be given.",
    ),
    ConfigDef(
        key="group.consumer.max.session.timeout.ms",
        type=ConfigType.INT,
        default="60000",
        low=1,
        dynamic=False,
        doc="Longest consumer.session.timeout.ms that a group may be given.",
    ),
    ConfigDef(
        key="group.consumer.max.size",
        type=ConfigType.INT,
        default="2147483647",
        low=1,
        dynamic=False,
        doc="Most members of one consumer group.",
    ),
    ConfigDef(
        key="group.consumer.migration.policy",
        type=ConfigType.STRING,
        default="bidirectional",
        values=("bidirectional", "upgrade", "downgrade", "disabled"),
        in_any_case=True,
        dynamic=False,
        doc="Whether a group with members may change between the classic protocol and the consumer protocol.",
    ),
    ConfigDef(
        key="group.consumer.min.heartbeat.interval.ms",
        type=ConfigType.INT,
        default="5000",
        low=1,
        dynamic=False,
        doc="Shortest consumer.heartbeat.interval.ms that a group may be given.",
    ),
    ConfigDef(
        key="group.consumer.min.session.timeout.ms",
        type=ConfigType.INT,
        default="45000",
        low=1,
        dynamic=False,
        doc="Shortest consumer.session.timeout.ms that a group may be given.",
    ),
    ConfigDef(
        key="group.consumer.session.timeout.ms",
        type=ConfigType.INT,
        default="45000",
        low=1,
        dynamic=False,
        doc="Silence after which a member leaves a consumer group.",
    ),
    ConfigDef(
        key="group.initial.rebalance.delay.ms",
        type=ConfigType.INT,
        default="3000",
        low=0,
        dynamic=False,
        doc="How long the first generation of a group waits for more members, from the last newcomer on.",
    ),
    ConfigDef(
        key="group.max.session.timeout.ms",
        type=ConfigType.INT,
        default="1800000",
        low=1,
        dynamic=False,
        doc="Longest session that a member of a group may ask for.",
    ),
    ConfigDef(
        key="group.max.size",
        type=ConfigType.INT,
        default="10000",
        low=1,
        dynamic=False,
        doc="Most members of one group.",
    ),
    ConfigDef(
        key="group.min.session.timeout.ms",
        type=ConfigType.INT,
        default="6000",
        low=1,
        dynamic=False,
        doc="Shortest session that a member of a group may ask for.",
    ),
    ConfigDef(
        key="leader.imbalance.check.interval.seconds",
        type=ConfigType.LONG,
        default="300",
        low=1,
        doc="Time between two looks of the controller for partitions that their first replica could lead, and does "
        "not.",
    ),
    ConfigDef(
        key="leader.replication.throttled.rate",
        type=ConfigType.LONG,
        default=str(LONG_MAX),
        low=1,
        doc="Most bytes that this broker sends in a second to followers that are not in sync. It counts partitions "
        "of leader.replication.throttled.replicas.",
    ),
    ConfigDef(
        key="log.cleaner.backoff.ms",
        type=ConfigType.LONG,
        default="15000",
        low=0,
        doc="Time between two looks for compacted topics that are due for a cleaning.",
    ),
    ConfigDef(
        key="log.cleaner.io.max.bytes.per.second",
        type=ConfigType.DOUBLE,
        default="1.7976931348623157E308",
        low=1,
        doc="Most bytes that the cleaning of compacted topics reads and writes in a second.",
    ),
    ConfigDef(
        key="log.disk.min.free.bytes",
        type=ConfigType.LONG,
        default="-1",
        low=-1,
        doc="Bytes of the logs' disk that are kept free for the quorum's log, the journal and checkpoints. With "
        "fewer, clients' writes are refused with KAFKA_STORAGE_ERROR, which they retry, and copies wait. Both "
        "go on by themselves once there is more room. Brokers' own writes for groups go on down to half of it. "
        "-1: a twentieth of the volume, at most 1 GiB. 0: only a full disk refuses.",
    ),
    ConfigDef(
        key="log.flush.scheduler.interval.ms",
        type=ConfigType.LONG,
        default=str(LONG_MAX),
        dynamic=False,
        doc="As log.flush.interval.ms, if that is not set. It sets no interval of a scheduler: there is none.",
    ),
    ConfigDef(
        key="log.journal.max.bytes",
        type=ConfigType.LONG,
        default="201326592",
        low=0,
        dynamic=False,
        doc="Disk that the journal of flush.policy=fsync may take, in files of 32 MiB, at least three. 0: there is no "
        "journal, and each flush syncs the files of every log that it covers.",
    ),
    ConfigDef(
        key="log.retention.hours",
        type=ConfigType.INT,
        default="168",
        dynamic=False,
        doc="As log.retention.ms, in hours, where neither that nor log.retention.minutes is set.",
    ),
    ConfigDef(
        key="log.retention.minutes",
        type=ConfigType.INT,
        default=None,
        dynamic=False,
        doc="As log.retention.ms, in minutes, where that is not set.",
    ),
    ConfigDef(
        key="log.roll.hours",
        type=ConfigType.INT,
        default="168",
        low=1,
        dynamic=False,
        doc="As log.roll.ms, in hours, where that is not set.",
    ),
    ConfigDef(
        key="log.roll.jitter.hours",
        type=ConfigType.INT,
        default="0",
        low=0,
        dynamic=False,
        doc="As log.roll.jitter.ms, in hours, where that is not set.",
    ),
    ConfigDef(
        key="log.retention.check.interval.ms",
        type=ConfigType.LONG,
        default="300000",
        low=1,
        dynamic=False,
        doc="Time between two looks for segments that are past their retention.",
    ),
    ConfigDef(
        key="log.scrub.interval.ms",
        type=ConfigType.LONG,
        default="604800000",
        low=-1,
        dynamic=False,
        doc="Time between two readings of all logs, which find data that a disk has damaged. -1: damage is found "
        "only where somebody reads.",
    ),
    ConfigDef(
        key="log.scrub.io.max.bytes.per.second",
        type=ConfigType.LONG,
        default="4194304",
        low=1,
        dynamic=False,
        doc="Most bytes that the readings of log.scrub.interval.ms take from the disk in a second.",
    ),
    ConfigDef(
        key="max.connections",
        type=ConfigType.INT,
        default="2147483647",
        low=1,
        doc="Most connections to a broker, those of other brokers among them, up to 20000; further ones are closed at "
        "once (in Kafka they wait).",
    ),
    ConfigDef(
        key="max.connections.per.ip",
        type=ConfigType.INT,
        default="2147483647",
        low=1,
        doc="Most connections from one address; further ones are closed at once.",
    ),
    ConfigDef(
        key="redis.durability",
        type=ConfigType.STRING,
        default="",
        values=("", "aof", "none"),
        dynamic=False,
        doc="`aof`: an acknowledgement waits until Redis has synced its append-only file, and a Redis without one is "
        "refused. `none`: it does not wait for that. Empty: it waits where Redis has such a file. Only for brokers "
        "whose logs are in Redis.",
    ),
    ConfigDef(
        key="traces.endpoint",
        type=ConfigType.STRING,
        default="",
        dynamic=False,
        pattern=r"|https?://\S+",
        form="a URL, or empty",
        doc="URL that OpenTelemetry traces are sent to by OTLP over HTTP, such as http://127.0.0.1:4318/v1/traces; "
        "empty: nowhere. Needs headrace[traces].",
    ),
    ConfigDef(
        key="metrics.listen",
        type=ConfigType.STRING,
        default="",
        dynamic=False,
        pattern=r"|\S+:\d{1,5}",
        form="HOST:PORT, or empty",
        doc="Address where metrics are served for Prometheus, by HTTP at /metrics, and health at /livez, /readyz and "
        "/healthz; empty: nowhere. Beyond loopback it needs metrics.credentials.",
    ),
    ConfigDef(
        key="metrics.credentials",
        type=ConfigType.PASSWORD,
        default=None,
        dynamic=False,
        doc="The secret of those who may see the metrics: USER:PASSWORD (HTTP Basic), or 'Bearer TOKEN'. Null: "
        "everybody may.",
    ),
    ConfigDef(
        key="metrics.tls",
        type=ConfigType.BOOLEAN,
        default="false",
        dynamic=False,
        doc="Whether metrics are served by HTTPS, with the certificate of ssl.keystore.location, or of "
        "listener.name.metrics.ssl.keystore.location.",
    ),
    ConfigDef(
        key="num.partitions",
        type=ConfigType.INT,
        default="1",
        low=1,
        doc="Partitions of a topic whose creator gives no number.",
    ),
    ConfigDef(
        key="offset.metadata.max.bytes",
        type=ConfigType.INT,
        default="4096",
        low=0,
        high=8000,
        dynamic=False,
        doc="Longest text that may be committed with an offset.",
    ),
    ConfigDef(
        key="offsets.commit.timeout.ms",
        type=ConfigType.INT,
        default="5000",
        low=1,
        dynamic=False,
        doc="Longest time that a commit of offsets waits for the replicas. Then the client has to try again.",
    ),
    ConfigDef(
        key="offsets.retention.check.interval.ms",
        type=ConfigType.LONG,
        default="600000",
        low=1,
        dynamic=False,
        doc="Time between two looks for committed offsets that are past their retention.",
    ),
    ConfigDef(
        key="offsets.retention.minutes",
        type=ConfigType.INT,
        default="10080",
        low=1,
        dynamic=False,
        doc="Time that committed offsets are kept once their group is empty.",
    ),
    ConfigDef(
        key="offsets.topic.num.partitions",
        type=ConfigType.INT,
        default="50",
        low=1,
        dynamic=False,
        doc="Partitions of __consumer_offsets, when it is made.",
    ),
    ConfigDef(
        key="offsets.topic.replication.factor",
        type=ConfigType.SHORT,
        default="3",
        low=1,
        high=32767,
        dynamic=False,
        doc="Replicas of __consumer_offsets, when it is made; fewer while fewer brokers are live.",
    ),
    ConfigDef(
        key="offsets.topic.segment.bytes",
        type=ConfigType.INT,
        default="104857600",
        low=1024,
        dynamic=False,
        doc="Bytes at which a log segment of __consumer_offsets is closed, when the topic is made.",
    ),
    ConfigDef(
        key="transaction.max.timeout.ms",
        type=ConfigType.INT,
        default="900000",
        low=1,
        dynamic=False,
        doc="Longest time that a client may ask for before its open transaction is aborted.",
    ),
    ConfigDef(
        key="transaction.remove.expired.transaction.cleanup.interval.ms",
        type=ConfigType.INT,
        default="3600000",
        low=1,
        dynamic=False,
        doc="Time between two looks for transactional ids that have expired.",
    ),
    ConfigDef(
        key="transaction.state.log.num.partitions",
        type=ConfigType.INT,
        default="50",
        low=1,
        dynamic=False,
        doc="Partitions of __transaction_state, when it is made.",
    ),
    ConfigDef(
        key="transaction.state.log.replication.factor",
        type=ConfigType.SHORT,
        default="3",
        low=1,
        dynamic=False,
        doc="Replicas of __transaction_state, when it is made; fewer while fewer brokers are live.",
    ),
    ConfigDef(
        key="transaction.state.log.segment.bytes",
        type=ConfigType.INT,
        default="104857600",
        low=1024,
        dynamic=False,
        doc="Bytes at which a log segment of __transaction_state is closed, when the topic is made.",
    ),
    ConfigDef(
        key="transaction.partition.verification.enable",
        type=ConfigType.BOOLEAN,
        default="true",
        doc="Whether the coordinator is asked before a partition takes the first batch of an old client's transaction "
        "(KIP-890). Without it a transaction may hang, and hold up its readers.",
    ),
    ConfigDef(
        key="transaction.two.phase.commit.enable",
        type=ConfigType.BOOLEAN,
        default="false",
        dynamic=False,
        doc="Whether producers may take part in two-phase commit (KIP-939), so that their transactions never time out.",
    ),
    ConfigDef(
        key="transactional.id.expiration.ms",
        type=ConfigType.INT,
        default="604800000",
        low=1,
        dynamic=False,
        doc="Time after which a transactional id that nobody uses is forgotten.",
    ),
    ConfigDef(
        key="producer.id.expiration.ms",
        type=ConfigType.INT,
        default="86400000",
        low=1,
        doc="Time since its last batch after which a partition forgets an idempotent producer.",
    ),
    ConfigDef(
        key="controller.quota.window.num",
        type=ConfigType.INT,
        default="11",
        low=1,
        dynamic=False,
        doc="Samples of controller.quota.window.size.seconds that may be used at a time: by a client of its "
        "controller_mutation_rate, by an address of its connection_creation_rate.",
    ),
    ConfigDef(
        key="controller.quota.window.size.seconds",
        type=ConfigType.INT,
        default="1",
        low=1,
        dynamic=False,
        doc="Length of each of these samples.",
    ),
    ConfigDef(
        key="quota.window.num",
        type=ConfigType.INT,
        default="11",
        low=1,
        high=1000,
        dynamic=False,
        doc="Samples over which a client's rate is measured for its quotas, the one that is being filled among them.",
    ),
    ConfigDef(
        key="quota.window.size.seconds",
        type=ConfigType.INT,
        default="1",
        low=1,
        high=3600,
        dynamic=False,
        doc="Seconds of each of these samples.",
    ),
    ConfigDef(
        key="queued.max.bytes",
        type=ConfigType.LONG,
        default="536870912",
        low=1048576,
        dynamic=False,
        doc="Most bytes of unanswered requests over all connections. Beyond it, clients are not read until there "
        "is room (Kafka's queued.max.request.bytes).",
    ),
    ConfigDef(
        key="redis.namespace",
        type=ConfigType.STRING,
        default="headrace",
        pattern="[A-Za-z0-9._-]{1,100}",
        form="1 to 100 letters, digits, '.', '_' or '-'",
        dynamic=False,
        doc="Where records are in Redis: the beginning of every key. Clusters with different ones share a Redis.",
    ),
)

BROKER_DEFS: Final[Mapping[str, ConfigDef]] = {
    definition.key: definition for definition in (*_BROKER_ONLY, *ENDPOINT_DEFS, *SASL_DEFS, *TLS_DEFS)
} | {definition.broker_key: definition for definition in TOPIC_DEFS.values() if definition.broker_key is not None}
"""Every broker config, by the broker's name for it (`log.retention.ms`, not `retention.ms`)."""

EVERY_TOPIC_DEF: Final[Mapping[str, ConfigDef]] = dict(sorted({**known_topic_defs(TOPIC_DEFS), **TOPIC_DEFS}.items()))
"""Those, and the configs of Kafka that nothing here reads (`known_configs`), sorted by name."""
EVERY_BROKER_DEF: Final[Mapping[str, ConfigDef]] = dict(
    sorted({**known_broker_defs(BROKER_DEFS), **BROKER_DEFS}.items())
)


GROUP_DEFS: Final[Mapping[str, ConfigDef]] = {
    definition.key: definition
    for definition in (
        ConfigDef(
            key="consumer.heartbeat.interval.ms",
            type=ConfigType.INT,
            default="5000",
            broker_key="group.consumer.heartbeat.interval.ms",
            low=1,
            doc="How often members of this consumer group are to be heard from.",
        ),
        ConfigDef(
            key="consumer.session.timeout.ms",
            type=ConfigType.INT,
            default="45000",
            broker_key="group.consumer.session.timeout.ms",
            low=1,
            doc="A member of this consumer group that is silent for this long is out.",
        ),
    )
}
"""Configs of single groups, sorted by name. They are those of the consumer protocol (KIP-848); other groups store them
unused."""
