"""A log that begins again: everything in it is removed, and its old contents are kept beside it until the new copy is
whole.

A mark is made durable first. From then on the log is empty, whatever files remain. If a crash cuts the work short, the
next opening of the directory finishes it. The order:
1. The mark.
2. The checkpoint of an empty log, in a lineage of its own, so that none of the journal's entries come back.
3. A second name for each segment, in `replaced`. This is skipped if something is kept there already, since that belongs
   to the copy that others relied on last.
4. The removal of all other files.
5. The removal of the mark.

All of it blocks, in a worker thread, and raises OSError.

A log that gives way to durable history works likewise, but begins at that history's end, not at 0. Its old contents may
be the only copy of acknowledged records. So they are kept under a name of their own, and Headrace never removes them.
"""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import Final, NamedTuple

from headrace.base.errors import CorruptData
from headrace.base.ids import FIRST_OFFSET, NO_EPOCH, LeaderEpoch, Offset
from headrace.base.ports import Disk
from headrace.storage.engine.epochs import LeaderEpochs
from headrace.storage.log.checkpoints import (
    Checkpoint,
    decode_fields,
    encode_checkpoint,
    encode_fields,
    full_disks_told,
    read_file,
    write_file,
)
from headrace.storage.log.names import (
    CHECKPOINT,
    CLEANED,
    COMPACTION,
    EPOCHS,
    INDEX,
    LOG,
    SNAPSHOT,
    SWAP,
    TEMPORARY,
    TIME_INDEX,
    TRANSACTION_INDEX,
    numbered,
    offsets_of,
)
from headrace.storage.log.recovery.damage import DAMAGES

BEGUN_ANEW: Final = "begun-anew.json"
"""Name of the mark."""
REPLACED: Final = "replaced"
"""A directory inside the log's own, for the old contents."""
UNWANTED: Final = "replaced-unwanted"
"""Name of that directory while it is removed."""
GAVE_WAY: Final = "gave-way"
"""Prefix of numbered directories for logs that gave way to durable history. Each is kept for good."""


ENDINGS: Final = (LOG, INDEX, TIME_INDEX, TRANSACTION_INDEX, SNAPSHOT)


class Mark(NamedTuple):
    """Where and how a log begins again."""

    lineage: int
    kept_in: str
    """A directory inside the log's own, for its old contents; "": they are removed."""
    at: Offset = FIRST_OFFSET
    """The log's new start. A snapshot of the producers as of this offset stays."""
    epoch: LeaderEpoch = NO_EPOCH
    """Leader epoch of the record before it; -1: there is none, or it is unknown."""


def has_replaced(names: Collection[str]) -> bool:
    """Whether `drop_replaced` would remove anything."""
    return REPLACED in names or UNWANTED in names


def keeps_replaced(disk: Disk, directory: Path) -> bool:
    """Whether old contents are kept already."""
    return disk.is_directory(directory / REPLACED)


def free_place(disk: Disk, directory: Path) -> str:
    """A free name for the contents of a log that gives way."""
    number = 1
    while disk.exists(directory / f"{GAVE_WAY}-{number}"):
        number += 1
    return f"{GAVE_WAY}-{number}"


def mark_begun_anew(disk: Disk, directory: Path, mark: Mark) -> None:
    """Durably write the mark. Once it returns, the log is empty, in that lineage. If it raises, the state is unknown,
    and nothing may be appended.
    """
    write_file(disk, directory / BEGUN_ANEW, encode_fields(mark._asdict()))
    disk.sync_directory(directory)


def finish_begun_anew(disk: Disk, directory: Path) -> None:
    """Carry out the mark, where there is one. Raises CorruptData where it cannot be read."""
    if not disk.exists(directory / BEGUN_ANEW):
        return
    fields = decode_fields(read_file(disk, directory / BEGUN_ANEW))
    try:
        kept_in = fields["kept_in"] if "kept_in" in fields else REPLACED if fields["keeps"] else ""
        lineage, at, epoch = int(fields["lineage"]), int(fields.get("at", 0)), int(fields.get("epoch", NO_EPOCH))
    except (KeyError, ValueError, TypeError) as error:
        raise CorruptData(f"A mark lacks a field: {error}.") from error
    empty = Checkpoint.at_segment(Offset(at), Offset(at), lineage)
    write_file(disk, directory / CHECKPOINT, encode_checkpoint(empty))
    disk.sync_directory(directory)
    if kept_in:
        _keep_segments(disk, directory, directory / str(kept_in))
    names = disk.list_directory(directory)
    gone = [numbered(directory, at, end) for end in ENDINGS for at in offsets_of(names, end)]
    gone += [directory / name for name in names if name.endswith((SWAP, CLEANED, TEMPORARY))]
    gone += [directory / name for name in (DAMAGES, COMPACTION, EPOCHS) if name in names]
    for path in gone:
        if not at or path != numbered(directory, Offset(at), SNAPSHOT):
            disk.remove(path)
    if epoch >= 0:
        before = LeaderEpochs([(LeaderEpoch(epoch), Offset(at - 1))])
        write_file(disk, directory / EPOCHS, before.encode())
    disk.sync_directory(directory)
    disk.remove(directory / BEGUN_ANEW)
    disk.sync_directory(directory)


def _keep_segments(disk: Disk, directory: Path, place: Path) -> None:
    """Give each segment a second name, durable before the first name is removed."""
    with full_disks_told():
        disk.make_directory(place)
    for base in offsets_of(disk.list_directory(directory), LOG):
        path = numbered(directory, base, LOG)
        try:
            with full_disks_told():
                disk.link(path, place / path.name)
        except FileExistsError:  # linked before a crash
            continue
        except (PermissionError, NotImplementedError):  # a filesystem without second names
            disk.rename(path, place / path.name)
    disk.sync_directory(place)
    disk.sync_directory(directory)


def drop_replaced(disk: Disk, directory: Path) -> None:
    """Remove the old contents. Idempotent."""
    disk.remove_tree(directory / UNWANTED)
    if disk.is_directory(directory / REPLACED):
        disk.rename(directory / REPLACED, directory / UNWANTED)
        disk.sync_directory(directory)
        disk.remove_tree(directory / UNWANTED)
