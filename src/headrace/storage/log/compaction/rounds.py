"""One round of compaction: it replaces segments of one log by cleaned files.

Durable in this order, so that a power cut at any moment leaves the old segments or the new one, and never a mixture:

1. the note that batches may be missing below the end of the round (`Compacted.gaps_below`);
2. the cleaned file's contents, then its name `.swap`: from here on the swap is finished, by recovery if need be;
3. the removal of the old indexes, and of all segments in its range but the first;
4. the swap's own name, in place of the first segment; its indexes; then the next file;
5. the note of how far the log is clean (`Compacted.clean_to`).

Between 2 and 3 the loop starts to read the new segment.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from headrace.base.errors import CorruptData
from headrace.base.ids import Offset
from headrace.base.ports import Disk
from headrace.storage.log.checkpoints import write_file
from headrace.storage.log.compaction.cleaning import Cleaned, CleanedFile, CleaningJob
from headrace.storage.log.compaction.planning import Note, finish_swap
from headrace.storage.log.names import CLEANED, segment_paths, swap_path
from headrace.storage.log.scan import headers_in
from headrace.storage.log.segment import Segment


class Round:
    """One round, from the job to the last swap. `note`, `commit`, `settle`, `conclude` and `discard` block: they are
    called in a worker thread, one at a time, in the order of the module. They raise OSError or CorruptData; see
    `is_committed`.
    """

    def __init__(
        self,
        disk: Disk,
        directory: Path,
        job: CleaningJob,
        segments: list[Segment],
        note: Note,
        interval: int,
    ) -> None:
        self.job: Final = job
        self.swap: Segment | None = None
        """The segment that is being put in place."""
        self.bare: frozenset[int] = frozenset()
        """Offsets of abort markers that need no entry any more."""
        self.replaced: list[Segment] = []
        self.is_committed = False
        """The disk holds a swap that recovery would finish: a failure now makes the log fail."""
        self._disk = disk
        self._directory = directory
        self._note = note
        self._segments = segments
        self._interval = interval

    def note(self, cleaned: Cleaned) -> None:
        """Called before the first swap: batches may be missing from now on."""
        self.bare = frozenset(cleaned.bare)
        if any(file.name is not None for file in cleaned.files):
            self._note.raise_gaps(Offset(max(file.end for file in cleaned.files)))

    def commit(self, file: CleanedFile) -> None:
        """Make a cleaned file durable under the name that makes it count."""
        assert file.name is not None
        path = self._directory / file.name
        segment = self._read(path, file)
        self.replaced = [each for each in self._segments if file.base <= each.base < file.end]
        segment.swap = swap_path(self._directory, file.base, file.end)
        self.is_committed = True
        self._disk.rename(path, segment.swap)
        self._disk.sync_directory(self._directory)
        self.swap = segment

    def _read(self, path: Path, cleaned: CleanedFile) -> Segment:
        """Check the file's batches, index them, and sync it."""
        segment = Segment(self._directory, cleaned.base)
        file = self._disk.open(path)
        try:
            for _, header in headers_in(file, 0, file.size()):
                if not segment.end <= header.base_offset <= header.last_offset < cleaned.end:
                    raise CorruptData(f"{path.name} holds a batch at offset {header.base_offset} that is out of place.")
                segment.add(header.last_offset, header.size, header.newest_time, self._interval)
            file.sync()
        finally:
            file.close()
        segment.close_indexes()
        segment.end = cleaned.end
        segment.synced = True
        return segment

    def settle(self) -> None:
        """The loop reads the swap now: remove the replaced segments, and give the swap its name and its indexes."""
        segment = self.swap
        assert segment is not None
        assert segment.swap is not None
        assert segment.index is not None
        assert segment.times is not None
        finish_swap(self._disk, self._directory, segment.swap, [each.base for each in self.replaced], self.bare)
        _, index, times = segment_paths(self._directory, segment.base)
        write_file(self._disk, index, segment.index)
        write_file(self._disk, times, segment.times)
        self._disk.sync_directory(self._directory)
        self.is_committed = False

    def conclude(self, cleaned: Cleaned) -> None:
        """Called after the last swap."""
        reached = max((file.end for file in cleaned.files), default=0)
        self._note.conclude(Offset(cleaned.clean_to), is_mended=reached >= self.job.gaps_below)

    def discard(self) -> None:
        """Remove files that the job has written and nothing uses."""
        for name in self._disk.list_directory(self._directory):
            if name.endswith(f"-{self.job.token}{CLEANED}"):
                self._disk.remove(self._directory / name)
