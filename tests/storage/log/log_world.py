"""A log on a disk in memory, its slow twin, and small batches to fill them."""

from __future__ import annotations

import uuid
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from headrace.base.ids import DirectoryId, LeaderEpoch, Offset, PartitionIndex, TopicId
from headrace.base.ports import Disk
from headrace.storage.engine.identity import LogConfig, LogIdentity
from headrace.storage.log.engine import LocalLogEngine
from headrace.storage.log.partition import LocalLog
from headrace.storage.log.segment import SegmentInfo
from headrace.wire.batches import Record, check_batches, encode_batch
from headrace.wire.compression import Compression
from tests.storage.log.memory_disk import MemoryDisk

ROOT = Path("/data/logs")
IDENTITY = LogIdentity(
    topic_name="orders",
    topic_id=TopicId(uuid.UUID(int=7)),
    partition=PartitionIndex(0),
    directory_id=DirectoryId(uuid.UUID(int=9)),
    assignment_epoch=3,
)
DIRECTORY = ROOT / "orders-0"
SMALL = LogConfig(segment_bytes=600, index_interval_bytes=150, retention_ms=-1)
NOW_MS = 1_000_000


class Stored(NamedTuple):
    """One batch as it must stand in the log."""

    base_offset: int
    last_offset: int
    epoch: int
    bytes: bytes
    times: tuple[int, ...]


def batch(
    count: int = 1,
    *,
    size: int = 10,
    times: tuple[int, ...] = (),
    seed: int = 0,
    compression: Compression = Compression.NONE,
) -> bytes:
    """As a producer sends it: offsets from 0, no epoch."""
    times = times or tuple(range(seed, seed + count))
    value = b"%d" % seed + b"." * size
    return encode_batch([Record(at, times[at], None, value) for at in range(count)], compression=compression)


def new_disk(seed: int = 0) -> MemoryDisk:
    """Formatted long ago."""
    disk = MemoryDisk(seed)
    disk.make_directory(ROOT)
    for path in (ROOT, ROOT.parent, ROOT.parent.parent):
        disk.sync_directory(path)
    return disk


def open_log(disk: Disk, config: LogConfig = SMALL, *, identity: LogIdentity = IDENTITY, start: int = 0) -> LocalLog:
    engine = LocalLogEngine(disk, ROOT)
    engine.start()
    return engine.open(identity, config, start=Offset(start))


@dataclass
class Twin:
    """A log and a list of what must be in it."""

    log: LocalLog
    stored: list[Stored] = field(default_factory=list)
    epoch: int = 0

    @property
    def end(self) -> int:
        return self.stored[-1].last_offset + 1 if self.stored else 0

    def append(self, *batches: bytes, times: tuple[int, ...] = (), now_ms: int = NOW_MS) -> None:
        """In one append. Recorded first: a crash in the middle may leave it."""
        joined = b"".join(batches)
        headers = check_batches(joined)
        base = first = self.log.log_end_offset
        for at, header in headers:
            raw = joined[at : at + header.size]
            placed = base.to_bytes(8, "big") + raw[8:12] + self.epoch.to_bytes(4, "big") + raw[16:]
            self.stored.append(Stored(base, base + header.last_offset_delta, self.epoch, placed, times))
            base = Offset(base + header.count)
        appended = self.log.append(joined, headers, leader_epoch=LeaderEpoch(self.epoch), now_ms=now_ms)
        assert appended.base_offset == first
        assert appended.end == self.end == self.log.log_end_offset

    def read_all(self) -> bytes:
        return read_all(self.log)

    def bytes_from(self, offset: int) -> bytes:
        """The bytes that a reader at `offset` gets, to the end."""
        return b"".join(stored.bytes for stored in self.stored if stored.last_offset >= offset)


def read_all(log: LocalLog, max_bytes: int = 4096) -> bytes:
    """Everything, as a consumer reads it."""
    parts, at = [], log.log_start_offset
    while part := log.read(at, max_bytes, log.log_end_offset, at_least_one=True):
        parts.append(bytes(part))
        _, header = check_batches(part)[-1]
        at = Offset(header.next_offset)
    assert at == log.log_end_offset
    return b"".join(parts)


def flush(log: LocalLog) -> None:
    """Until nothing is left."""
    while (ticket := log.begin_flush()) is not None:
        ticket.sync()
        assert log.finish_flush(ticket) == log.flushed_end
    assert log.flushed_end == log.log_end_offset


def dropped(log: LocalLog, now_ms: int, up_to: Offset) -> list[SegmentInfo]:
    """The segments that retention drops now."""
    before, start = [*log.closed_segments()], log.log_start_offset
    after = log.apply_retention(now_ms, up_to)
    gone = before[: len(before) - len([each for each in log.closed_segments() if each in before])]
    assert after == log.log_start_offset == max(start, *(each.next_offset for each in gone), start)
    return gone
