"""The state of one partition's idempotent producers: which batch may come next, and which came before.

Promises: a batch that is sent again is recognised, as long as it is among the producer's last five. A gap or an old
epoch is refused. The number of producers is bounded. It never reads a clock, a log or a file. Sources: KIP-98, KIP-185,
KIP-360; Kafka's ProducerStateManager for the order of the checks.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from enum import Enum
from typing import Final, NamedTuple, Self, TypeAlias

from headrace.base.ids import NO_PRODUCER_ID, Offset
from headrace.base.limits import PRODUCER_BATCHES_CACHED, PRODUCERS_PER_PARTITION_MAX
from headrace.replica.producer_snapshots import ProducerEntry, RememberedBatch, decode_snapshot, encode_snapshot
from headrace.wire.batches import CONTROL, SEQUENCE_MAX, BatchHeader
from headrace.wire.codec import new
from headrace.wire.errors import ErrorCode


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


@dataclass(slots=True)
class ProducerState:
    """One producer's last batches, oldest first, all of its current epoch."""

    epoch: int
    batches: deque[RememberedBatch] = field(default_factory=lambda: deque(maxlen=PRODUCER_BATCHES_CACHED))

    @property
    def next_sequence(self) -> int | None:
        """The first sequence of the next batch; None where there was none in this epoch."""
        return (self.batches[-1].last_sequence + 1) & SEQUENCE_MAX if self.batches else None


