"""What runs all tests tells everything that those beside had to say, and waits for nobody for ever."""

from __future__ import annotations

import os
import queue
import signal
import subprocess
import sys
import threading

import pytest

from tools import run_tests

LINES = 700
SAYS_MUCH = f"for at in range({LINES}): print('x' * 80)"


LEAVES_A_CHILD = """
import subprocess, sys
print(subprocess.Popen(["sleep", "1000"], stderr=subprocess.DEVNULL).pid, flush=True)
"""


def said(program: str) -> subprocess.Popen[str]:
    return subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)


def test_what_was_said_last_is_read_after_the_end(capsys: pytest.CaptureFixture[str]) -> None:
    work, lines, ended = said(SAYS_MUCH), list[str](), threading.Event()
    assert work.stdout is not None

    def tell() -> None:
        assert ended.wait(60)
        run_tests._tell(work.stdout, lines)  # type: ignore[arg-type]

    teller = threading.Thread(target=tell, daemon=True)
    teller.start()
    assert run_tests._waited(work) == 0
    ended.set()
    teller.join(60)
    work.stdout.close()
    assert capsys.readouterr().out.count(run_tests.BESIDE_MARK) == LINES


@pytest.mark.timeout(60)
def test_a_process_whose_child_holds_the_pipe_is_waited_for_alone() -> None:
    work, heard = said(LEAVES_A_CHILD), queue.SimpleQueue[int]()
    assert work.stdout is not None

    def tell() -> None:
        heard.put(int(work.stdout.readline()))  # type: ignore[union-attr]
        run_tests._tell(work.stdout, [])  # type: ignore[arg-type]

    teller = threading.Thread(target=tell, daemon=True)
    teller.start()
    child = heard.get(timeout=60)
    try:
        assert run_tests._waited(work) == 0
        assert teller.is_alive(), "until the child ends"
    finally:
        os.kill(child, signal.SIGKILL)
    teller.join(60)
    work.stdout.close()
