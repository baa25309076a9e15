"""A log that is begun anew: everything in it goes, and what it had is kept beside it until the new one is whole.

A mark is made durable first. From then on the log is empty, whatever is still there: what a crash cuts short is
finished when the directory is opened again. In this order: the mark; the checkpoint of an empty log, in a lineage of
its own, so that nothing which the journal has of it comes back; a second name for each segment, in `replaced`, unless
something is kept there already, for that is of the copy which others counted on last; the removal of all else; that of
the mark. All of it blocks, in a worker thread, and raises OSError.

So does a log that gives way to durable history, which is begun at its end, not at 0: what it had may be the only copy
of what was acknowledged, so it is kept under a name of its own, and nobody here ever removes that.
"""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import Final, NamedTuple

from headrace.base.errors import CorruptData
from headrace.base.ids import FIRST_OFFSET, NO_EPOCH, LeaderEpoch, Offset
from headrace.base.ports import Disk
from headrace.storage.log.checkpoints import (
    Checkpoint,
    decode_fields,
    encode_checkpoint,
    encode_fields,
    read_file,
    write_file,
)
from headrace.storage.log.epochs import LeaderEpochs
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
    numbered,
    offsets_of,
)
from headrace.storage.log.recovery.damage import DAMAGES

BEGUN_ANEW: Final = "begun-anew.json"
"""The mark."""
REPLACED: Final = "replaced"
"""A directory in the log's own."""
UNWANTED: Final = "replaced-unwanted"
"""The same while it is removed."""
GAVE_WAY: Final = "gave-way"
"""The same, numbered, of logs that gave way to durable history: each is kept for good."""


class Mark(NamedTuple):
    """How a log is begun anew."""

    lineage: int
    kept_in: str
    """A directory in the log's own, for what it had; "": that goes."""
    at: Offset = FIRST_OFFSET
    """A snapshot of the producers as of there stays."""
    epoch: LeaderEpoch = NO_EPOCH
    """Of the record before; -1: there is none, or it is not known."""


def has_replaced(names: Collection[str]) -> bool:
    """Whether there is anything in a directory that `drop_replaced` would remove."""
    return REPLACED in names or UNWANTED in names


def keeps_replaced(disk: Disk, directory: Path) -> bool:
    """Whether something is kept already."""
    return disk.is_directory(directory / REPLACED)


def free_place(disk: Disk, directory: Path) -> str:
    """For what a log had that gives way."""
    number = 1
    while disk.exists(directory / f"{GAVE_WAY}-{number}"):
        number += 1
    return f"{GAVE_WAY}-{number}"


def mark_begun_anew(disk: Disk, directory: Path, mark: Mark) -> None:
    """From its return on the log is empty, in that lineage. Where it raises, nobody knows: nothing may be appended."""
    write_file(disk, directory / BEGUN_ANEW, encode_fields(mark._asdict()))
    disk.sync_directory(directory)


def finish_begun_anew(disk: Disk, directory: Path) -> None:
    """Make it so, where there is a mark. Raises CorruptData where that cannot be read."""
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
    gone = [numbered(directory, at, end) for end in (LOG, INDEX, TIME_INDEX, SNAPSHOT) for at in offsets_of(names, end)]
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
    """A second name for each, durable before the first one goes."""
    disk.make_directory(place)
    for base in offsets_of(disk.list_directory(directory), LOG):
        path = numbered(directory, base, LOG)
        try:
            disk.link(path, place / path.name)
        except FileExistsError:  # from before a crash
            continue
        except (PermissionError, NotImplementedError):  # a filesystem without second names
            disk.rename(path, place / path.name)
    disk.sync_directory(place)
    disk.sync_directory(directory)


def drop_replaced(disk: Disk, directory: Path) -> None:
    """Nobody needs it any more. Idempotent."""
    disk.remove_tree(directory / UNWANTED)
    if disk.is_directory(directory / REPLACED):
        disk.rename(directory / REPLACED, directory / UNWANTED)
        disk.sync_directory(directory)
        disk.remove_tree(directory / UNWANTED)
