"""The aborted transactions of one log in Redis: all of them in memory, and in a Stream beside the log.

An entry goes to Redis with the producer snapshot that covers its marker, in one call. Those behind the last snapshot
follow from the batches there, which a new leader reads again. So the two never disagree.

Loop-only, except where a method says otherwise.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection, Iterable, Sequence
from operator import attrgetter
from typing import Final

from headrace.base.ids import Offset
from headrace.storage.redis.server_side.functions import Batch
from headrace.wire.transactions import AbortedTransaction, decode_aborted, encode_aborted, overlapping

_marker_of: Final = attrgetter("last_offset")


class RedisAborted:
    """An `AbortedIndex`. `found`: the entries in Redis."""

    __slots__ = ("_entries", "_saved_to")

    def __init__(self, found: Iterable[bytes]) -> None:
        self._entries: list[AbortedTransaction] = [each for entry in found for each in decode_aborted(entry)]
        self._saved_to = self._entries[-1].last_offset + 1 if self._entries else 0
        """Redis has the entries whose markers lie below."""

    @property
    def has_any(self) -> bool:
        return bool(self._entries)

    def add(self, transaction: AbortedTransaction) -> None:
        if not self._entries or self._entries[-1].last_offset < transaction.last_offset:
            self._entries.append(transaction)

    def between(self, start: Offset, end: Offset) -> Sequence[AbortedTransaction]:
        return overlapping(self._entries, start, end) if start < end else []

    def forget_from(self, offset: Offset) -> None:
        """See the port. Any thread."""
        del self._entries[bisect_left(self._entries, offset, key=_marker_of) :]

    def drop_below(self, offset: Offset) -> None:
        """The log begins at `offset` from now on."""
        del self._entries[: bisect_left(self._entries, offset, key=_marker_of)]

    def drop(self, markers: Collection[int]) -> None:
        """Nobody needs these entries any more: a compaction has removed all records of their transactions."""
        if markers:
            self._entries = [each for each in self._entries if each.last_offset not in markers]

    def clear(self) -> None:
        """The log begins again, empty."""
        self._entries, self._saved_to = [], 0

    def unsaved(self, end: Offset) -> list[Batch]:
        """The entries below `end` that Redis does not have yet."""
        first, last = (bisect_left(self._entries, at, key=_marker_of) for at in (self._saved_to, end))
        return [Batch(Offset(each.last_offset + 1), encode_aborted([each])) for each in self._entries[first:last]]

    def saved(self, end: Offset) -> None:
        """Redis has all of them below `end`."""
        self._saved_to = max(self._saved_to, end)
