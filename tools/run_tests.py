"""Every test, in four processes at once: what needs nothing but a processor, and Spark's, run beside all else, and
make way for it.

Brokers and clients wait much of their time, so that on two cores the others cost hardly any. Lines of these are marked
as such; what failed of them is told once more at the end. What hangs tells the stacks of all its threads and is ended
(tests/guard.py). Exit code 0 where all passed.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

TESTS: Final = Path("tests")
BESIDE: Final[Mapping[str, Sequence[str]]] = {
    "simulated": ("sim",),
    "beside": ("cli", "controller", "coordinators", "metadata", "net", "raft", "replica", "storage", "tier", "wire"),
    "spark": ("pipelines", "spark"),
}
"""Directories of tests: on virtual time, on none, or of a few processes, sockets and files; and those that wait for
Java."""
BESIDE_TIMEOUT_S: Final = 600
"""Of each of them: they make way."""
LIMIT_S: Final = 2_400
"""All tests, and the end of their process."""
ABORTS_S: Final = 30
SUMMARY: Final = "short test summary info"
NICE: Final = "15"
SLOWEST: Final = 15
"""Tests whose seconds are told at the end, of each of the four."""

PYTEST: Final = (sys.executable, "-u", "-X", "faulthandler", "-m", "pytest", f"--durations={SLOWEST}")


class Beside:
    """One of the others, which is told as it goes."""

    def __init__(self, name: str, command: Sequence[str]) -> None:
        self.mark = f"{name:>10} | "
        self.summary: list[str] = []
        self.process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",  # whatever a test prints
        )
        self._teller = threading.Thread(target=self._tell, daemon=True)
        self._teller.start()

    def _tell(self) -> None:
        """Each line as soon as it is whole; what comes from SUMMARY on is kept, too."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            print(f"{self.mark}{line}", end="", flush=True)
            if self.summary or SUMMARY in line:
                self.summary.append(line.rstrip())

    def end(self, limit_s: float = ABORTS_S) -> bool:
        """Whether all that it said is told: a process of a test's that is left may hold the pipe."""
        self.process.kill()
        self._teller.join(limit_s)
        return not self._teller.is_alive()


def main() -> int:
    others = [f"--ignore={TESTS / each}" for directories in BESIDE.values() for each in directories]
    beside = [Beside(name, _command(name, directories)) for name, directories in BESIDE.items()]
    try:
        codes = [_waited(subprocess.Popen([*PYTEST, *others]))]
        if any(each.process.poll() is None for each in beside):
            print("these are through; the others go on", flush=True)
        codes += [_waited(each.process) for each in beside]
    finally:
        for each in beside:
            if not each.end():
                print(f"{each.mark}something else holds its output, of which the end may be missing", flush=True)
    for each, code in zip(beside, codes[1:], strict=True):
        if code:
            print("of those beside:", *each.summary, sep="\n", flush=True)
    return next((code for code in codes if code), 0)


def _command(name: str, directories: Sequence[str]) -> list[str]:
    limit, cache = f"--timeout={BESIDE_TIMEOUT_S}", f"cache_dir=.pytest_cache/{name}"
    return ["nice", "-n", NICE, *PYTEST, *(str(TESTS / each) for each in directories), limit, "-o", cache]


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


if __name__ == "__main__":
    ended_with = main()
    sys.stdout.flush()
    os._exit(ended_with & 0xFF)  # a thread that still reads would be in the way of any other end
