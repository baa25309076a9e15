"""Results are data: one JSON object a line in benchmarks/results/<case>.jsonl, with date, versions and machine."""

from __future__ import annotations

import json
import platform
import subprocess
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import psutil

RESULTS: Final = Path(__file__).resolve().parent.parent / "results"
GIGABYTE: Final = 1024**3


def append(case: str, outcome: dict[str, Any]) -> Path:
    """Append one outcome to the file of its case; the file's path."""
    RESULTS.mkdir(parents=True, exist_ok=True)
    path = RESULTS / f"{case}.jsonl"
    line = {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "commit": commit(),
        "machine": machine(),
        **outcome,
    }
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(line) + "\n")
    return path


def machine() -> dict[str, Any]:
    """Facts about the machine of the figures."""
    return {
        "system": platform.platform(),
        "processor": _processor(),
        "cores": psutil.cpu_count(),
        "memory_gb": round(psutil.virtual_memory().total / GIGABYTE, 1),
        "load_average": [round(value, 2) for value in psutil.getloadavg()],
        "python": platform.python_version(),
        "java": _first_line(["java", "-version"]),
    }


def commit() -> str:
    """The commit that was measured, with a + where the tree holds more than it."""
    head = _first_line(["git", "rev-parse", "--short", "HEAD"])
    return head + ("+" if _first_line(["git", "status", "--porcelain", "src"]) else "")


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor()


def _first_line(command: list[str]) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=Path(__file__).parent)
    return next(iter((done.stdout + done.stderr).splitlines()), "")
