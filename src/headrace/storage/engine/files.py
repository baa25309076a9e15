"""Capabilities of engines that keep logs in files: looking for damage, moving directories aside, work behind a journal.

A caller asks once, and gets None from an engine that has no files.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol

from headrace.base.ids import Offset
from headrace.storage.engine.faults import Damage
from headrace.storage.engine.identity import LogIdentity


class LogFiles(Protocol):
    """The files of one log, for lines in the broker's log."""

    @property
    def was_closed(self) -> bool:
        """Whether everything appended in the log's last life is here. That is so if the log was closed, or nothing came
        after a flush that vouches for everything. It counts where appends count without a flush.
        """

    @property
    def set_aside(self) -> Path | None:
        """Where opening the log moved a directory of this name that did not belong to it."""

    def where(self, damage: Damage) -> Mapping[str, str]:
        """The damaged file, and the name under which its bytes are kept, as fields of a line in the broker's log."""


class Examination(Protocol):
    """One part of a log, read whole in a worker thread. `step`, `conclude` and `close` block, one at a time, and raise
    OSError.
    """

    @property
    def place(self) -> str:
        """The name of the part, for operators."""

    @property
    def bytes_stepped(self) -> int:
        """Bytes that the last step examined."""

    @property
    def has_rebuilt(self) -> bool:
        """Whether the indexes were rebuilt."""

    def step(self) -> bool:
        """Read a little. Returns True once everything is read."""

    def conclude(self) -> None:
        """Make the findings durable, before they are applied."""

    def close(self) -> None:
        """Let go of the file. Idempotent."""

    def end(self, *, done: bool) -> Sequence[Damage]:
        """The examination is over; called once, on the loop. If it is done and concluded, reads heed what it found from
        now on. Returns the damage that is new.
        """


class Examinable(Protocol):
    """A log, as it is searched for damage, a segment at a time."""

    @property
    def segments(self) -> Sequence[Offset]:
        """Base offsets of the segments that are not empty."""

    def segment_of(self, offset: Offset) -> Offset:
        """Base offset of the segment that holds the offset."""

    def begin_examination(self, base: Offset) -> Examination | None:
        """Take up a segment. Returns None where there is no such segment, something has to be written out, or an
        examination or a cleaning is under way.
        """


class LogDirectories(Protocol):
    """The directories of an engine's logs. All calls block, in a worker thread."""

    def identities(self) -> list[LogIdentity]:
        """The identities stamped on the directories that exist."""

    def stamped(self, identity: LogIdentity) -> LogIdentity | None:
        """The identity stamped on the partition's directory, where it is of this topic. Raises OSError."""

    def set_aside(self, identity: LogIdentity) -> Path | None:
        """Rename the partition's directory, durably, so that opening the log finds nothing. None where there is
        none.
        """


class UpkeepWork(Protocol):
    """Background work of an engine, which no caller waits for."""

    def run(self) -> None:
        """Blocks; called once, in a worker thread. Raises nothing."""

    def end(self) -> None:
        """The work has run. Called on the loop."""


class Upkeep(Protocol):
    """An engine that has work behind its flushes, as behind a journal."""

    def begin_upkeep(self) -> UpkeepWork | None:
        """Returns the work, where there is any and none is under way. Called on the loop, at least after each round."""
