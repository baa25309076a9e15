"""What runs all tests tells everything that those beside had to say, and waits for nobody for ever."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tools import run_tests
from tools.run_tests import Beside

LINES = 700
SAYS_MUCH = f"for at in range({LINES}): print('x' * 80)"
FAILS = f"print('.'); print('= {run_tests.SUMMARY} ='); print('FAILED it'); raise SystemExit(3)"
LEAVES_A_CHILD = f"""
import subprocess
print("= {run_tests.SUMMARY} =", flush=True)
print(subprocess.Popen(["sleep", "1000"], stderr=subprocess.DEVNULL).pid, flush=True)
"""


@contextmanager
def said(program: str) -> Iterator[Beside]:
    work = Beside("these", [sys.executable, "-c", program])
    yield work
    assert work.end(60)
    assert work.process.stdout is not None
    work.process.stdout.close()


def test_what_was_said_last_is_told_after_the_end(capsys: pytest.CaptureFixture[str]) -> None:
    with said(SAYS_MUCH) as work:
        assert run_tests._waited(work.process) == 0
    assert capsys.readouterr().out.count(work.mark) == LINES


def test_what_failed_is_kept_to_be_told_once_more(capsys: pytest.CaptureFixture[str]) -> None:
    with said(FAILS) as work:
        assert run_tests._waited(work.process) == 3
    assert work.summary == [f"= {run_tests.SUMMARY} =", "FAILED it"]
    assert capsys.readouterr().out.count("FAILED") == 1


@pytest.mark.timeout(60)
def test_a_process_whose_child_holds_the_pipe_is_waited_for_alone() -> None:
    with said(LEAVES_A_CHILD) as work:
        assert run_tests._waited(work.process) == 0
        while len(work.summary) < 2:
            assert not work.end(0.01), "until the child ends"
        assert not work.end(0)
        os.kill(int(work.summary[1]), signal.SIGKILL)


def test_every_directory_that_is_named_is_there_and_is_run_once() -> None:
    named = [each for directories in run_tests.BESIDE.values() for each in directories]
    assert len(named) == len(set(named))
    assert all((Path(__file__).parents[1] / each).is_dir() for each in named)
