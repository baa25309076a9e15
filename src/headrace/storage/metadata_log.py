"""The commit log's entries and snapshots, read as metadata. Promises: only reads; what is not metadata: CorruptData."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from headrace.base.ports import Disk
from headrace.metadata.codec import decode_events, decode_line, encode_event, encode_line
from headrace.metadata.image import EMPTY_IMAGE, MetadataImage
from headrace.storage.commitlog import Recovery, read_commit_log
from headrace.storage.snapshots import Snapshot


def image_of_snapshot(snapshot: Snapshot | None) -> MetadataImage:
    """Raises CorruptData."""
    if snapshot is None:
        return EMPTY_IMAGE
    return EMPTY_IMAGE.replay(map(decode_line, snapshot.lines), index=snapshot.index)


def snapshot_lines(image: MetadataImage) -> Iterator[bytes]:
    """The image as a snapshot's lines, made one by one as they are asked for. Safe in a thread."""
    return map(encode_line, image.snapshot())


def load_image(disk: Disk, directory: Path) -> MetadataImage:
    """The image that the commit log in this directory leads to, for tools: entries that the broker has not yet
    committed are taken as committed. Raises CorruptData, StorageFailure."""
    recovery = read_commit_log(disk, directory)
    image = image_of_snapshot(recovery.snapshot)
    for entry in recovery.entries:
        image = image.replay(decode_events(entry.data), index=entry.index)
    return image


def commit_log_as_json(disk: Disk, directory: Path) -> Iterator[dict[str, Any]]:
    """What the commit log in this directory holds, one JSON object for the snapshot (if any) and one for each entry
    after it: {"index", "term", "events": [...]}. Raises CorruptData, StorageFailure."""
    recovery: Recovery = read_commit_log(disk, directory)
    if (snapshot := recovery.snapshot) is not None:
        events = [encode_event(decode_line(line)) for line in snapshot.lines]
        yield {"snapshot": True, "index": snapshot.index, "term": snapshot.term, "events": events}
    for entry in recovery.entries:
        events = [encode_event(event) for event in decode_events(entry.data)]
        yield {"index": entry.index, "term": entry.term, "events": events}
