"""The comparison of led partitions finds what is planted in the native road, each time in a copy of the crate."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import Final

import pytest

from tests.tiers import long_only
from tests.wire.test_native_plants import Plant, compiled, copied, fuzzed, ran

TOOL: Final = ("partition_fuzz", "--operations", "100000")
FETCHES: Final = ("partition_fuzz", "--fetches", "--operations", "30000")
PYTEST: Final = ("pytest", "-q", "-p", "no:cacheprovider")
FINDER_OF_SEVERAL: Final = str(Path(__file__).with_name("test_hot_several.py"))
READING: Final = "partition/reading.rs"
PRODUCING: Final = "partition/producing.rs"
APPEND, DURABLE, ROOM, RULES, STATE = (
    f"partition/{name}.rs" for name in ("append", "durable", "room", "rules", "state")
)
PLANTS: Final[dict[str, Plant]] = {
    "a gap of sequences is taken": (
        APPEND,
        "i64::from(header.base_sequence) == next_sequence(",
        "i64::from(header.base_sequence) >= next_sequence(",
    ),
    "a batch that came before is appended again": (
        APPEND,
        "i64::from(header.base_sequence) == next_sequence(",
        "i64::from(header.base_sequence) <= next_sequence(",
    ),
    "an old producer epoch is taken": (
        APPEND,
        '"epoch").extract::<i16>()? == header.producer_epoch',
        '"epoch").extract::<i16>()? >= header.producer_epoch',
    ),
    "the first batch stays remembered in place of the last": (
        APPEND,
        'call!(attribute!(state, "batches"), "append", batch)',
        'call!(attribute!(state, "batches"), "appendleft", batch)',
    ),
    "the producer that wrote counts as idle": (
        APPEND,
        '"move_to_end", header.producer_id)',
        '"get", header.producer_id)',
    ),
    "open transactions are not heeded": (APPEND, "parts.open.bind(py).is_truthy()? || ", ""),
    "the CRC is not looked at": (APPEND, "batches::check(batch, 0, batch.len(), false)", "Header::read(batch)"),
    "bytes may follow the batch": (APPEND, "length + 12 == size", "length + 12 <= size"),
    "a batch may begin at another offset": (APPEND, "header.base_offset == 0", "header.base_offset >= 0"),
    "max.message.bytes is not heeded": (APPEND, "|| size > settings.max_message_bytes", ""),
    "min.insync.replicas is not heeded": (APPEND, "copies >= min_insync_replicas", "copies >= 1"),
    "a partition that has ended takes batches": (
        APPEND,
        "!self.role().is_over()",
        "(self.role().is_over() || true)",
    ),
    "a stopped gate lets batches through": (
        APPEND,
        '!attribute!(gate, "is_stopped").is_truthy()?',
        '!attribute!(gate, "is_stopped").is_none()',
    ),
    "a partition that is taken over takes batches": (
        APPEND,
        '!attribute!(gate, "takes_over").is_truthy()?',
        '!attribute!(gate, "takes_over").is_none()',
    ),
    "a batch overtakes those that are unpacked": (
        APPEND,
        '!attribute!(parts.line.bind(py), "_places").is_truthy()?',
        '!attribute!(parts.line.bind(py), "_places").is(&self.kinds.0)',
    ),
    "a log that is for reading only takes batches": (
        APPEND,
        "|| self.log().is_read_only()",
        "",
    ),
    "a batch overtakes one that was refused": (
        APPEND,
        "turned_away.contains(header.producer_id)?",
        "turned_away.contains(NO_PRODUCER_ID)?",
    ),
    "a batch overtakes those that are carried here": (
        APPEND,
        "header.base_sequence == 0 || attribute!",
        "header.base_sequence >= 0 || attribute!",
    ),
    "the room on the disk is not heeded": (APPEND, '"left").extract::<i64>()? < 0', '"left").extract::<i64>()? < -1'),
    "an acknowledgement comes before its flush": (
        APPEND,
        "self.log().set_owed(admitted.end);",
        "self.log().set_owed(admitted.end);\n            self.log().set_flushed_end(admitted.end);",
    ),
    "what the leader alone acknowledges is held": (APPEND, "config.fsync && !needs_isr", "false && !needs_isr"),
    "the journal's pending bytes are not counted": (
        APPEND,
        'add(&known(self.log().journal(py), "journal")?, pyo3::intern!(py, "_pending_bytes"), admitted.size)?;',
        "",
    ),
    "held batches do not count for the segment's size": (
        ROOM,
        "active.size() + held_size + coming.size <= config.segment_bytes",
        "active.size() + coming.size <= config.segment_bytes",
    ),
    "an index entry is left out": (
        ROOM,
        "if active.since_entry() > interval {",
        "if active.since_entry() > interval + 60 {",
    ),
    "the leader epoch in the log is the client's": (
        APPEND,
        "self.epoch.to_be_bytes()[4..]",
        "self.header.leader_epoch.to_be_bytes()",
    ),
    "readers get the batch as the client sent it": (
        APPEND,
        "made[..prefix.len()].copy_from_slice(prefix)",
        "made[..prefix.len()].copy_from_slice(&batch[..prefix.len()])",
    ),
    "what nobody reads is kept for readers": (
        APPEND,
        "> self.limits.newest_unread_bytes_max",
        "> self.limits.newest_unread_bytes_max * 2",
    ),
    "followers are not told": (APPEND, 'call!(feed, "on_appended", partition);', "let _ = &feed;"),
    "the producers' snapshot comes late": (APPEND, "appended >= self.role()", "appended > self.role()"),
    "a compacted topic takes records without keys": (
        APPEND,
        "(found.all_keyed || !settings.compact)",
        "(found.all_keyed || true)",
    ),
    "records may be as old as they like": (
        RULES,
        "now_ms.saturating_sub(before) <= oldest",
        "before <= before.max(oldest)",
    ),
    "the high watermark is one off": (
        STATE,
        "self.high_watermark.store(reached, Relaxed)",
        "self.high_watermark.store(reached + 1, Relaxed)",
    ),
    "what Python knows of the leader stays behind": (
        STATE,
        "self.is_behind.store(true, Relaxed)",
        "self.is_behind.store(false, Relaxed)",
    ),
    "the high watermark is this broker's own flushed end": (
        STATE,
        "end.min(self.others_end.load(Relaxed))",
        "end",
    ),
    "those who wait for a commit are not told": (
        DURABLE,
        'attribute!(parts.commits.bind(py), "_waiting").is_truthy()?',
        'attribute!(parts.commits.bind(py), "_waiting").is_none()',
    ),
    "fetches are not woken": (
        DURABLE,
        '|| attribute!(fetches, "_waiting").is_truthy()?',
        "",
    ),
    "upkeep has to wait for a flush": (
        DURABLE,
        "!is_synced || needs_upkeep(py, self.log(), parts.aborted.bind(py))?",
        "!is_synced",
    ),
    "bytes that were told are withheld": (DURABLE, "if is_told { 0 } else { withheld }", "withheld"),
}
PLANTS_OF_FETCHES: Final[dict[str, Plant]] = {
    "readers see one record above the high watermark": (
        READING,
        "self.newest(py, offset, room.max(0), high_watermark, ",
        "self.newest(py, offset, room.max(0), high_watermark + 1, ",
    ),
    "the log begins at 0, whatever was deleted": (READING, "stable, start, records", "stable, 0, records"),
    "a fetch that waits is not woken": (READING, ".set_item(waiter, py.None())?;", ".contains(waiter)?;"),
    "a fetch that was answered is told on": (READING, "waiting.del_item(waiter)?;", "waiting.contains(waiter)?;"),
    "the bytes of the whole fetch have no bound": (READING, "limit.min(wish.bytes_max - so_far)", "limit"),
    "the bytes of one partition have no bound": (
        READING,
        "limit.min(wish.bytes_max - so_far)",
        "wish.bytes_max - so_far",
    ),
    "a batch over the bound is given of every partition": (
        READING,
        "(!parts.is_empty() || !at_least_one)",
        "!parts.is_empty()",
    ),
    "aborted transactions are not told": (
        READING,
        "if wish.committed_only {",
        "if wish.committed_only && so_far > 0 {",
    ),
    "any leader epoch is the right one": (
        READING,
        "believed != ANY_EPOCH && believed != ",
        "believed == i64::MIN && believed != ",
    ),
    "what is read counts as unread": (READING, 'change!(newest, "_unread", 0);', ""),
}
HALVES: Final = {
    "a failure to write counts as one to look": "self.write(py, &admitted, (prefix, rest), batch)",
    "a failure behind the write counts as one to look": "self.note(py, &admitted)",
}
SEVERAL: Final[dict[str, tuple[Plant, str]]] = {
    "an answer comes before the flush": (
        (PRODUCING, "needs_isr && part.hot.get().has_committed(py, *end)?", "needs_isr"),
        "test_the_answer_is_not_written_before_all_is_durable",
    ),
    "a batch overtakes one that is left to the twin": (
        (PRODUCING, "if !matches!(before.last(), ", "if false && !matches!(before.last(), "),
        "test_nothing_is_appended_behind_a_batch_that_is_left_to_the_twin",
    ),
    "a partition is not told of its failure": (
        (
            PRODUCING,
            'call!(part.partition, "on_native_failure", &part.records, error.into_value(py))',
            "py.None().into_bound(py)",
        ),
        "test_a_bug_in_the_middle_ends_its_partition_alone",
    ),
}
"""Plants in requests of several batches, and the test that finds each."""
pytestmark = [long_only, pytest.mark.skipif(shutil.which("cargo") is None, reason="there is no cargo")]


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where dependencies are compiled once."""
    return tmp_path_factory.mktemp("target")


