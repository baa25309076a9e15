"""Headrace's own small files, and how every small file is written.

- `stamp.json`: the identity of the log in the directory, and the offset at which the log was born.
- `checkpoint.json`: the recovery point, a position in a segment. Everything below it was durable, its indexes and
  epochs too, before the checkpoint was written.

Promises: a readable file is whole (a checksum says so) and was written as a whole.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from crc32c import crc32c

from headrace.base.errors import OUT_OF_ROOM, CorruptData, FullDisk
from headrace.base.ids import DirectoryId, LeaderEpoch, Offset, PartitionIndex, TopicId
from headrace.base.ports import Disk
from headrace.base.values import Value
from headrace.logs import get_logger
from headrace.storage.engine.identity import LogIdentity
from headrace.storage.log.names import DOUBT, SEALED, STAMP, TEMPORARY
from headrace.storage.log.segment import Segment

log = get_logger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class Stamp(Value):
    """The identity of the log in a directory. It is durable before anything in the directory counts as flushed."""

    identity: LogIdentity
    birth: Offset
    """The first offset that was ever appended here."""
    lineage: int = 0
    """The first lineage of this log, above every lineage that the journal then held of an earlier log with its key."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class Checkpoint(Value):
    """The part of a log that recovery may trust."""

    recovery_point: Offset
    segment: Offset
    """Base offset of the segment that holds the recovery point (it need not exist where `position` is 0)."""
    position: int
    """Bytes of that segment below the recovery point. Where it is not 0, the index files cover these bytes."""
    max_timestamp: int
    """Highest record timestamp in those bytes, and below that the last offset of its batch; -1 for none."""
    max_timestamp_offset: int
    log_start: Offset
    lineage: int = 0
    """Rises whenever the log is cut: journal entries of an earlier lineage are void."""

    @classmethod
    def at_segment(cls, base: Offset, log_start: Offset, lineage: int = 0) -> Checkpoint:
        """A checkpoint by which all segments before the one at `base` are durable. It says nothing of that one."""
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


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class Compacted(Value):
    """The progress of compaction. It is durable before the first segment of a round is replaced, and again at the
    round's end.
    """

    gaps_below: Offset = NOWHERE
    """Batches may be missing, or hold fewer records than offsets, only below this offset."""
    clean_to: Offset = NOWHERE
    """Below this offset, no record remains whose key has a later record below it."""
    is_known: bool = True
    """False: the note could not be read, and this is the worst that it can have said."""
    is_mended: bool = True
    """False: an older compaction may have left emptied batches that clients cannot read (`mend_emptied`)."""


def checkpoint_of(active: Segment | None, end: Offset, log_start: Offset, lineage: int) -> Checkpoint:
    """A checkpoint by which everything below `end` is durable, the indexes of the active segment included."""
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
    """Raises CorruptData. A stamp of earlier versions has no lineage."""
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
    """Raises CorruptData. A checkpoint from before there was a journal has no lineage."""
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
    """Write the seal durably. Raises OSError."""
    write_file(disk, directory / SEALED, encode_fields({"leader_epoch": epoch}))
    disk.sync_directory(directory)


def read_seal(disk: Disk, directory: Path) -> LeaderEpoch | None:
    """The sealed leader epoch; None where there is no readable seal: an unreadable one never counted. Raises
    OSError.
    """
    try:
        return LeaderEpoch(int(decode_fields(read_file(disk, directory / SEALED))["leader_epoch"]))
    except (FileNotFoundError, CorruptData, KeyError, ValueError, TypeError):
        return None


def read_file(disk: Disk, path: Path) -> bytes:
    """Returns all of a small file. Raises FileNotFoundError."""
    file = disk.open(path)
    try:
        return file.read(0, file.size())
    finally:
        file.close()


def write_file(disk: Disk, path: Path, data: bytes | bytearray, *, sync: bool = True) -> None:
    """Replace a file as a whole.

    Its name is durable after the caller's `sync_directory`. Without `sync`, its contents are durable only after the
    caller syncs them too. Raises FullDisk where there is no room, with nothing replaced; OSError.
    """
    beside = write_beside(disk, path, data, sync=sync)
    with full_disks_told():
        disk.rename(beside, path)


def write_again(disk: Disk, path: Path, data: bytes) -> None:
    """Have a file hold these bytes, durably, whatever an earlier life may have failed to sync. Where it holds them
    already, they are written over themselves, for the page cache may have them as clean. No crash in between leaves
    anything else. As no name changes, it costs half of what a new file does. Raises as `write_file`."""
    file = disk.open(path)
    try:
        is_the_same = file.size() == len(data) and file.read(0, len(data)) == data
        if is_the_same:
            with full_disks_told():
                file.write_at(0, [data])
            file.sync()
    finally:
        file.close()
    if not is_the_same:
        write_file(disk, path, data)


def write_beside(disk: Disk, path: Path, data: bytes | bytearray, *, sync: bool = False) -> Path:
    """Write a replacement for a file under a temporary name, and return its path. It is not durable, except with
    `sync`.
    """
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
    """Makes a full disk raise FullDisk. Surrounds writes only, never a sync."""
    try:
        yield
    except OSError as error:
        if error.errno in OUT_OF_ROOM:
            raise FullDisk(*error.args) from error
        raise


def sync_file(disk: Disk, path: Path) -> None:
    """Sync a file that an earlier `write_file` without sync, or an earlier life, left in the page cache."""
    file = disk.open(path)
    try:
        file.sync()
    finally:
        file.close()


def mark_doubt(disk: Disk, directory: Path) -> None:
    """Mark the directory after a failed sync.

    This process or the next may open the directory again before the power goes. The kernel then returns bytes that
    never reached the disk, and reports a sync of them as a success. So recovery must write them again. The mark itself
    needs no sync, for a power cut leaves only what is true.

    Where there is no descriptor, inode or room for an empty file, a second name for the stamp needs none of them. If
    that fails too, an error is logged. Recovery writes journaled batches again in any case.
    """
    if disk.exists(directory / DOUBT):
        return
    try:
        disk.open(directory / DOUBT, create=True).close()
    except FileNotFoundError:
        return  # the directory is gone, with everything in doubt
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
    """Encode a small file of Headrace's own, with its checksum."""
    body = json.dumps({"version": 1, **fields}, separators=(", ", ": "))
    return f"{body}\n{crc32c(body.encode()):08x}\n".encode()


def decode_fields(data: bytes) -> dict[str, Any]:
    """Decode a file of `encode_fields`. Raises CorruptData."""
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
