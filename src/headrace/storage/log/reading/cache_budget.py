"""A memory budget that all logs of an engine share for the data that they keep for readers."""

from __future__ import annotations

from collections import deque
from typing import Generic, Protocol, TypeVar

Key_contra = TypeVar("Key_contra", contravariant=True)
Key = TypeVar("Key")


class Keeper(Protocol[Key_contra]):
    """The data kept in memory for one log."""

    def forget(self, key: Key_contra, /) -> None:
        """Remove this entry, if it is still there, in favour of newer ones."""


class ReadCacheBudget(Generic[Key]):
    """Bounded by `bytes_max`: the oldest entries are removed first. Loop-only."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._kept: deque[tuple[Keeper[Key], Key, int]] = deque()
        """Entries in the order of their arrival, with their sizes. A dropped entry keeps its place until its turn
        comes, so that this queue is bounded too.
        """
        self.size = 0
        """Bytes."""

    def add(self, keeper: Keeper[Key], key: Key, size: int) -> None:
        """`size`: bytes, including the cost of keeping them."""
        self._kept.append((keeper, key, size))
        self.size += size
        while self.size > self._bytes_max:
            oldest, key, size = self._kept.popleft()
            oldest.forget(key)
            self.size -= size
