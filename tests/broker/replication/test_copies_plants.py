"""The comparison of copies finds what is planted in the native road, each time in a copy of the crate."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Final

import pytest

from tests.tiers import long_only
from tests.wire.test_native_plants import Plant, compiled, copied, fuzzed

ROOM: Final = "partition/room.rs"
TOOL: Final = ("partition_fuzz", "--copies", "--operations", "120000")
COPY, TAKING, SIGHT, REPORTS, OTHERS, ANSWERING = (
    f"copying/{name}.rs" for name in ("copy", "taking", "sight", "reports", "others", "answering")
)
PLANTS: Final[dict[str, Plant]] = {
    "batches may leave a gap": (COPY, "header.base_offset != end ||", "header.base_offset < end ||"),
    "a batch of another epoch is like any other": (COPY, "i64::from(header.leader_epoch) != epoch ||", "epoch < -1 ||"),
    "batches of transactions are like any other": (COPY, "header.attributes & UNUSUAL != 0", "header.magic == 0"),
    "the CRC is not looked at": (
        COPY,
        "batches::check(records, at, records.len(), false)?",
        "Header::read(records.get(at..)?)?",
    ),
    "a full disk takes batches": (COPY, "|| log.lacks_room()", ""),
    "a disk without room for clients takes batches": (
        COPY,
        "< 0\n            || self.is_throttled",
        "< i64::MIN + 1\n            || self.is_throttled",
    ),
    "what is written counts as flushed, though its disk has to": (
        COPY,
        "log.set_owed(admitted.end);",
        "log.set_flushed_end(admitted.end);",
    ),
    "the producers of copied batches are not noted": (COPY, "self.learn(py, copy, admitted)?;", ""),
    "an old epoch of a producer stays": (COPY, "== header.producer_epoch => state", ">= 0 => state"),
    "the producers' snapshot comes late": (COPY, "appended >= self.role()", "appended > self.role()"),
    "nobody asks for a flush": (
        COPY,
        "if admitted.config.fsync || needs_upkeep(py, self.log(), self.aborted.bind(py))?",
        "if needs_upkeep(py, self.log(), self.aborted.bind(py))?",
    ),
    "a segment is never full": (ROOM, "coming.size <= config.segment_bytes", "0 <= config.segment_bytes"),
    "the file ends where the log does not": (COPY, "log.set_log_end_offset(admitted.end);", ""),
    "a refusal is a plain row": (TAKING, "error == 0 && diverging", "error >= 0 && diverging"),
    "a divergence is a plain row": (TAKING, "diverging_epoch == NO_EPOCH && skip_to", "skip_to"),
    "a leap over what was compacted is a plain row": (TAKING, "&& skip_to == NO_OFFSET", ""),
    "what is not flushed is forgotten": (
        TAKING,
        'call!(known, "append", (hot.log().log_end_offset(), size));',
        "let _ = &known;",
    ),
    "what is not flushed does not count": (TAKING, "extract::<i64>()? + size);", "extract::<i64>()? + 0 * size);"),
    "flushed ends are not reported": (TAKING, ".set_item(key, py.None())?;", ".contains(key)?;"),
    "a report is told again and again": (TAKING, "flushed.clear();", ""),
    "the log's end is reported as flushed": (
        TAKING,
        "log().flushed_end().to_be_bytes()",
        "log().log_end_offset().to_be_bytes()",
    ),
    "deleted records stay": (SIGHT, "row.log_start <= self.log().log_start_offset()", "row.log_start >= 0"),
    "readers see what is not committed": (SIGHT, "before.max(told)", "before.max(told) + 1"),
    "readers see a copy that is not level": (SIGHT, "if flushed_end < reported {", "if flushed_end < 0 {"),
    "a follower has flushed what it was not sent": (
        REPORTS,
        "let was_sent = *flushed_end <= attribute!",
        "let was_sent = *flushed_end < i64::MAX || *flushed_end <= attribute!",
    ),
    "commits wait on": (REPORTS, "self.settle_commits(py, reached", "self.settle_commits(py, reached - 1"),
    "commits are settled too early": (
        REPORTS,
        "self.settle_commits(py, reached",
        "self.settle_commits(py, reached + 1",
    ),
    "too few copies are enough": (REPORTS, "copies >= least)", "copies >= 1)"),
    "others are not told of the high watermark": (REPORTS, 'call!(feed, "on_news", partition);', "let _ = &feed;"),
    "a fenced follower may join": (OTHERS, "report.may_join,", "true,"),
    "the highest end counts": (OTHERS, "lowest.min(other.end)", "lowest.max(other.end).min(other.end)"),
    "who has not reported does not count": (OTHERS, "silent = silent.min(end)", "silent = silent.max(end)"),
    "a follower that lags is caught up": (OTHERS, "report.flushed_end >= report.log_end", "report.flushed_end >= 0"),
    "what was sent is sent again": (ANSWERING, 'change!(each.place, "next_offset", each.next_offset);', ""),
    "news are told again": (ANSWERING, "news.clear();", ""),
    "an answer has no bound": (ANSWERING, "bytes_max - size, size == 0", "bytes_max, size == 0"),
    "what comes behind the last batch is forgotten": (
        ANSWERING,
        "if each.next_offset < each.hot",
        "if each.next_offset < 0 && each.next_offset < each.hot",
    ),
}
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
