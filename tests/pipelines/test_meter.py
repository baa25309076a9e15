"""The progress output of a pipeline: a bar on a terminal, lines elsewhere."""

from __future__ import annotations

import io
import sys
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from headrace.spark.pipelines.__main__ import main
from headrace.spark.pipelines.meter import Bar, Lines, meter, size_text
from headrace.wire.batches import encode_batch
from headrace.wire.records import Record
from tests.spark.conftest import StoreBuilder


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


class Tracker:
    """Of a job of four tasks, one of which is done."""

    def getActiveStageIds(self) -> list[int]:  # noqa: N802 - Spark's name
        return [7]

    def getStageInfo(self, stage: int) -> SimpleNamespace:  # noqa: N802 - Spark's name
        assert stage == 7
        return SimpleNamespace(numTasks=4, numCompletedTasks=1)


def test_who_looks_on_a_terminal_sees_a_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also while Spark works: as many of its bytes as of its tasks are done."""
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setattr("headrace.spark.pipelines.meter.LOOK_S", 0.001)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "120")
    bar = meter(as_json=False)
    assert isinstance(bar, Bar)
    bar.stage("materialise", 5000)
    moved, real = threading.Event(), bar._show

    def show(completed: float) -> None:
        real(completed)
        if completed == 1000 + 4000 / 4:
            moved.set()

    bar._show = show  # type: ignore[method-assign]
    bar.done(1000, 1000)
    session: Any = SimpleNamespace(sparkContext=SimpleNamespace(statusTracker=Tracker))
    with bar.working(session, 4000):
        assert moved.wait(60)
    with bar.working(SimpleNamespace(), 0):  # type: ignore[arg-type]  # Spark Connect's has no context
        pass
    bar.done(7000, 4000)
    bar.say("result", "all is done")
    bar.close()
    told = terminal.getvalue()
    assert "materialise" in told
    assert "8,000 records" in told
    assert "5.0/5.0 kB" in told
    assert "all is done" in told


def test_lines_are_for_whom_does_not(capsys: pytest.CaptureFixture[str]) -> None:
    assert isinstance(meter(as_json=False), Lines)
    lines = Lines(as_json=False)
    lines.stage("compact", 2_500_000)
    lines.done(10, 1_250_000, files=2)
    told = capsys.readouterr()
    assert told.out == ""
    assert told.err.startswith("compact: about 2.5 MB\ncompact: 10 records, 1.2 MB, files 2, ")
    assert [size_text(size) for size in (0, 999, 1000, 5e12)] == ["0 bytes", "999 bytes", "1.0 kB", "5.0 TB"]


def test_a_dry_audit_says_what_it_would_read_and_calls_nothing_good(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    made = StoreBuilder(tmp_path / "store")
    made.topic("t", [[[encode_batch([Record(0, 0, None, b"v")])]]])
    file = tmp_path / "audit.toml"
    file.write_text(f'pipeline = "audit"\nname = "a"\n[source]\nstore = "{made.url}"\ntopic = "t"\n')
    monkeypatch.setattr("headrace.spark.pipelines.__main__.session_of", lambda _: pytest.fail("no session"))
    assert main([str(file), "--dry-run"]) == 0
    told = capsys.readouterr().err
    assert "t-0" in told
    assert "holds" not in told
    assert "good" not in told
