"""A process that does not answer, or does not end, is killed, and what it owed is nobody else's answer."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

from tests.interop.support import asking
from tests.interop.support.asking import asked

ANSWERS = "import sys\nfor line in sys.stdin: print('re', line.strip(), flush=True)"
NEVER_ENDS = "import signal\nprint('here', flush=True)\nwhile True: signal.pause()"


def program(text: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", text]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def test_it_answers_and_ends() -> None:
    process = program(ANSWERS)
    with asked(process) as put:
        assert [put("a"), put("b")] == ["re a", "re b"]
    assert process.returncode == 0


def test_one_that_does_not_end_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(asking, "ENDS_S", 0.01)
    process = program(NEVER_ENDS)
    with asked(process) as put:
        assert put("a") == "here"
    assert process.returncode == -signal.SIGKILL


class Interrupted(BaseException):
    """As a test's limit raises it."""


def test_an_answer_that_was_not_waited_for_is_nobody_elses(monkeypatch: pytest.MonkeyPatch) -> None:
    process = program(ANSWERS)
    assert process.stdout is not None

    def interrupted() -> str:
        raise Interrupted

    with asked(process) as put:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(process.stdout, "readline", interrupted, raising=False)
            with pytest.raises(Interrupted):
                put("a")
        with pytest.raises(AssertionError, match="earlier question"):
            put("b")
