"""The state of one partition's producers: which batch may come next, which came before, and whose transaction is open.

Promises:
- A batch that is sent again is recognised, as long as it is among the producer's last five.
- A gap or an old epoch is refused, and so is a marker of an old epoch or of an old coordinator.
- A transaction begins only with a batch whose guard still holds, where that is asked for.
- The number of producers is bounded, and none is forgotten while its transaction is open.

It never reads a clock, a log or a file. Sources: KIP-98, KIP-185, KIP-360, KIP-890; Kafka's ProducerStateManager and
ProducerAppendInfo for the order of the checks.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from enum import Enum
from typing import Final, NamedTuple, Self, TypeAlias

from headrace.base.ids import NO_PRODUCER_ID, PRODUCER_EPOCH_MAX, Offset
from headrace.base.limits import (
    OPEN_TRANSACTIONS_PER_PARTITION_MAX,
    PRODUCER_BATCHES_CACHED,
    PRODUCERS_PER_PARTITION_MAX,
)
from headrace.replica.producer_snapshots import ProducerEntry, RememberedBatch, decode_snapshot, encode_snapshot
from headrace.replica.transactions import CompletedTransaction, Guard, OpenTransactions, Verifications
from headrace.wire.batches import CONTROL, SEQUENCE_MAX, TRANSACTIONAL, BatchHeader
from headrace.wire.codec import new
from headrace.wire.errors import ErrorCode
from headrace.wire.transactions import AbortedTransaction, EndMarker, OpenTransaction


class Accept(Enum):
    """Append the batch."""

    ACCEPT = 0


class Duplicate(NamedTuple):
    """The batch is in the log already, at these offsets (inclusive): acknowledge it as the first one."""

    base_offset: Offset
    last_offset: Offset
    timestamp: int
    """When it was appended."""


class Refuse(NamedTuple):
    """The batch may not be appended."""

    error: ErrorCode
    message: str


Verdict: TypeAlias = Accept | Duplicate | Refuse
ACCEPT: Final = Accept.ACCEPT


UNKNOWN_EPOCH: Final = -1
_UNUSUAL: Final = CONTROL | TRANSACTIONAL
NOT_OURS: Final = Refuse(ErrorCode.INVALID_TXN_STATE, "The batch belongs to no transaction that is open or verified.")
OUTSIDE: Final = Refuse(
    ErrorCode.INVALID_TXN_STATE, "The producer's transaction is open, so its batches have to belong to it."
)
TOO_MANY_OPEN: Final = Refuse(
    ErrorCode.REQUEST_TIMED_OUT,
    f"{OPEN_TRANSACTIONS_PER_PARTITION_MAX} transactions are open in this partition; retry once some have ended.",
)


@dataclass(slots=True)
class ProducerState:
    """One producer's last batches, oldest first, all of its current epoch. A marker may have begun that epoch, and then
    there are none yet."""

    epoch: int
    batches: deque[RememberedBatch] = field(default_factory=lambda: deque(maxlen=PRODUCER_BATCHES_CACHED))
    coordinator_epoch: int = -1
    """Of the last marker; -1: there was none."""
    marked_at: int = -1
    """The offset of the last marker; -1: it is unknown."""
    marked_ms: int = -1
    """When it was appended."""

    @property
    def next_sequence(self) -> int:
        """The first sequence of the next batch in this epoch."""
        return (self.batches[-1].last_sequence + 1) & SEQUENCE_MAX if self.batches else 0

    @property
    def last_offset(self) -> int:
        """The offset of its last record or marker; -1: it is unknown."""
        return max(self.batches[-1].last_offset, self.marked_at) if self.batches else self.marked_at

    @property
    def last_ms(self) -> int:
        """When its last batch or marker was appended."""
        return max(self.batches[-1].timestamp, self.marked_ms) if self.batches else self.marked_ms


class ProducerStates:
    """All producers of one partition, the one that wrote longest ago first."""

    def __init__(self) -> None:
        self._states: OrderedDict[int, ProducerState] = OrderedDict()
        self.transactions: Final = OpenTransactions()
        self.verifications: Final = Verifications()
        self._open = self.transactions.first_offsets
        self._asked = self.verifications.asked

    def __len__(self) -> int:
        return len(self._states)

    # whether a batch may be appended

    def check(self, header: BatchHeader, guard: Guard | None = None, *, verifies: bool = False) -> Verdict:
        """Return whether this batch may be appended next. Changes nothing. An unknown producer may begin anywhere, as
        on Kafka: its state may have expired or been evicted. `verifies`: the first batch of a transaction needs the
        `guard` that `begin_verification` returned."""
        producer_id, epoch, sequence = header.producer_id, header.producer_epoch, header.base_sequence
        if producer_id == NO_PRODUCER_ID:
            return ACCEPT
        if sequence < 0 or epoch < 0:
            return Refuse(ErrorCode.INVALID_RECORD, "A batch with a producer id needs an epoch and a sequence.")
        state = self._states.get(producer_id)
        if header.attributes & TRANSACTIONAL:
            return self._check_in_transaction(header, state, guard, verifies)
        if self._open or self._asked:
            return self._check_outside(header, state)
        if state is None or (epoch == state.epoch and sequence == state.next_sequence):
            return ACCEPT
        return _check_sequence(header, state)

    def _check_outside(self, header: BatchHeader, state: ProducerState | None) -> Verdict:
        """As `check`, for a batch of no transaction, while there are some in the partition."""
        if state is not None and (known := _duplicate(header, state)) is not None:
            return known
        verdict = self._check_place(header, state)
        return OUTSIDE if verdict is ACCEPT and header.producer_id in self._open else verdict

    def _check_in_transaction(
        self, header: BatchHeader, state: ProducerState | None, guard: Guard | None, verifies: bool
    ) -> Verdict:
        """As `check`, for a batch of a transaction. A retry comes first: its transaction may have ended."""
        if state is not None and (known := _duplicate(header, state)) is not None:
            return known
        asked = self._asked.get(header.producer_id)
        if verifies and not self._is_open(header) and (asked is None or asked.guard is not guard):
            return NOT_OURS
        if header.producer_id not in self._open and len(self._open) >= OPEN_TRANSACTIONS_PER_PARTITION_MAX:
            return TOO_MANY_OPEN
        return self._check_place(header, state)

    def _check_place(self, header: BatchHeader, state: ProducerState | None) -> Verdict:
        """Return whether the batch comes next, also among those that wait for the coordinator."""
        if state is not None and header.producer_epoch < state.epoch:
            return _old_epoch(header, state)
        asked = self._asked.get(header.producer_id)
        if asked is not None:
            is_first = state is None or not state.batches
            first = 0 if asked.bumps_epochs and is_first else asked.lowest_sequence
            if header.base_sequence > first:
                return _out_of_order(header, first)
        return ACCEPT if state is None else _check_sequence(header, state)

    def check_part(self, header: BatchHeader, guard: Guard | None) -> Accept | Refuse:
        """As `check`, for a batch that a coordinator writes as a part of a client's transaction: it has no sequence."""
        state, asked = self._states.get(header.producer_id), self._asked.get(header.producer_id)
        if state is not None and header.producer_epoch < state.epoch:
            return _old_epoch(header, state)
        if not self._is_open(header) and (asked is None or asked.guard is not guard):
            return NOT_OURS
        if header.producer_id not in self._open and len(self._open) >= OPEN_TRANSACTIONS_PER_PARTITION_MAX:
            return TOO_MANY_OPEN
        return ACCEPT

    def has_open(self, producer_id: int, producer_epoch: int) -> bool:
        """Whether the producer's transaction is open in this epoch."""
        state = self._states.get(producer_id)
        return producer_id in self._open and state is not None and state.epoch == producer_epoch

    def _is_open(self, header: BatchHeader) -> bool:
        """Whether the batch goes on with a transaction that is open in its epoch."""
        return self.has_open(header.producer_id, header.producer_epoch)

    def begin_verification(
        self, header: BatchHeader, now_ms: int, *, bumps_epochs: bool = False
    ) -> Guard | Refuse | None:
        """Return the guard for a batch of a transaction, for which the coordinator is to be asked now. None: its
        transaction is open here, so that nobody need be asked. `bumps_epochs`: the producer's epoch rises with each
        transaction (KIP-890)."""
        state = self._states.get(header.producer_id)
        if state is not None and header.producer_epoch < state.epoch:
            return _old_epoch(header, state)
        if self._is_open(header):
            return None
        return self.verifications.ask(
            header.producer_id, header.producer_epoch, header.base_sequence, now_ms, bumps_epochs=bumps_epochs
        )

    def check_marker(
        self, producer_id: int, producer_epoch: int, coordinator_epoch: int, *, bumps_epochs: bool = False
    ) -> Accept | Refuse:
        """Return whether a coordinator may end the producer's transaction, which need not be open. `bumps_epochs`: its
        coordinator raises the epoch with each transaction (KIP-890), so the marker's is above the transaction's. One
        that is not is late, and of a transaction before (KIP-1228)."""
        state = self._states.get(producer_id)
        if state is None:
            return ACCEPT
        if producer_epoch < state.epoch:
            return Refuse(
                ErrorCode.INVALID_PRODUCER_EPOCH,
                f"Producer {producer_id} is at epoch {state.epoch}, not {producer_epoch}.",
            )
        if bumps_epochs and producer_epoch == state.epoch < PRODUCER_EPOCH_MAX and producer_id in self._open:
            return Refuse(
                ErrorCode.INVALID_PRODUCER_EPOCH,
                f"Producer {producer_id} has begun a transaction in epoch {producer_epoch}: the marker is of another.",
            )
        if coordinator_epoch < state.coordinator_epoch:
            return Refuse(
                ErrorCode.TRANSACTION_COORDINATOR_FENCED,
                f"A coordinator of epoch {state.coordinator_epoch} has written a marker; this one is of epoch "
                f"{coordinator_epoch}.",
            )
        return ACCEPT

    def skips(self, header: BatchHeader) -> bool:
        """Whether a batch that is out of order leaves others out; else it lies before the remembered batches."""
        state = self._states.get(header.producer_id)
        if state is None or header.producer_epoch < state.epoch:
            return False
        expected = state.next_sequence if header.producer_epoch == state.epoch else 0
        return 0 < (header.base_sequence - expected) & SEQUENCE_MAX <= SEQUENCE_MAX // 2

    def last_offset(self, producer_id: int) -> Offset | None:
        """Return the last offset of the producer, or of a marker for it; -1: that is unknown. None: nothing is known of
        it."""
        state = self._states.get(producer_id)
        return None if state is None else Offset(state.last_offset)

    def stable_end(self, high_watermark: Offset) -> Offset:
        """Return the last stable offset: everything below is committed or aborted, and replicated."""
        return self.transactions.stable_end(high_watermark)

    # appended batches

    def on_appended(self, header: BatchHeader, base_offset: Offset, now_ms: int) -> None:
        """Note that the batch is in the log at `base_offset`; a control batch is for `on_marker`. Expiry counts from
        `now_ms`, not from the times of its records. These may be of any age, and a producer of old records must not be
        forgotten while it writes."""
        producer_id = header.producer_id
        if producer_id == NO_PRODUCER_ID:
            return
        if header.attributes & _UNUSUAL:
            if header.is_control:
                return
            self.verifications.on_appended(producer_id)
            self.transactions.begin(producer_id, base_offset)
        state = self._states.get(producer_id)
        if state is None or state.epoch != header.producer_epoch:
            state = self._begin_epoch(producer_id, state, header.producer_epoch)
        last_offset = base_offset + header.last_offset_delta
        about = (header.base_sequence, header.last_sequence, base_offset, last_offset, now_ms)
        state.batches.append(new(RememberedBatch, about))
        self._states.move_to_end(producer_id)
        if len(self._states) > PRODUCERS_PER_PARTITION_MAX:
            self._evict()

    def on_marker(
        self, header: BatchHeader, marker: EndMarker | None, base_offset: Offset, now_ms: int
    ) -> CompletedTransaction | None:
        """Note that a control batch is in the log. `marker`: its content; None: it has none any more, or is of another
        kind, and changes nothing. Returns the transaction that it ends; None: the producer had none open."""
        if marker is None:
            return None
        producer_id = header.producer_id
        state = self._states.get(producer_id)
        if state is None or state.epoch != header.producer_epoch:
            state = self._begin_epoch(producer_id, state, header.producer_epoch)
        state.coordinator_epoch = marker.coordinator_epoch
        state.marked_at, state.marked_ms = base_offset + header.last_offset_delta, now_ms
        self._states.move_to_end(producer_id)
        self.verifications.on_marker(producer_id, header.producer_epoch)
        completed = self.transactions.end(producer_id, Offset(state.marked_at), is_aborted=not marker.committed)
        if len(self._states) > PRODUCERS_PER_PARTITION_MAX:
            self._evict()
        return completed

    def _begin_epoch(self, producer_id: int, known: ProducerState | None, epoch: int) -> ProducerState:
        state = ProducerState(epoch)
        if known is not None:
            state.coordinator_epoch = known.coordinator_epoch
            state.marked_at, state.marked_ms = known.marked_at, known.marked_ms
        self._states[producer_id] = state
        return state

    def _evict(self) -> None:
        """Forget the producers that wrote longest ago. One whose transaction is open counts as the newest."""
        while len(self._states) > PRODUCERS_PER_PARTITION_MAX:
            producer_id = next(iter(self._states))
            if producer_id in self._open:  # fewer than half of them are
                self._states.move_to_end(producer_id)
            else:
                del self._states[producer_id]

    def expire(self, before_ms: int) -> int:
        """Forget producers whose last batch or marker came before `before_ms` (`producer.id.expiration.ms`), unless
        their transaction is open. Returns their number. A forgotten producer may begin anywhere, and its old batches
        are no longer recognised."""
        self.verifications.expire(before_ms)
        known = len(self._states)
        for _ in range(known):
            producer_id, state = next(iter(self._states.items()))
            if state.last_ms >= before_ms:
                break
            if producer_id in self._open:
                self._states.move_to_end(producer_id)
            else:
                del self._states[producer_id]
        return known - len(self._states)

    # keeping it

    def entries(self) -> Iterator[ProducerEntry]:
        """Iterate over all producers, the one that wrote longest ago first."""
        for producer_id, state in self._states.items():
            first = self._open.get(producer_id)
            yield ProducerEntry(
                producer_id,
                state.epoch,
                tuple(state.batches),
                state.coordinator_epoch,
                -1 if first is None else first,
                -1 if state.batches else state.marked_ms,
            )

    def open_below(self, offset: int) -> tuple[OpenTransaction, ...]:
        """Return the open transactions that begin below `offset`, the first one first."""
        return tuple(OpenTransaction(each, first) for each, first in self._open.items() if first < offset)

    @property
    def ids(self) -> frozenset[int]:
        """The ids of all known producers."""
        return frozenset(self._states)

    def as_of(self, offset: int, aborted: Iterable[AbortedTransaction] = ()) -> ProducerStates:
        """Return the remains of the state when the log ended at `offset`. A producer that has written more than
        PRODUCER_BATCHES_CACHED batches since is not in it. Of the transactions that have ended since, those are open in
        it that `aborted` tells of."""
        before = ProducerStates()
        for producer_id, state in self._states.items():
            batches = [batch for batch in state.batches if batch.last_offset < offset]
            is_marked = state.coordinator_epoch >= 0 and state.marked_at < offset
            first = self._open.get(producer_id)
            if batches or is_marked or (first is not None and first < offset):
                before._states[producer_id] = kept = _state(state.epoch, batches)
                if is_marked:
                    kept.coordinator_epoch = state.coordinator_epoch
                    kept.marked_at, kept.marked_ms = state.marked_at, state.marked_ms
        before.transactions.put((each, first) for each, first in self._open.items() if first < offset)
        for each in aborted:
            if each.first_offset < offset <= each.last_offset:
                known = self._states.get(each.producer_id)
                before._states.setdefault(
                    each.producer_id, ProducerState(UNKNOWN_EPOCH if known is None else known.epoch)
                )
                before.transactions.put([(each.producer_id, Offset(each.first_offset))])
        return before

    def remember(self, before: ProducerStates) -> None:
        """Add an earlier state where it has more than the present one. That is unknown producers with their
        transactions, and older batches of those that have written nothing since. Takes over `before`."""
        unknown = [each for each in before._open.items() if each[0] not in self._states]
        began = [each for each in before._open.items() if each[0] in self._open]
        more = [each for each in before._states.items() if self._knows_less(*each)]
        for producer_id, state in reversed(more):  # they wrote before the others
            is_known = producer_id in self._states
            self._states[producer_id] = state
            if not is_known:
                self._states.move_to_end(producer_id, last=False)
        self.transactions.put([*unknown, *began])
        self._evict()

    def _knows_less(self, producer_id: int, then: ProducerState) -> bool:
        now = self._states.get(producer_id)
        if now is None:
            return True
        last_now, last_then = now.last_offset, then.last_offset
        return last_now < last_then or (last_now == last_then and len(now.batches) < len(then.batches))

    def remembered(self) -> frozenset[int]:
        """Return the last offsets of all remembered batches, and of markers that have begun an epoch. Compaction keeps
        these, or a recovery would not know them any more."""
        return frozenset(
            offset
            for state in self._states.values()
            for offset in ([batch.last_offset for batch in state.batches] or [state.marked_at])
        )

    def snapshot(self) -> bytes:
        """Return all of it, for `restore`: Kafka's producer snapshot, with more behind it."""
        return encode_snapshot(self.entries())

    @classmethod
    def restore(cls, data: bytes, *, unknown_ms: int = -1) -> Self:
        """Return the state of a snapshot. Raises CorruptData where the bytes are no snapshot. `unknown_ms`: the time
        for batches whose time of append is unknown."""
        states = cls()
        entries = decode_snapshot(data)
        for entry in sorted(entries, key=lambda entry: entry.timestamp):
            batches = [each if each.timestamp >= 0 else each._replace(timestamp=unknown_ms) for each in entry.batches]
            states._states[entry.producer_id] = state = _state(entry.epoch, batches)
            state.coordinator_epoch = entry.coordinator_epoch
            if not batches:
                state.marked_ms = entry.marked_ms if entry.marked_ms >= 0 else unknown_ms
        states.transactions.put(
            (entry.producer_id, Offset(entry.transaction_start)) for entry in entries if entry.transaction_start >= 0
        )
        return states


