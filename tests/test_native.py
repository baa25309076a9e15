"""The road follows from what is installed, and from HEADRACE_NATIVE."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final

import pytest

from headrace.base.errors import UsageError
from headrace.native import INTERFACE, NAME, VARIABLE, choose


def installed(monkeypatch: pytest.MonkeyPatch, module: Any) -> None:
    """`module`: None stands for an extension that is not there."""
    monkeypatch.setitem(sys.modules, NAME, module)


def test_it_is_used_where_it_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    found = SimpleNamespace(INTERFACE=INTERFACE)
    installed(monkeypatch, found)
    assert choose({}) == choose({VARIABLE: "1"}) == (found, "native")
    assert choose({VARIABLE: "0"}) == (None, "pure Python")


def test_without_it_all_runs_as_pure_python(monkeypatch: pytest.MonkeyPatch) -> None:
    installed(monkeypatch, None)
    assert choose({}) == (None, "pure Python")
    with pytest.raises(UsageError, match="is not installed: 'make native'"):
        choose({VARIABLE: "1"})


def test_one_of_another_version_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    installed(monkeypatch, SimpleNamespace(INTERFACE=INTERFACE + 1))
    assert choose({}).native is None
    assert "needs" in choose({}).name
    with pytest.raises(UsageError, match="install both in the same version"):
        choose({VARIABLE: "1"})


def test_other_values_are_refused() -> None:
    with pytest.raises(UsageError, match="set it to 0"):
        choose({VARIABLE: "yes"})


def test_a_user_is_told_in_one_sentence() -> None:
    told = subprocess.run(
        [sys.executable, "-m", "headrace.cli.main", "up", "--data", "/dev/null"],
        env={**os.environ, VARIABLE: "yes"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert told.returncode == 2
    assert "Traceback" not in told.stderr
    assert "set it to 0" in told.stderr


WHEELS: Final = list((Path(__file__).parents[1] / "native" / "target" / "wheels").glob("*.whl"))


@pytest.mark.skipif(not WHEELS, reason="`make native` has not built its wheel")
def test_its_wheel_is_one_for_all_pythons_and_works_in_an_empty_environment(tmp_path: Path) -> None:
    (wheel,) = WHEELS
    assert "-cp311-abi3-" in wheel.name
    subprocess.run([sys.executable, "-m", "venv", tmp_path], check=True)
    python = str(tmp_path / "bin" / "python")
    subprocess.run([python, "-m", "pip", "install", "--quiet", "--no-index", "--no-deps", wheel], check=True)
    program = (
        f"import {NAME} as native; assert native.INTERFACE == {INTERFACE}; print(native.check_batch(b'', 0, 0, False))"
    )
    told = subprocess.run([python, "-I", "-c", program], capture_output=True, text=True, check=True)
    assert told.stdout == "None\n"
