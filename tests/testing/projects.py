"""Runs pytest in a project of a user, as a process of its own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path


def run_pytest(project: Path, *options: str) -> str:
    """Return what pytest writes. The project is strict about markers, and its `async def` tests are run."""
    command = [sys.executable, "-m", "pytest", "-q", "--strict-markers", "-o", "asyncio_mode=auto", *options]
    done = subprocess.run([*command, str(project)], cwd=project, capture_output=True, text=True, check=False)
    return done.stdout + done.stderr
