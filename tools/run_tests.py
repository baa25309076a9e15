"""Every test, in two processes at once: what needs nothing but a processor runs beside all else, and makes way for it.

Brokers, clients and Spark wait much of their time, so that on two cores the others cost hardly any. What these say is
printed when both are through. Exit code 0 where both passed.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

TESTS: Final = Path("tests")
BESIDE: Final = ("controller", "coordinators", "metadata", "sim")
"""Directories of tests on virtual time, or on none."""
BESIDE_TIMEOUT_S: Final = 600
"""Of each of them: they make way."""
NICE: Final = "5"


def main() -> int:
    beside = [str(TESTS / name) for name in BESIDE]
    others = [f"--ignore={path}" for path in beside]
    python = [sys.executable, "-m", "pytest"]
    with tempfile.TemporaryFile("w+") as said:
        work = subprocess.Popen(
            ["nice", "-n", NICE, *python, *beside, f"--timeout={BESIDE_TIMEOUT_S}", "-o", "cache_dir=.pytest_cache/2"],
            stdin=subprocess.DEVNULL,
            stdout=said,
            stderr=subprocess.STDOUT,
        )
        try:
            print(f"beside these: {', '.join(beside)}", flush=True)
            code = subprocess.run([*python, *others], check=False).returncode
            if work.poll() is None:
                print("these are through; the others go on", flush=True)
            code_beside = work.wait()
        finally:
            work.kill()
        said.seek(0)
        print(said.read(), end="", flush=True)
    return code or code_beside


if __name__ == "__main__":
    sys.exit(main())
