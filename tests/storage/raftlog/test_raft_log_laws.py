"""Laws of the commit log: what was acknowledged is there after any power cut, once, in order, and no more than that."""

from __future__ import annotations

import gzip
import struct
import uuid
from dataclasses import dataclass, field, replace
from pathlib import Path
from random import Random

import pytest
from crc32c import crc32c
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from headrace.base.errors import CorruptData, StorageFailure
from headrace.base.ids import BrokerId, DirectoryId
from headrace.raft.membership import Membership, Peer
from headrace.raft.messages import Entry, EntryKind, HardState, SnapshotMark
from headrace.storage.disk import LocalDisk
from headrace.storage.raftlog.raft_log import RaftLog, Recovery, open_commit_log, read_commit_log
from headrace.storage.raftlog.snapshots import Snapshot
from headrace.storage.raftlog.walframe import FILE_HEADER, FILE_HEADER_1, Frame, encode_frame, scan
from tests.storage.lossy_disk import LossyDisk, PowerCut
from tests.tiers import examples

seeds = st.integers(0, 2**32).map(Random)
DIRECTORY = Path("/metadata")
ME = BrokerId(1)
BORN = Membership(frozenset({Peer(ME, DirectoryId(uuid.UUID(int=1)))}))


def membership(number: int) -> Membership:
    return Membership(BORN.voters, frozenset({Peer(BrokerId(number + 2), DirectoryId(uuid.UUID(int=number)))}))


def mark_at(index: int, term: int = 1) -> SnapshotMark:
    return SnapshotMark(index, term, membership(index))


@dataclass(frozen=True)
class Content:
    """The content of a log: entries from the first one on, of which a snapshot may cover some."""

    history: tuple[Entry, ...] = ()
    state: HardState = field(default_factory=HardState)
    snapshot: int = 0

    @property
    def mark(self) -> SnapshotMark:
        return mark_at(self.snapshot, self.history[self.snapshot - 1].term) if self.snapshot else NO_MARK

    def lines(self) -> list[bytes]:
        return [entry.data.hex().encode() for entry in self.history[: self.snapshot]]

    def is_in(self, recovery: Recovery) -> bool:
        return (
            recovery.hard_state == self.state
            and recovery.mark == self.mark
            and (recovery.snapshot is None or list(recovery.snapshot.lines) == self.lines())
            and recovery.entries == self.history[self.snapshot :]
        )


NO_MARK = SnapshotMark(0, 0, BORN)


