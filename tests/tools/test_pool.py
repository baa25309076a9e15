"""A process of the pool runs what it takes, as one session."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

from tools.run_tests import TAKEN, TIMED

ROOT: Final = Path(__file__).resolve().parents[2]
ENDED_S: Final = 60.0
CONFTEST: Final = f"""
from pathlib import Path
import pytest
from tests.pool import Pool

def pytest_configure(config):
    config.pluginmanager.register(Pool(Path(__file__).with_name("pool"), ["{TIMED}"]))

@pytest.fixture(scope="session")
def shared():
    print("shared is made")
    yield
    print("shared is ended")
"""
WITHOUT: Final = ("-p", "no:cacheprovider", "-p", "no:hypothesispytest", "-p", "no:benchmark")
FILE: Final = """
import pytest

@pytest.fixture(scope="module")
def own():
    yield
    print("{name} is ended")

def test_first(own, shared):
    pass

def test_second(own):
    print("{name} is run")
"""


def ran(place: Path, files: dict[str, str]) -> subprocess.CompletedProcess[str]:
    (place / "conftest.py").write_text(CONFTEST)
    (place / "pytest.ini").write_text("[pytest]\n")
    for kind in (TIMED, TAKEN):
        (place / "pool" / kind).mkdir(parents=True)
    for at, (name, body) in enumerate(files.items()):
        (place / name).write_text(body)
        (place / "pool" / TIMED / f"{at}").write_text(name)
    (place / "test_of_another.py").write_text("def test_fails(): assert False")  # it is taken already
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-s", *WITHOUT, "."],
        cwd=place,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "src")])},
        capture_output=True,
        text=True,
        timeout=ENDED_S,
        check=False,
    )


def test_a_process_runs_each_file_that_it_takes_and_keeps_what_the_session_has(tmp_path: Path) -> None:
    ended = ran(tmp_path, {f"test_{name}.py": FILE.format(name=name) for name in ("one", "two")})
    assert ended.returncode == 0, ended
    parts = ["shared is made", "one is run", "one is ended", "two is run", "two is ended", "shared is ended"]
    assert [ended.stdout.count(part) for part in parts] == [1] * len(parts)
    assert sorted(parts, key=ended.stdout.index) == parts
    assert "4 passed" in ended.stdout
    assert "failed" not in ended.stdout


@pytest.mark.parametrize("body", ["raise ValueError('the reason')", "def test_fails(): raise ValueError('the reason')"])
def test_a_file_that_fails_does_not_keep_the_next_one_from_its_turn(tmp_path: Path, body: str) -> None:
    ended = ran(tmp_path, {"test_bad.py": body, "test_good.py": FILE.format(name="good")})
    assert ended.returncode == 1, ended
    assert "the reason" in ended.stdout
    assert "2 passed" in ended.stdout
