"""Tells batches of transactions of which no rows are made: markers, and all of aborted transactions.

Promises what a consumer under read_committed gets. All of it lies below the last stable offset, so that each
transaction in it has ended. Nothing is read before a batch of a transaction is met.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Protocol

from headrace.base.errors import HeadraceError
from headrace.base.ports import Buffer
from headrace.metadata.segment_keys import is_undecided
from headrace.metadata.segments import PartitionCatalog
from headrace.net.client.states import HiddenInAnswer as HiddenInAnswer
from headrace.storage.decided import Decided
from headrace.storage.tier.ended import ended
from headrace.storage.tier.format import SegmentFooter
from headrace.storage.tier.reader import Store
from headrace.wire.batches import BatchHeader
from headrace.wire.transactions import AbortedTransaction

if TYPE_CHECKING:
    from headrace.spark.read.plan import StorePart


class UndecidedError(HeadraceError):
    """The store does not tell how a transaction of a segment ended: brokers do."""


class Hidden(Protocol):
    """It is asked for each batch of a transaction, in order."""

    def hides(self, view: Buffer, at: int, header: BatchHeader) -> bool:
        """Whether no rows are made of the batch at `at`."""
        ...


class HiddenInStore:
    """The hidden batches of one segment."""

    def __init__(self, aborted: Callable[[], Sequence[AbortedTransaction]]) -> None:
        """`aborted` is called once, where it is needed. It may raise DamagedHistory and UndecidedError."""
        self._aborted = aborted
        self._decided: Decided | None = None

    def hides(self, view: Buffer, at: int, header: BatchHeader) -> bool:
        if header.is_control:
            return True
        if self._decided is None:
            self._decided = Decided(self._aborted())
        return self._decided.is_aborted(header)


def aborted_in(
    store: Store, part: StorePart, footer: SegmentFooter | None, catalog: Callable[[], PartitionCatalog | None]
) -> Sequence[AbortedTransaction]:
    """The aborted transactions that overlap with the part's segment. `footer`: the segment's, where it was read;
    `catalog`: reads the present one. Raises UndecidedError, DamagedHistory.
    """
    topic, partition = part.place.topic, part.place.partition
    found = ended(
        footer or store.footer(topic, partition, part.segment),
        part.end,
        _behind(store, topic, partition, part, catalog),
    )
    if found.undecided:
        raise UndecidedError(f"Topic '{topic}', partition {partition}: a transaction may be open at {part.end}.")
    return found.aborted


def _behind(
    store: Store, topic: str, partition: int, part: StorePart, catalog: Callable[[], PartitionCatalog | None]
) -> Iterator[SegmentFooter]:
    known = catalog()
    for entry in () if known is None else known.reaching(part.segment.next_offset):
        yield store.footer(topic, partition, entry.descriptor)


def stable_end(store: Store, topic: str, partition: int, catalog: PartitionCatalog) -> int:
    """The last stable offset of durable history: its end, unless a move left a transaction open there. Raises
    DamagedHistory.
    """
    last = catalog.last
    if last is None or not is_undecided(last.descriptor):
        return int(catalog.next_offset)
    footer = store.footer(topic, partition, last.descriptor)
    opened = (each.first_offset for each in footer.undecided_transactions)
    return max(min(opened, default=int(catalog.next_offset)), int(catalog.readable_start))
