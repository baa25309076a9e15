"""Recent reads of a log, kept for other readers of the same ranges. Readers that began at one place, or lag alike, ask
for the same ranges one after the other. One read of the file serves them all.

Promises:
- A reader gets what the file gave for the same question, verbatim.
- All logs together keep to a bound, and the oldest answers are dropped first.
- Nothing is kept of a log with a single reader.

Loop-only. Everything is dropped where a log is cut, or the contents of its files change.
"""

from __future__ import annotations

from headrace.base.limits import READ_AGAIN_BYTES_MIN, READ_AGAIN_STARTS_MAX
from headrace.storage.log.reading.cache_budget import ReadCacheBudget

Question = tuple[int, int]
"""The start offset of a read, and its limit in bytes."""


class RepeatReads:
    """The recent reads of one log."""

    __slots__ = ("_answers", "_reads_left", "_room", "_starts")

    def __init__(self, room: ReadCacheBudget[Question]) -> None:
        self._room = room
        self._answers: dict[Question, tuple[memoryview, int]] = {}
        """The data of a read, and the lowest log end for which it is the answer."""
        self._starts: dict[int, None] = {}
        """Start offsets of the last reads of the file."""
        self._reads_left = 0
        """Number of further reads to keep, since two began at one place not long ago."""

    def __len__(self) -> int:
        """Number of answers."""
        return len(self._answers)

    def find(self, start: int, max_bytes: int, end: int) -> memoryview | None:
        """The answer to a question that was asked before; None where it is not kept."""
        found = self._answers.get((start, max_bytes))
        if found is None or found[1] > end:
            return None
        self._reads_left = READ_AGAIN_STARTS_MAX
        return found[0]

    def add(self, start: int, max_bytes: int, data: memoryview, end: int, *, held: int) -> None:
        """Keep data read from the file. It is the answer for every log end from `end` on. Keeping it takes `held`
        bytes.
        """
        if start in self._starts:
            self._reads_left = READ_AGAIN_STARTS_MAX
        else:
            self._starts[start] = None
            if len(self._starts) > READ_AGAIN_STARTS_MAX:
                del self._starts[next(iter(self._starts))]
        if not self._reads_left or len(data) < READ_AGAIN_BYTES_MIN:
            return
        self._reads_left -= 1
        question = start, max_bytes
        if question not in self._answers:
            self._answers[question] = data, end
            self._room.add(self, question, held)

    def forget(self, question: Question) -> None:
        """Remove this answer in favour of newer ones."""
        self._answers.pop(question, None)

    def drop(self) -> None:
        """Drop all answers."""
        self._answers.clear()
        self._starts.clear()