class ProducerStates:
    """All producers of one partition, the one that wrote longest ago first."""

    def __init__(self) -> None:
        self._states: OrderedDict[int, ProducerState] = OrderedDict()

    def __len__(self) -> int:
        return len(self._states)

    def check(self, header: BatchHeader) -> Verdict:
        """Return whether this batch may be appended next. Changes nothing. An unknown producer may begin anywhere, as
        on Kafka: its state may have expired or been evicted."""
        if header.producer_id == NO_PRODUCER_ID:
            return ACCEPT
        if header.base_sequence < 0 or header.producer_epoch < 0:
            return Refuse(ErrorCode.INVALID_RECORD, "A batch with a producer id needs an epoch and a sequence.")
        state = self._states.get(header.producer_id)
        if state is None:
            return ACCEPT
        if header.producer_epoch < state.epoch:
            return Refuse(
                ErrorCode.INVALID_PRODUCER_EPOCH,
                f"Producer {header.producer_id} is at epoch {state.epoch}, not {header.producer_epoch}.",
            )
        expected = 0 if header.producer_epoch > state.epoch else state.next_sequence
        if expected is None or header.base_sequence == expected:
            return ACCEPT
        if header.producer_epoch == state.epoch and (known := _find(state.batches, header)) is not None:
            return Duplicate(Offset(known.base_offset), Offset(known.last_offset), known.timestamp)
        return Refuse(
            ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
            f"Producer {header.producer_id} sent sequence {header.base_sequence} where {expected} was next.",
        )

    def skips(self, header: BatchHeader) -> bool:
        """Whether a batch that is out of order leaves others out; else it lies before the remembered batches."""
        state = self._states.get(header.producer_id)
        if state is None or header.producer_epoch < state.epoch:
            return False
        expected = state.next_sequence if header.producer_epoch == state.epoch else 0
        return expected is not None and 0 < (header.base_sequence - expected) & SEQUENCE_MAX <= SEQUENCE_MAX // 2

    def last_offset(self, producer_id: int) -> Offset | None:
        """Return the last offset that the producer has appended, as far as it is known."""
        state = self._states.get(producer_id)
        return None if state is None else Offset(state.batches[-1].last_offset)

    def on_appended(self, header: BatchHeader, base_offset: Offset, now_ms: int) -> None:
        """Note that the batch is in the log at `base_offset`. Expiry counts from `now_ms`, not from the times of its
        records. These may be of any age, and a producer of old records must not be forgotten while it writes."""
        producer_id = header.producer_id
        if producer_id == NO_PRODUCER_ID or header.attributes & CONTROL:
            return
        state = self._states.get(producer_id)
        if state is None or state.epoch != header.producer_epoch:
            state = self._states[producer_id] = ProducerState(header.producer_epoch)
        last_offset = base_offset + header.last_offset_delta
        about = (header.base_sequence, header.last_sequence, base_offset, last_offset, now_ms)
        state.batches.append(new(RememberedBatch, about))
        self._states.move_to_end(producer_id)
        if len(self._states) > PRODUCERS_PER_PARTITION_MAX:
            self._states.popitem(last=False)

    def expire(self, before_ms: int) -> int:
        """Forget producers whose last batch came before `before_ms` (`producer.id.expiration.ms`). Returns their
        number. A forgotten producer may begin anywhere, and its old batches are no longer recognised."""
        forgotten = 0
        while self._states and next(iter(self._states.values())).batches[-1].timestamp < before_ms:
            self._states.popitem(last=False)
            forgotten += 1
        return forgotten

    def entries(self) -> Iterator[ProducerEntry]:
        """Iterate over all producers, the one that wrote longest ago first."""
        for producer_id, state in self._states.items():
            yield ProducerEntry(producer_id, state.epoch, tuple(state.batches))

    @property
    def ids(self) -> frozenset[int]:
        """The ids of all known producers."""
        return frozenset(self._states)

    def as_of(self, offset: int) -> ProducerStates:
        """Return the remains of the state when the log ended at `offset`. A producer that has written more than
        PRODUCER_BATCHES_CACHED batches since is not in it."""
        before = ProducerStates()
        for producer_id, state in self._states.items():
            if batches := [batch for batch in state.batches if batch.last_offset < offset]:
                before._states[producer_id] = _state(state.epoch, batches)
        return before

    def remember(self, before: ProducerStates) -> None:
        """Add an earlier state where it has more than the present one: unknown producers, and older batches of those
        that have written nothing since. Takes over `before`."""
        more = [each for each in before._states.items() if self._knows_less(*each)]
        for producer_id, state in reversed(more):  # they wrote before the others
            is_known = producer_id in self._states
            self._states[producer_id] = state
            if not is_known:
                self._states.move_to_end(producer_id, last=False)
        while len(self._states) > PRODUCERS_PER_PARTITION_MAX:
            self._states.popitem(last=False)

    def _knows_less(self, producer_id: int, then: ProducerState) -> bool:
        now = self._states.get(producer_id)
        if now is None:
            return True
        last_now, last_then = now.batches[-1].last_offset, then.batches[-1].last_offset
        return last_now < last_then or (last_now == last_then and len(now.batches) < len(then.batches))

    def remembered(self) -> frozenset[int]:
        """Return the last offsets of all remembered batches. Compaction keeps these, or a recovery would not know them
        any more."""
        return frozenset(batch.last_offset for state in self._states.values() for batch in state.batches)

    def snapshot(self) -> bytes:
        """Return all of it, for `restore`: Kafka's producer snapshot, with more behind it."""
        return encode_snapshot(self.entries())

    @classmethod
    def restore(cls, data: bytes, *, unknown_ms: int = -1) -> Self:
        """Return the state of a snapshot. Raises CorruptData where the bytes are no snapshot. `unknown_ms`: the time
        for batches whose time of append is unknown."""
        states = cls()
        for entry in sorted(decode_snapshot(data), key=lambda entry: entry.batches[-1].timestamp):
            batches = [each if each.timestamp >= 0 else each._replace(timestamp=unknown_ms) for each in entry.batches]
            states._states[entry.producer_id] = _state(entry.epoch, batches)
        return states


def _state(epoch: int, batches: Iterable[RememberedBatch]) -> ProducerState:
    state = ProducerState(epoch)
    state.batches.extend(batches)
    return state


def _find(batches: Iterable[RememberedBatch], header: BatchHeader) -> RememberedBatch | None:
    wanted = (header.base_sequence, header.last_sequence)
    return next((batch for batch in batches if (batch.first_sequence, batch.last_sequence) == wanted), None)
