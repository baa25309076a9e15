"""The effective value of a config: the topic's own, a broker's, or the default of the table.

Promises: the level nearest to the topic wins, and every level that sets a config is reported. Sources: KIP-226 (sources
of values, and their synonyms). The table itself is `headrace.metadata.config_table`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import IntEnum

from headrace.base.errors import UsageError
from headrace.base.ids import BrokerId
from headrace.base.values import Value
from headrace.metadata.access.listener_configs import keys_of, listener_def
from headrace.metadata.config_defs import MOST, NUMBERS, TypedValue, understood, written
from headrace.metadata.config_table import (
    BROKER_DEFS,
    EVERY_BROKER_DEF,
    EVERY_TOPIC_DEF,
    GROUP_DEFS,
    TOPIC_DEFS,
    ConfigDef,
    ConfigType,
)
from headrace.metadata.image import MetadataImage
from headrace.metadata.values import TopicImage

__all__ = [
    "BROKER_DEFS",
    "EVERY_BROKER_DEF",
    "EVERY_TOPIC_DEF",
    "GROUP_DEFS",
    "TOPIC_DEFS",
    "ConfigDef",
    "ConfigSource",
    "ConfigType",
    "ConfigValue",
    "TopicConfig",
    "broker_config_problem",
    "broker_value",
    "broker_values",
    "check_broker_configs",
    "kept_topic_configs",
    "topic_config",
    "topic_config_conflict",
    "topic_config_problem",
    "topic_values",
]


class ConfigSource(IntEnum):
    """Sources of values, with the numbers of DescribeConfigs (KIP-226)."""

    UNKNOWN = 0
    DYNAMIC_TOPIC_CONFIG = 1
    DYNAMIC_BROKER_CONFIG = 2
    DYNAMIC_DEFAULT_BROKER_CONFIG = 3
    STATIC_BROKER_CONFIG = 4
    DEFAULT_CONFIG = 5
    DYNAMIC_GROUP_CONFIG = 8


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class ConfigValue(Value):
    """One effective value and the levels that it comes from."""

    key: str
    """The requested name: the topic's, or the broker's."""
    value: str | None
    """The value as Kafka writes it, however it was set; None: null."""
    source: ConfigSource
    definition: ConfigDef
    synonyms: tuple[tuple[str, str | None, ConfigSource], ...]
    """(name, value, source) of every level that sets it, the effective one first, the built-in default last."""

    @property
    def is_default(self) -> bool:
        return self.source is ConfigSource.DEFAULT_CONFIG

    @property
    def read_only(self) -> bool:
        return not self.definition.dynamic

    def boolean(self) -> bool:
        value = self._typed(ConfigType.BOOLEAN)
        return value if isinstance(value, bool) else str(value).lower() == "true"

    def number(self) -> int:
        value = self._typed(*NUMBERS)
        assert isinstance(value, int), f"{self.key} is a whole number"
        return value

    def fraction(self) -> float:
        value = self._typed(ConfigType.DOUBLE)
        assert isinstance(value, float), f"{self.key} is a number"
        return value

    def text(self) -> str:
        assert self.value is not None, f"{self.key} is never null"
        return self.value

    def _typed(self, *types: ConfigType) -> TypedValue:
        assert self.definition.type in types
        return understood(self.definition.type, self.text())


def topic_values(
    image: MetadataImage,
    topic_configs: Mapping[str, str],
    broker_configs: Mapping[str, str],
    *,
    node: BrokerId | None = None,
    replicas: int = 1,
) -> dict[str, ConfigValue]:
    """Every topic config that is effective on broker `node` for a topic with these configs of its own, sorted by name.
    `broker_configs` are the static ones, with which that broker was started."""
    levels = _levels(image, broker_configs, node)
    return _described(_value(key, each, topic_configs, levels, replicas) for key, each in EVERY_TOPIC_DEF.items())


def broker_values(
    image: MetadataImage, broker_configs: Mapping[str, str], *, node: BrokerId | None = None
) -> dict[str, ConfigValue]:
    """Every broker config that is effective on broker `node`, by the broker's name for it, sorted."""
    levels = _levels(image, broker_configs, node)
    of_listeners = {key: listener_def(key, EVERY_BROKER_DEF) for key in sorted(broker_configs)}
    defs = {**EVERY_BROKER_DEF, **{key: found for key, found in of_listeners.items() if found is not None}}
    return _described(_value(key, definition, {}, levels, 1) for key, definition in defs.items())


def group_values(
    image: MetadataImage, group: str, broker_configs: Mapping[str, str], *, node: BrokerId | None = None
) -> dict[str, ConfigValue]:
    """Every config of a group that is effective on broker `node`, sorted by name. The group need not exist."""
    levels, source = _levels(image, broker_configs, node), ConfigSource.DYNAMIC_GROUP_CONFIG
    own: Mapping[str, str] = image.group_configs.get(group) or {}
    return {key: _value(key, definition, own, levels, 1, source) for key, definition in GROUP_DEFS.items()}


