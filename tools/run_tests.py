"""Runs the tests, in several processes at once.

The short tier runs every test in its short form, in four processes. Two of them need nothing but a processor, one waits
for Spark; these make way for the main one. `--tier long` runs each check as often as the promises name. `--tier fast`
runs only the cores, in two processes (docs/TESTING.md).

Brokers and clients wait much of their time, so that on two cores the other processes cost hardly any. Their lines are
marked, and their failures are listed again at the end. A test that hangs prints the stacks of all its threads, and its
process is ended (tests/guard.py). Exit code 0 where all passed.
"""

from __future__ import annotations

import argparse
import os
import resource
import signal
import subprocess
import sys
import threading
import time
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
"""For each process: niceness and directories, in the order in which they run.

"simulated" runs on virtual time, and then runs commands, whose brokers have to keep up with real time. "beside" needs
few processes, sockets and files. "spark" waits for Java.
"""
FAST: Final[Mapping[str, Sequence[str]]] = {
    "cores": ("base", "controller", "coordinators", "metadata", "raft", "replica", "wire"),
    "storage": ("storage",),
}
"""Directories of the fast tier, a process for each key: their tests start no broker and no client."""
NOT_FAST: Final = ("wire/test_java.py",)
"""These start Java."""
BESIDE_TIMEOUT_S: Final = 200
"""Of each test of theirs, times PATIENCE where they make way (tests/guard.py)."""
LIMIT_S: Final = 2_400
"""All tests of a process, and its end; LONG_LIMIT_S in the long tier."""
LONG_LIMIT_S: Final = 6 * 3_600
ABORTS_S: Final = 30
SUMMARY: Final = "short test summary info"
HUNG: Final = "++++ Hung: "
"""The line of a test that tests/guard.py has ended begins with this."""
SLOWEST: Final = 15
"""Tests whose seconds are told at the end, of each process."""

PYTEST: Final = (sys.executable, "-u", "-X", "faulthandler", "-m", "pytest", f"--durations={SLOWEST}")


class Beside(threading.Thread):
    """Some of the others, one after the other, which are told as they go."""

    def __init__(
        self,
        name: str,
        commands: Sequence[Sequence[str]],
        *,
        patience_s: float = ABORTS_S,
        limit_s: float = LIMIT_S,
    ) -> None:
        """`patience_s`: for what one of them said last, after its end. `limit_s`: for each of them."""
        super().__init__(daemon=True)
        self.mark = f"{name:>10} | "
        self.codes: list[int] = []
        self.summary: list[str] = []
        self.hung: list[str] = []
        self._commands = commands
        self._patience_s = patience_s
        self._limit_s = limit_s
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
                errors="replace",  # a test may print any bytes
            )
            output = cast("TextIO", self._process.stdout)
            teller = threading.Thread(target=self._tell, args=[output], daemon=True)
            teller.start()
            self.codes.append(_waited(self._process, self._limit_s))
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
    parser = argparse.ArgumentParser(prog="python tools/run_tests.py", description=__doc__)
    parser.add_argument("--tier", choices=("fast", "short", "long"), default="short")
    tier = parser.parse_args().tier
    os.environ["HEADRACE_TIER"] = tier
    began = time.monotonic()
    code = _run_fast() if tier == "fast" else _run_all(LONG_LIMIT_S if tier == "long" else LIMIT_S)
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    seconds = f"{time.monotonic() - began:.0f} s, {used.ru_utime + used.ru_stime:.0f} s of processor"
    print(f"tier {tier}: {seconds}, exit code {code}", flush=True)
    return code


def _run_fast() -> int:
    left_out = [f"--ignore={TESTS / each}" for each in NOT_FAST]
    runs = [Beside(name, [[*_command(name, 0, directories), *left_out]]) for name, directories in FAST.items()]
    return _joined(runs, [])


def _run_all(limit_s: float) -> int:
    others = [f"--ignore={TESTS / each}" for runs in BESIDE.values() for _, names in runs for each in names]
    beside = [Beside(name, [_command(name, *each) for each in runs], limit_s=limit_s) for name, runs in BESIDE.items()]
    return _joined(beside, [*PYTEST, *others], limit_s)


def _joined(beside: Sequence[Beside], command: Sequence[str], limit_s: float = LIMIT_S) -> int:
    """Runs `command`, where there is one, beside those; the first exit code that is not 0."""
    for each in beside:
        each.start()
    try:
        codes = [_waited(subprocess.Popen(command), limit_s)] if command else []
        if command and any(each.is_alive() for each in beside):
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


def _waited(process: subprocess.Popen[Any], limit_s: float) -> int:
    """Its exit code; where it goes on after `limit_s` it is aborted, and its fault handler tells what it was at. Its
    last lines are still to be read."""
    try:
        return process.wait(limit_s)
    except subprocess.TimeoutExpired:
        print(f"after {limit_s} s these are aborted", flush=True)
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
