"""The names of a partition's files. Facts only."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

from headrace.storage.engine import LogIdentity

LOG: Final = ".log"
INDEX: Final = ".index"
TIME_INDEX: Final = ".timeindex"
SNAPSHOT: Final = ".snapshot"
TEMPORARY: Final = ".tmp"
STAMP: Final = "stamp.json"
CHECKPOINT: Final = "checkpoint.json"
DOUBT: Final = "sync-failed"
"""An empty file: a sync failed here, so that the page cache may hold as clean what never reached the disk."""
EPOCHS: Final = "leader-epoch-checkpoint"
STRAY: Final = "-stray"
DELETED: Final = "-delete"
"""Ends of directories that are out of use. No partition's ends so: it ends with a number."""
NAME_BYTES_MAX: Final = 255

_NUMBERED = re.compile(r"(\d{20})(\.[a-z]+)")


def numbered(directory: Path, offset: int, suffix: str) -> Path:
    return directory / f"{offset:020d}{suffix}"


def offsets_of(names: list[str], suffix: str) -> list[int]:
    """The offsets in the names that end so, rising."""
    matches = (_NUMBERED.fullmatch(name) for name in names)
    return sorted(int(match[1]) for match in matches if match and match[2] == suffix)


def segment_paths(directory: Path, base: int) -> tuple[Path, Path, Path]:
    """Batches, offset index, time index."""
    return numbered(directory, base, LOG), numbered(directory, base, INDEX), numbered(directory, base, TIME_INDEX)


def partition_name(identity: LogIdentity) -> str:
    return f"{identity.topic_name}-{identity.partition}"


def out_of_use(name: str, mark: str, suffix: str) -> str:
    """A directory name that ends with the mark and suffix, shortened to what a filesystem takes."""
    end = f".{mark}{suffix}"
    return name[: NAME_BYTES_MAX - len(end)] + end
