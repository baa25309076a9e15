"""One transactional id as a value: how it stands in the log, and what is under way.

Promises: frozen; every change makes a new value. `validate` states the invariants after every step. Never reads a
clock: callers pass times, in milliseconds. Timeouts count on the wall clock, which the records have; other deadlines on
the driver's monotonic clock.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING, Final, NamedTuple

from headrace.base.ids import NO_PRODUCER_ID, PRODUCER_EPOCH_MAX, ProducerEpoch, ProducerId
from headrace.coordinators.values import Moment, NamedPartition

if TYPE_CHECKING:
    from headrace.coordinators.transactions.events import AnyReply

NO_PRODUCER_EPOCH: Final = ProducerEpoch(-1)
NO_TIMEOUT_MS: Final = 2**31 - 1
"""The timeout of a producer that takes part in two-phase commit (KIP-939)."""
NOT_STARTED_MS: Final = -1


class TransactionState(IntEnum):
    """Kafka's numbers, as records have them."""

    EMPTY = 0
    ONGOING = 1
    PREPARE_COMMIT = 2
    PREPARE_ABORT = 3
    COMPLETE_COMMIT = 4
    COMPLETE_ABORT = 5
    DEAD = 6
    """Its tombstone is being written. No record has this state, nor the next."""
    PREPARE_EPOCH_FENCE = 7

    @property
    def title(self) -> str:
        """Kafka's name, as DescribeTransactions and ListTransactions print it."""
        return "".join(word.title() for word in self.name.split("_"))

    @property
    def is_decided(self) -> bool:
        """Whether the transaction's end is decided and its markers are being written."""
        return self in (TransactionState.PREPARE_COMMIT, TransactionState.PREPARE_ABORT)

    @property
    def is_complete(self) -> bool:
        return self in (TransactionState.COMPLETE_COMMIT, TransactionState.COMPLETE_ABORT)

    @property
    def may_expire(self) -> bool:
        return self is TransactionState.EMPTY or self.is_complete


class TransactionVersion(IntEnum):
    """Levels of the feature `transaction.version`, and kinds of clients."""

    TV0 = 0
    TV1 = 1
    """Records have tagged fields (KIP-915)."""
    TV2 = 2
    """The epoch rises with every transaction (KIP-890)."""

    @property
    def bumps_epoch(self) -> bool:
        return self >= TransactionVersion.TV2

    def spoken_by(self, client: TransactionVersion) -> TransactionVersion:
        """The protocol between a cluster of this level and a client: TV2 where both know it, else TV0."""
        return TransactionVersion.TV2 if self.bumps_epoch and client.bumps_epoch else TransactionVersion.TV0


class Producer(NamedTuple):
    """A producer id and the epoch in which a client uses it."""

    id: ProducerId
    epoch: ProducerEpoch

    @property
    def is_exhausted(self) -> bool:
        """Whether no epoch is left for the client, so that it needs another producer id."""
        return self.epoch >= PRODUCER_EPOCH_MAX - 1


