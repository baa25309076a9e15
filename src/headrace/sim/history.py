"""The requests of one run's clients, their answers, and the records they saw. `headrace.sim.checker` judges these
facts.

Every record's value is unique in its run, so a value identifies the record.
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass, field
from typing import NamedTuple


class PartitionKey(NamedTuple):
    """A partition by its topic's id, so that a topic created again under an old name is another."""

    topic_id: uuid.UUID
    number: int


@dataclass(frozen=True, slots=True)
class Sent:
    """A record that left a producer, once or several times."""

    partition: PartitionKey
    lane: str
    """Producer and partition: records of one lane are sent in order."""
    number: int
    """Position in the lane."""
    key: bytes
    timestamp: int
    idempotent: bool


@dataclass(frozen=True, slots=True)
class Acked:
    """The broker acknowledged a record at `offset` (-1: it gave no offset)."""

    offset: int
    durable: bool
    """Whether it was acknowledged at acks=all."""
    era: int
    """The era of request and answer; -1 where an era ended between them."""


@dataclass(slots=True)
class TopicStory:
    """One topic, according to the broker's answers."""

    name: str
    partitions: int
    """The acknowledged number."""
    partitions_asked: int
    delete_asked: bool = False
    deleted: bool = False


class Found(NamedTuple):
    """A record in a fetch's answer."""

    offset: int
    key: bytes | None
    value: bytes | None
    timestamp: int


@dataclass(slots=True)
class FinalState:
    """Everything that was read after the last recovery."""

    topics: dict[uuid.UUID, tuple[str, int]] = field(default_factory=dict)
    """By id: name and number of partitions."""
    contents: dict[PartitionKey, list[Found]] = field(default_factory=dict)
    high_watermarks: dict[PartitionKey, int] = field(default_factory=dict)


class Problem(NamedTuple):
    """One broken promise: its kind, and a sentence."""

    kind: str
    what: str

    def __str__(self) -> str:
        return f"{self.kind}: {self.what}"


@dataclass(slots=True)
class History:
    """The history, as the module says."""

    era: int = 0
    """Rises when unflushed data may be lost: with a power cut, and when the disk begins to fail."""
    cuts: int = 0
    kills: int = 0
    topics: dict[uuid.UUID, TopicStory] = field(default_factory=dict)
    names_asked: set[str] = field(default_factory=set)
    """Topics whose creation was requested, whatever the answer."""
    sent: dict[bytes, Sent] = field(default_factory=dict)
    acked: dict[bytes, Acked] = field(default_factory=dict)
    seen: dict[PartitionKey, dict[int, bytes | None]] = field(default_factory=dict)
    high_watermarks: dict[PartitionKey, int] = field(default_factory=dict)
    """The highest that any consumer was told."""
    durable_ends: dict[PartitionKey, int] = field(default_factory=dict)
    """One past the highest offset acknowledged at acks=all."""
    positions_asked: dict[PartitionKey, int] = field(default_factory=dict)
    """The last position that the group tried to commit; positions only rise."""
    positions_acked: dict[PartitionKey, int] = field(default_factory=dict)
    producer_ids: set[int] = field(default_factory=set)
    problems: list[Problem] = field(default_factory=list)

    def problem(self, kind: str, what: str) -> None:
        """Note a promise whose breach was seen during the run."""
        self.problems.append(Problem(kind, what))

    def acknowledge(self, values: list[bytes], base_offset: int, *, durable: bool, sent_in_era: int) -> None:
        """The broker acknowledged a batch at `base_offset` (-1: as a duplicate at an unknown offset)."""
        era = self.era if sent_in_era == self.era else -1
        partition = self.sent[values[0]].partition
        for number, value in enumerate(values):
            offset = base_offset + number if base_offset >= 0 else -1
            self.acked[value] = Acked(offset, durable, era)
        if durable and base_offset >= 0:
            end = base_offset + len(values)
            self.durable_ends[partition] = max(end, self.durable_ends.get(partition, 0))

    def see(self, who: str, partition: PartitionKey, record: Found) -> None:
        """A consumer read a record."""
        seen = self.seen.setdefault(partition, {})
        before = seen.setdefault(record.offset, record.value)
        if before != record.value:
            text = (
                f"{who} reads {record.value!r:.60} at offset {record.offset} of {partition}, which was {before!r:.60}"
            )
            self.problem("inconsistent-offsets", text)
