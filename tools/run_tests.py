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
from typing import Any, Final, TextIO, cast

TESTS: Final = Path("tests")
MAKES_WAY: Final = 15
BESIDE: Final[Mapping[str, Sequence[tuple[int, Sequence[str]]]]] = {
    "simulated": ((MAKES_WAY, ("sim",)), (0, ("cli",))),
    "beside": (
        (MAKES_WAY, ("controller", "coordinators", "metadata", "net", "raft", "replica", "storage", "tier", "wire")),
    ),
    "spark": ((MAKES_WAY, ("pipelines", "spark")),),
}
"""How nice, and which directories of tests, one after the other: on virtual time, on none, or of a few processes,
sockets and files; those that wait for Java; and, once there is room, those of commands, whose brokers have to keep up
with real time."""
BESIDE_TIMEOUT_S: Final = 200
"""Of each test of theirs, times PATIENCE where they make way (tests/guard.py)."""
LIMIT_S: Final = 2_400
"""All tests of a process, and its end."""
ABORTS_S: Final = 30
SUMMARY: Final = "short test summary info"
HUNG: Final = "++++ Hung: "
"""What a test that was ended by tests/guard.py begins with."""
SLOWEST: Final = 15
"""Tests whose seconds are told at the end, of each process."""

PYTEST: Final = (sys.executable, "-u", "-X", "faulthandler", "-m", "pytest", f"--durations={SLOWEST}")


class Beside(threading.Thread):
    """Some of the others, one after the other, which are told as they go."""

    def __init__(self, name: str, commands: Sequence[Sequence[str]], *, patience_s: float = ABORTS_S) -> None:
        """`patience_s`: for what one of them said last, after its end."""
        super().__init__(daemon=True)
        self.mark = f"{name:>10} | "
        self.codes: list[int] = []
        self.summary: list[str] = []
        self.hung: list[str] = []
        self._commands = commands
        self._patience_s = patience_s
        self._process: subprocess.Popen[str] | None = None
        self._over = False

    def run(self) -> None:
        for command in self._commands:
            if self._over:
                return
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                errors="replace",  # whatever a test prints
            )
            output = cast("TextIO", self._process.stdout)
            teller = threading.Thread(target=self._tell, args=[output], daemon=True)
            teller.start()
            self.codes.append(_waited(self._process))
            teller.join(self._patience_s)
            if teller.is_alive():  # a process of a test's that is left may hold the pipe
                print(f"{self.mark}something else holds its output, of which the end may be missing", flush=True)

    def _tell(self, output: TextIO) -> None:
        """Each line as soon as it is whole; what comes from SUMMARY on is kept, too, and what hung."""
        summary = False
        with output:
            for line in output:
                print(f"{self.mark}{line}", end="", flush=True)
                if HUNG in line:
                    self.hung.append(line.strip())
                if summary := summary or SUMMARY in line:
                    self.summary.append(line.rstrip())

    def end(self) -> None:
        self._over = True
        if self._process is not None:
            self._process.kill()


def main() -> int:
    others = [f"--ignore={TESTS / each}" for runs in BESIDE.values() for _, names in runs for each in names]
    beside = [Beside(name, [_command(name, *each) for each in runs]) for name, runs in BESIDE.items()]
    for each in beside:
        each.start()
    try:
        codes = [_waited(subprocess.Popen([*PYTEST, *others]))]
        if any(each.is_alive() for each in beside):
            print("these are through; the others go on", flush=True)
        for each in beside:
            each.join()
            codes += each.codes
    finally:
        for each in beside:
            each.end()
    for each in beside:
        if any(each.codes):
            print(f"of those beside, {each.mark.strip(' |')}:", *each.summary, *each.hung, sep="\n", flush=True)
    return next((code for code in codes if code), 0)


def _command(name: str, nice: int, directories: Sequence[str]) -> list[str]:
    limit, cache = f"--timeout={BESIDE_TIMEOUT_S}", f"cache_dir=.pytest_cache/{name}"
    return ["nice", "-n", str(nice), *PYTEST, *(str(TESTS / each) for each in directories), limit, "-o", cache]


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
