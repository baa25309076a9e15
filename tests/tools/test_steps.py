"""`make test-long` runs all of its steps, tells how each went, and fails where one did."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from tools import steps

MAKEFILE = """
good:
\t@echo good $(WORD) >> told
bad:
\t@echo bad >> told; exit 3
"""
LINE = re.compile(r"(\S+) +\d+ s +\d+ s of processor  (passed|failed \(exit code \d+\))")
ROOT = Path(__file__).parents[2]


@pytest.fixture
def told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file in which targets leave word."""
    (tmp_path / "Makefile").write_text(MAKEFILE)
    monkeypatch.chdir(tmp_path)
    return tmp_path / "told"


def test_a_step_that_fails_stops_none_and_all_are_told_at_the_end(
    told: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert steps.main(["make", "bad", "good WORD=one", "bad", "good"]) == 1
    assert told.read_text().splitlines() == ["bad", "good one", "bad", "good"]
    lines = capsys.readouterr().out.strip().splitlines()
    found = [match.groups() for line in lines if (match := LINE.fullmatch(line))]
    assert found == [("bad", "failed (exit code 2)"), ("good", "passed")] * 2


def test_where_all_pass_it_passes(told: Path) -> None:
    assert steps.main(["make", "good", "good"]) == 0
    assert told.read_text().splitlines() == ["good", "good"]


def test_the_long_tier_has_these_steps_and_hands_on_its_options() -> None:
    """A dry run of make tells its commands. It runs lines with $(MAKE) all the same, and so each step tells its own."""
    command = ["make", "--dry-run", "test-long", "RESUME=1", "ROUNDS=7", "SOAK=5"]
    said = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert said.returncode == 0, said
    words = " ".join(said.stdout.split())
    for part in (
        "HEADRACE_PROMISE_ROUNDS=7",
        "--tier long --resume",
        "tools.plants --look",
        "tools.swarm",
        "--seconds 5",
    ):
        assert part in words
