"""What the media of simulated disks hold of a partition's log, whatever the brokers say: whole batches, by offset.

Only durable bytes under durable names count: what would be there if the power went now. Pure reading; the format is
Kafka's, and nothing of the storage engine is used.
"""

from __future__ import annotations

from typing import Final, NamedTuple
from weakref import WeakKeyDictionary

from headrace.base.errors import CorruptData
from headrace.sim.cluster.host import DATA
from headrace.sim.disk import SimDisk
from headrace.sim.nodes import DirectoryNode, FileNode, Node
from headrace.wire.batches import HEADER_BYTES, LENGTH_END, check_batch, parse_header

SUFFIX: Final = ".log"
VERBATIM: Final = 16
"""Where a batch begins that a broker leaves as its producer made it: behind base offset, length and leader epoch."""


class Batch(NamedTuple):
    """As it is on a medium."""

    base: int
    end: int
    """Exclusive."""
    leader_epoch: int
    data: bytes


class Media:
    """The logs on all disks of a run. Remembers what it has parsed until that changes."""

    def __init__(self) -> None:
        self._parsed: WeakKeyDictionary[FileNode, tuple[int, list[Batch]]] = WeakKeyDictionary()

    def log(self, disk: SimDisk, directory: str) -> list[Batch]:
        """The batches of the log in this directory that follow on one another, from the first one on."""
        return next(iter(self.runs(disk, directory)), [])

    def runs(self, disk: SimDisk, directory: str) -> list[list[Batch]]:
        """All of its batches, those together that follow on one another. Of segments that were deleted, and whose names
        were not synced, some may be there again, and some not."""
        node = directory_of(disk, directory)
        if node is None:
            return []
        found: list[list[Batch]] = []
        for name in sorted(each for each in node.durable if each.endswith(SUFFIX)):
            file = node.durable[name]
            assert isinstance(file, FileNode)
            batches = self._batches(file)
            if found and batches and batches[0].base == found[-1][-1].end:
                found[-1] += batches
            elif batches:
                found.append(list(batches))
        return found

    def _batches(self, file: FileNode) -> list[Batch]:
        known = self._parsed.get(file)
        if known is None or known[0] != file.settled:
            known = self._parsed[file] = file.settled, parse(bytes(file.durable))
        return known[1]


def directory_of(disk: SimDisk, name: str) -> DirectoryNode | None:
    """That of a partition, as the medium has it."""
    node: Node | None = disk.root
    for part in (*DATA.parts[1:], "logs", name):
        node = node.durable.get(part) if isinstance(node, DirectoryNode) else None
    return node if isinstance(node, DirectoryNode) else None


def parse(data: bytes) -> list[Batch]:
    """The batches of a file, until one is cut off, damaged, or does not follow on the one before it."""
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
