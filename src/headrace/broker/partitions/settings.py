"""The meaning of a topic's configuration for one of its partitions here, and for its log."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple

from headrace.base.reading import LONG_MAX
from headrace.base.values import Value
from headrace.metadata.configs import TopicConfig
from headrace.metadata.throttled import NONE_THROTTLED, ThrottledReplicas, throttled_replicas
from headrace.storage.engine.identity import LogConfig
from headrace.storage.packed_blocks import CODECS as STORAGE_CODECS
from headrace.wire.compression import LZ4_FAST_LEVEL, ZSTD_LEVEL, Compression
from headrace.wire.validation import Rules

CODECS: Final[Mapping[str, Compression | None]] = {
    "producer": None,
    "uncompressed": Compression.NONE,
    "gzip": Compression.GZIP,
    "snappy": Compression.SNAPPY,
    "lz4": Compression.LZ4,
    "zstd": Compression.ZSTD,
}
"""The values of `compression.type`."""


class TimeBounds(NamedTuple):
    """How far from the broker's clock a batch's times may be, in milliseconds (KIP-937)."""

    before_ms: int
    after_ms: int

    def problem(self, oldest: int, newest: int, now_ms: int) -> str | None:
        """Return why the times are out of bounds; None: they are not. -1 is no time, and is always in bounds."""
        earliest = now_ms - self.before_ms
        if earliest <= oldest and earliest <= newest <= now_ms + self.after_ms:
            return None
        if newest - now_ms > self.after_ms:
            return f"Time {newest} is more than {self.after_ms} ms ahead of the broker's, {now_ms}."
        for time_ms in (oldest, newest):
            if time_ms >= 0 and now_ms - time_ms > self.before_ms:
                return f"Time {time_ms} is more than {self.before_ms} ms behind the broker's, {now_ms}."
        return None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class PartitionSettings(Value):
    """The meaning of a topic's configuration for the partition itself (the log has its own part)."""

    max_message_bytes: int
    min_insync_replicas: int
    codec: Compression | None
    """The codec in which batches of clients are kept; None: each in its own."""
    codec_level: int | None = None
    """The level at which they are packed so; None: the codec's own."""
    times: TimeBounds | None
    """The allowed times of producers; None: the broker gives its own time (LogAppendTime)."""
    durable: bool
    """Whether closed segments go to the durable store, where there is one (see `Partition.is_exported`)."""
    compact: bool
    """Whether every record needs a key, by which later ones replace earlier ones."""
    validate_records: bool = True
    """Whether the records of batches that are not compressed are checked, too."""
    delete: bool
    """Whether old records may go though no later one replaces them."""
    durable_lag_ms_max: int
    """Longest that a record waits in an open segment before that is closed for export; -1: no limit."""
    storage_codec: Compression = Compression.NONE
    """The codec of the blocks of durable segments that are made now."""
    throttled_leaders: ThrottledReplicas = NONE_THROTTLED
    throttled_followers: ThrottledReplicas = NONE_THROTTLED

    @property
    def checks_uncompressed(self) -> bool:
        """Whether each record is looked at, even where the batch is not compressed."""
        return self.validate_records or self.compact

    def rules(self, now_ms: int) -> Rules:
        """Return the rules that each record of a client has to keep at this time."""
        if self.times is None:
            return Rules(self.compact)
        return Rules(self.compact, now_ms - self.times.before_ms, now_ms + self.times.after_ms)


def log_config(config: TopicConfig) -> LogConfig:
    """Return the log's configuration. Retention is for topics whose policy names delete; a compacted one rolls in time
    for its longest lag."""
    compact, delete = _policies(config)
    return LogConfig(
        segment_bytes=config.internal_segment_bytes or config.segment_bytes,
        segment_ms=min(config.segment_ms, config.max_compaction_lag_ms) if compact else config.segment_ms,
        segment_jitter_ms=config.segment_jitter_ms,
        segment_index_bytes=config.segment_index_bytes,
        retention_ms=config.retention_ms if delete else -1,
        retention_bytes=max(config.retention_bytes, -1) if delete else -1,
        local_retention_ms=config.local_retention_ms,
        local_retention_bytes=config.local_retention_bytes,
        compact=compact,
        delete_retention_ms=config.delete_retention_ms,
        min_compaction_lag_ms=config.min_compaction_lag_ms,
        max_compaction_lag_ms=config.max_compaction_lag_ms,
        min_cleanable_dirty_ratio=config.min_cleanable_dirty_ratio,
        index_interval_bytes=config.index_interval_bytes,
        max_message_bytes=config.max_message_bytes,
        fsync=config.flush_policy == "fsync" or min(config.flush_messages, config.flush_ms) < LONG_MAX,
        min_insync_replicas=config.min_insync_replicas,
        log_append_time=config.message_timestamp_type == "LogAppendTime",
    )


def partition_settings(config: TopicConfig, *, internal: bool = False) -> PartitionSettings:
    """Return the settings. `internal`: the topic is read by its coordinator, from its leader's log alone, and so is
    never exported."""
    compact, delete = _policies(config)
    return PartitionSettings(
        max_message_bytes=config.max_message_bytes,
        min_insync_replicas=config.min_insync_replicas,
        codec=CODECS[config.compression_type],
        codec_level=_codec_level(config),
        times=None
        if config.message_timestamp_type == "LogAppendTime"
        else TimeBounds(config.message_timestamp_before_max_ms, config.message_timestamp_after_max_ms),
        durable=config.durable_enable and (not compact or config.durable_compacted_enable) and not internal,
        compact=compact,
        validate_records=config.headrace_validate_records,
        delete=delete,
        durable_lag_ms_max=config.durable_export_max_lag_ms,
        storage_codec=STORAGE_CODECS[config.storage_compression],
        throttled_leaders=throttled_replicas(config.leader_replication_throttled_replicas),
        throttled_followers=throttled_replicas(config.follower_replication_throttled_replicas),
    )


def _codec_level(config: TopicConfig) -> int | None:
    match config.compression_type:
        case "gzip":
            level, usual = config.compression_gzip_level, -1
        case "lz4":
            level, usual = config.compression_lz4_level, LZ4_FAST_LEVEL
        case "zstd":
            level, usual = config.compression_zstd_level, ZSTD_LEVEL
        case _:
            return None
    return None if level == usual else level


def _policies(config: TopicConfig) -> tuple[bool, bool]:
    """Return whether `cleanup.policy` names compact, and whether it names delete."""
    names = config.cleanup_policy.split(",")
    return "compact" in names, "delete" in names
