"""`make venv` repairs an environment that has a copy of Headrace, which later pulls would not change."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path
from typing import Final

from tests.tiers import long_only

ROOT: Final = Path(__file__).resolve().parent.parent.parent
CLEAN: Final = {key: value for key, value in os.environ.items() if not key.startswith("PYTHON")}
BUILDERS: Final = ("editables", "hatchling", "packaging", "pathspec", "pip", "pluggy", "trove_classifiers")
"""Packages that `make venv` installs before Headrace."""
WHERE: Final = "import headrace; print(headrace.__file__)"


@long_only
def test_a_copy_is_installed_again_as_this_clone(tmp_path: Path) -> None:
    venv.EnvBuilder(with_pip=False).create(tmp_path / "env")
    python = str(tmp_path / "env" / "bin" / "python")
    [packages] = (tmp_path / "env" / "lib").glob("python*/site-packages")
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet"]
    built = [*pip, "wheel", "--no-build-isolation", "--no-deps", "--wheel-dir", str(tmp_path), str(ROOT)]
    subprocess.run(built, check=True, env=CLEAN, cwd=tmp_path)
    [wheel] = tmp_path.glob("*.whl")
    copy = [*pip, "--python", python, "install", "--no-deps", "--no-index", str(wheel)]
    subprocess.run(copy, check=True, env=CLEAN, cwd=tmp_path)
    for name in BUILDERS:
        (packages / name).symlink_to(Path(sysconfig.get_path("purelib")) / name)
    assert said(python, "-c", WHERE, at=tmp_path) == f"{packages}/headrace/__init__.py\n"
    assert "has a copy of headrace: installing it again" in said(
        python, str(ROOT / "tools" / "editable.py"), at=tmp_path
    )
    assert said(python, "-c", WHERE, at=tmp_path) == f"{ROOT}/src/headrace/__init__.py\n"
    assert said(python, str(ROOT / "tools" / "editable.py"), at=tmp_path) == "", "a second run does nothing"


def said(*command: str, at: Path) -> str:
    done = subprocess.run(command, check=True, env=CLEAN, cwd=at, capture_output=True, text=True)
    return done.stdout
