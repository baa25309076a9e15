"""The transactions of one partition: which are open, which have ended too lately, and which producers may begin one.

Promises:
- Everything below `stable_end` is decided, and the markers that decide it are replicated.
- A guard holds for one beginning: the first batch makes it void, and so does a marker that may end that transaction.
- The number of open transactions, of ended ones and of guards is bounded.

It never reads a clock, a log or a file. Sources: KIP-98, KIP-890; Kafka's ProducerStateManager and
VerificationStateEntry.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple

from headrace.base.ids import Offset
from headrace.base.limits import ENDED_TRANSACTIONS_MAX, VERIFICATIONS_PER_PARTITION_MAX
from headrace.wire.transactions import AbortedTransaction


class CompletedTransaction(NamedTuple):
    """A transaction that a marker has ended. Offsets are inclusive."""

    producer_id: int
    first_offset: Offset
    last_offset: Offset
    """The offset of the marker."""
    last_stable_offset: Offset
    """The first offset of another producer's transaction that was open then; else the offset behind the marker."""
    is_aborted: bool

    @property
    def aborted(self) -> AbortedTransaction:
        """The entry for the index of aborted transactions."""
        return AbortedTransaction(self.producer_id, self.first_offset, self.last_offset, self.last_stable_offset)


class _Ended(NamedTuple):
    last_offset: int
    first_offset: int


class OpenTransactions:
    """The transactions below whose first offsets everything is decided.

    Invariants: first offsets rise in both collections, and so do the last ones of those that have ended.
    """

    __slots__ = ("_ended", "_first", "first_offsets")

    def __init__(self) -> None:
        self._first: dict[int, Offset] = {}
        self.first_offsets: Final[Mapping[int, Offset]] = self._first
        """The first offset of each producer's open transaction, by producer id."""
        self._ended: deque[_Ended] = deque()
        """Transactions whose marker may lie at the high watermark or above. One that begins before an earlier one
        stands for both."""

    def __len__(self) -> int:
        """The number of open transactions."""
        return len(self._first)

    def begin(self, producer_id: int, first_offset: Offset) -> None:
        """Note a transaction that begins at the log's end, unless the producer has one."""
        self._first.setdefault(producer_id, first_offset)

    def end(self, producer_id: int, last_offset: Offset, *, is_aborted: bool) -> CompletedTransaction | None:
        """Note the marker at `last_offset`. Returns the transaction that it ends; None: the producer has none."""
        first = self._first.pop(producer_id, None)
        if first is None:
            return None
        stable = next(iter(self._first.values()), Offset(last_offset + 1))
        self._await(_Ended(last_offset, first))
        return CompletedTransaction(producer_id, first, last_offset, stable, is_aborted)

    def _await(self, ended: _Ended) -> None:
        waiting = self._ended
        while waiting and waiting[-1].first_offset >= ended.first_offset:
            waiting.pop()
        if len(waiting) >= ENDED_TRANSACTIONS_MAX:  # the earlier one waits as long as the later one
            ended = _Ended(ended.last_offset, waiting.pop().first_offset)
        waiting.append(ended)

    def on_replicated(self, high_watermark: Offset) -> None:
        """Note that everything below is replicated, markers included. This is never taken back."""
        waiting = self._ended
        while waiting and waiting[0].last_offset < high_watermark:
            waiting.popleft()

    def stable_end(self, high_watermark: Offset) -> Offset:
        """Return the last stable offset, as `high_watermark` is now."""
        if not (self._first or self._ended):
            return high_watermark
        self.on_replicated(high_watermark)
        end = min(high_watermark, next(iter(self._first.values()), high_watermark))
        return min(end, Offset(self._ended[0].first_offset)) if self._ended else end

    def put(self, transactions: Iterable[tuple[int, Offset]]) -> None:
        """Add transactions that began at any offset. Of two of one producer, the one that began first counts."""
        for producer_id, first in transactions:
            self._first[producer_id] = min(first, self._first.get(producer_id, first))
        in_order = sorted(self._first.items(), key=lambda item: item[1])
        self._first.clear()
        self._first.update(in_order)

    def keep(self, transactions: Collection[tuple[int, int]]) -> None:
        """Forget all open transactions but these, each given by its producer id and first offset."""
        for producer_id, first in list(self._first.items()):
            if (producer_id, first) not in transactions:
                del self._first[producer_id]


class Guard:
    """One promise that a producer's transaction was verified. It equals no other."""

    __slots__ = ()


@dataclass(slots=True)
class Verification:
    """A question to the coordinator about one producer, until its first batch is appended."""

    guard: Final[Guard]
    since_ms: Final[int]
    epoch: Final[int]
    lowest_sequence: int
    """Batches with higher sequences must not come first."""
    bumps_epochs: Final[bool]
    """The producer's epoch rises with each transaction (KIP-890), so that each begins with sequence 0."""

    def heed(self, epoch: int, sequence: int) -> None:
        """Note another batch that waits for the same answer."""
        if epoch == self.epoch and sequence < self.lowest_sequence:
            self.lowest_sequence = sequence


class Verifications:
    """The verifications of one partition, the oldest first."""

    __slots__ = ("_waiting", "asked")

    def __init__(self) -> None:
        self._waiting: dict[int, Verification] = {}
        self.asked: Final[Mapping[int, Verification]] = self._waiting
        """By producer id."""

    def ask(self, producer_id: int, epoch: int, sequence: int, now_ms: int, *, bumps_epochs: bool) -> Guard:
        """Return the guard that a batch needs, once the coordinator has verified its transaction. A question about a
        later epoch takes the place of the earlier one, whose client may have spoken another protocol."""
        known = self._waiting.get(producer_id)
        if known is not None and epoch <= known.epoch:
            known.heed(epoch, sequence)
            return known.guard
        self._waiting.pop(producer_id, None)
        if len(self._waiting) >= VERIFICATIONS_PER_PARTITION_MAX:
            del self._waiting[next(iter(self._waiting))]
        asked = Verification(Guard(), now_ms, epoch, sequence, bumps_epochs)
        self._waiting[producer_id] = asked
        return asked.guard

    def on_appended(self, producer_id: int) -> None:
        """Note a batch of the producer's transaction: its guard is void."""
        self._waiting.pop(producer_id, None)

    def on_marker(self, producer_id: int, epoch: int) -> None:
        """Note a marker: the guard is void. But where the producer's epoch rises with each transaction, a marker of the
        epoch that was asked for has ended the transaction before."""
        asked = self._waiting.get(producer_id)
        if asked is not None and not (asked.bumps_epochs and asked.epoch == epoch):
            del self._waiting[producer_id]

    def expire(self, before_ms: int) -> None:
        """Forget those that were asked for before `before_ms`, and never used."""
        while self._waiting and next(iter(self._waiting.values())).since_ms < before_ms:
            del self._waiting[next(iter(self._waiting))]