class Life:
    """A commit log used by someone who remembers what it was told, over power cuts."""

    def __init__(self, random: Random) -> None:
        self.random = random
        self.disk = LossyDisk(random)
        self.log: RaftLog | None = None
        self.content = Content()
        self.possible: list[Content] = []
        """Possible contents after an operation that a cut interrupted."""
        self.installed = 0

    def boot(self) -> None:
        self.log, recovery = open_commit_log(self.disk, DIRECTORY, born=BORN)
        possible = [each for each in (self.content, *self.possible) if each.is_in(recovery)]
        assert possible, (recovery, self.content, self.possible)
        self.content, self.possible = possible[0], []

    def entries(self, first: int, count: int, term: int) -> tuple[Entry, ...]:
        pick = self.random.choice
        return tuple(
            Entry(term, index, self.random.randbytes(pick([0, 1, 40, 5000])), pick(list(EntryKind)))
            for index in range(first, first + count)
        )

    def append(self, count: int, *, follows: int | None = None) -> None:
        """Behind what is there, or in place of some of it: then in a later term."""
        assert self.log is not None
        before = self.content
        end = len(before.history) if follows is None else follows
        raises = self.random.random() < 0.3 or before.state.term == 0 or follows is not None
        state = HardState(before.state.term + 1, ME) if raises else before.state
        entries = self.entries(end + 1, count, state.term)
        history = before.history[:end] + entries if entries else before.history
        after = replace(before, history=history, state=state)
        self.possible = [after]
        self.log.append(state if raises else None, entries)
        self.content, self.possible = after, []

    def replace_some(self) -> None:
        self.append(self.random.randrange(1, 4), follows=self.random.randrange(self.content.snapshot, self.end + 1))

    @property
    def end(self) -> int:
        return len(self.content.history)

    def take_snapshot(self) -> None:
        assert self.log is not None
        index = self.end
        if index == self.content.snapshot:
            return
        self.log.roll()
        shot = replace(self.content, snapshot=index)
        self.log.prepare_snapshot(shot.mark, (line + b"\n" for line in shot.lines()))
        if self.random.random() < 0.3:
            self.append(1)  # a commit beside the snapshot
        after = replace(self.content, snapshot=index)
        self.possible = [after]
        self.log.install_snapshot(shot.mark)
        self.content, self.possible = after, []

    def receive_snapshot(self) -> None:
        """Of another log, which may be shorter than this one; sometimes only in part, or begun twice."""
        assert self.log is not None
        index = self.random.randrange(self.content.snapshot + 1, self.end + 4)
        history = self.entries(1, index, self.content.state.term)
        after = Content(history, self.content.state, index)
        data = snapshot_bytes(after)
        self.send(data[: self.random.randrange(len(data))])
        if self.random.random() < 0.2:
            return
        self.send(data)
        self.possible = [after]
        snapshot = self.log.install_received(after.mark)
        assert snapshot == Snapshot(after.mark, tuple(after.lines()))
        self.content, self.possible = after, []
        self.installed += 1

    def replace_all(self) -> None:
        """As a recovery by force does: a state behind all that the log holds, in a term of its own."""
        assert self.log is not None
        index = self.end + self.random.randrange(1, 5)
        state = HardState(self.content.state.term + 3)
        after = Content(self.entries(1, index, state.term), state, index)
        self.possible = [after]
        self.log.replace(state, after.mark, (line + b"\n" for line in after.lines()))
        self.content, self.possible = after, []

    def send(self, data: bytes) -> None:
        assert self.log is not None
        at = 0
        while at < len(data) or at == 0:
            size = self.random.randrange(1, 3000)
            self.log.receive_chunk(at, data[at : at + size])
            at += size

    def act(self) -> None:
        chance = self.random.random()
        if chance < 0.15:
            self.take_snapshot()
        elif chance < 0.25:
            self.receive_snapshot()
        elif chance < 0.3:
            self.replace_all()
        elif chance < 0.4:
            self.replace_some()
        else:
            self.append(self.random.randrange(0, 4))

    def live(self, operations: int) -> None:
        """Until the power goes, or only the process, `operations` disk operations from now."""
        self.disk.cut_at = operations
        try:
            self.boot()
            while True:
                self.act()
        except PowerCut:
            if self.random.random() < 0.7:
                self.disk.power_cut()
            self.disk.cut_at = None


def snapshot_bytes(content: Content) -> bytes:
    """As another member's disk has it."""
    disk = LossyDisk(Random(0))
    log, _ = open_commit_log(disk, DIRECTORY, born=BORN)
    log.prepare_snapshot(content.mark, (line + b"\n" for line in content.lines()))
    log.install_snapshot(content.mark)
    found = b""
    while (part := log.read_snapshot(content.snapshot, len(found), 1000)) is not None:
        found += part[0]
        if part[1]:
            break
    assert log.read_snapshot(content.snapshot + 1, 0, 1000) is None
    return found


@settings(max_examples=examples(600))
@given(seeds, st.lists(st.integers(0, 60), min_size=1, max_size=6))
def test_what_was_acknowledged_survives_any_kill_and_any_power_cut(random: Random, lives: list[int]) -> None:
    life = Life(random)
    for operations in lives:
        life.live(operations)
    life.boot()


@given(seeds, st.integers(0, 80))
def test_a_crash_at_any_operation_of_an_installation_leaves_the_old_or_the_new(random: Random, at: int) -> None:
    life = Life(random)
    life.boot()
    life.append(3)
    life.disk.cut_at = at
    try:
        for _ in range(4):
            random.choice([life.receive_snapshot, life.take_snapshot, life.replace_some, life.replace_all])()
    except PowerCut:
        life.disk.power_cut()
    life.disk.cut_at = None
    life.boot()
    life.append(2)
    life.boot()


@given(seeds, st.integers(1, 12), st.data())
def test_a_torn_tail_is_cut_wherever_it_is_torn(random: Random, appends: int, data: st.DataObject) -> None:
    """The file may end anywhere in its last frame, or that frame may hold anything: the rest is there."""
    life = Life(random)
    life.boot()
    for _ in range(appends):
        life.append(random.randrange(1, 3))
    (inode,) = life.disk.directory.names.values()
    whole = bytes(inode.content)
    frames = scan(whole).frames
    last = len(encode_frame(frames[-1], 0))
    kept = data.draw(st.integers(len(whole) - last, len(whole) - 1))
    junk = data.draw(st.sampled_from([b"", bytes(600), b"\xff" * 30, whole[:100]]))
    inode.content = bytearray(whole[:kept] + junk)
    assume(not inode.content.startswith(whole))
    _, recovery = open_commit_log(life.disk, DIRECTORY)
    assert recovery.entries == tuple(entry for frame in frames[:-1] for entry in frame.entries)
    assert recovery.cut_bytes == kept + len(junk) - (len(whole) - last)
    assert open_commit_log(life.disk, DIRECTORY)[1].cut_bytes == 0, "it is cut for good"


