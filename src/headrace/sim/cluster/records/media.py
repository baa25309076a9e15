"""The batches of a partition's log on the media of simulated disks, by offset, whatever the brokers claim.

Only durable bytes under durable names count: those that would be there if the power failed now. They are in the log's
own files and, beyond their end, in the broker's journal (decision 0013). This module only reads. It uses the formats of
Kafka and of the journal, and nothing else of the storage engine.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping
from typing import Any, Final, NamedTuple
from weakref import WeakKeyDictionary

from headrace.base.errors import CorruptData
from headrace.sim.cluster.host import DATA
from headrace.sim.disk import SimDisk
from headrace.sim.nodes import DirectoryNode, FileNode, Node
from headrace.storage.log.journal.rounds import Head, LogKey, rounds_in
from headrace.wire.batches import HEADER_BYTES, LENGTH_END, check_batch, parse_header

SUFFIX: Final = ".log"
JOURNAL_SUFFIX: Final = ".journal"
STAMP: Final = "stamp.json"
CHECKPOINT: Final = "checkpoint.json"
BEGUN_ANEW: Final = "begun-anew.json"
"""A log with this file is empty, whatever else is still there."""
VERBATIM: Final = 16
"""Start of the part of a batch that a broker keeps as its producer made it, after base offset, length and leader
epoch."""


class Batch(NamedTuple):
    """A batch on a medium."""

    base: int
    end: int
    """Exclusive."""
    leader_epoch: int
    data: bytes


class _Entry(NamedTuple):
    """The part of a journal's round for one log."""

    lineage: int
    end: int
    batches: list[Batch]


class _Round(NamedTuple):
    head: Head
    entries: dict[LogKey, _Entry]


class Media:
    """The logs on all disks of a run. Caches parsed data until it changes."""

    def __init__(self) -> None:
        self._parsed: WeakKeyDictionary[FileNode, tuple[int, list[Batch]]] = WeakKeyDictionary()
        self._parsed_rounds: WeakKeyDictionary[FileNode, tuple[int, list[_Round]]] = WeakKeyDictionary()

    def log(self, disk: SimDisk, directory: str) -> list[Batch]:
        """The contiguous batches of the log in this directory, from the first one on."""
        return next(iter(self.runs(disk, directory)), [])

    def runs(self, disk: SimDisk, directory: str, *, cached: bool = False) -> list[list[Batch]]:
        """All of its batches, in contiguous runs. Parts of deleted segments, whose names were not synced, may be there
        again. `cached`: the state if the process died but the power stayed."""
        node = directory_of(disk, directory, cached=cached)
        names = {} if node is None else _names(node, cached=cached)
        if BEGUN_ANEW in names:
            return []
        found: list[list[Batch]] = []
        for name in sorted(each for each in names if each.endswith(SUFFIX)):
            file = names[name]
            assert isinstance(file, FileNode)
            batches = parse(bytes(file.data)) if cached else self._batches(file)
            if found and batches and batches[0].base == found[-1][-1].end:
                found[-1] += batches
            elif batches:
                found.append(list(batches))
        if (stamp := _fields(names, STAMP, cached=cached)) is not None:
            self._go_on(found, disk, directory, stamp, _fields(names, CHECKPOINT, cached=cached), cached=cached)
        return found

    def _batches(self, file: FileNode) -> list[Batch]:
        known = self._parsed.get(file)
        if known is None or known[0] != file.settled:
            known = self._parsed[file] = file.settled, parse(bytes(file.durable))
        return known[1]

    def _go_on(
        self,
        found: list[list[Batch]],
        disk: SimDisk,
        directory: str,
        stamp: Mapping[str, Any],
        checkpoint: Mapping[str, Any] | None,
        *,
        cached: bool,
    ) -> None:
        """Add the batches that the journal has of this log in its lineage and that its own files lack at their end."""
        key = LogKey(directory, uuid.UUID(stamp["topic_id"]).bytes, stamp["assignment_epoch"])
        entries = self._journaled(disk, key, uuid.UUID(stamp["directory_id"]).bytes, cached=cached)
        if checkpoint is None:
            lineage = max([stamp["lineage"], *(entry.lineage for entry in entries)])
        else:
            lineage = checkpoint["lineage"]
        end = stamp["birth"] if checkpoint is None else checkpoint["recovery_point"]
        at = next((at for at, run in enumerate(found) if run[0].base <= end <= run[-1].end), -1)
        if at < 0:
            at = sum(run[0].base < end for run in found)
            found.insert(at, [])
        log = found[at]
        for entry in [*entries, None]:
            end = log[-1].end if log else end
            if at + 1 < len(found) and found[at + 1][0].base == end:
                log += found.pop(at + 1)
                end = log[-1].end
            if entry is None or entry.lineage != lineage or entry.end <= end:
                continue
            missing = [batch for batch in entry.batches if batch.base >= end]
            if not missing or missing[0].base != end:
                break  # a log cannot continue with this
            log += missing
        if not log:
            del found[at]
        else:  # batches behind it are dropped if they do not follow
            found[at + 1 :] = [run for run in found[at + 1 :] if run[0].base >= log[-1].end]

    def _journaled(self, disk: SimDisk, key: LogKey, journal_key: bytes, *, cached: bool) -> list[_Entry]:
        """The entries that are still needed, in the order in which they were appended."""
        node = _directory(disk, "journal", cached=cached)
        rounds: list[_Round] = []
        for name, file in {} if node is None else _names(node, cached=cached).items():
            if name.endswith(JOURNAL_SUFFIX) and isinstance(file, FileNode):
                rounds += _rounds(journal_key, bytes(file.data)) if cached else self._rounds(journal_key, file)
        newest: dict[int, Head] = {}
        for head, _ in rounds:
            if head.life not in newest or head.number > newest[head.life].number:
                newest[head.life] = head
        needed = sorted(
            (each for each in rounds if key in each.entries and each.head.number >= newest[each.head.life].oldest),
            key=lambda each: each.head.number,
        )
        return [each.entries[key] for each in needed]

    def _rounds(self, journal_key: bytes, file: FileNode) -> list[_Round]:
        known = self._parsed_rounds.get(file)
        if known is None or known[0] != file.settled:
            known = self._parsed_rounds[file] = file.settled, _rounds(journal_key, bytes(file.durable))
        return known[1]


