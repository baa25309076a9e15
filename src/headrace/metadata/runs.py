"""The packed entries of a catalog: about 150 bytes each, where objects would take 900.

Promises: entries read out equal those put in. Runs are immutable and share structure: one more entry copies at most
CATALOG_RUN_ENTRIES packed ones. Unusual parts of an entry (a key of another form, links, a substitute) are stored
separately.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from struct import Struct
from typing import Any, Final, NamedTuple

from headrace.base.ids import LeaderEpoch, Offset
from headrace.base.limits import CATALOG_RUN_ENTRIES
from headrace.metadata.descriptors import CatalogEntry, Link, SegmentDescriptor, linked, segment_name

ROW: Final = Struct(">qqqqqqqiiI32s32s")
"""Start and end offset, first and last timestamp, records, bytes of the batches and of the object. Then epoch of the
exporter and of the last batch, CRC32C, SHA-256, hash."""
HASH_BYTES: Final = 32
_OFFSET: Final = Struct(">q")
_TIMES: Final = Struct(f">q16xq{ROW.size - 32}x")
"""Start offset and last timestamp of a row."""


class Unusual(NamedTuple):
    """Fields of an entry that differ from nearly all other entries."""

    key: str | None = None
    """The key, where it is not the run's directory and `segment_name`."""
    links: tuple[Link, ...] = ()
    is_substitute: bool = False


USUAL: Final = Unusual()


class Run:
    """Consecutive entries, at least one. Each row's hash, with the links between linked to it, is the next one's
    previous hash."""

    __slots__ = ("directory", "packed", "previous_hash", "unusual")

    def __init__(self, directory: str, previous_hash: str, packed: bytes, unusual: Mapping[int, Unusual]) -> None:
        self.directory = directory
        """Common prefix of its objects' keys."""
        self.previous_hash = previous_hash
        """Previous hash of its first entry, with that entry's links in it."""
        self.packed = packed
        self.unusual = unusual

    @classmethod
    def of(cls, entries: Sequence[CatalogEntry], directory: str | None = None) -> Run:
        if directory is None:
            key = entries[0].descriptor.key
            directory = key[: key.rfind("/") + 1]
        rows, unusual = bytearray(), dict[int, Unusual]()
        for at, entry in enumerate(entries):
            rows += _row(entry)
            if (odd := _unusual(directory, entry)) != USUAL:
                unusual[at] = odd
        return cls(directory, entries[0].previous_hash, bytes(rows), unusual)

    def __len__(self) -> int:
        return len(self.packed) // ROW.size

    @property
    def start_offset(self) -> Offset:
        return self.start_of(0)

    @property
    def end_offset(self) -> Offset:
        """Last offset, inclusive."""
        return Offset(ROW.unpack_from(self.packed, len(self.packed) - ROW.size)[1])

    @property
    def hash(self) -> str:
        """Hash of its last entry."""
        return self.packed[-HASH_BYTES:].hex()

    @property
    def links(self) -> tuple[Link, ...]:
        """Links of its first entry."""
        return self.unusual.get(0, USUAL).links

    @property
    def batch_bytes(self) -> int:
        return sum(row[5] for row in ROW.iter_unpack(self.packed))

    def start_of(self, at: int) -> Offset:
        return Offset(_OFFSET.unpack_from(self.packed, at * ROW.size)[0])

    def starts(self) -> Iterator[Offset]:
        return map(self.start_of, range(len(self)))

    def floor(self, offset: int) -> int:
        """The last row that does not begin above `offset`; -1: all do."""
        return bisect_right(range(len(self)), offset, key=self.start_of) - 1

    def entry(self, at: int) -> CatalogEntry:
        row, odd = ROW.unpack_from(self.packed, at * ROW.size), self.unusual.get(at, USUAL)
        previous = self.previous_hash
        if at:
            end = at * ROW.size
            previous = linked(self.packed[end - HASH_BYTES : end].hex(), odd.links)
        return _entry(row, odd, self.directory, previous)

    def entries(self, first: int = 0) -> Iterator[CatalogEntry]:
        """The entries from this row on."""
        if first >= len(self):
            return
        entry = self.entry(first)
        yield entry
        at = first
        for row in ROW.iter_unpack(memoryview(self.packed)[(first + 1) * ROW.size :]):
            at += 1
            odd = self.unusual.get(at, USUAL)
            entry = _entry(row, odd, self.directory, linked(entry.hash, odd.links) if odd.links else entry.hash)
            yield entry

    def unusual_entries(self) -> Iterator[CatalogEntry]:
        return map(self.entry, sorted(self.unusual))

    def part(self, first: int, after: int | None = None) -> Run:
        """A run of some of its rows, at least one."""
        after = len(self) if after is None else after
        if (first, after) == (0, len(self)):
            return self
        previous = self.entry(first).previous_hash if first else self.previous_hash
        unusual = {at - first: odd for at, odd in self.unusual.items() if first <= at < after}
        return Run(self.directory, previous, self.packed[first * ROW.size : after * ROW.size], unusual)

    def without_links(self) -> Run:
        """The run without the links of its first entry."""
        first = self.unusual.get(0, USUAL)._replace(links=())
        rest = {at: odd for at, odd in self.unusual.items() if at}
        return Run(self.directory, self.previous_hash, self.packed, rest if first == USUAL else {0: first, **rest})

    def with_run(self, other: Run) -> Run | None:
        """The run with the other's entries appended; None where that is too many, or their keys have another form."""
        if len(self) + len(other) > CATALOG_RUN_ENTRIES or self.directory != other.directory:
            return None
        unusual = self.unusual
        if other.unusual:
            unusual = {**unusual, **{len(self) + at: odd for at, odd in other.unusual.items()}}
        return Run(self.directory, self.previous_hash, self.packed + other.packed, unusual)

    def begins_with(self, other: Run) -> bool:
        """Whether its first segments are all those of the other."""
        return self.packed.startswith(other.packed) and self.directory == other.directory