@given(seeds, st.integers(2, 8), st.data())
def test_a_damaged_middle_is_refused_with_what_to_do_and_nothing_is_changed(
    random: Random, appends: int, data: st.DataObject
) -> None:
    life = Life(random)
    life.boot()
    for _ in range(appends):
        life.append(random.randrange(1, 3))
    (inode,) = life.disk.directory.names.values()
    frames = scan(bytes(inode.content)).frames
    last = len(encode_frame(frames[-1], 0))
    at = data.draw(st.integers(0, len(inode.content) - last - 1))
    inode.content[at] ^= 1 << data.draw(st.integers(0, 7))
    before = bytes(inode.content)
    with pytest.raises(
        CorruptData, match=r"^The metadata commit log .* is damaged .*: where .* --join; where .* restore .*\.$"
    ):
        open_commit_log(life.disk, DIRECTORY)
    assert bytes(inode.content) == before


@given(st.binary(max_size=300))
def test_scan_takes_any_bytes(data: bytes) -> None:
    result = scan(data)
    assert 0 <= result.good_bytes <= len(data)
    scan(FILE_HEADER + data)


hard_states = st.builds(HardState, st.integers(0, 2**63), st.integers(-1, 2**31 - 1).map(BrokerId))


@st.composite
def frames_made(draw: st.DrawFn) -> Frame:
    follows = draw(st.integers(0, 2**62))
    contents = draw(st.lists(st.tuples(st.integers(0, 2**63), st.binary(max_size=50), st.sampled_from(EntryKind))))
    entries = tuple(Entry(term, follows + at, data, kind) for at, (term, data, kind) in enumerate(contents, 1))
    return Frame(draw(hard_states), follows, entries, draw(st.booleans()))


@given(st.lists(frames_made(), max_size=4))
def test_frames_scan_to_what_was_encoded(frames: list[Frame]) -> None:
    data = FILE_HEADER
    for frame in frames:
        data += encode_frame(frame, len(data))
    result = scan(data)
    assert (list(result.frames), result.good_bytes, result.damaged) == (frames, len(data), False)


def test_a_frame_inside_an_entry_is_never_taken_for_a_frame() -> None:
    """An entry may hold any bytes, also a frame's: the checksum covers the position."""
    inner = encode_frame(Frame(HardState(9, ME), 0), len(FILE_HEADER))
    torn = encode_frame(Frame(HardState(1, ME), 0, (Entry(1, 1, inner * 3),)), len(FILE_HEADER))[:-1]
    assert not scan(FILE_HEADER + torn).damaged


# Stories


def install(log: RaftLog, index: int, lines: list[bytes]) -> None:
    log.prepare_snapshot(mark_at(index), lines)
    log.install_snapshot(mark_at(index))


def test_a_failed_sync_is_final() -> None:
    disk = LossyDisk(Random(1))
    log, _ = open_commit_log(disk, DIRECTORY)
    log.append(HardState(1, ME), [Entry(1, 1, b"a")])
    disk.fail_sync = True
    with pytest.raises(StorageFailure, match="check the disk, then start again"):
        log.append(None, [Entry(1, 2, b"b")])
    disk.fail_sync = False
    with pytest.raises(StorageFailure):
        log.append(None, [Entry(1, 2, b"b")])
    with pytest.raises(StorageFailure):
        log.roll()
    with pytest.raises(StorageFailure):
        log.prepare_snapshot(mark_at(1), [])


def test_a_snapshot_replaces_what_it_covers_and_is_readable_by_people(tmp_path: Path) -> None:
    disk, directory = LocalDisk(), tmp_path / "metadata"
    log, _ = open_commit_log(disk, directory)
    log.append(HardState(1, ME), [Entry(1, 1, b"a"), Entry(1, 2, b"b")])
    log.roll()
    log.append(None, [Entry(1, 3, b"c")])
    install(log, 2, [b"first\n", b"second\n"])
    log.close()
    assert sorted(path.name for path in directory.iterdir()) == [f"{2:020d}.snapshot", f"{3:020d}.wal"]
    recovery = read_commit_log(disk, directory)
    assert recovery.snapshot is not None
    assert recovery.snapshot.lines == (b"first", b"second")
    assert recovery.entries == (Entry(1, 3, b"c"),)
    assert recovery.hard_state == HardState(1, ME)


