"""The names and configs of logs, which every engine gets from the broker."""

from __future__ import annotations

from dataclasses import dataclass, replace

from headrace.base.ids import DirectoryId, PartitionIndex, TopicId
from headrace.base.values import Value


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class LogIdentity(Value):
    """The partition and assignment that a log belongs to. The engine keeps it with the records. It is compared when the
    log is opened again.
    """

    topic_name: str
    topic_id: TopicId
    partition: PartitionIndex
    directory_id: DirectoryId
    assignment_epoch: int = 0
    """Rises each time the partition is assigned to this broker again. One assignment keeps its number over restarts."""
    created_index: int = 0
    """The metadata's index at which the topic was created, where brokers share logs; otherwise 0."""

    @property
    def name(self) -> str:
        """The log's name for operators, as of its topic and partition."""
        return f"{self.topic_name}-{self.partition}"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class LogConfig(Value):
    """Kafka's topic configs, as far as a log heeds them. A retention of -1 means no limit."""

    segment_bytes: int = 1024 * 1024 * 1024
    segment_ms: int = 7 * 24 * 3600 * 1000
    """A segment is closed when its records would span more milliseconds than this. Records without timestamps count by
    the wall clock.
    """
    segment_jitter_ms: int = 0
    """The most by which a segment is closed before `segment_ms`, in milliseconds. The actual amount depends on the
    segment alone.
    """
    segment_index_bytes: int = 10 * 1024 * 1024
    """A segment is closed when one of its indexes has no room for another entry within this many bytes."""
    retention_ms: int = 7 * 24 * 3600 * 1000
    retention_bytes: int = -1
    local_retention_ms: int = -2
    """Local retentions, for a log whose data is kept in another place too. -2: as `retention_ms` and `retention_bytes`.
    """
    local_retention_bytes: int = -2
    index_interval_bytes: int = 4096
    max_message_bytes: int = 1048588
    """Enforced by the caller that takes batches from clients. The log itself accepts any size."""
    fsync: bool = True
    """False means `flush.policy=os`: an append counts as flushed at once, and only housekeeping files are synced."""
    compact: bool = False
    """`cleanup.policy` includes compact: closed segments keep only the last record of each key."""
    delete_retention_ms: int = 24 * 3600 * 1000
    """Milliseconds that a tombstone stays after its first cleaning, so that readers under way see it."""
    min_compaction_lag_ms: int = 0
    max_compaction_lag_ms: int = 2**63 - 1
    min_cleanable_dirty_ratio: float = 0.5
    min_insync_replicas: int = 1
    """For an engine whose store makes copies: a flush waits until so many have it, as far as there are so many."""
    log_append_time: bool = False
    """`message.timestamp.type=LogAppendTime`: the leader stamps batches with the time of their append."""


def held_locally(config: LogConfig) -> LogConfig:
    """Returns the config with its local retentions in place of the whole ones. A local retention is never longer than
    the whole.
    """
    return replace(
        config,
        retention_ms=_narrower(config.local_retention_ms, config.retention_ms),
        retention_bytes=_narrower(config.local_retention_bytes, config.retention_bytes),
    )


def _narrower(local: int, whole: int) -> int:
    """-2 stands for the whole retention, -1 for no limit."""
    bounds = [bound for bound in (local, whole) if bound >= 0]
    return whole if local == -2 or not bounds else min(bounds)