def _row(entry: CatalogEntry) -> bytes:
    one = entry.descriptor
    return ROW.pack(
        one.start_offset,
        one.end_offset,
        one.first_timestamp_ms,
        one.last_timestamp_ms,
        one.records,
        one.batch_bytes,
        one.object_bytes,
        one.leader_epoch,
        one.last_epoch,
        one.crc32c,
        bytes.fromhex(one.sha256),
        bytes.fromhex(entry.hash),
    )


def _unusual(directory: str, entry: CatalogEntry) -> Unusual:
    one = entry.descriptor
    usual = directory + segment_name(one.start_offset, one.end_offset, one.leader_epoch, one.sha256)
    return Unusual(None if one.key == usual else one.key, entry.deletions, entry.is_substitute)


def _entry(row: tuple[Any, ...], odd: Unusual, directory: str, previous: str) -> CatalogEntry:
    start, end, first_ms, last_ms, records, batches, size, epoch, last_epoch, crc32c, sha256, hash_ = row
    digest = sha256.hex()
    return CatalogEntry(
        descriptor=SegmentDescriptor(
            key=directory + segment_name(start, end, epoch, digest) if odd.key is None else odd.key,
            start_offset=start,
            end_offset=end,
            leader_epoch=LeaderEpoch(epoch),
            first_timestamp_ms=first_ms,
            last_timestamp_ms=last_ms,
            records=records,
            batch_bytes=batches,
            object_bytes=size,
            crc32c=crc32c,
            sha256=digest,
            last_epoch=LeaderEpoch(last_epoch),
        ),
        previous_hash=previous,
        hash=hash_.hex(),
        deletions=odd.links,
        is_substitute=odd.is_substitute,
    )


