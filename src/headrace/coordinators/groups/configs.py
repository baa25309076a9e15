"""The configs of groups. They are read before a client asks for a group, and load none of the machine of groups."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from headrace.base.values import Value


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class ConsumerConfig(Value):
    """Settings of an operator, by Kafka's names with underscores."""

    group_consumer_session_timeout_ms: int = 45_000
    group_consumer_heartbeat_interval_ms: int = 5_000
    group_consumer_max_size: int = 2**31 - 1
    group_consumer_assignors: tuple[str, ...] = ("uniform", "range")
    """The first is used where members ask for none."""


class MigrationPolicy(StrEnum):
    """Whether a group with members may change its protocol: `group.consumer.migration.policy`."""

    DISABLED = "disabled"
    UPGRADE = "upgrade"
    DOWNGRADE = "downgrade"
    BIDIRECTIONAL = "bidirectional"

    @property
    def upgrades(self) -> bool:
        return self in (MigrationPolicy.UPGRADE, MigrationPolicy.BIDIRECTIONAL)

    @property
    def downgrades(self) -> bool:
        return self in (MigrationPolicy.DOWNGRADE, MigrationPolicy.BIDIRECTIONAL)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class GroupConfig(Value):
    """Settings of an operator, by Kafka's names with underscores."""

    group_min_session_timeout_ms: int = 6_000
    group_max_session_timeout_ms: int = 1_800_000
    group_initial_rebalance_delay_ms: int = 3_000
    group_max_size: int = 10_000
    """Members of one group, including those that have not yet returned with their member id."""
    consumer: ConsumerConfig = field(default_factory=ConsumerConfig)
    """Settings for groups of the new protocol."""
    migration: MigrationPolicy = MigrationPolicy.BIDIRECTIONAL
    offset_metadata_max_bytes: int = 4_096
    offsets_commit_timeout_ms: int = 5_000
    """Used by the driver: the longest that a commit waits for the log, after which the client retries."""
    offsets_retention_ms: int = 7 * 24 * 3_600_000
    new_member_join_timeout_ms: int = 300_000
    """A fixed value in Kafka: a new member that waits this long for its first generation is dropped."""
