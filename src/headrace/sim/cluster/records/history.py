"""What the clients of replicated partitions sent, were told and polled. Facts only: `anomalies` judges them.

Every record's value is unique in its run, so that a value stands for the record.
"""

from __future__ import annotations

from collections.abc import Container
from dataclasses import dataclass, field
from typing import NamedTuple

from headrace.sim.history import Found, PartitionKey


class Sent(NamedTuple):
    """A record that left a producer, once or, where the producer is idempotent, several times."""

    partition: PartitionKey
    lane: str
    """One producer on one partition, which sends in order."""
    number: int
    """Place in the lane."""


class Acked(NamedTuple):
    """A broker said that a record is at `offset` (-1: it did not say where)."""

    offset: int
    on_all: bool
    """acks=all: promised for ever. At acks=1 the leader may take it along."""


class Poll(NamedTuple):
    """What one consumer of one partition was given at once, from its position on."""

    reader: str
    partition: PartitionKey
    records: list[Found]


@dataclass(slots=True)
class RecordsHistory:
    """See the module."""

    sent: dict[bytes, Sent] = field(default_factory=dict)
    acked: dict[bytes, Acked] = field(default_factory=dict)
    polls: list[Poll] = field(default_factory=list)
    """In the order in which they came; of one reader in its order."""

    def of(self, partitions: Container[PartitionKey]) -> RecordsHistory:
        """What became of these alone, of all that was sent."""
        acked = {value: acked for value, acked in self.acked.items() if self.sent[value].partition in partitions}
        polls = [poll for poll in self.polls if poll.partition in partitions]
        return RecordsHistory(sent=self.sent, acked=acked, polls=polls)

    def acknowledge(self, values: list[bytes], base_offset: int, *, on_all: bool) -> None:
        """A batch was acknowledged at `base_offset` (-1: as a duplicate, place unknown)."""
        for number, value in enumerate(values):
            self.acked[value] = Acked(base_offset + number if base_offset >= 0 else -1, on_all)
