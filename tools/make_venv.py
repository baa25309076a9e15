"""Make a virtual environment with the tools of this machine: `python3 tools/make_venv.py .venv`.

It uses the standard library only, because it runs before anything is installed. Where Python has no ensurepip (Debian
splits it off), another pip, uv or virtualenv installs pip. Where there is none, it says in one sentence what to
install.
"""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
import sys
import venv
from pathlib import Path


def main(target: Path) -> int:
    if sys.version_info < (3, 11):  # noqa: UP036 - this file runs on whatever Python is there, to say so
        return _fail(f"Headrace needs Python 3.11 or newer, and this is {sys.version.split()[0]}.")
    if importlib.util.find_spec("ensurepip") is not None:
        venv.EnvBuilder(with_pip=True, clear=True, symlinks=True).create(target)
        return 0
    for command in _others(target):
        if subprocess.run(command, check=False, capture_output=True).returncode == 0 and _has_pip(target):
            return 0
    return _fail(
        "Python here cannot make virtual environments with pip: `apt install python3-venv`, then run make again."
    )


def _others(target: Path) -> list[list[str]]:
    """Other makers of an environment, surest first."""
    python = str(target / "bin" / "python")
    found = []
    if importlib.util.find_spec("pip") is not None:
        venv.EnvBuilder(with_pip=False, clear=True, symlinks=True).create(target)
        found.append([sys.executable, "-m", "pip", "--python", python, "install", "--quiet", "pip"])
    if uv := shutil.which("uv"):
        found.append([uv, "venv", "--quiet", "--clear", "--seed", "--python", sys.executable, str(target)])
    if virtualenv := shutil.which("virtualenv"):
        found.append([virtualenv, "--quiet", "--clear", "--python", sys.executable, str(target)])
    return found


def _has_pip(target: Path) -> bool:
    probe = [str(target / "bin" / "python"), "-m", "pip", "--version"]
    return subprocess.run(probe, check=False, capture_output=True).returncode == 0


def _fail(sentence: str) -> int:
    print(sentence, file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
