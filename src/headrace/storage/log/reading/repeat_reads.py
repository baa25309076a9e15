"""What was read of a log lately, for others that read the same: readers that began at one place, or lag alike, ask for
the same ranges one after the other, and one read of the file serves them all.

Promises: what is given is what the file gave for the same question, verbatim; all logs together keep to a bound, and
what came first gives way first; of a log that only one reads nothing is kept. Loop-only. Where a log is cut, or what
stands in its files changes, all of this is dropped.
"""

from __future__ import annotations

from headrace.base.limits import READ_AGAIN_BYTES_MIN, READ_AGAIN_STARTS_MAX
from headrace.storage.log.reading.cache_budget import ReadCacheBudget

Question = tuple[int, int]
"""Where a read starts, and the bytes that it may have."""


class RepeatReads:
    """What is kept of one log."""

    __slots__ = ("_answers", "_reads_left", "_room", "_starts")

    def __init__(self, room: ReadCacheBudget[Question]) -> None:
        self._room = room
        self._answers: dict[Question, tuple[memoryview, int]] = {}
        """What was read, and the least end of the log at which it is the answer."""
        self._starts: dict[int, None] = {}
        """Where the last reads of the file began."""
        self._reads_left = 0
        """So many reads more are kept: two began at one place, not long ago."""

    def __len__(self) -> int:
        """Answers."""
        return len(self._answers)

    def find(self, start: int, max_bytes: int, end: int) -> memoryview | None:
        """The answer to a question that somebody had before."""
        found = self._answers.get((start, max_bytes))
        if found is None or found[1] > end:
            return None
        self._reads_left = READ_AGAIN_STARTS_MAX
        return found[0]

    def add(self, start: int, max_bytes: int, data: memoryview, end: int, *, held: int) -> None:
        """It was read from the file, and is an answer for every end of the log from `end` on. To keep it takes `held`
        bytes."""
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
        """This answer gives way to newer ones."""
        self._answers.pop(question, None)

    def drop(self) -> None:
        """Keep nothing of what is here now."""
        self._answers.clear()
        self._starts.clear()
