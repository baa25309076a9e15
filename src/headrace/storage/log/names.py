"""The names of a partition's files. Facts only."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

from headrace.storage.engine.identity import LogIdentity
from headrace.storage.log.journal.rounds import LogKey

LOG: Final = ".log"
INDEX: Final = ".index"
TIME_INDEX: Final = ".timeindex"
TRANSACTION_INDEX: Final = ".txnindex"
SNAPSHOT: Final = ".snapshot"
TEMPORARY: Final = ".tmp"
CLEANED: Final = ".cleaned"
"""A file that a compaction has written and nothing relies on yet."""
SWAP: Final = ".swap"
"""A compacted segment, whole and durable, that replaces all segments in its range of offsets."""
COMPACTION: Final = "compaction.json"
SEALED: Final = "sealed.json"
"""The leader epoch in which the log was about to be sealed. Nothing is appended in it any more."""
STAMP: Final = "stamp.json"
CHECKPOINT: Final = "checkpoint.json"
DOUBT: Final = "sync-failed"
"""An empty file: a sync failed here, so the page cache may hold data as clean that never reached the disk."""
DAMAGED: Final = ".damaged"
"""A second name for a damaged segment, beside its own. Headrace never removes it."""
EPOCHS: Final = "leader-epoch-checkpoint"
STRAY: Final = "-stray"
DELETED: Final = "-delete"
"""Suffixes of directories that are out of use. A partition's directory cannot end so: it ends with a number."""
NAME_BYTES_MAX: Final = 255
OFFSET_DIGITS: Final = 20

_SWAP = re.compile(r"([0-9]{20})-([0-9]{20})\.swap")


def numbered(directory: Path, offset: int, suffix: str) -> Path:
    return directory / f"{offset:020d}{suffix}"


def offsets_of(names: list[str], suffix: str) -> list[int]:
    """The offsets in the names with this suffix, rising."""
    length = OFFSET_DIGITS + len(suffix)
    found = (name[:OFFSET_DIGITS] for name in names if len(name) == length and name.endswith(suffix))
    return sorted(int(digits) for digits in found if digits.isascii() and digits.isdecimal())


def cleaned_name(base: int, end: int, token: str) -> str:
    """Name of the file written for the offsets from `base` to `end`. The token keeps it apart from files of an earlier
    life.
    """
    return f"{base:020d}-{end:020d}-{token}{CLEANED}"


def swap_path(directory: Path, base: int, end: int) -> Path:
    return directory / f"{base:020d}-{end:020d}{SWAP}"


def swaps_of(names: list[str]) -> list[tuple[int, int]]:
    """The ranges of offsets that have a swap file, rising."""
    swaps = [_SWAP.fullmatch(name) for name in names if name.endswith(SWAP)]
    return sorted((int(match[1]), int(match[2])) for match in swaps if match)


def segment_paths(directory: Path, base: int) -> tuple[Path, Path, Path]:
    """Paths of the batches, the offset index and the time index."""
    return numbered(directory, base, LOG), numbered(directory, base, INDEX), numbered(directory, base, TIME_INDEX)


def segment_files(directory: Path, base: int) -> tuple[Path, ...]:
    """Paths of everything that goes with a segment, whether it is there or not."""
    return *segment_paths(directory, base), numbered(directory, base, TRANSACTION_INDEX)


def partition_name(identity: LogIdentity) -> str:
    return identity.name


def key_of(identity: LogIdentity) -> LogKey:
    """The journal's key of the log."""
    return LogKey(partition_name(identity), identity.topic_id.bytes, identity.assignment_epoch)


def out_of_use(name: str, mark: str, suffix: str) -> str:
    """A directory name that ends with the mark and suffix, shortened to the filesystem's limit."""
    end = f".{mark}{suffix}"
    return name[: NAME_BYTES_MAX - len(end)] + end
