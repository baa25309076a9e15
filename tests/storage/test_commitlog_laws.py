"""Laws of the commit log: what was acknowledged is there after any power cut, once, in order, and no more than that."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from headrace.base.errors import CorruptData, StorageFailure
from headrace.base.ids import BrokerId
from headrace.raft.messages import Entry, HardState
from headrace.storage.commitlog import CommitLog, Recovery, open_commit_log, read_commit_log
from headrace.storage.disk import LocalDisk
from headrace.storage.walframe import FILE_HEADER, Frame, encode_frame, scan
from tests.storage.lossy_disk import LossyDisk, PowerCut

seeds = st.integers(0, 2**32).map(Random)
DIRECTORY = Path("/metadata")
ME = BrokerId(1)


class Life:
    """A commit log used by someone who remembers what it was told, over power cuts."""

    def __init__(self, random: Random) -> None:
        self.random = random
        self.disk = LossyDisk(random)
        self.log: CommitLog | None = None
        self.state = HardState()
        self.acknowledged: list[Entry] = []
        self.proposed: list[Entry] = []
        """Of an append that a cut interrupted: there whole, or not at all."""
        self.proposed_state: HardState | None = None
        self.snapshots = 0

    def boot(self) -> None:
        self.log, recovery = open_commit_log(self.disk, DIRECTORY)
        self.check(recovery)
        self.acknowledged = self.acknowledged[: recovery.snapshot_index] + list(recovery.entries)
        self.state = recovery.hard_state
        self.proposed, self.proposed_state = [], None

    def check(self, recovery: Recovery) -> None:
        """Acknowledged entries, then all or nothing of the interrupted ones; the snapshot of what was before it."""
        expected = self.acknowledged[recovery.snapshot_index :]
        assert list(recovery.entries) in (expected, expected + self.proposed)
        assert recovery.hard_state in (self.state, self.proposed_state)
        if recovery.snapshot is not None:
            assert list(recovery.snapshot.lines) == list(self.lines(recovery.snapshot_index, ends=False))
            assert recovery.snapshot.term == self.acknowledged[recovery.snapshot_index - 1].term

    def lines(self, index: int, *, ends: bool = True) -> Iterator[bytes]:
        for entry in self.acknowledged[:index]:
            yield entry.data.hex().encode() + (b"\n" if ends else b"")

    def append(self, count: int) -> None:
        assert self.log is not None
        term = self.state.term + (self.random.random() < 0.3 or self.state.term == 0)
        first = len(self.acknowledged) + 1
        self.proposed = [
            Entry(term, index, self.random.randbytes(self.random.choice([0, 1, 40, 5000])))
            for index in range(first, first + count)
        ]
        self.proposed_state = HardState(term, ME)
        self.log.append(self.proposed_state if term != self.state.term else None, self.proposed)
        self.state = self.proposed_state
        self.acknowledged += self.proposed
        self.proposed = []

    def snapshot(self) -> None:
        assert self.log is not None
        index = len(self.acknowledged)
        if index == 0:
            return
        self.log.roll()
        if self.random.random() < 0.3:
            self.append(1)  # a commit beside the snapshot
        self.log.install_snapshot(index, self.acknowledged[index - 1].term, self.lines(index))
        self.snapshots += 1

    def act(self) -> None:
        if self.random.random() < 0.15:
            self.snapshot()
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


@settings(max_examples=400)
@given(seeds, st.lists(st.integers(0, 60), min_size=1, max_size=6))
def test_what_was_acknowledged_survives_any_kill_and_any_power_cut(random: Random, lives: list[int]) -> None:
    life = Life(random)
    for operations in lives:
        life.live(operations)
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
    with pytest.raises(CorruptData, match=r"^The metadata commit log .* is damaged .*: restore .*, or start .*\.$"):
        open_commit_log(life.disk, DIRECTORY)
    assert bytes(inode.content) == before


@given(st.binary(max_size=300))
def test_scan_takes_any_bytes(data: bytes) -> None:
    result = scan(data)
    assert 0 <= result.good_bytes <= len(data)
    scan(FILE_HEADER + data)


entries = st.builds(Entry, st.integers(0, 2**63), st.integers(0, 2**63), st.binary(max_size=50))
hard_states = st.builds(HardState, st.integers(0, 2**63), st.integers(-1, 2**31 - 1).map(BrokerId))


@given(st.lists(st.builds(Frame, hard_states, st.lists(entries, max_size=3).map(tuple)), max_size=4))
def test_frames_scan_to_what_was_encoded(frames: list[Frame]) -> None:
    data = FILE_HEADER
    for frame in frames:
        data += encode_frame(frame, len(data))
    result = scan(data)
    assert (list(result.frames), result.good_bytes, result.damaged) == (frames, len(data), False)


def test_a_frame_inside_an_entry_is_never_taken_for_a_frame() -> None:
    """An entry may hold any bytes, also a frame's: the checksum covers the position."""
    inner = encode_frame(Frame(HardState(9, ME), ()), len(FILE_HEADER))
    torn = encode_frame(Frame(HardState(1, ME), (Entry(1, 1, inner * 3),)), len(FILE_HEADER))[:-1]
    assert not scan(FILE_HEADER + torn).damaged


# Stories


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
        log.install_snapshot(1, 1, [])


def test_a_snapshot_replaces_what_it_covers_and_is_readable_by_people(tmp_path: Path) -> None:
    disk, directory = LocalDisk(), tmp_path / "metadata"
    log, _ = open_commit_log(disk, directory)
    log.append(HardState(1, ME), [Entry(1, 1, b"a"), Entry(1, 2, b"b")])
    log.roll()
    log.append(None, [Entry(1, 3, b"c")])
    log.install_snapshot(2, 1, [b"first\n", b"second\n"])
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
    log.install_snapshot(1, 1, [b"line %d\n" % at for at in range(100)])
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
    log.install_snapshot(2, 1, [])
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
    log.install_snapshot(1, 1, [])
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
    log.install_snapshot(1, 7, [])
    log.close()
    assert read_commit_log(disk, directory).hard_state == HardState(7, ME)
