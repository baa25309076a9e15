"""Snapshots of the commit log: gzipped lines, of which the first describes the snapshot.

Promises:
- A file under its final name is whole and synced, name included.
- Lines are read and written in slices, so that no snapshot stands in memory as one string.

Each member sends its snapshot as it is, so copies are the same byte for byte. People can read it: `zcat
<index>.snapshot`.
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
from headrace.base.values import Value
from headrace.raft.membership import Membership
from headrace.raft.messages import SnapshotMark

SUFFIX: Final = ".snapshot"
TEMPORARY: Final = ".tmp"
_FORMAT: Final = "headrace metadata snapshot 2"
_FORMAT_1: Final = "headrace metadata snapshot 1"
_SLICE_BYTES: Final = 256 * 1024
_GZIP: Final = 31  # for zlib: 32 KiB window, gzip frame with CRC-32 and length


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Snapshot(Value):
    """The state after one entry, as lines."""

    mark: SnapshotMark
    lines: tuple[bytes, ...]
    """Lines without their line ends. The driver interprets them."""
    is_current: bool = True
    """Whether the file has the current version. Version 1 had no membership."""


def path_of(directory: Path, index: int) -> Path:
    return directory / f"{index:020d}{SUFFIX}"


def write(disk: Disk, temporary: Path, mark: SnapshotMark, lines: Iterable[bytes]) -> None:
    """Write a snapshot under a temporary name, and sync it. Each line ends with a newline. Raises OSError."""
    if disk.exists(temporary):
        disk.remove(temporary)
    file = disk.open(temporary, create=True)
    try:
        head = {
            "format": _FORMAT,
            "index": mark.index,
            "term": mark.term,
            "membership": json.loads(mark.membership.encoded()),
        }
        _write_compressed(file, json.dumps(head).encode() + b"\n", lines)
        file.sync()
    finally:
        file.close()


def install(disk: Disk, temporary: Path, final: Path) -> None:
    """Durably give a synced file its final name. Raises OSError."""
    disk.rename(temporary, final)
    disk.sync_directory(final.parent)


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


def read(disk: Disk, path: Path, *, born: Membership) -> Snapshot:
    """Read a snapshot. `born`: the membership of a snapshot in version 1. Raises CorruptData where the file is not a
    whole snapshot, and OSError.
    """
    file = disk.open(path)
    try:
        lines = list(_lines(file))
    except zlib.error as error:
        raise _damaged(path) from error
    finally:
        file.close()
    try:
        mark, is_current = _mark(lines[0], born)
    except (IndexError, KeyError, TypeError, ValueError) as error:
        raise _damaged(path) from error
    if path.name.endswith(SUFFIX) and path != path_of(path.parent, mark.index):
        raise _damaged(path)
    return Snapshot(mark, tuple(lines[1:]), is_current)


def _mark(line: bytes, born: Membership) -> tuple[SnapshotMark, bool]:
    """The mark in the first line, and whether the version is current. Raises KeyError, TypeError, ValueError."""
    head = json.loads(line)
    index, term = head["index"], head["term"]
    if not isinstance(index, int) or not isinstance(term, int):
        raise TypeError("index and term are integers")
    if head["format"] == _FORMAT_1:
        return SnapshotMark(index, term, born), False
    if head["format"] != _FORMAT:
        raise ValueError("another format")
    return SnapshotMark(index, term, Membership.decoded(json.dumps(head["membership"]).encode())), True


def _lines(file: File) -> Iterator[bytes]:
    """The lines of a gzipped file, which must end where gzip's trailer does. Raises zlib.error."""
    inflate = zlib.decompressobj(_GZIP)
    position, rest = 0, b""
    while (data := file.read(position, _SLICE_BYTES)) and not inflate.eof:
        position += len(data)
        while data and not inflate.eof:  # in pieces, since each holds the interpreter's lock
            *lines, rest = (rest + inflate.decompress(data, _SLICE_BYTES)).split(b"\n")
            yield from lines
            data = inflate.unconsumed_tail
    *lines, rest = (rest + inflate.flush()).split(b"\n")
    yield from lines
    if not inflate.eof or data or inflate.unused_data or rest:
        raise zlib.error("not the whole of one gzip stream of lines")


def _damaged(path: Path) -> CorruptData:
    return CorruptData(
        f"The metadata snapshot {path} is damaged: where there are other brokers, start this one in an empty data "
        "directory with --join; where there are none, restore the directory from a backup."
    )
