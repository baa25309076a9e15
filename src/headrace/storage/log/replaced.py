"""What a copy had before it was begun anew: a second name for each of its segments, until the new one is whole.

Promises: the names are durable, and all of them or none, before anything is dropped; what is kept already is of the
copy that others counted on last, and stays. All of it blocks, in a worker thread, and raises OSError.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from headrace.base.ports import Disk
from headrace.storage.log.names import LOG, numbered, offsets_of

REPLACED: Final = "replaced"
"""A directory in the log's own."""
UNFINISHED: Final = "replaced-unfinished"
"""The same while names are still given or taken."""


def keep_replaced(disk: Disk, directory: Path) -> None:
    """Give every segment its second name."""
    kept, unfinished = directory / REPLACED, directory / UNFINISHED
    if disk.is_directory(kept):
        return
    disk.remove_tree(unfinished)
    disk.make_directory(unfinished)
    for base in offsets_of(disk.list_directory(directory), LOG):
        path = numbered(directory, base, LOG)
        disk.link(path, unfinished / path.name)
    disk.sync_directory(unfinished)
    disk.rename(unfinished, kept)
    disk.sync_directory(directory)


def drop_replaced(disk: Disk, directory: Path) -> None:
    """Nobody needs it any more. Idempotent."""
    kept, unfinished = directory / REPLACED, directory / UNFINISHED
    disk.remove_tree(unfinished)
    if disk.is_directory(kept):
        disk.rename(kept, unfinished)
        disk.sync_directory(directory)
        disk.remove_tree(unfinished)