@pytest.mark.parametrize("damage", ["flip", "cut", "grow", "rename"])
def test_a_damaged_snapshot_is_refused(tmp_path: Path, damage: str) -> None:
    disk, directory = LocalDisk(), tmp_path / "metadata"
    log, _ = open_commit_log(disk, directory)
    log.append(HardState(1, ME), [Entry(1, 1, b"a")])
    log.roll()
    install(log, 1, [b"line %d\n" % at for at in range(100)])
    path = directory / f"{1:020d}.snapshot"
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1 if damage == "flip" else 0
    path.write_bytes({"cut": data[:-1], "grow": data + b"x"}.get(damage, data))
    if damage == "rename":
        path.rename(directory / f"{2:020d}.snapshot")
    with pytest.raises(CorruptData, match="restore the directory"):
        open_commit_log(disk, directory)


@pytest.mark.parametrize("lost", [0, 1])
def test_a_lost_file_is_refused(tmp_path: Path, lost: int) -> None:
    """Of two files, the first or the second is gone; the snapshot covers neither wholly."""
    disk, directory = LocalDisk(), tmp_path / "metadata"
    log, _ = open_commit_log(disk, directory)
    log.append(HardState(1, ME), [Entry(1, index, b"a") for index in (1, 2, 3)])
    install(log, 2, [])
    log.roll()
    log.append(None, [Entry(1, 4, b"b")])
    log.roll()
    log.close()
    files = sorted(directory.glob("*.wal"))
    assert len(files) == 3
    files[lost].unlink()
    with pytest.raises(CorruptData, match="is damaged"):
        open_commit_log(disk, directory)


def test_a_file_without_a_successor_that_a_snapshot_needs_is_refused(tmp_path: Path) -> None:
    disk, directory = LocalDisk(), tmp_path / "metadata"
    log, _ = open_commit_log(disk, directory)
    log.append(HardState(1, ME), [Entry(1, 1, b"a")])
    log.roll()
    install(log, 1, [])
    (directory / f"{2:020d}.wal").unlink()
    with pytest.raises(CorruptData, match="what came after entry 1 is missing"):
        open_commit_log(disk, directory)


def test_the_hard_state_outlives_a_file_that_was_only_begun(tmp_path: Path) -> None:
    """Killed between the header and the hard state of a new file: the file that still has it is removed later."""
    disk, directory = LocalDisk(), tmp_path / "metadata"
    log, _ = open_commit_log(disk, directory)
    log.append(HardState(7, ME), [Entry(7, 1, b"a")])
    log.close()
    (directory / f"{2:020d}.wal").write_bytes(FILE_HEADER)
    log, _ = open_commit_log(disk, directory)
    log.roll()
    install(log, 1, [])
    log.close()
    assert read_commit_log(disk, directory).hard_state == HardState(7, ME)


def test_later_writes_replace_earlier_ones_over_files(tmp_path: Path) -> None:
    """A leader's entries take the place of what was written in a file before."""
    disk, directory = LocalDisk(), tmp_path / "metadata"
    log, _ = open_commit_log(disk, directory)
    log.append(HardState(1, ME), [Entry(1, index, b"a") for index in (1, 2, 3)])
    log.roll()
    log.append(HardState(2, ME), [Entry(2, 2, b"b")])
    log.roll()
    log.append(None, [Entry(2, 3, b"c", EntryKind.MEMBERSHIP)])
    log.close()
    recovery = read_commit_log(disk, directory)
    assert recovery.entries == (Entry(1, 1, b"a"), Entry(2, 2, b"b"), Entry(2, 3, b"c", EntryKind.MEMBERSHIP))
    assert [path.name for path in sorted(directory.iterdir())] == [f"{number:020d}.wal" for number in (1, 4, 5)]


