"""Runs targets of make one after the other, each whatever became of those before it.

`python -m tools.steps MAKE STEP...`: a step is a target, with variables behind it where it has any ("plants LOOK=1").
At the end there is a line for each step: its target, seconds, seconds of processor and outcome. Exit code 1 where a
step failed.
"""

from __future__ import annotations

import resource
import shlex
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Step:
    """A step is over. `processor_s` counts the processes that somebody waited for."""

    target: str
    seconds: float
    processor_s: float
    code: int

    def __str__(self) -> str:
        outcome = "passed" if self.code == 0 else f"failed (exit code {self.code})"
        return f"{self.target:<12} {self.seconds:8.0f} s {self.processor_s:8.0f} s of processor  {outcome}"


def main(arguments: Sequence[str]) -> int:
    make, *wanted = arguments
    steps = list[Step]()
    try:
        for each in wanted:
            steps.append(played(make, shlex.split(each)))
    finally:
        print("", *steps, sep="\n", flush=True)
    return int(any(step.code for step in steps))


def played(make: str, step: Sequence[str]) -> Step:
    began, before = time.monotonic(), _processor_s()
    code = subprocess.run([make, *step], check=False).returncode
    return Step(step[0], time.monotonic() - began, _processor_s() - before, code)


def _processor_s() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