def test_without_a_plant_there_is_no_difference(tmp_path: Path, target: Path) -> None:
    done = fuzzed(compiled(copied(tmp_path), target), *TOOL, HEADRACE_NATIVE="1")
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("plant", PLANTS)
def test_a_plant_is_found(tmp_path: Path, target: Path, plant: str) -> None:
    done = fuzzed(compiled(copied(tmp_path, PLANTS[plant]), target), *TOOL, HEADRACE_NATIVE="1")
    assert (done.returncode, "  native: " in done.stdout) == (1, True), done.stderr


def test_without_a_plant_fetches_do_not_differ(tmp_path: Path, target: Path) -> None:
    done = fuzzed(compiled(copied(tmp_path), target), *FETCHES, HEADRACE_NATIVE="1")
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("plant", PLANTS_OF_FETCHES)
def test_a_plant_is_found_by_fetches(tmp_path: Path, target: Path, plant: str) -> None:
    done = fuzzed(compiled(copied(tmp_path, PLANTS_OF_FETCHES[plant]), target), *FETCHES, HEADRACE_NATIVE="1")
    assert (done.returncode, "  native: " in done.stdout) == (1, True), done.stderr


@pytest.mark.parametrize("plant", HALVES)
def test_a_half_that_is_taken_for_the_other_is_found_without_memory(tmp_path: Path, target: Path, plant: str) -> None:
    call = HALVES[plant]
    place = compiled(copied(tmp_path, (APPEND, f"{call}?", f"self.looking(py, || {call})?")), target)
    finder = str(Path(__file__).with_name("test_hot_out_of_memory.py"))
    done = ran(place, *PYTEST, finder, HEADRACE_NATIVE="1")
    assert (done.returncode, " failed" in done.stdout) == (1, True), done.stdout


def test_without_a_plant_requests_of_several_batches_pass(tmp_path: Path, target: Path) -> None:
    done = ran(compiled(copied(tmp_path), target), *PYTEST, FINDER_OF_SEVERAL, HEADRACE_NATIVE="1")
    assert (done.returncode, " passed" in done.stdout, "skipped" in done.stdout) == (0, True, False), done.stdout


@pytest.mark.parametrize("plant", SEVERAL)
def test_a_plant_in_a_request_of_several_batches_is_found(tmp_path: Path, target: Path, plant: str) -> None:
    planted, finder = SEVERAL[plant]
    place = compiled(copied(tmp_path, planted), target)
    done = ran(place, *PYTEST, FINDER_OF_SEVERAL, HEADRACE_NATIVE="1")
    failed = re.findall(r"^FAILED \S+::(\w+)", done.stdout, re.MULTILINE)
    assert (done.returncode, finder in failed) == (1, True), done.stdout
