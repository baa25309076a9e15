"""The transactions of clients, what they read, and what is there at the end. `anomalies` and `graph` judge these facts.

Nothing here knows of brokers: a history of real processes has the same form. Each record's value is unique, so a value
identifies the record. Moments are rising numbers, no two the same.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Final, NamedTuple

UNKNOWN: Final = -1
"""An offset that no answer told."""
NOT_TOLD: Final = 1 << 62
"""A high watermark that no answer told, above every offset: what was open then is not judged."""
NO_PRODUCER: Final = -1
"""The producer id of a record of no transaction."""


class Partition(NamedTuple):
    topic: str
    number: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.number}"


class Register(NamedTuple):
    """The committed offset of one group in one partition."""

    group: str
    partition: Partition

    def __str__(self) -> str:
        return f"the offset of {self.group} in {self.partition}"


class Outcome(Enum):
    """The end of a transaction, as far as its producer knows."""

    COMMITTED = "committed"
    ABORTED = "aborted"
    """Also one that nobody ever asked to commit."""
    IN_DOUBT = "in doubt"
    """It was asked to be committed, and no answer told whether it was."""


@dataclass(slots=True)
class Write:
    """A record of a transaction."""

    partition: Partition
    value: bytes
    sent: int
    """The moment when it was sent first."""
    offset: int | None = None
    """Where a broker acknowledged it (UNKNOWN: it told no offset); None: it did not."""


class Taken(NamedTuple):
    """The input that a transaction consumes: records of its register's partition, at these offsets."""

    register: Register
    start: int
    """The committed offset that it was told."""
    end: int
    """The offset that it commits."""
    offsets: tuple[int, ...]
    """Of the records that it got. It writes one record for each."""


@dataclass(slots=True, kw_only=True)
class Transaction:
    number: int
    producer: str
    """Its transactional id."""
    began: int
    """A moment before its first request."""
    writes: list[Write] = field(default_factory=list)
    taken: Taken | None = None
    asked: int | None = None
    """The moment when it was first asked to be committed."""
    ended: int | None = None
    """A moment after the answer that told its outcome."""
    fenced: int | None = None
    """The moment when another client was told that it has this transactional id now."""
    is_aborted: bool = False
    """An answer told that it was not committed."""
    is_committed: bool = False
    """An answer told that it was."""

    @property
    def outcome(self) -> Outcome:
        if self.is_committed:
            return Outcome.COMMITTED
        return Outcome.ABORTED if self.is_aborted or self.asked is None else Outcome.IN_DOUBT

    def __str__(self) -> str:
        return f"transaction {self.number} of {self.producer} ({self.outcome.value})"


class Seen(NamedTuple):
    """A record that a reader got."""

    offset: int
    value: bytes


class Poll(NamedTuple):
    """One answer to a reader: all that it may see in [start, end), as the answer says."""

    reader: str
    partition: Partition
    committed_only: bool
    start: int
    end: int
    records: tuple[Seen, ...]
    stable: int
    """The last stable offset in the answer."""
    high_watermark: int
    answered: int
    begins: int = 0
    """Where the partition began, as the answer says."""


class Look(NamedTuple):
    """A committed offset that a client was told; 0 stands for none."""

    register: Register
    offset: int
    answered: int


class Logged(NamedTuple):
    """A record or marker in a partition, as it is at the end."""

    offset: int
    producer_id: int
    producer_epoch: int
    value: bytes | None
    commits: bool | None = None
    """Of a marker: whether it commits; None: it is none."""


Contents = Mapping[Partition, Sequence[Seen]]
Logs = Mapping[Partition, Sequence[Logged]]


@dataclass(slots=True)
class History:
    """The history, as the module says."""

    transactions: list[Transaction] = field(default_factory=list)
    polls: list[Poll] = field(default_factory=list)
    """In the order of each reader."""
    looks: list[Look] = field(default_factory=list)
    moment: int = 0

    def now(self) -> int:
        self.moment += 1
        return self.moment

    def begin(self, producer: str) -> Transaction:
        begun = Transaction(number=len(self.transactions), producer=producer, began=self.now())
        self.transactions.append(begun)
        return begun


@dataclass(slots=True)
class Ending:
    """The facts once all is over."""

    contents: Contents
    """The records of each partition for a reader of committed ones, from its start to its end."""
    offsets: Mapping[Register, int] = field(default_factory=dict)
    logs: Logs = field(default_factory=dict)
    """All records and markers of each partition. Empty: they are not known, and what needs them is not judged."""
    starts: Mapping[Partition, int] = field(default_factory=dict)
    """Where each partition begins, where records have been deleted."""
