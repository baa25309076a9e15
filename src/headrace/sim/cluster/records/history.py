"""The records that clients of replicated partitions sent, their answers, and their polls. `anomalies` judges these
facts.

Every record's value is unique in its run, so a value identifies the record.
"""

from __future__ import annotations

from collections.abc import Container
from dataclasses import dataclass, field
from typing import NamedTuple

from headrace.sim.history import Found, PartitionKey


class Sent(NamedTuple):
    """A record that left a producer: once, or several times if the producer is idempotent."""

    partition: PartitionKey
    lane: str
    """One producer on one partition; it sends in order."""
    number: int
    """Position in the lane."""


class Acked(NamedTuple):
    """A broker acknowledged a record at `offset` (-1: it gave no offset)."""

    offset: int
    on_all: bool
    """acks=all: promised for ever. At acks=1 a leader may take the record with it."""


class Poll(NamedTuple):
    """The records that one consumer of one partition got at once, from its position on."""

    reader: str
    partition: PartitionKey
    records: list[Found]


@dataclass(slots=True)
class RecordsHistory:
    """The history, as the module says."""

    sent: dict[bytes, Sent] = field(default_factory=dict)
    acked: dict[bytes, Acked] = field(default_factory=dict)
    polls: list[Poll] = field(default_factory=list)
    """In order of arrival, and so in the order of each reader."""

    def of(self, partitions: Container[PartitionKey]) -> RecordsHistory:
        """The history of these partitions alone, with all sent records."""
        acked = {value: acked for value, acked in self.acked.items() if self.sent[value].partition in partitions}
        polls = [poll for poll in self.polls if poll.partition in partitions]
        return RecordsHistory(sent=self.sent, acked=acked, polls=polls)

    def acknowledge(self, values: list[bytes], base_offset: int, *, on_all: bool) -> None:
        """A batch was acknowledged at `base_offset` (-1: as a duplicate at an unknown offset)."""
        for number, value in enumerate(values):
            self.acked[value] = Acked(base_offset + number if base_offset >= 0 else -1, on_all)
