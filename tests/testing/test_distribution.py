"""The plugin's distribution, as it is installed: pytest rewrites the asserts of all that lies in it."""

from __future__ import annotations

import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

from _pytest.config import _iter_rewritable_modules

ROOT = Path(__file__).parents[2]


def test_pytest_rewrites_the_plugin_alone(tmp_path: Path) -> None:
    """pytest itself says which modules of a wheel it would rewrite."""
    build = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-build-isolation", "--no-deps", "--no-index"]
    subprocess.run([*build, "--wheel-dir", str(tmp_path), str(ROOT / "plugin")], check=True, timeout=300)
    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as opened:
        files = opened.namelist()
        (points,) = (opened.read(name).decode() for name in files if name.endswith("entry_points.txt"))
    assert points.split() == ["[pytest11]", "headrace", "=", "headrace_pytest"]
    assert "headrace_pytest/py.typed" in files
    assert set(_iter_rewritable_modules(files)) == {"headrace_pytest"}


def test_headrace_itself_is_no_plugin() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert "pytest11" not in project.get("entry-points", {})
    assert project["optional-dependencies"]["pytest"] == ["pytest-headrace>=0.1,<0.2"]