class Entries(Mapping[Offset, CatalogEntry]):
    """All entries of a catalog by start offset, in order. Two are equal where their entries are."""

    __slots__ = ("_count", "runs")

    def __init__(self, runs: Iterable[Run] = (), count: int | None = None) -> None:
        self.runs = tuple(runs)
        self._count = sum(map(len, self.runs)) if count is None else count

    @classmethod
    def of(cls, entries: Sequence[CatalogEntry]) -> Entries:
        return cls(_packed(entries))

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[Offset]:
        for run in self.runs:
            yield from run.starts()

    def __getitem__(self, start: Offset) -> CatalogEntry:
        found = self.holding(start)
        if found is None or found.descriptor.start_offset != start:
            raise KeyError(start)
        return found

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Entries):
            return NotImplemented
        if self.runs == other.runs:
            return True
        return len(self) == len(other) and all(
            one == another for one, another in zip(self.reaching(-1), other.reaching(-1), strict=True)
        )

    __hash__ = None  # type: ignore[assignment]

    def at(self, number: int) -> CatalogEntry:
        """The entry at this position. Raises IndexError."""
        for run in self.runs:
            if number < len(run):
                return run.entry(number)
            number -= len(run)
        raise IndexError(number)

    def times(self) -> Iterator[tuple[int, int]]:
        """Start and last timestamp of each entry, in order, without making entries."""
        for run in self.runs:
            yield from _TIMES.iter_unpack(run.packed)

    def holding(self, offset: int) -> CatalogEntry | None:
        """The entry in whose range `offset` lies."""
        number = self._run_of(offset)
        if number < 0:
            return None
        found = self.runs[number].entry(self.runs[number].floor(offset))
        return found if offset <= found.descriptor.end_offset else None

    def reaching(self, offset: int) -> Iterator[CatalogEntry]:
        """The entries in order, from the first one that holds `offset` or begins above it."""
        number = max(0, self._run_of(offset))
        for run in self.runs[number : number + 1]:
            first = max(0, run.floor(offset))
            yield from run.entries(first + (run.entry(first).descriptor.end_offset < offset))
        for run in self.runs[number + 1 :]:
            yield from run.entries()

    def starts(self, offset: int) -> Iterator[Offset]:
        """The starts of the entries at `offset` or above, in order."""
        number = max(0, self._run_of(offset))
        for run in self.runs[number:]:
            yield from map(run.start_of, range(run.floor(offset - 1) + 1, len(run)))

    def count(self, start: int, end: int) -> int:
        """Number of entries that begin at offset `start` or above, and at `end` or below."""
        return self._rank(end + 1) - self._rank(start)

    def _rank(self, offset: int) -> int:
        """Number of entries that begin below `offset`."""
        number = self._run_of(offset - 1)
        if number < 0:
            return 0
        return sum(map(len, self.runs[:number])) + self.runs[number].floor(offset - 1) + 1

    def unusual(self) -> Iterator[CatalogEntry]:
        """Substitutes and entries with links, in order; others may be among them."""
        for run in self.runs:
            yield from run.unusual_entries()

    def gone(self, since: Entries) -> Iterator[SegmentDescriptor]:
        """Segments that are here, and not in the later state `since`."""
        there = {run.start_offset: run for run in since.runs}
        for run in self.runs:
            now = there.get(run.start_offset)
            if now is run or (now is not None and now.begins_with(run)):
                continue
            for entry in run.entries():
                found = since.get(entry.descriptor.start_offset)
                if found is None or found.descriptor != entry.descriptor:
                    yield entry.descriptor

    # derived copies

    def with_run(self, run: Run) -> Entries:
        """The entries with a run appended."""
        joined = self.runs[-1].with_run(run) if self.runs else None
        runs = (*self.runs, run) if joined is None else (*self.runs[:-1], joined)
        return Entries(runs, len(self) + len(run))

    def since(self, start: int) -> Entries:
        """The entries that begin at `start` or above. Links before the first of them are dropped, as they are no longer
        needed."""
        runs = [run for run in self.runs if run.end_offset >= start]
        if runs:
            runs[0] = runs[0].part(runs[0].floor(start - 1) + 1).without_links()
        return Entries(runs)

    def with_substitute(self, entry: CatalogEntry) -> Entries:
        """The entries with this one in the place of all those in its range."""
        low, high = self._run_of(entry.descriptor.start_offset), self._run_of(entry.descriptor.end_offset)
        if low and len(self.runs[low - 1]) < CATALOG_RUN_ENTRIES // 2:
            low -= 1  # keeps runs from becoming short
        kept = [each for run in self.runs[low : high + 1] for each in run.entries()]
        before = [each for each in kept if each.descriptor.end_offset < entry.descriptor.start_offset]
        behind = [each for each in kept if each.descriptor.start_offset > entry.descriptor.end_offset]
        return Entries((*self.runs[:low], *_packed([*before, entry, *behind]), *self.runs[high + 1 :]))

    def _run_of(self, offset: int) -> int:
        """The last run that does not begin above `offset`; -1: all do."""
        return bisect_right(self.runs, offset, key=_start_of) - 1


def _start_of(run: Run) -> Offset:
    return run.start_offset


def _packed(entries: Sequence[CatalogEntry]) -> list[Run]:
    size = CATALOG_RUN_ENTRIES
    return [Run.of(entries[at : at + size]) for at in range(0, len(entries), size)]
