"""Files and directories as a page cache over a durable medium, and what a power cut leaves of them.

POSIX, taken at its word: a sync makes durable what was written before it began; contents and names are durable
apart from each other; of all the rest any part may be there after a power cut, in any order, and nothing must.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from headrace.base.ports import Random

SECTOR_BYTES: Final = (512, 4096)
"""Units in which a medium keeps or loses a write; one of these is drawn for each file and power cut."""


@dataclass(frozen=True, slots=True)
class Write:
    """`data` at `offset`, extending the file with zeroes where it begins beyond the end."""

    offset: int
    data: bytes


@dataclass(frozen=True, slots=True)
class Resize:
    """Cut to `size` bytes, or extend with zeroes."""

    size: int


Change = Write | Resize


def apply_change(content: bytearray, change: Change) -> None:
    """Carry out one change on a file's content."""
    match change:
        case Write(offset=offset, data=data):
            if offset > len(content):
                content.extend(bytes(offset - len(content)))
            content[offset : offset + len(data)] = data
        case Resize(size=size):
            if size < len(content):
                del content[size:]
            else:
                content.extend(bytes(size - len(content)))


class FileNode:
    """A file. Invariant: `durable` with all of `pending` applied is `data`, until a sync has failed."""

    def __init__(self) -> None:
        self.data = bytearray()
        self.durable = bytearray()
        self.pending: list[Change] = []
        self._settled = 0

    def change(self, change: Change) -> None:
        """To the page cache only."""
        apply_change(self.data, change)
        self.pending.append(change)

    def begin_sync(self) -> int:
        """A mark: what `end_sync` makes durable is what was written until now."""
        return self._settled + len(self.pending)

    def end_sync(self, mark: int) -> None:
        """Everything before the mark is on the medium."""
        for change in self._settle(mark):
            apply_change(self.durable, change)

    def fail_sync(self, mark: int, random: Random) -> None:
        """The kernel gave up: some of it is on the medium, and the rest it will never try again."""
        self.durable = survivors(random, self.durable, self._settle(mark))

    def power_cut(self, random: Random) -> None:
        """Keep what was durable and an arbitrary part of the rest."""
        self.data = survivors(random, self.durable, self.pending)
        self.durable = bytearray(self.data)
        self._settle(self.begin_sync())

    def _settle(self, mark: int) -> list[Change]:
        count = max(0, mark - self._settled)
        done, self.pending = self.pending[:count], self.pending[count:]
        self._settled += count
        return done


def survivors(random: Random, durable: bytearray, pending: Sequence[Change]) -> bytearray:
    """What a medium may hold after a power cut: `durable`, and any part of `pending`."""
    content = bytearray(durable)
    if not pending:
        return content
    chance = random.random()
    if chance < 0.2:
        return content
    if chance < 0.4:
        for change in pending:
            apply_change(content, change)
        return content
    if chance < 0.65:
        _keep_prefix(random, content, pending)
    else:
        _keep_sectors(random, content, pending)
    if random.random() < 0.4:
        _extend(random, content, durable, pending)
    return content


def _keep_prefix(random: Random, content: bytearray, pending: Sequence[Change]) -> None:
    """The first changes in order, the last of them torn at any byte."""
    last = random.randrange(0, len(pending))
    for change in pending[:last]:
        apply_change(content, change)
    torn = pending[last]
    if isinstance(torn, Write):
        apply_change(content, Write(torn.offset, torn.data[: random.randrange(0, len(torn.data) + 1)]))


def _keep_sectors(random: Random, content: bytearray, pending: Sequence[Change]) -> None:
    """Any sectors of any writes: a later one without an earlier one leaves a hole of zeroes."""
    sector = SECTOR_BYTES[random.randrange(0, len(SECTOR_BYTES))]
    keep = (0.1, 0.5, 0.9)[random.randrange(0, 3)]
    for change in pending:
        if isinstance(change, Resize):
            if random.random() < keep:
                apply_change(content, change)
            continue
        start = 0
        while start < len(change.data):
            end = start + sector - (change.offset + start) % sector
            if random.random() < keep:
                apply_change(content, Write(change.offset + start, change.data[start:end]))
            start = end


def _extend(random: Random, content: bytearray, durable: bytearray, pending: Sequence[Change]) -> None:
    """The new length reached the medium, the bytes did not: zeroes, or whatever lay in those blocks before."""
    end = max((change.offset + len(change.data) for change in pending if isinstance(change, Write)), default=0)
    if end <= len(content):
        return
    length = random.randrange(len(content) + 1, end + 1) - len(content)
    chance = random.random()
    if chance < 0.5:
        content.extend(bytes(length))
    elif chance < 0.75 or not durable:
        content.extend(random.getrandbits(8 * length).to_bytes(length, "little"))
    else:
        start = random.randrange(0, len(durable))
        content.extend(durable[start : start + length])


@dataclass(frozen=True, slots=True)
class Rename:
    """One atomic change of the names in a directory: what it takes out, and what it puts in."""

    removes: Sequence[tuple[str, Node]] = ()
    adds: Sequence[tuple[str, Node]] = ()


@dataclass(eq=False)
class DirectoryNode:
    """A directory: names now, names on the medium, and the changes between."""

    names: dict[str, Node] = field(default_factory=dict)
    durable: dict[str, Node] = field(default_factory=dict)
    pending: list[Rename] = field(default_factory=list)
    _settled: int = 0

    def change(self, change: Rename) -> None:
        """To the cache only."""
        _apply_names(self.names, change)
        self.pending.append(change)

    def begin_sync(self) -> int:
        """A mark, as for files."""
        return self._settled + len(self.pending)

    def end_sync(self, mark: int) -> None:
        """Every change before the mark is on the medium."""
        for change in self._settle(mark):
            _apply_names(self.durable, change)

    def power_cut(self, random: Random) -> None:
        """Keep the durable names and any of the pending changes; then the same below."""
        chance = random.random()
        keep = 0.0 if chance < 0.3 else 1.0 if chance < 0.5 else 0.5
        first = random.randrange(0, len(self.pending) + 1) if chance >= 0.75 else len(self.pending)
        for number, change in enumerate(self.pending):
            if (number < first and chance >= 0.75) or (chance < 0.75 and random.random() < keep):
                _apply_names(self.durable, change)
        self.names = dict(self.durable)
        self._settle(self.begin_sync())
        for name in sorted(self.names):
            self.names[name].power_cut(random)

    def _settle(self, mark: int) -> list[Rename]:
        count = max(0, mark - self._settled)
        done, self.pending = self.pending[:count], self.pending[count:]
        self._settled += count
        return done


Node = FileNode | DirectoryNode


def _apply_names(names: dict[str, Node], change: Rename) -> None:
    for name, node in change.removes:
        if names.get(name) is node:
            del names[name]
    names.update(change.adds)
