"""Checks what the footers of durable history tell of transactions against the batches and their markers.

Promises: each difference is reported in one sentence. Where earlier segments are unsound or gone, only what can be
known without them is checked. Sans-IO.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any

from headrace.base.ids import LAST_OFFSET, NO_EPOCH, LeaderEpoch
from headrace.base.ports import Buffer
from headrace.replica.producers import ProducerStates
from headrace.storage.tier.format import SegmentFooter
from headrace.storage.tier.producers import UNKNOWN_MS, producers_of, replayed
from headrace.wire.batches import BatchHeader, iterate_headers
from headrace.wire.transactions import AbortedTransaction, OpenTransaction, marker_in


class TransactionCheck:
    """It is called with the segments of one partition in order."""

    def __init__(self) -> None:
        self._next = -1
        """The offset behind the last segment; -1: there was none, or it is not sound."""
        self._open: frozenset[OpenTransaction] | None = frozenset()
        """Those that are open there; None: that is not known."""
        self._producers: Any = None
        """As its footer has them."""
        self._told: list[AbortedTransaction] = []
        """Those aborted whose markers lie behind it."""
        self._undecided: frozenset[OpenTransaction] = frozenset()
        """Those whose end it does not tell. All others that are open were committed, or are in `_told`."""
        self._epoch = NO_EPOCH
        """The leader epoch of its last batch. Where the next is of another, markers may be lost with a log."""

    def begin_after(self, footer: SegmentFooter) -> None:
        """Note the footer of the segment before the next one, which was not checked."""
        after = producers_of(footer.producers) or ProducerStates()
        self._note(footer, frozenset(after.open_below(footer.end_offset + 1)))

    def _note(self, footer: SegmentFooter, still_open: frozenset[OpenTransaction]) -> None:
        self._next, self._open, self._producers = footer.end_offset + 1, still_open, footer.producers
        self._told = [each for each in footer.aborted_transactions if each.last_offset > footer.end_offset]
        self._undecided = frozenset(footer.undecided_transactions)
        self._epoch = LeaderEpoch(footer.leader_epochs[-1].leader_epoch)

    def forget(self) -> None:
        """Note that a segment could not be read."""
        self._next, self._open, self._told = -1, None, []

    def has_work(self, footer: SegmentFooter, headers: Iterable[BatchHeader]) -> bool:
        """Whether the next segment has to be looked at. Where not, it is noted."""
        tells = footer.aborted_transactions or footer.undecided_transactions
        if tells or self._open != frozenset() or self._told or any(each.is_transactional for each in headers):
            return True
        self._note(footer, frozenset())
        return False

    def problems(self, footer: SegmentFooter, batches: Buffer, *, is_thinned: bool) -> Iterator[str]:
        """Yields the differences of the next segment. `is_thinned`: it may lack records. Raises CorruptData."""
        if footer.start_offset not in (self._next, 0):
            self._open, self._told = None, []
        knows_before = self._open is not None and not is_thinned
        before = (producers_of(self._producers) if knows_before else None) or ProducerStates()
        self._drop_lost(before, footer)
        ended = [each.aborted for each in replayed(before, batches, UNKNOWN_MS) if each.is_aborted]
        aborts = dict[int, int]()
        for at, header in iterate_headers(batches):
            marker = marker_in(batches, at, header) if header.is_control else None
            if marker is not None and not marker.committed:
                aborts[header.base_offset] = header.producer_id
        after = producers_of(footer.producers) or ProducerStates()
        still_open = frozenset(after.open_below(footer.end_offset + 1))
        yield from _against_markers(footer, aborts, ended if knows_before else None)
        yield from self._against_neighbours(footer, still_open, aborts, is_thinned=is_thinned)
        if is_thinned and footer.producers is not None:
            yield from _of_what_is_left(footer, batches, still_open)
        self._note(footer, still_open)

    def _may_be_lost(self, footer: SegmentFooter) -> bool:
        """Whether the markers of `_told` may be lost before the next segment: another leader wrote that."""
        return footer.leader_epochs[0].leader_epoch != self._epoch

    def _drop_lost(self, before: ProducerStates, footer: SegmentFooter) -> None:
        """Drop open transactions that were committed, whose markers may be gone, and lost aborted ones."""
        known = set(footer.aborted_transactions)
        told = (each for each in self._told if each in known or not self._may_be_lost(footer))
        still = {OpenTransaction(each.producer_id, each.first_offset) for each in told}
        before.transactions.keep(still | self._undecided)

    def _against_neighbours(
        self,
        footer: SegmentFooter,
        still_open: frozenset[OpenTransaction],
        aborts: Mapping[int, int],
        *,
        is_thinned: bool,
    ) -> Iterator[str]:
        """`aborts`: as in `_against_markers`. Where compaction has left nothing of a transaction, the segment with its
        marker does not tell of it any more."""
        known = set(footer.aborted_transactions)
        for each in () if is_thinned else self._told:
            is_lost = self._may_be_lost(footer) and aborts.get(each.last_offset) != each.producer_id
            if each not in known and not is_lost:
                yield f"it does not tell that {_named(each)} was aborted, as the segment before it does"
        for each in footer.aborted_transactions:
            begun = OpenTransaction(each.producer_id, each.first_offset)
            if each.first_offset < footer.start_offset and self._open is not None and begun not in self._open:
                yield f"it tells that {_named(each)} was aborted, which is not open at its start"
            if each.last_offset > footer.end_offset and begun not in still_open:
                yield f"it tells that {_named(each)} was aborted, which is not open at its end"
        for open_one in footer.undecided_transactions:
            if open_one not in still_open:
                yield f"it calls {_named(open_one)} undecided, which is not open at its end"


def _against_markers(
    footer: SegmentFooter, aborts: dict[int, int], ended: list[AbortedTransaction] | None
) -> Iterator[str]:
    """`aborts`: the producers of the abort markers in the segment, by offset; `ended`: the transactions that they end,
    where that is known."""
    here = {each.last_offset: each for each in footer.aborted_transactions if each.last_offset <= footer.end_offset}
    for at, told in here.items():
        if aborts.get(at) != told.producer_id:
            yield f"it tells that {_named(told)} was aborted at {at}, where no such marker is"
    for each in ended or ():
        if here.get(each.last_offset) is None or here[each.last_offset].first_offset != each.first_offset:
            yield f"it does not tell that {_named(each)} was aborted"


def _of_what_is_left(footer: SegmentFooter, batches: Buffer, still_open: Collection[OpenTransaction]) -> Iterator[str]:
    """Compares the records that compaction has left with their markers, and with the aborted transactions told."""
    told = {each.last_offset: each for each in footer.aborted_transactions}
    begun = dict[int, int]()
    for at, header in iterate_headers(batches):
        if not (header.is_transactional and header.count):
            continue
        if not header.is_control:
            begun.setdefault(header.producer_id, header.base_offset)
        elif (marker := marker_in(batches, at, header)) is not None:
            first, entry = begun.pop(header.producer_id, None), told.get(header.base_offset)
            if first is not None and not marker.committed and (entry is None or entry.first_offset > first):
                yield f"it does not tell that {_named(OpenTransaction(header.producer_id, first))} was aborted"
    opened = {each.producer_id: each.first_offset for each in still_open}
    for producer, first in begun.items():
        if opened.get(producer, LAST_OFFSET) > first:
            yield f"{_named(OpenTransaction(producer, first))} has no marker, and is not open at its end"


def _named(each: AbortedTransaction | OpenTransaction) -> str:
    return f"the transaction of producer {each.producer_id} from offset {each.first_offset}"
