"""The two small files that are ours, and how every small file is written.

`stamp.json`: whose data the directory holds, and the offset at which the log was born. `checkpoint.json`: the recovery
point, a position in a segment; everything below it was durable, its indexes and epochs too, before it was written.

Promises: a file that can be read is whole (a checksum says so) and was written as a whole.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import structlog
from crc32c import crc32c

from headrace.base.errors import OUT_OF_ROOM, CorruptData, FullDisk
from headrace.base.ids import DirectoryId, LeaderEpoch, Offset, PartitionIndex, TopicId
from headrace.base.ports import Disk
from headrace.storage.engine import LogIdentity
from headrace.storage.log.names import DOUBT, SEALED, STAMP, TEMPORARY
from headrace.storage.log.segment import Segment

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Stamp:
    """Whose data this is. Durable before anything in the directory counts as flushed."""

    identity: LogIdentity
    birth: Offset
    """The first offset that was ever appended here."""
    lineage: int = 0
    """The first one of this log, above all that the journal held then of another that had its key before."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """What recovery may trust."""

    recovery_point: Offset
    segment: Offset
    """Base offset of the segment that holds the recovery point (it need not exist where `position` is 0)."""
    position: int
    """Bytes of that segment below the recovery point. Where it is not 0, the index files cover them."""
    max_timestamp: int
    """Highest record time in those bytes, and the last offset of its batch; -1 for none."""
    max_timestamp_offset: int
    log_start: Offset
    lineage: int = 0
    """Rises whenever the log is cut: what the journal holds of an earlier lineage is void."""

    @classmethod
    def at_segment(cls, base: Offset, log_start: Offset, lineage: int = 0) -> Checkpoint:
        """All segments before the one that begins at `base` are durable, and nothing is said of that one."""
        return cls(
            recovery_point=base,
            segment=base,
            position=0,
            max_timestamp=-1,
            max_timestamp_offset=-1,
            log_start=log_start,
            lineage=lineage,
        )


NOWHERE: Final = Offset(0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Compacted:
    """How far compaction has come. Durable before the first segment of a round is replaced, and again at its end."""

    gaps_below: Offset = NOWHERE
    """Batches may be missing, or hold fewer records than offsets, below this one and nowhere else."""
    clean_to: Offset = NOWHERE
    """Below it, no record stands whose key has a later one below it."""
    is_known: bool = True
    """False: what was noted could not be read, and this is the worst that it may have said."""
    is_mended: bool = True
    """False: an older compaction may have left emptied batches that clients cannot read (`mend_emptied`)."""


def checkpoint_of(active: Segment | None, end: Offset, log_start: Offset, lineage: int) -> Checkpoint:
    """Everything below `end`, the indexes of the active segment among it, is durable."""
    if active is None:
        return Checkpoint.at_segment(end, log_start, lineage)
    return Checkpoint(
        recovery_point=end,
        segment=Offset(active.base),
        position=active.size,
        max_timestamp=active.max_timestamp,
        max_timestamp_offset=active.max_timestamp_offset,
        log_start=log_start,
        lineage=lineage,
    )


def encode_stamp(stamp: Stamp) -> bytes:
    identity = stamp.identity
    return encode_fields(
        {
            "topic_name": identity.topic_name,
            "topic_id": str(identity.topic_id),
            "partition": identity.partition,
            "directory_id": str(identity.directory_id),
            "assignment_epoch": identity.assignment_epoch,
            "birth": stamp.birth,
            "lineage": stamp.lineage,
        }
    )


def decode_stamp(data: bytes) -> Stamp:
    """Raises CorruptData. One of earlier versions names no lineage."""
    fields = {"lineage": 0, **decode_fields(data)}
    try:
        identity = LogIdentity(
            topic_name=str(fields["topic_name"]),
            topic_id=TopicId(uuid.UUID(fields["topic_id"])),
            partition=PartitionIndex(int(fields["partition"])),
            directory_id=DirectoryId(uuid.UUID(fields["directory_id"])),
            assignment_epoch=int(fields["assignment_epoch"]),
        )
        return Stamp(identity=identity, birth=Offset(int(fields["birth"])), lineage=int(fields["lineage"]))
    except (KeyError, ValueError, TypeError, AttributeError) as error:
        raise CorruptData(f"A stamp lacks a field: {error}.") from error


def encode_checkpoint(checkpoint: Checkpoint) -> bytes:
    return encode_fields(asdict(checkpoint))


def decode_checkpoint(data: bytes) -> Checkpoint:
    """Raises CorruptData. One from before there was a journal names no lineage."""
    fields = {"lineage": 0, **decode_fields(data)}
    try:
        return Checkpoint(**{name: int(fields[name]) for name in Checkpoint.__dataclass_fields__})  # type: ignore[arg-type]  # NewTypes of int
    except (KeyError, ValueError, TypeError) as error:
        raise CorruptData(f"A checkpoint lacks a field: {error}.") from error


def encode_compacted(compacted: Compacted) -> bytes:
    return encode_fields(asdict(compacted))


def decode_compacted(data: bytes) -> Compacted:
    """Raises CorruptData."""
    fields = decode_fields(data)
    try:
        return Compacted(
            gaps_below=Offset(int(fields["gaps_below"])),
            clean_to=Offset(int(fields["clean_to"])),
            is_known=bool(fields.get("is_known", True)),
            is_mended=bool(fields.get("is_mended", False)),
        )
    except (KeyError, ValueError, TypeError) as error:
        raise CorruptData(f"A note on compaction lacks a field: {error}.") from error


def write_seal(disk: Disk, directory: Path, epoch: LeaderEpoch) -> None:
    """Durably. Raises OSError."""
    write_file(disk, directory / SEALED, encode_fields({"leader_epoch": epoch}))
    disk.sync_directory(directory)


def read_seal(disk: Disk, directory: Path) -> LeaderEpoch | None:
    """None where there is none, or none that ever counted. Raises OSError."""
    try:
        return LeaderEpoch(int(decode_fields(read_file(disk, directory / SEALED))["leader_epoch"]))
    except (FileNotFoundError, CorruptData, KeyError, ValueError, TypeError):
        return None


def read_file(disk: Disk, path: Path) -> bytes:
    """All of a small file. Raises FileNotFoundError."""
    file = disk.open(path)
    try:
        return file.read(0, file.size())
    finally:
        file.close()


def write_file(disk: Disk, path: Path, data: bytes | bytearray, *, sync: bool = True) -> None:
    """Replace a file as a whole. Its name is durable after the caller's `sync_directory`; without `sync`, its contents
    only after the caller syncs them too. Raises FullDisk where there is no room: nothing is replaced then; OSError."""
    beside = write_beside(disk, path, data, sync=sync)
    with full_disks_told():
        disk.rename(beside, path)


def write_beside(disk: Disk, path: Path, data: bytes | bytearray, *, sync: bool = False) -> Path:
    """What is to replace a file, under a name of its own. Not durable, but with `sync`."""
    temporary = path.with_name(path.name + TEMPORARY)
    with full_disks_told():
        file = disk.open(temporary, create=True)
    try:
        file.truncate(0)
        with full_disks_told():
            file.append([data])
        if sync:
            file.sync()
    finally:
        file.close()
    return temporary


@contextmanager
def full_disks_told() -> Iterator[None]:
    """Around writes that no sync is among: has a full disk raise FullDisk."""
    try:
        yield
    except OSError as error:
        if error.errno in OUT_OF_ROOM:
            raise FullDisk(*error.args) from error
        raise


def sync_file(disk: Disk, path: Path) -> None:
    """Make durable what an earlier `write_file` without sync, or an earlier life, left in the page cache."""
    file = disk.open(path)
    try:
        file.sync()
    finally:
        file.close()


def mark_doubt(disk: Disk, directory: Path) -> None:
    """A sync failed. Should this process or its successor open the directory again before the power goes, the kernel
    would give it bytes that never reached the disk, and call a sync of them a success: recovery must write them anew.
    The mark itself needs no sync, for a power cut leaves only what is true. Where there is no descriptor, inode or room
    for an empty file, a second name for the stamp needs none of them. Where that fails too it is told; what the journal
    holds of the log, recovery writes anew in any case."""
    if disk.exists(directory / DOUBT):
        return
    try:
        disk.open(directory / DOUBT, create=True).close()
    except FileNotFoundError:
        return  # the directory is gone, and with it what was in doubt
    except OSError as error:
        try:
            disk.link(directory / STAMP, directory / DOUBT)
        except (OSError, NotImplementedError):
            log.error(
                "a sync failed, and no file can be made that says so to the next start: reboot the machine before the "
                "broker is started again, or the page cache may be taken for what the disk holds",
                directory=str(directory),
                reason=str(error),
            )


def encode_fields(fields: dict[str, Any]) -> bytes:
    """A small file of ours, with its checksum."""
    body = json.dumps({"version": 1, **fields}, separators=(", ", ": "))
    return f"{body}\n{crc32c(body.encode()):08x}\n".encode()


def decode_fields(data: bytes) -> dict[str, Any]:
    """Raises CorruptData."""
    body, _, rest = data.partition(b"\n")
    if rest != f"{crc32c(body):08x}\n".encode():
        raise CorruptData("A checkpoint or stamp fails its checksum.")
    try:
        fields = json.loads(body)
    except ValueError as error:
        raise CorruptData(f"A checkpoint or stamp is no JSON: {error}.") from error
    if not isinstance(fields, dict) or fields.get("version") != 1:
        raise CorruptData("A checkpoint or stamp is of a version that is not known here.")
    return fields