NO_PRODUCER: Final = Producer(NO_PRODUCER_ID, NO_PRODUCER_EPOCH)


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionConfig:
    """Settings of an operator, by Kafka's names with underscores."""

    transaction_max_timeout_ms: int = 900_000
    transactional_id_expiration_ms: int = 7 * 24 * 3_600_000
    transaction_two_phase_commit_enable: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """The terms of one leadership of a partition of `__transaction_state`."""

    coordinator_epoch: int
    """That partition's leader epoch. Markers carry it, so that those of an earlier coordinator are refused."""
    version: TransactionVersion = TransactionVersion.TV2
    """The finalized level of `transaction.version`."""
    config: TransactionConfig = TransactionConfig()


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """A transactional id as its newest record has it."""

    producer_id: ProducerId
    producer_epoch: ProducerEpoch
    """Epoch of the transaction; in a decided one, of its markers. -1 before the first record."""
    timeout_ms: int
    """Time after which an ongoing transaction is aborted; NO_TIMEOUT_MS with two-phase commit."""
    updated_ms: int
    state: TransactionState = TransactionState.EMPTY
    partitions: frozenset[NamedPartition] = frozenset()
    started_ms: int = NOT_STARTED_MS
    previous_producer_id: ProducerId = NO_PRODUCER_ID
    """The producer id before this record; the same one, unless the record changed it."""
    next_producer_id: ProducerId = NO_PRODUCER_ID
    """The producer id that a decided transaction's client goes on with, where its epochs are exhausted. With a next
    epoch, see there."""
    next_producer_epoch: ProducerEpoch = NO_PRODUCER_EPOCH
    """Where the transaction was kept over an InitProducerId (KIP-939), the epoch that its client has now, of the next
    producer id."""
    last_producer_epoch: ProducerEpoch = NO_PRODUCER_EPOCH
    """The epoch before the last bump, by which a repeated bump is recognised (KIP-360). No record has it."""
    client_version: TransactionVersion = TransactionVersion.TV0
    """The kind of the client that made the last change."""

    @property
    def producer(self) -> Producer:
        """The producer of the transaction, and of its markers."""
        return Producer(self.producer_id, self.producer_epoch)

    @property
    def is_kept(self) -> bool:
        """Whether the transaction was kept over an InitProducerId, so that its client can only end it (KIP-939)."""
        return self.next_producer_epoch != NO_PRODUCER_EPOCH

    @property
    def client(self) -> Producer:
        """The producer id and epoch that the client has to show."""
        return Producer(self.next_producer_id, self.next_producer_epoch) if self.is_kept else self.producer

    @property
    def is_new(self) -> bool:
        """Whether no record was written yet."""
        return self.producer_epoch == NO_PRODUCER_EPOCH

    @property
    def client_after(self) -> Producer:
        """The producer with which the client of a decided transaction goes on."""
        if self.is_kept or self.next_producer_id == NO_PRODUCER_ID:
            return self.client
        return Producer(self.next_producer_id, ProducerEpoch(0))

    def times_out_at_ms(self) -> int | None:
        """The wall time from which an ongoing transaction is aborted."""
        if self.state is not TransactionState.ONGOING or self.timeout_ms == NO_TIMEOUT_MS:
            return None
        return self.started_ms + self.timeout_ms + 1

    def validate(self) -> None:
        """Assert the invariants of a record."""
        assert self.state not in (TransactionState.DEAD, TransactionState.PREPARE_EPOCH_FENCE)
        assert self.producer_id >= 0
        assert -1 <= self.producer_epoch <= PRODUCER_EPOCH_MAX
        running = self.state is TransactionState.ONGOING or self.state.is_decided
        assert running or not self.partitions
        assert running or self.next_producer_id == NO_PRODUCER_ID
        assert not self.is_kept or self.next_producer_id != NO_PRODUCER_ID
        assert (self.started_ms == NOT_STARTED_MS) == (self.state is TransactionState.EMPTY)
        assert self.client.epoch < PRODUCER_EPOCH_MAX or self.state is not TransactionState.ONGOING


VALID_BEFORE: Final[Mapping[TransactionState, frozenset[TransactionState]]] = {
    TransactionState.EMPTY: frozenset(
        (TransactionState.EMPTY, TransactionState.COMPLETE_COMMIT, TransactionState.COMPLETE_ABORT)
    ),
    TransactionState.ONGOING: frozenset(
        (
            *(TransactionState.ONGOING, TransactionState.EMPTY),
            *(TransactionState.COMPLETE_COMMIT, TransactionState.COMPLETE_ABORT),
        )
    ),
    TransactionState.PREPARE_COMMIT: frozenset((TransactionState.ONGOING,)),
    TransactionState.PREPARE_ABORT: frozenset(
        (
            *(TransactionState.ONGOING, TransactionState.EMPTY),
            *(TransactionState.COMPLETE_COMMIT, TransactionState.COMPLETE_ABORT),
        )
    ),
    TransactionState.COMPLETE_COMMIT: frozenset((TransactionState.PREPARE_COMMIT,)),
    TransactionState.COMPLETE_ABORT: frozenset((TransactionState.PREPARE_ABORT,)),
}
"""The states from which each may be entered (Kafka's `validPreviousStates`)."""


