"""The state of pipelines, as their own logs and reports tell it. The oracle is what the pipelines themselves write."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from headrace.base.errors import HeadraceError
from headrace.operations import pipelines
from headrace.operations.pipelines import Reached, state_of, states
from headrace.spark.pipelines.replays.log import Portion, Replayed, ReplayLog
from headrace.spark.pipelines.tables.progress import APPEND, BEGIN, COMPACT, Claim, Commit, File, ProgressLog, State
from headrace.storage.objects import open_objects

TABLE = """\
pipeline = "materialise"
name = "orders"
[source]
store = "file:///away"
topic = "orders"
"kafka.sasl.password" = "a secret"
[table]
path = "{place}"
"""
REPLAY = """\
pipeline = "replay"
name = "again"
[source]
topicPattern = "orders.*"
[target]
topic = "clean"
[run]
checkpoint = "{place}"
"""
AUDIT = """\
pipeline = "audit"
name = "all history"
[report]
html = "audit.html"
json = "audit.json"
"""


def commit(
    version: int, action: str, start: int = 0, end: int = 0, *files: File, removed: tuple[str, ...] = ()
) -> Commit:
    claims = (Claim("orders", "id", 0, start, end),) if end else ()
    return Commit(
        version=version, action=action, pipeline="orders", run=str(version), time_ms=1, claims=claims, added=files,
        removed=removed,
    )  # fmt: skip


def test_a_table_tells_its_rows_and_how_far_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "orders.toml"
    file.write_text(TABLE.format(place=tmp_path / "lake"))
    found = state_of(file)
    assert (found.name, found.kind, found.source, found.steps, found.trouble) == (
        "orders", "materialise", "orders", None, ""
    )  # fmt: skip
    log, state = ProgressLog(open_objects(str(tmp_path / "lake"))), State()
    state = log.commit(state, commit(0, BEGIN))
    state = log.commit(state, commit(1, APPEND, 0, 10, File("data/a", 7, 70, {}), File("data/b", 3, 30, {})))
    state = log.commit(state, commit(2, APPEND, 10, 25, File("data/c", 15, 150, {})))
    state = log.commit(state, commit(3, COMPACT, 0, 0, File("data/d", 10, 100, {}), removed=("data/a", "data/b")))
    found = state_of(file)
    assert (found.steps, found.records) == (4, state.records)
    assert found.reached == [Reached("orders", 0, 25)]
    assert found.at_ms is not None
    assert "secret" not in repr(found)
    monkeypatch.setattr(pipelines, "PIPELINE_COMMITS_SHOWN_MAX", 2)
    found = state_of(file)
    assert (found.steps, found.records, found.reached) == (4, None, [Reached("orders", 0, 25)])


def test_a_replay_tells_its_portions_and_positions(tmp_path: Path) -> None:
    file = tmp_path / "again.toml"
    file.write_text(REPLAY.format(place=tmp_path / "replay"))
    log = ReplayLog(open_objects(str(tmp_path / "replay")))
    begun = Replayed(version=0, name="again", query="q", target="clean", target_id="t", next={"orders": {"0": 0}})
    state = log.begin(begun, "run")
    portion = Portion(number=0, origins=(), end={"orders": {"id": "x", "0": 30}}, partitions=1, target_ends={0: 0})
    log.done(log.plan(state, portion, "run"), "run", 30)
    found = state_of(file)
    assert (found.kind, found.source, found.steps) == ("replay", "orders.*", 1)
    assert found.reached == [Reached("orders", 0, 30)]


def test_an_audit_tells_what_its_last_report_found(tmp_path: Path) -> None:
    file = tmp_path / "audit.toml"
    file.write_text(AUDIT)
    assert (state_of(file).at_ms, state_of(file).problems) == (None, None)
    (tmp_path / "audit.html").write_text("page")
    (tmp_path / "audit.json").write_text(json.dumps({"ended_ms": 5, "partitions": [{"problems": ["a", "b"]}, {}]}))
    found = state_of(file)
    assert (found.at_ms, found.problems, found.page) == (5, 2, tmp_path / "audit.html")


def test_what_cannot_be_read_is_a_trouble_of_its_own(tmp_path: Path) -> None:
    (tmp_path / "a.toml").write_text("no toml")
    (tmp_path / "b.toml").write_text('pipeline = "materialise"')
    (tmp_path / "c.toml").write_text(AUDIT)
    (tmp_path / "audit.json").write_text("[]")
    (tmp_path / "d.toml").write_text(TABLE.format(place=tmp_path / "lake"))
    (tmp_path / "lake" / "_headrace_progress").mkdir(parents=True)
    (tmp_path / "lake" / "_headrace_progress" / "0.json").write_text("{}")
    (tmp_path / "other.txt").write_text("not one of them")
    found = states(tmp_path)
    assert [each.file.name for each in found] == ["a.toml", "b.toml", "c.toml", "d.toml"]
    assert all(each.trouble for each in found)
    with pytest.raises(HeadraceError):
        states(tmp_path / "away")
