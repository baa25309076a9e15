"""The log of a table: versions in order, nothing claimed twice, one winner of two."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping
from functools import reduce
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.base.errors import CorruptData, UsageError
from headrace.base.limits import OBJECT_SINGLE_BYTES_MAX
from headrace.base.ports import ObjectMeta
from headrace.spark.pipelines.tables import progress
from headrace.spark.pipelines.tables.progress import (
    APPEND,
    BEGIN,
    COMPACT,
    Claim,
    Column,
    Commit,
    ConcurrentRun,
    Covered,
    File,
    ProgressLog,
    State,
    commit_key,
)
from headrace.storage.disk import LocalDisk
from headrace.storage.objects import DirectoryObjects, open_objects


def commit(version: int, run: str = "a", action: str = APPEND, **fields: object) -> Commit:
    return Commit(version=version, action=action, pipeline="p", run=run, time_ms=1, **fields)  # type: ignore[arg-type]


FULL = commit(
    0,
    columns=(Column("offset", "bigint"), Column("größe", "struct<a:int>")),
    partition_by=("day",),
    format="delta",
    claims=(Claim("orders", "id", 3, 5, 9),),
    added=(File("data/day=1/x.parquet", 4, 100, {"day": None, "name": "é\n"}),),
    removed=("data/y.parquet",),
)


def test_a_commit_reads_back_as_it_was_written() -> None:
    assert Commit.decode(FULL.encode()) == FULL
    for wrong in (b"", b"{}", b"x", FULL.encode()[:-30]):
        with pytest.raises(CorruptData):
            Commit.decode(wrong)


@given(st.lists(st.tuples(st.integers(0, 30), st.integers(0, 30)).map(lambda ends: tuple(sorted(ends))), max_size=12))
def test_what_is_covered_is_what_was_claimed_and_never_twice(claims: list[tuple[int, int]]) -> None:
    covered, model = Covered(), set[int]()
    for low, high in claims:
        after = covered.with_claim(low, high)
        if low < high:
            assert (after is None) == bool(model & set(range(low, high)))
        if after is not None:
            covered = after
            model |= set(range(low, high))
    assert {at for low, high in covered.ranges for at in range(low, high)} == model
    if covered.ranges:
        missing = {at for low, high in covered.holes(0) for at in range(low, high)}
        assert missing == set(range(covered.next)) - model


def test_of_two_runs_that_commit_one_version_one_stops(tmp_path: Path) -> None:
    one, other = (ProgressLog(open_objects(str(tmp_path))) for _ in range(2))
    begun = one.commit(State(), commit(0, action=BEGIN, claims=(Claim("t", "i", 0, 5, 5),)))
    seen = other.state()
    assert seen == begun
    assert begun.positions["t"].next == {0: 5}
    after = one.commit(begun, commit(1, "one", claims=(Claim("t", "i", 0, 5, 8),)))
    with pytest.raises(ConcurrentRun, match="committed version 1 of its table meanwhile"):
        other.commit(seen, commit(1, "other", claims=(Claim("t", "i", 0, 5, 8),)))
    assert other.state() == after
    assert other.state(seen) == after


def test_a_run_whose_commit_was_not_answered_knows_it_again(tmp_path: Path) -> None:
    log = ProgressLog(open_objects(str(tmp_path)))
    state = log.commit(State(), commit(0, "a"))
    assert log.commit(State(), commit(0, "a")) == state


def test_what_does_not_follow_is_refused(tmp_path: Path) -> None:
    log = ProgressLog(open_objects(str(tmp_path)))
    first = commit(0, claims=(Claim("t", "i", 0, 0, 5),), added=(File("data/a", 1, 1, {}),))
    state = log.commit(State(), first)
    for wrong, words in (
        (commit(2), "follows on 0"),
        (commit(1, claims=(Claim("t", "i", 0, 4, 6),)), "offsets 4 to 6 of topic 't', partition 0"),
        (commit(1, action=COMPACT, removed=("data/b",)), "removes 'data/b'"),
        (commit(1, added=(File("data/a", 1, 1, {}),)), "adds 'data/a'"),
        (commit(1, added=(File("data/a", 1, 1, {}),), removed=("data/a",)), "adds 'data/a'"),
    ):
        with pytest.raises(CorruptData, match=words):
            log.commit(state, wrong)
    assert log.state() == state
    log.commit(state, commit(1))
    (tmp_path / commit_key(0)).unlink()
    with pytest.raises(CorruptData, match=r"0\.json' of the table is missing"):
        log.state()


def test_a_commit_that_no_store_puts_on_a_condition_is_refused(tmp_path: Path) -> None:
    log = ProgressLog(open_objects(str(tmp_path)))
    large = File("data/" + "a" * OBJECT_SINGLE_BYTES_MAX, 1, 1, {})
    with pytest.raises(UsageError, match=f"a commit has at most {OBJECT_SINGLE_BYTES_MAX}: lower maxBytesPerTrigger"):
        log.commit(State(), commit(0, added=(large,)))
    assert log.state() == State()


class Counting(DirectoryObjects):
    """How many objects were read and not taken yet, at most."""

    begun = taken = most = 0

    def get(self, key: str) -> bytes:
        with LOCK:
            self.begun += 1
            self.most = max(self.most, self.begun - self.taken)
        return super().get(key)


LOCK = threading.Lock()


def test_a_long_log_is_read_in_portions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "PIPELINE_COMMITS_HELD_MAX", 4)
    objects = Counting(LocalDisk(), tmp_path)
    log = ProgressLog(objects)
    state = State()
    for version in range(21):
        state = log.commit(state, commit(version, action=APPEND if version else BEGIN))
    for at, found in enumerate(log.commits()):
        assert found.version == at
        objects.taken += 1
    assert objects.begun == objects.taken == 21
    assert objects.most <= 5


def test_a_replay_copies_what_the_table_holds_once(monkeypatch: pytest.MonkeyPatch) -> None:
    commits = [commit(at, added=(File(f"data/{at}", 1, 1, {}),)) for at in range(50)]
    one_by_one, copied = reduce(State.after, commits, State()), list[int]()

    def counted(*given: Mapping[str, File]) -> dict[str, File]:
        copied.append(sum(map(len, given)))
        return dict(*given)

    monkeypatch.setattr(progress, "dict", counted, raising=False)
    assert State().after_all(commits) == one_by_one
    assert sum(copied) == 0


class HalfListed(DirectoryObjects):
    """A directory to which two commits come while it is listed: the first time, the later one alone is seen."""

    listed = 0

    def list(self, prefix: str) -> Iterable[ObjectMeta]:
        self.listed += 1
        return iter([meta for meta in super().list(prefix) if self.listed > 1 or meta.key != commit_key(1)])


def test_commits_that_come_while_they_are_listed_are_no_hole(tmp_path: Path) -> None:
    log = ProgressLog(open_objects(str(tmp_path)))
    state = State()
    for version in range(3):
        state = log.commit(state, commit(version))
    assert ProgressLog(HalfListed(LocalDisk(), tmp_path)).state() == state
