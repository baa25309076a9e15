"""What a config is here and now: the topic's own value, a broker's, or the default of the table.

Promises: the level nearest to the topic wins; every level that sets a config is told. Sources: KIP-226 (where values
come from, and their synonyms). The table itself is `headrace.metadata.config_table`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import IntEnum

from headrace.base.errors import UsageError
from headrace.base.ids import BrokerId
from headrace.metadata.config_table import BROKER_DEFS, NUMBERS, TOPIC_DEFS, ConfigDef, ConfigType
from headrace.metadata.image import MetadataImage
from headrace.metadata.values import TopicImage

__all__ = [
    "BROKER_DEFS",
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
    "topic_config",
    "topic_config_problem",
    "topic_values",
]


class ConfigSource(IntEnum):
    """Where a value comes from, as DescribeConfigs numbers them (KIP-226)."""

    UNKNOWN = 0
    DYNAMIC_TOPIC_CONFIG = 1
    DYNAMIC_BROKER_CONFIG = 2
    DYNAMIC_DEFAULT_BROKER_CONFIG = 3
    STATIC_BROKER_CONFIG = 4
    DEFAULT_CONFIG = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigValue:
    """One effective value with its story."""

    key: str
    """The name under which it was asked: the topic's, or the broker's."""
    value: str
    source: ConfigSource
    definition: ConfigDef
    synonyms: tuple[tuple[str, str, ConfigSource], ...]
    """(name, value, source) of every level that sets it, the one in force first, the built-in default last."""

    @property
    def is_default(self) -> bool:
        return self.source is ConfigSource.DEFAULT_CONFIG

    @property
    def read_only(self) -> bool:
        return not self.definition.dynamic

    def boolean(self) -> bool:
        return self.value.strip().lower() == "true"

    def number(self) -> int:
        return int(self.value.strip())

    def fraction(self) -> float:
        return float(self.value.strip())


def topic_values(
    image: MetadataImage,
    topic_configs: Mapping[str, str],
    broker_configs: Mapping[str, str],
    *,
    node: BrokerId | None = None,
    replicas: int = 1,
) -> dict[str, ConfigValue]:
    """Every topic config as it holds on broker `node` for a topic with these configs of its own, by name, sorted.
    `broker_configs` are the static ones, which that broker was started with."""
    levels = _levels(image, broker_configs, node)
    return {key: _value(key, definition, topic_configs, levels, replicas) for key, definition in TOPIC_DEFS.items()}


def broker_values(
    image: MetadataImage, broker_configs: Mapping[str, str], *, node: BrokerId | None = None
) -> dict[str, ConfigValue]:
    """Every broker config as it holds on broker `node`, by the broker's name for it, sorted."""
    levels = _levels(image, broker_configs, node)
    return {key: _value(key, definition, {}, levels, 1) for key, definition in sorted(BROKER_DEFS.items())}


def broker_value(
    image: MetadataImage, broker_configs: Mapping[str, str], key: str, *, node: BrokerId | None = None
) -> ConfigValue:
    """One broker config. The key is in the table, or the caller is wrong."""
    return _value(key, BROKER_DEFS[key], {}, _levels(image, broker_configs, node), 1)


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
) -> ConfigValue:
    broker_key = definition.broker_key or definition.key
    synonyms = []
    if (own := topic_configs.get(definition.key)) is not None:
        synonyms.append((definition.key, own, ConfigSource.DYNAMIC_TOPIC_CONFIG))
    for configs, source in levels:
        if (found := configs.get(broker_key)) is not None:
            synonyms.append((broker_key, found, source))
    default = "2" if definition.key == "min.insync.replicas" and replicas >= 3 else definition.default
    synonyms.append((broker_key, default, ConfigSource.DEFAULT_CONFIG))
    _, value, source = synonyms[0]
    return ConfigValue(key=key, value=value, source=source, definition=definition, synonyms=tuple(synonyms))


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicConfig:
    """A topic's effective configs, typed. -1 means no limit where a limit is meant."""

    cleanup_policy: str
    compression_type: str
    delete_retention_ms: int
    durable_compacted_enable: bool
    durable_enable: bool
    durable_export_max_lag_ms: int
    flush_policy: str
    follower_replication_throttled_replicas: str
    index_interval_bytes: int
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
    """What holds for this topic on broker `node`. Costs tens of microseconds: keep it until `LocalChanges` says that
    the topic is reconfigured."""
    replicas = topic.settled_replicas
    values = topic_values(image, topic.configs, broker_configs, node=node, replicas=replicas)
    return TopicConfig(**{key.replace(".", "_"): _typed(value) for key, value in values.items()})  # type: ignore[arg-type]  # a test compares the names and types


def _typed(value: ConfigValue) -> str | int | float | bool:
    if value.definition.type is ConfigType.BOOLEAN:
        return value.boolean()
    if value.definition.type is ConfigType.DOUBLE:
        return value.fraction()
    return value.number() if value.definition.type in NUMBERS else value.value.strip()


def topic_config_problem(configs: Mapping[str, str | None]) -> str | None:
    """The first reason for which these cannot be a topic's configs, as a sentence naming the key; None: they can."""
    return _first_problem(configs, TOPIC_DEFS, "topic")


def broker_config_problem(configs: Mapping[str, str | None]) -> str | None:
    """The same for a broker's, under the broker's names."""
    return _first_problem(configs, BROKER_DEFS, "broker")


def _first_problem(configs: Mapping[str, str | None], table: Mapping[str, ConfigDef], kind: str) -> str | None:
    for key, value in configs.items():
        definition = table.get(key)
        if definition is None:
            return f"Unknown {kind} config name: {key}."
        if value is None:
            return f"Null value not supported for {kind} config: {key}."
        if problem := definition.problem(value):
            return problem
    return None


def check_broker_configs(configs: Mapping[str, str]) -> None:
    """Raises UsageError, naming the key, where a static broker config is unknown or cannot be."""
    if problem := broker_config_problem(configs):
        raise UsageError(problem)
