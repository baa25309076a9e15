"""Reads the commit log's entries and snapshots as metadata. Never writes. Raises CorruptData for anything that is no
metadata.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from headrace.base.errors import StorageFailure
from headrace.base.ports import Disk
from headrace.metadata.codec import decode_events, decode_line, encode_line, shown_event
from headrace.metadata.events import MetadataEvent
from headrace.metadata.image import EMPTY_IMAGE, MetadataImage
from headrace.raft.messages import Entry, EntryKind, SnapshotMark
from headrace.storage.raftlog.raft_log import read_commit_log
from headrace.storage.raftlog.recovery import Recovery, frames_of
from headrace.storage.raftlog.snapshots import Snapshot


def image_of_snapshot(snapshot: Snapshot | None) -> MetadataImage:
    """The image in a snapshot; the empty image where there is none. Raises CorruptData."""
    if snapshot is None:
        return EMPTY_IMAGE
    return EMPTY_IMAGE.replay(map(decode_line, snapshot.lines), index=snapshot.mark.index, is_snapshot=True)


def snapshot_lines(image: MetadataImage) -> Iterator[bytes]:
    """The lines of an image's snapshot, generated one by one. Safe in a thread."""
    return map(encode_line, image.snapshot())


def events_of(entry: Entry) -> tuple[MetadataEvent, ...]:
    """The metadata events of an entry. A membership, and the entry that opens a leader's term, have none. Raises
    CorruptData.
    """
    return decode_events(entry.data) if entry.kind is EntryKind.DATA else ()


def load_image(disk: Disk, directory: Path) -> MetadataImage:
    """The image that the commit log in this directory leads to, for tools. Entries that are not yet committed count as
    committed. Raises CorruptData, StorageFailure.
    """
    recovery = read_commit_log(disk, directory)
    image = image_of_snapshot(recovery.snapshot)
    for entry in recovery.entries:
        image = image.replay(events_of(entry), index=entry.index)
    return image


def commit_log_as_json(disk: Disk, directory: Path) -> Iterator[dict[str, Any]]:
    """The commit log in this directory as JSON objects: one for the snapshot (if any), and one for each entry after it.
    An entry is {"index", "term", "events": [...]}, or has "membership" in place of events. Raises CorruptData,
    StorageFailure.
    """
    recovery: Recovery = read_commit_log(disk, directory)
    if (snapshot := recovery.snapshot) is not None:
        events = [shown_event(decode_line(line)) for line in snapshot.lines]
        yield {"snapshot": True, **_mark_as_json(snapshot.mark), "events": events}
    yield from map(_entry_as_json, recovery.entries)


def raft_log_as_json(disk: Disk, directory: Path) -> Iterator[dict[str, Any]]:
    """Every write in the commit log's files, in order, even if later ones replaced it; the snapshot's mark comes first.
    A write is {"file", "term", "vote", "follows", "entries": [...]}, with "restores" where a leader's snapshot replaced
    everything before. Raises CorruptData, StorageFailure.
    """
    recovery = read_commit_log(disk, directory)
    if recovery.snapshot is not None:
        yield {"snapshot": True, **_mark_as_json(recovery.mark)}
    try:
        for path, frame in frames_of(disk, directory):
            yield {
                "file": path.name,
                "term": frame.hard_state.term,
                "vote": frame.hard_state.vote,
                "follows": frame.follows,
                **({"restores": True} if frame.restores else {}),
                "entries": [_entry_as_json(entry) for entry in frame.entries],
            }
    except OSError as error:
        raise StorageFailure(f"The metadata commit log in {directory} cannot be read ({error}).") from error


def _mark_as_json(mark: SnapshotMark) -> dict[str, Any]:
    return {"index": mark.index, "term": mark.term, "membership": json.loads(mark.membership.encoded())}


def _entry_as_json(entry: Entry) -> dict[str, Any]:
    place = {"index": entry.index, "term": entry.term}
    if entry.kind is EntryKind.MEMBERSHIP:
        return {**place, "membership": json.loads(entry.data)}
    return {**place, "events": [shown_event(event) for event in events_of(entry)]}