def _rounds(journal_key: bytes, data: bytes) -> list[_Round]:
    return [
        _Round(
            each.head,
            {
                entry.key: _Entry(entry.lineage, entry.end, parse(data[entry.position : entry.position + entry.size]))
                for entry in each.entries
            },
        )
        for each in rounds_in(journal_key, data)
    ]


def _fields(names: Mapping[str, Node], name: str, *, cached: bool) -> dict[str, Any] | None:
    """The fields of a small file; None: it is missing, or cannot be read."""
    file = names.get(name)
    if not isinstance(file, FileNode):
        return None
    try:
        fields = json.loads(bytes(file.data if cached else file.durable).partition(b"\n")[0])
    except ValueError:
        return None
    return fields if isinstance(fields, dict) else None


def _names(node: DirectoryNode, *, cached: bool) -> dict[str, Node]:
    return node.names if cached else node.durable


def directory_of(disk: SimDisk, name: str, *, cached: bool = False) -> DirectoryNode | None:
    """A partition's directory on the medium, or in the page cache."""
    return _directory(disk, "logs", name, cached=cached)


def lose_directory(disk: SimDisk, name: str) -> None:
    """Remove a partition's directory from the page cache and the medium, as if somebody had deleted it."""
    for cached in (True, False):
        if (logs := _directory(disk, "logs", cached=cached)) is not None:
            logs.end_sync(logs.begin_sync())  # or a power cut might bring it back
            _names(logs, cached=cached).pop(name, None)


def _directory(disk: SimDisk, *parts: str, cached: bool) -> DirectoryNode | None:
    node: Node | None = disk.root
    for part in (*DATA.parts[1:], *parts):
        node = _names(node, cached=cached).get(part) if isinstance(node, DirectoryNode) else None
    return node if isinstance(node, DirectoryNode) else None


def parse(data: bytes) -> list[Batch]:
    """The batches of a file up to one that is cut off, damaged, or does not follow the one before it."""
    found: list[Batch] = []
    at = 0
    while at + HEADER_BYTES <= len(data):
        header = parse_header(data, at)
        if header.batch_length < HEADER_BYTES - LENGTH_END or at + header.size > len(data):
            break
        if found and header.base_offset != found[-1].end:
            break
        try:
            check_batch(data, at, at + header.size)
        except CorruptData:
            break
        whole = data[at : at + header.size]
        found.append(Batch(header.base_offset, header.next_offset, header.leader_epoch, whole))
        at += header.size
    return found
