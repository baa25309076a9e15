"""Snapshots of the commit log: gzipped lines, the first of which says what they are.

Promises: a file under its final name is whole and synced, name included; the lines are read and written in slices, so
that no snapshot stands in memory as one string. Readable by people: `zcat <index>.snapshot`.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from headrace.base.errors import CorruptData
from headrace.base.ports import Disk, File

SUFFIX: Final = ".snapshot"
_TEMPORARY: Final = ".tmp"
_FORMAT: Final = "headrace metadata snapshot 1"
_SLICE_BYTES: Final = 256 * 1024
_GZIP: Final = 31  # zlib's way to say: 32 KiB window with gzip's frame, whose CRC-32 and length cover it all


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The state after one entry, as lines."""

    index: int
    term: int
    lines: tuple[bytes, ...]
    """Without their line ends; what they mean is the driver's."""


def write(disk: Disk, directory: Path, index: int, term: int, lines: Iterable[bytes]) -> None:
    """Write, sync, rename, sync the directory. Each line ends with a newline. Raises OSError."""
    temporary = directory / f"{index:020d}{SUFFIX}{_TEMPORARY}"
    if disk.exists(temporary):
        disk.remove(temporary)
    file = disk.open(temporary, create=True)
    try:
        head = json.dumps({"format": _FORMAT, "index": index, "term": term}).encode() + b"\n"
        _write_compressed(file, head, lines)
        file.sync()
    finally:
        file.close()
    disk.rename(temporary, directory / f"{index:020d}{SUFFIX}")
    disk.sync_directory(directory)


def _write_compressed(file: File, head: bytes, lines: Iterable[bytes]) -> None:
    squeeze = zlib.compressobj(6, zlib.DEFLATED, _GZIP)
    waiting = [squeeze.compress(head)]
    size = 0
    for line in lines:
        waiting.append(squeeze.compress(line))
        size += len(waiting[-1])
        if size >= _SLICE_BYTES:
            file.append([b"".join(waiting)])
            waiting, size = [], 0
    file.append([b"".join([*waiting, squeeze.flush()])])


def read(disk: Disk, path: Path) -> Snapshot:
    """Raises CorruptData where the file is not the whole snapshot that its name promises, and OSError."""
    file = disk.open(path)
    try:
        lines = list(_lines(file))
    except zlib.error as error:
        raise _damaged(path) from error
    finally:
        file.close()
    try:
        head = json.loads(lines[0])
        index, term = head["index"], head["term"]
        right = head["format"] == _FORMAT and path.name == f"{index:020d}{SUFFIX}" and isinstance(term, int)
    except (IndexError, KeyError, TypeError, ValueError):
        right = False
    if not right:
        raise _damaged(path)
    return Snapshot(index, term, tuple(lines[1:]))


def _lines(file: File) -> Iterator[bytes]:
    """The lines of a gzipped file, which must end where gzip's trailer does. Raises zlib.error."""
    inflate = zlib.decompressobj(_GZIP)
    position, rest = 0, b""
    while data := file.read(position, _SLICE_BYTES):
        position += len(data)
        *lines, rest = (rest + inflate.decompress(data)).split(b"\n")
        yield from lines
    if not inflate.eof or inflate.unused_data or rest:
        raise zlib.error("not the whole of one gzip stream of lines")


def _damaged(path: Path) -> CorruptData:
    return CorruptData(
        f"The metadata snapshot {path} is damaged: restore the directory {path.parent} from a backup, "
        "or start a new cluster in an empty data directory."
    )