def _described(values: Iterable[ConfigValue]) -> dict[str, ConfigValue]:
    return {value.key: value for value in values if not (value.is_default and value.definition.is_hidden)}


def broker_value(
    image: MetadataImage, broker_configs: Mapping[str, str], key: str, *, node: BrokerId | None = None
) -> ConfigValue:
    """One broker config. The key must be in the table."""
    return _value(key, BROKER_DEFS[key], {}, _levels(image, broker_configs, node), 1)


def listener_value(
    image: MetadataImage,
    broker_configs: Mapping[str, str],
    listener: str,
    key: str,
    *,
    mechanism: str | None = None,
    node: BrokerId | None = None,
) -> ConfigValue:
    """One broker config of a listener, or of one of its mechanisms. A static value for it goes before one for all. The
    key must be in the table."""
    levels = _levels(image, broker_configs, node)
    for name in keys_of(listener, key, mechanism):
        definition = listener_def(name, BROKER_DEFS)
        if definition is not None and name in broker_configs:
            return _value(name, definition, {}, levels, 1)
    return _value(key, BROKER_DEFS[key], {}, levels, 1)


def _levels(
    image: MetadataImage, broker_configs: Mapping[str, str], node: BrokerId | None
) -> tuple[tuple[Mapping[str, str], ConfigSource], ...]:
    own = image.broker_configs.get(node) if node is not None else None
    return (
        (own or {}, ConfigSource.DYNAMIC_BROKER_CONFIG),
        (image.broker_configs.get(None) or {}, ConfigSource.DYNAMIC_DEFAULT_BROKER_CONFIG),
        (broker_configs, ConfigSource.STATIC_BROKER_CONFIG),
    )


def _value(
    key: str,
    definition: ConfigDef,
    topic_configs: Mapping[str, str],
    levels: Iterable[tuple[Mapping[str, str], ConfigSource]],
    replicas: int,
    own_source: ConfigSource = ConfigSource.DYNAMIC_TOPIC_CONFIG,
) -> ConfigValue:
    broker_key = definition.broker_key or definition.key
    synonyms: list[tuple[str, str | None, ConfigSource]] = []
    if (own := topic_configs.get(definition.key)) is not None:
        synonyms.append((definition.key, _shown(definition, own), own_source))
    for configs, source in levels:
        if (found := configs.get(broker_key)) is not None:
            synonyms.append((broker_key, _shown(definition, found), source))
    found = _coarser(definition, levels, synonyms) if definition.coarser and not synonyms else None
    default = "2" if definition.key == "min.insync.replicas" and replicas >= 3 else definition.default
    synonyms.append((broker_key, default, ConfigSource.DEFAULT_CONFIG))
    _, value, source = synonyms[0]
    value = value if found is None else found
    return ConfigValue(key=key, value=value, source=source, definition=definition, synonyms=tuple(synonyms))


def _shown(definition: ConfigDef, text: str) -> str:
    shown = written(understood(definition.type, text))
    return shown.lower() if definition.in_any_case else shown


def _coarser(
    definition: ConfigDef,
    levels: Iterable[tuple[Mapping[str, str], ConfigSource]],
    synonyms: list[tuple[str, str | None, ConfigSource]],
) -> str | None:
    """The value of the first of the coarser names that is set, in the finest unit. All that are set become synonyms."""
    value: str | None = None
    for name, unit in definition.coarser:
        for configs, source in levels:
            if (text := configs.get(name)) is not None:
                number = int(understood(ConfigType.LONG, text))
                synonyms.append((name, str(number), source))
                told = -1 if number < 0 else min(number * unit, MOST[definition.type])
                value = str(told) if value is None else value
    return value


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class TopicConfig(Value):
    """A topic's effective configs, typed. For limits, -1 means none."""

    cleanup_policy: str
    compression_gzip_level: int
    compression_lz4_level: int
    compression_type: str
    compression_zstd_level: int
    delete_retention_ms: int
    durable_compacted_enable: bool
    durable_enable: bool
    durable_export_max_lag_ms: int
    flush_messages: int
    flush_ms: int
    flush_policy: str
    follower_replication_throttled_replicas: str
    headrace_validate_records: bool
    index_interval_bytes: int
    internal_segment_bytes: int
    leader_replication_throttled_replicas: str
    local_retention_bytes: int
    local_retention_ms: int
    max_compaction_lag_ms: int
    max_message_bytes: int
    message_timestamp_after_max_ms: int
    message_timestamp_before_max_ms: int
    message_timestamp_type: str
    min_cleanable_dirty_ratio: float
    min_compaction_lag_ms: int
    min_insync_replicas: int
    retention_bytes: int
    retention_ms: int
    segment_bytes: int
    segment_index_bytes: int
    segment_jitter_ms: int
    segment_ms: int
    storage_compression: str
    unclean_leader_election_enable: bool


