"""The newest commits of a pipeline's table, and what its last report found and drew."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from headrace.base.errors import CorruptData
from headrace.operations.pipeline_reports import plots_in, plots_of, problems_in, runs_of
from headrace.spark.pipelines.tables.progress import APPEND, BEGIN, Commit, File, commit_key

PICTURE = "data:image/png;base64,iVBORw0KGgo="


def write(place: Path, *commits: Commit) -> None:
    for commit in commits:
        file = place / commit_key(commit.version)
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(commit.encode())


def test_the_newest_commits_of_a_table_are_told(tmp_path: Path) -> None:
    assert runs_of(str(tmp_path)) == []
    added = (File("x", 7, 70, {}), File("y", 1, 10, {}))
    write(
        tmp_path,
        Commit(version=0, action=BEGIN, pipeline="orders", run="a", time_ms=5),
        Commit(version=1, action=APPEND, pipeline="orders", run="b", time_ms=6, added=added),
    )
    assert [tuple(run) for run in runs_of(str(tmp_path))] == [(1, APPEND, 6, 8, 80), (0, BEGIN, 5, 0, 0)]
    (tmp_path / commit_key(2)).write_text("{}\n")
    with pytest.raises(CorruptData, match="no commit of a table"):
        runs_of(str(tmp_path))


def test_an_audit_tells_its_problems_and_shows_its_pictures(tmp_path: Path) -> None:
    report, page = tmp_path / "a.json", tmp_path / "a.html"
    report.write_text(json.dumps({"ok": False, "partitions": [{"problems": ["a gap"]}, {"problems": []}]}))
    assert problems_in(report) == ["a gap"]
    page.write_text(f'<img alt="Records a day" src="{PICTURE}"><img src="http://evil.example/x.png">')
    assert [tuple(plot) for plot in plots_in(page)] == [("Records a day", PICTURE)]
    report.write_text("[]")
    assert problems_in(report) == []


def test_only_pictures_that_are_inside_a_page_are_taken() -> None:
    assert plots_of('<img src="data:image/svg+xml;base64,PHN2Zz4="><img src="javascript:alert(1)"><p>') == []
