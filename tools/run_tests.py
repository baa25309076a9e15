"""Every test, in two processes at once: what needs nothing but a processor runs beside all else, and makes way for it.

Brokers, clients and Spark wait much of their time, so that on two cores the others cost hardly any. Lines of these are
marked as such; what failed of them is told once more at the end. What hangs tells the stacks of all its threads and is
ended (tests/guard.py). Exit code 0 where both passed.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import IO, Any, Final

TESTS: Final = Path("tests")
BESIDE: Final = (
    "controller",
    "coordinators",
    "metadata",
    "net",
    "raft",
    "replica",
    "sim",
    "spark",
    "storage",
    "tier",
    "wire",
)
"""Directories of tests on virtual time, on none, or of a few sockets and files."""
BESIDE_TIMEOUT_S: Final = 600
"""Of each of them: they make way."""
LIMIT_S: Final = 2_400
"""All tests, and the end of their process."""
ABORTS_S: Final = 30
BESIDE_MARK: Final = "    beside | "
SUMMARY: Final = "short test summary info"
NICE: Final = "15"
SLOWEST: Final = 15
"""Tests whose seconds are told at the end, of each of the two."""


def main() -> int:
    beside = [str(TESTS / name) for name in BESIDE]
    others = [f"--ignore={path}" for path in beside]
    python = [sys.executable, "-u", "-X", "faulthandler", "-m", "pytest", f"--durations={SLOWEST}"]
    work = subprocess.Popen(
        ["nice", "-n", NICE, *python, *beside, f"--timeout={BESIDE_TIMEOUT_S}", "-o", "cache_dir=.pytest_cache/2"],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert work.stdout is not None
    summary: list[str] = []
    teller = threading.Thread(target=_tell, args=(work.stdout, summary), daemon=True)
    teller.start()
    try:
        code = _waited(subprocess.Popen([*python, *others]))
        if work.poll() is None:
            print("these are through; the others go on", flush=True)
        code_beside = _waited(work)
    finally:
        work.kill()
        teller.join(ABORTS_S)  # a process of a test's that is left may hold the pipe
    if code_beside:
        print("of those beside:", *summary, sep="\n", flush=True)
    return code or code_beside


def _waited(process: subprocess.Popen[Any]) -> int:
    """Its exit code; where it goes on after LIMIT_S it is aborted, and its fault handler tells what it was at. What it
    said last is still to be read."""
    try:
        return process.wait(LIMIT_S)
    except subprocess.TimeoutExpired:
        print(f"after {LIMIT_S} s these are aborted", flush=True)
        process.send_signal(signal.SIGABRT)
        try:
            return process.wait(ABORTS_S)
        except subprocess.TimeoutExpired:
            return -signal.SIGKILL
    finally:
        process.kill()
        process.wait()


def _tell(lines: IO[str], summary: list[str]) -> None:
    """Each as soon as it is whole; what comes from SUMMARY on is put in `summary`, too."""
    for line in lines:
        print(f"{BESIDE_MARK}{line}", end="", flush=True)
        if summary or SUMMARY in line:
            summary.append(line.rstrip())


if __name__ == "__main__":
    ended_with = main()
    sys.stdout.flush()
    os._exit(ended_with & 0xFF)  # a thread that still reads would be in the way of any other end