def topic_config(
    image: MetadataImage, topic: TopicImage, broker_configs: Mapping[str, str], *, node: BrokerId | None = None
) -> TopicConfig:
    """The topic's effective configs on broker `node`. Costs tens of microseconds, so callers keep the result until
    `LocalChanges` says that the topic is reconfigured."""
    levels, replicas = _levels(image, broker_configs, node), topic.settled_replicas
    values = (_value(key, each, topic.configs, levels, replicas) for key, each in TOPIC_DEFS.items())
    return TopicConfig(**{value.key.replace(".", "_"): _typed(value) for value in values})  # type: ignore[arg-type]  # a test compares the names and types


def _typed(value: ConfigValue) -> TypedValue:
    return understood(value.definition.type, value.text())


def topic_config_problem(configs: Mapping[str, str | None]) -> str | None:
    """The first reason why these are not allowed as a topic's configs, as a sentence naming the key; None: they are."""
    return _first_problem(configs, EVERY_TOPIC_DEF, "topic")


def topic_config_conflict(image: MetadataImage, configs: Mapping[str, str]) -> str | None:
    """Why these configs, each valid by itself, cannot be one topic's configs together; None where they can."""
    levels = _levels(image, {}, None)
    shortest, longest = (
        _value(key, TOPIC_DEFS[key], configs, levels, 1).number()
        for key in ("min.compaction.lag.ms", "max.compaction.lag.ms")
    )
    if shortest > longest:
        return f"Config min.compaction.lag.ms ({shortest}) cannot be above max.compaction.lag.ms ({longest})."
    return None


def kept_topic_configs(configs: Mapping[str, str | None]) -> dict[str, str]:
    """The configs as they are stored, after `topic_config_problem` found no problem."""
    return {key: EVERY_TOPIC_DEF[key].kept(value) for key, value in configs.items() if value is not None}


def broker_config_problem(configs: Mapping[str, str | None]) -> str | None:
    """The first reason why these are not allowed as a broker's configs, under the broker's names; None: they are."""
    return _first_problem(configs, EVERY_BROKER_DEF, "broker")


def group_config_problem(
    image: MetadataImage, configs: Mapping[str, str | None], broker_configs: Mapping[str, str], *, node: BrokerId
) -> str | None:
    """The first reason why these are not allowed as a group's configs; None: they are. They must be within the bounds
    of broker `node`'s configs."""
    if problem := _first_problem(configs, GROUP_DEFS, "group"):
        return problem
    for key, value in configs.items():
        assert value is not None, "null is a problem"
        number = int(GROUP_DEFS[key].parsed(value))
        least, most = (
            broker_value(image, broker_configs, key.replace("consumer.", f"group.consumer.{which}."), node=node)
            for which in ("min", "max")
        )
        if number < least.number():
            return f"{key} must be at least {least.number()}, as {least.key} says."
        if number > most.number():
            return f"{key} must be at most {most.number()}, as {most.key} says."
    return None


def group_config_conflict(
    image: MetadataImage, own: Mapping[str, str], broker_configs: Mapping[str, str], *, node: BrokerId
) -> str | None:
    """Why these, each allowed by itself, cannot be one group's configs together; None where they can."""
    levels, source = _levels(image, broker_configs, node), ConfigSource.DYNAMIC_GROUP_CONFIG
    interval, session = (
        _value(key, GROUP_DEFS[key], own, levels, 1, source).number()
        for key in ("consumer.heartbeat.interval.ms", "consumer.session.timeout.ms")
    )
    if session <= interval:
        return (
            f"consumer.session.timeout.ms ({session}) must be greater than consumer.heartbeat.interval.ms "
            f"({interval}): raise the one, or lower the other."
        )
    return None


def _first_problem(configs: Mapping[str, str | None], table: Mapping[str, ConfigDef], kind: str) -> str | None:
    for key, value in configs.items():
        definition = table.get(key) or (listener_def(key, table) if table is EVERY_BROKER_DEF else None)
        if definition is None:
            return f"Unknown {kind} config name: {key}."
        if value is None:
            return f"Null value not supported for {kind} config: {key}."
        if problem := definition.problem(value):
            return problem
    return None


def check_broker_configs(configs: Mapping[str, str]) -> None:
    """Raises UsageError, naming the key, where a static broker config is unknown or not allowed. Brokers must not be
    silent for longer than they may."""
    if problem := broker_config_problem(configs):
        raise UsageError(problem)
    session, interval = (
        int(configs.get(key) or EVERY_BROKER_DEF[key].default or 0)
        for key in ("broker.session.timeout.ms", "broker.heartbeat.interval.ms")
    )
    if session < interval:
        raise UsageError(
            f"broker.session.timeout.ms ({session}) is less than broker.heartbeat.interval.ms ({interval}), so that "
            "brokers would be fenced between two heartbeats: raise the one, or lower the other."
        )
