"""The work of `headrace debug`: reads log files and metadata as they lie on the disk, checks them, prints them.

Promises: it changes nothing, and reads a log one batch at a time. A damaged batch is printed, and the exit code is 1.
"""

from __future__ import annotations

import json as jsonlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

from headrace.base.errors import CorruptData, UsageError
from headrace.base.limits import REQUEST_BYTES_MAX
from headrace.base.reading import INT_MAX, is_natural, natural
from headrace.cli.output import print_json, print_line
from headrace.operations.records_as_json import as_json
from headrace.wire.batches import HEADER_BYTES, BatchHeader, CorruptBatch, check_batch, decode_records, parse_header

LOG_SUFFIX = ".log"


def dump_logs(path: Path, *, records: bool, json: bool) -> None:
    """Print every batch of a log file, or of all log files in a directory. Raises CorruptData, UsageError."""
    damaged = [file for file in _log_files(path) if not _dump_log(file, records=records, json=json)]
    if damaged:
        raise CorruptData(f"{damaged[0]} is damaged: see the last batch above.")


def _log_files(path: Path) -> list[Path]:
    if not path.is_dir():
        return [path]
    files = sorted(path.glob(f"*{LOG_SUFFIX}")) or sorted(path.glob(f"**/*{LOG_SUFFIX}"))
    if not files:
        raise UsageError(f"{path} holds no {LOG_SUFFIX} file; name a partition's directory, such as DIR/logs/orders-0.")
    return files


def _dump_log(path: Path, *, records: bool, json: bool) -> bool:
    """Print one file's batches. Returns False where it is damaged."""
    if not json:
        print_line(f"{path}  {path.stat().st_size} bytes")
    for position, header, batch in _batches(path):
        if isinstance(batch, CorruptData):
            if json:
                print_json({"file": str(path), "position": position, "damaged": str(batch)})
            else:
                print_line(f"  position {position}  DAMAGED: {batch}")
            return False
        assert header is not None
        fields = _batch_fields(position, header)
        if json:
            print_json({"file": str(path), **fields, **({"records": _records(path, header, batch)} if records else {})})
            continue
        print_line("  " + "  ".join(f"{name} {value}" for name, value in fields.items()))
        if records:
            for record in _records(path, header, batch):
                print_line("    " + jsonlib.dumps(record, ensure_ascii=False))
    return True


def _batches(path: Path) -> Iterator[tuple[int, BatchHeader | None, bytes | CorruptData]]:
    """Position, header and bytes of each batch. Where one is damaged, the problem comes instead, and nothing after
    it.
    """
    with path.open("rb") as file:
        position = 0
        while head := file.read(HEADER_BYTES):
            try:
                batch = head + _rest(file, head)
                header = check_batch(batch, compacted=True)
            except CorruptBatch as error:
                yield position, None, error
                return
            yield position, header, batch
            position += header.size


def _rest(file: BinaryIO, head: bytes) -> bytes:
    size = parse_header(head).size
    if not HEADER_BYTES <= size <= REQUEST_BYTES_MAX:
        raise CorruptBatch(f"A batch says {size} bytes, which cannot be.")
    return file.read(size - HEADER_BYTES)


def _batch_fields(position: int, header: BatchHeader) -> dict[str, Any]:
    """The fields of a batch, with names close to those of Kafka's own dump tool."""
    return {
        "position": position,
        "base_offset": header.base_offset,
        "last_offset": header.last_offset,
        "count": header.count,
        "size": header.size,
        "leader_epoch": header.leader_epoch,
        "base_timestamp": header.base_timestamp,
        "max_timestamp": header.max_timestamp,
        "compression": header.compression.name.lower(),
        "producer_id": header.producer_id,
        "producer_epoch": header.producer_epoch,
        "base_sequence": header.base_sequence,
        "transactional": header.is_transactional,
        "control": header.is_control,
        "crc": f"{header.crc:08x}",
    }


def _records(path: Path, header: BatchHeader, batch: bytes) -> list[dict[str, Any]]:
    topic, _, partition = path.parent.name.rpartition("-")
    index = natural(partition) if is_natural(partition, INT_MAX) else -1
    return [as_json(topic, index, record) for record in decode_records(batch)]


def dump_raft_log(directory: Path, *, json: bool) -> None:
    """Print each write, in order. Raises CorruptData, UsageError."""
    from headrace.storage.disk import LocalDisk
    from headrace.storage.raftlog.metadata_log import raft_log_as_json

    for write in raft_log_as_json(LocalDisk(), _metadata_place(directory).resolve()):
        if json:
            print_json(write)
            continue
        entries = write.pop("entries", [])
        print_line("  ".join(f"{key} {value}" for key, value in write.items()))
        for entry in entries:
            what = entry.get("events", entry.get("membership"))
            print_line(f"  {entry['index']}  term {entry['term']}  {jsonlib.dumps(what, ensure_ascii=False)}")


def _metadata_place(directory: Path) -> Path:
    inner = directory / "metadata"
    place = inner if inner.is_dir() else directory
    if not any(place.glob("*.wal")):
        raise UsageError(f"{directory} holds no metadata; name the directory that 'headrace up --data' was given.")
    return place


def dump_metadata(directory: Path, *, events: bool, json: bool) -> None:
    """Print the image, or the events that led to it. Raises CorruptData, UsageError."""
    from headrace.metadata.codec import image_as_json
    from headrace.storage.disk import LocalDisk
    from headrace.storage.raftlog.metadata_log import commit_log_as_json, load_image

    place = _metadata_place(directory)
    disk = LocalDisk()
    if events:
        for entry in commit_log_as_json(disk, place.resolve()):
            print_json(entry)
        return
    image = image_as_json(load_image(disk, place.resolve()))
    if json:
        print_json(image)
    else:
        print_line(jsonlib.dumps(image, indent=2, ensure_ascii=False))
