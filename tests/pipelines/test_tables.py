"""Vacuum: it takes what nobody needs, and nothing that is, was a moment ago, or will be in the table."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from headrace.base.errors import UsageError
from headrace.spark.pipelines.tables.progress import APPEND, BEGIN, COMPACT, Claim, Commit, File, ProgressLog, State
from headrace.spark.pipelines.tables.reading import vacuum
from headrace.spark.pipelines.tables.writing import TableWriter
from headrace.storage.objects import open_objects
from tests.pipelines.test_writing import batches, layout, rows

LONG_AGO = time.time() - 8 * 24 * 3600


def put(path: Path, count: int = 10) -> File:
    (file,) = TableWriter(layout(path)).write(batches(rows(count)))
    return file


def grow_old(path: Path) -> None:
    os.utime(path, (LONG_AGO, LONG_AGO))


def commit(state: State, action: str, **fields: object) -> Commit:
    now = time.time_ns() // 1_000_000
    head = {"version": state.version + 1, "action": action, "pipeline": "p", "run": f"{state.version}", "time_ms": now}
    return Commit(**(head | fields))  # type: ignore[arg-type]


def test_a_file_of_a_dead_run_goes_and_the_same_rows_of_another_stay(tmp_path: Path) -> None:
    log = ProgressLog(open_objects(str(tmp_path)))
    state = log.commit(State(), commit(State(), BEGIN))
    left = put(tmp_path)  # by a run that dies before its commit
    grow_old(tmp_path / left.path)
    again = put(tmp_path)  # by one that reads the same records, and has not committed yet
    assert vacuum(str(tmp_path)) == 1
    log.commit(state, commit(state, APPEND, added=(again,), claims=(Claim("orders", "i", 0, 0, 5),)))
    assert not (tmp_path / left.path).exists()
    assert (tmp_path / again.path).stat().st_size == again.bytes


def test_what_was_merged_a_moment_ago_stays_for_its_readers(tmp_path: Path) -> None:
    log = ProgressLog(open_objects(str(tmp_path)))
    state = log.commit(State(), commit(State(), BEGIN))
    old, new = put(tmp_path), put(tmp_path)
    state = log.commit(state, commit(state, APPEND, added=(old,)))
    grow_old(tmp_path / old.path)
    state = log.commit(state, commit(state, COMPACT, added=(new,), removed=(old.path,)))
    assert vacuum(str(tmp_path)) == 0
    assert (tmp_path / old.path).exists()
    assert vacuum(str(tmp_path), older_than_hours=-1) == 1, "an hour later"
    assert not (tmp_path / old.path).exists()
    assert (tmp_path / new.path).exists()


def test_what_was_never_put_whole_goes(tmp_path: Path) -> None:
    ProgressLog(open_objects(str(tmp_path))).commit(State(), commit(State(), BEGIN))
    for name in ("old", "new"):
        (tmp_path / ".incoming" / name).write_bytes(b"half")
    grow_old(tmp_path / ".incoming" / "old")
    assert vacuum(str(tmp_path)) == 0
    assert os.listdir(tmp_path / ".incoming") == ["new"]
    with pytest.raises(UsageError, match="There is no table"):
        vacuum(str(tmp_path / "elsewhere"))
