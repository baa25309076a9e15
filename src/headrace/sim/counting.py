"""Counts the work of a run's journals, to show that a swarm reaches them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any
from unittest.mock import patch

from headrace.storage.log.journal.journal import Journal, JournalRound, Recoverable


@dataclass(slots=True)
class JournalFigures:
    """Figures of all lives of a run's broker."""

    rounds: int = 0
    """Rounds written."""
    recovered: int = 0
    """Entries that a log's own files lacked, wholly or in part."""
    reused: int = 0
    """Files that were reused."""

    def add(self, other: JournalFigures) -> None:
        self.rounds += other.rounds
        self.recovered += other.recovered
        self.reused += other.reused


@contextmanager
def counted(figures: JournalFigures) -> Iterator[None]:
    """Count while it lasts."""
    write, read, use_spare = JournalRound.write, Recoverable.read, Journal._use_spare

    def counted_write(self: JournalRound) -> None:
        figures.rounds += 1
        write(self)

    def counted_read(self: Recoverable) -> bytes:
        figures.recovered += 1
        return read(self)

    def counted_use_spare(self: Journal) -> Any:
        figures.reused += self._spare[0].last >= 0
        return use_spare(self)

    with ExitStack() as stack:
        stack.enter_context(patch.object(JournalRound, "write", counted_write))
        stack.enter_context(patch.object(Recoverable, "read", counted_read))
        stack.enter_context(patch.object(Journal, "_use_spare", counted_use_spare))
        yield
