"""Files and directories as a page cache over a durable medium, and the effects of a power cut.

POSIX, taken literally: a sync makes durable everything written before it began. Contents and names are durable
independently. Of everything else, any part may be there after a power cut, in any order, or nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from headrace.base.ports import Random

SECTOR_BYTES: Final = (512, 4096)
"""Units that a medium writes atomically, with all their content by then; one is drawn for each file and power cut."""


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
        self.changed_at = 0.0
        """When a process changed it last, in the loop's seconds."""
        self._settled = 0

    @property
    def settled(self) -> int:
        """Number of changes that the medium has taken or lost: while it is unchanged, so is `durable`."""
        return self._settled

    def change(self, change: Change) -> None:
        """Change the page cache only."""
        apply_change(self.data, change)
        self.pending.append(change)

    def begin_sync(self) -> int:
        """A mark: `end_sync` makes everything written until now durable."""
        return self._settled + len(self.pending)

    def end_sync(self, mark: int) -> None:
        """Put everything before the mark on the medium."""
        for change in self._settle(mark):
            apply_change(self.durable, change)

    def fail_sync(self, mark: int, random: Random) -> None:
        """The kernel gave up: part of it is on the medium, and the rest is never tried again."""
        self.durable = survivors(random, self.durable, self._settle(mark))

    def rot(self, content: bytearray) -> None:
        """The medium holds other bytes than were written, and readers get them. Nothing is pending."""
        assert not self.pending, "all of it is on the medium"
        self.data, self.durable = bytearray(content), bytearray(content)
        self._settled += 1

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
    """The possible content of a medium after a power cut: `durable`, and any part of `pending`."""
    content = bytearray(durable)
    if not pending:
        return content
    chance = random.random()
    if chance < 0.2:
        return content
    if chance < 0.4:
        for change in pending:
            apply_change(content, change)
    elif chance < 0.65:
        _keep_prefix(random, content, pending)
    else:
        content = _keep_sectors(random, durable, pending)
    return content


def _keep_prefix(random: Random, content: bytearray, pending: Sequence[Change]) -> None:
    """Apply the first changes in order, the last of them torn at any byte. After it are zeroes, or what lay there
    before."""
    last = random.randrange(0, len(pending))
    for change in pending[:last]:
        apply_change(content, change)
    torn = pending[last]
    if isinstance(torn, Write):
        apply_change(content, Write(torn.offset, torn.data[: random.randrange(0, len(torn.data) + 1)]))
        if random.random() < 0.4:
            _lengthen(random, content, torn.offset + len(torn.data))


def _keep_sectors(random: Random, durable: bytearray, pending: Sequence[Change]) -> bytearray:
    """Take each sector as it was after any number of the changes; likewise the length."""
    sector = SECTOR_BYTES[random.randrange(0, len(SECTOR_BYTES))]
    working, content = bytearray(durable), bytearray(durable)
    versions: dict[int, int] = {}
    sizes = [len(durable)]
    for number, change in enumerate(pending):
        start, end = _extent(change, len(working))
        apply_change(working, change)
        sizes.append(len(working))
        for at in range(start - start % sector, end, sector):
            if at not in versions:
                versions[at] = _version(random, len(pending))
            if number < versions[at]:
                apply_change(content, Write(at, bytes(working[at : at + sector]).ljust(min(sector, end - at), b"\0")))
    size = sizes[_version(random, len(pending))]
    if size < len(content) and random.random() < 0.5:
        size = len(content)
    if size <= len(content):
        del content[size:]
    else:
        _lengthen(random, content, size)
    return content


def _extent(change: Change, size: int) -> tuple[int, int]:
    """The bytes that a change touches in a file of `size` bytes."""
    if isinstance(change, Write):
        return min(size, change.offset), change.offset + len(change.data)
    return min(size, change.size), max(size, change.size)


def _version(random: Random, count: int) -> int:
    """The number of `count` changes that are applied: often none or all, else any number."""
    chance = random.random()
    return 0 if chance < 0.3 else count if chance < 0.7 else random.randrange(0, count + 1)


def _lengthen(random: Random, content: bytearray, size_max: int) -> None:
    """The new length reached the medium, the bytes did not: they are zeroes, or what lay in those blocks before."""
    if size_max <= len(content):
        return
    length = random.randrange(len(content) + 1, size_max + 1) - len(content)
    chance = random.random()
    if chance < 0.5:
        content.extend(bytes(length))
    elif chance < 0.75 or not content:
        content.extend(random.getrandbits(8 * length).to_bytes(length, "little"))
    else:
        start = random.randrange(0, len(content))
        content.extend(content[start : start + length])


@dataclass(frozen=True, slots=True)
class Rename:
    """One atomic change of the names in a directory: the names that it removes and those that it adds."""

    removes: Sequence[tuple[str, Node]] = ()
    adds: Sequence[tuple[str, Node]] = ()


@dataclass(eq=False)
class DirectoryNode:
    """A directory: its names now, its names on the medium, and the changes between."""

    names: dict[str, Node] = field(default_factory=dict)
    durable: dict[str, Node] = field(default_factory=dict)
    pending: list[Rename] = field(default_factory=list)
    _settled: int = 0

    def change(self, change: Rename) -> None:
        """Change the cache only."""
        _apply_names(self.names, change)
        self.pending.append(change)

    def begin_sync(self) -> int:
        """A mark, as for files."""
        return self._settled + len(self.pending)

    def end_sync(self, mark: int) -> None:
        """Put every change before the mark on the medium."""
        for change in self._settle(mark):
            _apply_names(self.durable, change)

    def power_cut(self, random: Random) -> None:
        """Keep the durable names and any of the pending changes; then do the same below."""
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