def _state(epoch: int, batches: Iterable[RememberedBatch]) -> ProducerState:
    state = ProducerState(epoch)
    state.batches.extend(batches)
    return state


def _check_sequence(header: BatchHeader, state: ProducerState) -> Verdict:
    """Return whether the batch comes next. Its producer is known."""
    if header.producer_epoch < state.epoch:
        return _old_epoch(header, state)
    expected = 0 if header.producer_epoch > state.epoch else state.next_sequence
    if header.base_sequence == expected:
        return ACCEPT
    return _duplicate(header, state) or _out_of_order(header, expected)


def _old_epoch(header: BatchHeader, state: ProducerState) -> Refuse:
    return Refuse(
        ErrorCode.INVALID_PRODUCER_EPOCH,
        f"Producer {header.producer_id} is at epoch {state.epoch}, not {header.producer_epoch}.",
    )


def _out_of_order(header: BatchHeader, expected: int) -> Refuse:
    return Refuse(
        ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
        f"Producer {header.producer_id} sent sequence {header.base_sequence} where {expected} was next.",
    )


def _duplicate(header: BatchHeader, state: ProducerState) -> Duplicate | None:
    """Return where the batch is in the log already; None: it is not known to be."""
    if header.producer_epoch != state.epoch:
        return None
    wanted = (header.base_sequence, header.last_sequence)
    for batch in state.batches:
        if (batch.first_sequence, batch.last_sequence) == wanted:
            return Duplicate(Offset(batch.base_offset), Offset(batch.last_offset), batch.timestamp)
    return None
