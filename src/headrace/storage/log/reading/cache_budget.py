"""Room in memory that all logs of an engine share for what they keep for readers."""

from __future__ import annotations

from collections import deque
from typing import Generic, Protocol, TypeVar

Key_contra = TypeVar("Key_contra", contravariant=True)
Key = TypeVar("Key")


class Keeper(Protocol[Key_contra]):
    """What is kept of one log."""

    def forget(self, key: Key_contra, /) -> None:
        """This gives way to what is newer, where it is there still."""


class ReadCacheBudget(Generic[Key]):
    """Bounded by `bytes_max`: what came first gives way first. Loop-only."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._kept: deque[tuple[Keeper[Key], Key, int]] = deque()
        """In the order in which they came, with their sizes. What was dropped keeps its place until its turn comes, so
        that this too is bounded."""
        self.size = 0
        """Bytes."""

    def add(self, keeper: Keeper[Key], key: Key, size: int) -> None:
        """`size`: bytes, with what it costs to keep them."""
        self._kept.append((keeper, key, size))
        self.size += size
        while self.size > self._bytes_max:
            oldest, key, size = self._kept.popleft()
            oldest.forget(key)
            self.size -= size
