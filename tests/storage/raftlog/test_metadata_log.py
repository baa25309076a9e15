"""A commit log as people read it: its snapshot, its entries, and every write of its files."""

from __future__ import annotations

from random import Random

from headrace.base.ids import BrokerEpoch, BrokerId
from headrace.metadata.codec import encode_event, encode_events, encode_line
from headrace.metadata.events import BrokerFenced, MetadataEvent
from headrace.raft.messages import Entry, EntryKind, HardState
from headrace.storage.raftlog.metadata_log import commit_log_as_json, raft_log_as_json
from headrace.storage.raftlog.raft_log import open_commit_log
from tests.storage.lossy_disk import LossyDisk
from tests.storage.raftlog.test_raft_log_laws import BORN, DIRECTORY, mark_at, membership


def fenced(number: int) -> BrokerFenced:
    return BrokerFenced(broker_id=BrokerId(number), broker_epoch=BrokerEpoch(number))


def change(index: int, *events: MetadataEvent) -> Entry:
    return Entry(1, index, encode_events(events), EntryKind.DATA)


def test_snapshot_entries_and_writes_are_shown() -> None:
    disk = LossyDisk(Random(1))
    log, _ = open_commit_log(disk, DIRECTORY, born=BORN)
    entries = [change(1, fenced(1)), change(2, fenced(2), fenced(3))]
    log.append(HardState(1, BrokerId(1)), entries)
    log.prepare_snapshot(mark_at(1), [encode_line(fenced(1))])
    log.install_snapshot(mark_at(1))
    log.append(None, [Entry(1, 3, membership(7).encoded(), EntryKind.MEMBERSHIP)])
    log.close()
    snapshot, second, third = commit_log_as_json(disk, DIRECTORY)
    assert (snapshot["snapshot"], snapshot["index"], snapshot["term"]) == (True, 1, 1)
    assert snapshot["events"] == [encode_event(fenced(1))]
    assert second == {"index": 2, "term": 1, "events": [encode_event(fenced(2)), encode_event(fenced(3))]}
    assert (third["index"], "events" in third) == (3, False)
    mark, *writes = raft_log_as_json(disk, DIRECTORY)
    assert mark == {key: snapshot[key] for key in ("snapshot", "index", "term", "membership")}
    assert [entry for write in writes for entry in write["entries"]][-2:] == [second, third]
