"""Tells the state of each record's transaction by what brokers send. It asks nobody itself.

Promises:
- Below the last stable offset, a transaction counts as aborted where a consumer under read_committed drops its records.
- From the last stable offset on, the next marker of the record's producer decides. It is open where none was read.
- Batches are looked at in order, and only markers are decoded.

Source: KIP-98. A broker names aborted transactions only to readers under read_committed, by their first offsets. These
get no record from the last stable offset on.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping
from enum import StrEnum
from operator import itemgetter
from typing import NamedTuple

from crc32c import crc32c

from headrace.base.errors import CorruptData
from headrace.base.ids import Offset
from headrace.base.ports import Buffer
from headrace.wire.batches import CRC_START, BatchHeader, iterate_headers
from headrace.wire.transactions import OpenTransaction, marker_in


class TransactionState(StrEnum):
    """The state of a record's transaction, as far as it is known. A record that has no transaction has None."""

    COMMITTED = "committed"
    ABORTED = "aborted"
    OPEN = "open"


State = TransactionState | None


class HiddenInAnswer:
    """The hidden batches of one answer of a broker, which names aborted transactions by their first offsets."""

    def __init__(self, aborted: Iterable[OpenTransaction]) -> None:
        self._coming = sorted(aborted, key=lambda each: -each.first_offset)
        self._aborted: set[int] = set()
        """Producers whose transaction is an aborted one where the reader is."""

    def hides(self, view: Buffer, at: int, header: BatchHeader) -> bool:
        """Whether no reader under read_committed gets the batch at `at`. Asked for each batch of a transaction, in
        order."""
        while self._coming and self._coming[-1].first_offset <= header.last_offset:
            self._aborted.add(self._coming.pop().producer_id)
        if not header.is_control:
            return header.producer_id in self._aborted
        marker = marker_in(view, at, header)
        if marker is not None and not marker.committed:
            self._aborted.discard(header.producer_id)
        return True


def states_by_list(data: Buffer, aborted: Iterable[OpenTransaction]) -> list[State]:
    """The state of each batch of an answer under read_committed. Raises CorruptData."""
    hidden, states = HiddenInAnswer(aborted), list[State]()
    for at, header in iterate_headers(data):
        if not header.is_transactional:
            states.append(None)
            continue
        is_hidden = hidden.hides(data, at, header)
        states.append(TransactionState.ABORTED if is_hidden else TransactionState.COMMITTED)
    return states


class Judged(NamedTuple):
    """The states of the batches of an answer under read_uncommitted."""

    states: list[State]
    """As many as can be told: the last ones may be missing."""
    size: int
    """Bytes of the batches that have a state. The next one is below the last stable offset, and its transaction has
    ended: the broker's list of aborted ones tells how."""
    opened: Mapping[int, BatchHeader]
    """The last batch of each producer whose transaction is open by what was read."""


class Markers:
    """The markers of one partition that were read, from an offset on without a gap."""

    def __init__(self, begin: Offset) -> None:
        self.begin = begin
        self.end = begin
        """The offset behind what was read."""
        self._of: dict[int, list[tuple[int, bool]]] = {}
        """Of each producer: the offsets of its markers, in order, and whether each committed."""

    def __len__(self) -> int:
        return sum(map(len, self._of.values()))

    def read(self, data: Buffer) -> None:
        """Note the markers of these whole batches, which follow. They may begin with some that were read before. Raises
        CorruptData."""
        for at, header in iterate_headers(data):
            if header.next_offset <= self.end:
                continue
            self.end = Offset(header.next_offset)
            if not header.is_control:
                continue
            if crc32c(memoryview(data)[at + CRC_START : at + header.size]) != header.crc:
                raise CorruptData(f"The marker at offset {header.base_offset} fails its CRC32C.")
            if (marker := marker_in(data, at, header)) is not None:
                self._of.setdefault(header.producer_id, []).append((header.base_offset, marker.committed))

    def forget_below(self, offset: Offset) -> None:
        """Forget markers that decide nothing from here on."""
        if offset <= self.begin:
            return
        self.begin = offset
        for producer, markers in list(self._of.items()):
            del markers[: bisect_right(markers, offset - 1, key=itemgetter(0))]
            if not markers:
                del self._of[producer]

    def state_of(self, header: BatchHeader) -> TransactionState:
        """The state of a batch of a transaction that was read: open where no marker followed."""
        markers = self._of.get(header.producer_id, ())
        next_ = bisect_right(markers, header.last_offset, key=itemgetter(0))
        if next_ == len(markers):
            return TransactionState.OPEN
        return TransactionState.COMMITTED if markers[next_][1] else TransactionState.ABORTED

    def judge(self, data: Buffer, last_stable_offset: Offset) -> Judged:
        """Tell the states of these batches, whose markers were read. Raises CorruptData."""
        states, opened = list[State](), dict[int, BatchHeader]()
        for at, header in iterate_headers(data):
            if header.is_control or not header.is_transactional:
                states.append(None)
                continue
            state = self.state_of(header)
            if state is TransactionState.OPEN:
                if header.base_offset < last_stable_offset:
                    return Judged(states, at, opened)
                opened[header.producer_id] = header
            states.append(state)
        return Judged(states, len(data), opened)