class Pending(NamedTuple):
    """The write under way: a transition counts only once its record is durable."""

    write: int
    then: Standing | None
    """The standing after it. None: the id is forgotten."""
    waiter: int | None = None
    reply: AnyReply | None = None
    """The answer once it is durable."""
    tells: str = ""
    """Words for the log once it is durable; empty: none."""


class Marking(NamedTuple):
    """The markers of a decided transaction."""

    number: int
    """Number of the decision, by which outcomes name it."""
    waiting: frozenset[NamedPartition]
    """Partitions that are not known to have it."""
    sent: frozenset[NamedPartition]
    """Those of them whose outcome the driver owes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Transaction:
    """A transactional id. While a write is pending or markers are, only these go on: others hear
    CONCURRENT_TRANSACTIONS."""

    id: str
    standing: Standing
    pending: Pending | None = None
    marking: Marking | None = None
    next_number: int = 0
    """Of writes and decisions."""
    retry_ms: int | None = None
    """Monotonic time before which nothing is tried again."""
    refusals: int = 0
    """Writes in a row that the log refused."""

    @property
    def is_nothing(self) -> bool:
        """Whether it may vanish: its first record was refused."""
        return self.standing.is_new and self.pending is None

    @property
    def is_busy(self) -> bool:
        """Whether a transition is under way: to a next standing, or from the decision to its end."""
        return self.pending is not None or self.standing.state.is_decided

    def deadline_ms(self, now: Moment) -> int | None:
        """The monotonic time at which it needs a `Tick`; None where nothing falls due by itself."""
        if self.pending is not None:
            return None
        due = None
        if self.marking is not None:
            idle = not self.marking.waiting or self.marking.waiting != self.marking.sent
            due = now.monotonic_ms if idle else None
        else:
            at_ms = self.standing.times_out_at_ms()
            due = None if at_ms is None else now.monotonic_ms + at_ms - now.wall_ms
        return due if due is None or self.retry_ms is None else max(due, self.retry_ms)

    def validate(self) -> None:
        """Assert the invariants between any two steps."""
        standing, pending, marking = self.standing, self.pending, self.marking
        standing.validate()
        assert (marking is not None) == standing.state.is_decided
        if marking is not None:
            assert marking.waiting <= standing.partitions
            assert marking.sent <= marking.waiting
            assert pending is None or not marking.waiting, "the end is written before all markers are"
        if pending is None:
            return
        if pending.then is None:
            assert standing.state.may_expire
            return
        pending.then.validate()
        check_transition(standing, pending.then)


def check_transition(before: Standing, after: Standing) -> None:
    """Assert that one record may follow the other: the rules of Kafka's `completeTransitionTo`, and that what a client
    has shown is never valid again later."""
    to = after.state
    assert before.state in VALID_BEFORE[to]
    assert after.updated_ms >= 0
    same = after.producer == before.producer
    changed = after.producer_id != before.producer_id
    raised = not changed and after.producer_epoch == before.producer_epoch + 1
    if to is TransactionState.EMPTY:
        assert same or raised or (changed and after.producer_epoch == 0)
        return
    assert after.timeout_ms == before.timeout_ms
    if to is TransactionState.ONGOING:
        assert same
        assert after.partitions >= before.partitions
    elif to.is_decided:
        assert same or raised
        assert same <= (not after.client_version.bumps_epoch or before.producer_epoch == PRODUCER_EPOCH_MAX)
        assert after.partitions == before.partitions
        assert before.state is not TransactionState.ONGOING or after.started_ms == before.started_ms
    else:
        assert after.producer == before.client_after
        assert after.started_ms == before.started_ms
