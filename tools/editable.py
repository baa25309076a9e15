"""Repair an environment that has a copy of the project, which later pulls do not change: `python tools/editable.py`.

It uses the standard library only. An environment that has neither the project nor its plugin stays as it is.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parent.parent
PROJECTS: Final = {"headrace": ROOT, "pytest-headrace": ROOT / "plugin"}
INSTALL: Final = (
    *(sys.executable, "-m", "pip", "--disable-pip-version-check", "install", "--quiet"),
    *("--no-build-isolation", "--no-deps", "--force-reinstall"),
)


def copied() -> Iterator[str]:
    """Yield the projects that are installed from elsewhere, or as a copy."""
    for name, place in PROJECTS.items():
        try:
            told = json.loads(distribution(name).read_text("direct_url.json") or "{}")
        except PackageNotFoundError:
            continue
        if not told.get("dir_info", {}).get("editable") or told.get("url") != place.as_uri():
            yield name


def main() -> int:
    for name in copied():
        print(f"the environment has a copy of {name}: installing it again, so that it follows this clone")
        if (code := subprocess.run([*INSTALL, "--editable", str(PROJECTS[name])], check=False).returncode) != 0:
            return code
    return 0


if __name__ == "__main__":
    sys.exit(main())