def test_a_damaged_snapshot_from_the_leader_changes_nothing(tmp_path: Path) -> None:
    disk, directory = LocalDisk(), tmp_path / "metadata"
    log, _ = open_commit_log(disk, directory)
    log.append(HardState(1, ME), [Entry(1, 1, b"a")])
    data = bytearray(snapshot_bytes(Content((Entry(1, 1, b"x"), Entry(1, 2, b"y")), HardState(), 2)))
    data[-3] ^= 1
    log.receive_chunk(0, bytes(data))
    with pytest.raises(CorruptData, match="look at the disk of the controller"):
        log.install_received(mark_at(2))
    assert read_commit_log(disk, directory).entries == (Entry(1, 1, b"a"),)
    data[-3] ^= 1
    log.receive_chunk(0, bytes(data))
    with pytest.raises(CorruptData):
        log.install_received(mark_at(2, term=7))
    log.receive_chunk(0, bytes(data))
    log.install_received(mark_at(2))
    assert read_commit_log(disk, directory).mark == mark_at(2)


def test_an_own_snapshot_that_a_leaders_overtook_is_dropped(tmp_path: Path) -> None:
    disk, directory = LocalDisk(), tmp_path / "metadata"
    log, _ = open_commit_log(disk, directory)
    log.append(HardState(1, ME), [Entry(1, 1, b"a")])
    log.roll()
    log.prepare_snapshot(mark_at(1), [])
    log.receive_chunk(0, snapshot_bytes(Content((Entry(1, 1, b"x"), Entry(1, 2, b"y")), HardState(), 2)))
    log.install_received(mark_at(2))
    log.install_snapshot(mark_at(1))
    assert [path.name for path in sorted(directory.glob("*.snapshot*"))] == [f"{2:020d}.snapshot"]
    log.append(None, [Entry(1, 3, b"c")])
    log.close()
    assert open_commit_log(disk, directory)[1].entries == (Entry(1, 3, b"c"),)


def version_1(*frames: tuple[int, list[Entry]]) -> bytes:
    """A file as it was written before entries had kinds."""
    data = FILE_HEADER_1
    for term, entries in frames:
        body = struct.pack("<QiI", term, ME, len(entries))
        for entry in entries:
            body += struct.pack("<QQI", entry.term, entry.index, len(entry.data)) + entry.data
        checksum = crc32c(body, crc32c(struct.pack("<QI", len(data), len(body))))
        data += struct.pack("<4sII", b"\xf1HRf", len(body), checksum) + body
    return data


@pytest.mark.parametrize("torn", [b"", b"half a frame"])
def test_a_directory_of_version_1_is_taken_over(tmp_path: Path, torn: bytes) -> None:
    disk, directory = LocalDisk(), tmp_path / "metadata"
    directory.mkdir()
    head = b'{"format": "headrace metadata snapshot 1", "index": 2, "term": 1}\n'
    (directory / f"{2:020d}.snapshot").write_bytes(gzip.compress(head + b"first\nsecond\n"))
    (directory / f"{3:020d}.wal").write_bytes(version_1((1, []), (1, [Entry(1, 3, b"c")])))
    (directory / f"{4:020d}.wal").write_bytes(version_1((1, []), (2, []), (2, [Entry(2, 4, b"d")])) + torn)
    recovery = read_commit_log(disk, directory, born=BORN)
    log, opened = open_commit_log(disk, directory, born=BORN)
    assert opened == recovery
    assert recovery.mark == SnapshotMark(2, 1, BORN)
    assert recovery.entries == (Entry(1, 3, b"c"), Entry(2, 4, b"d"))
    assert recovery.hard_state == HardState(2, ME)
    assert recovery.cut_bytes == len(torn)
    log.append(None, [Entry(2, 5, b"e", EntryKind.MEMBERSHIP)])
    data = log.read_snapshot(2, 0, 1000)
    assert data is not None
    log.close()
    again = open_commit_log(disk, directory)[1]
    assert again.mark == SnapshotMark(2, 1, BORN), "what it was taken over with is kept"
    assert again.entries == (*recovery.entries, Entry(2, 5, b"e", EntryKind.MEMBERSHIP))


def test_a_lost_file_of_version_1_is_refused(tmp_path: Path) -> None:
    directory = tmp_path / "metadata"
    directory.mkdir()
    (directory / f"{1:020d}.wal").write_bytes(version_1((1, []), (1, [Entry(1, 1, b"a")])))
    (directory / f"{4:020d}.wal").write_bytes(version_1((1, []), (1, [Entry(1, 4, b"d")])))
    with pytest.raises(CorruptData, match="entry 4 follows entry 1"):
        open_commit_log(LocalDisk(), directory)
