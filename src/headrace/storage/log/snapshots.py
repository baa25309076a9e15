"""The producer snapshots of a log. The newest few are kept. None covers more than the log holds."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from headrace.base.ids import Offset
from headrace.base.limits import PRODUCER_SNAPSHOTS_KEPT
from headrace.base.ports import Disk
from headrace.storage.log.checkpoints import read_file
from headrace.storage.log.names import SNAPSHOT, numbered


class ProducerSnapshots:
    """Offsets of the snapshots, rising, including those that the next flush writes."""

    __slots__ = ("directory", "offsets")

    def __init__(self, directory: Path, offsets: list[Offset]) -> None:
        self.directory: Final = directory
        self.offsets = offsets

    def add(self, offset: Offset) -> list[Path]:
        """Add a snapshot that will be written. Returns the files that are then surplus."""
        offsets = [known for known in self.offsets if known != offset] + [offset]
        self.offsets = offsets[-PRODUCER_SNAPSHOTS_KEPT:]
        return [numbered(self.directory, known, SNAPSHOT) for known in offsets[:-PRODUCER_SNAPSHOTS_KEPT]]

    def cut_above(self, end: Offset) -> list[Path]:
        """The log now ends at `end`. Returns the files of snapshots above it."""
        above = [known for known in self.offsets if known > end]
        self.offsets = [known for known in self.offsets if known <= end]
        return [numbered(self.directory, known, SNAPSHOT) for known in above]

    def newest(self, end: Offset) -> Offset | None:
        """The newest snapshot as of `end` or before."""
        return next((known for known in reversed(self.offsets) if known <= end), None)

    def read(self, disk: Disk, offset: Offset) -> bytes:
        return read_file(disk, numbered(self.directory, offset, SNAPSHOT))
