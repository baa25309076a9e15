"""The comparison of both roads finds what is planted in the native one, each time in a copy of the crate."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Final, TypeAlias

import pytest

from tests.tiers import long_only

CRATE: Final = Path(__file__).parents[2] / "native"
TOOL: Final = ("native_fuzz", "--cases", "200000")
Plant: TypeAlias = tuple[str, str, str]
"""A file of the crate, what is right there, and what is planted in its place."""
PLANTS: Final[dict[str, Plant]] = {
    "the CRC is not looked at": (
        "batches.rs",
        "crc32c::crc32c(batch.get(CRC_START..size)?) == header.crc",
        "batch.get(CRC_START..size).is_some()",
    ),
    "records may be missing in a client's batch": (
        "batches.rs",
        "0 < count && count == most",
        "0 < count && count <= most",
    ),
    "offsets of records are not compared": (
        "records.rs",
        "reader.signed(32)? != i64::from(index)",
        "reader.signed(32)? < 0",
    ),
    "bytes may follow the last record": ("records.rs", "reader.at != data.len()", "reader.at > data.len()"),
    "headers have no bound": ("records.rs", "count <= headers_max.of_all && count <= headers_max.of_one", "true"),
    "a transaction is taken for none": ("produce.rs", "tags != 0 || transactional_id != 0", "tags != 0"),
    "a session is taken for none": (
        "fetch.rs",
        "(reader.i32()?, reader.i32()?) != NO_SESSION",
        "(reader.i32()?, reader.i32()?).0 != NO_SESSION.0",
    ),
    "the high watermark is one off": ("fetch.rs", "[high_watermark, stable", "[high_watermark + 1, stable"),
}
pytestmark = [long_only, pytest.mark.skipif(shutil.which("cargo") is None, reason="there is no cargo")]


HASTILY: Final = {
    "CARGO_PROFILE_RELEASE_CODEGEN_UNITS": "16",
    "CARGO_PROFILE_RELEASE_LTO": "off",
    "CARGO_PROFILE_RELEASE_OPT_LEVEL": "1",
}
"""A build of each plant takes an eighth of the processor time so, and the comparison takes what it took."""


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where dependencies are compiled once."""
    return tmp_path_factory.mktemp("target")


def compiled(copy: Path, target: Path) -> Path:
    """A directory with the extension."""
    build = ["cargo", "build", "--release", "--quiet", "--locked"]
    subprocess.run(build, cwd=copy, env={**os.environ, **HASTILY, "CARGO_TARGET_DIR": str(target)}, check=True)
    place = copy / "built"
    place.mkdir()
    shutil.copy(target / "release" / "libheadrace_native.so", place / "headrace_native.abi3.so")
    return place


def fuzzed(place: Path, tool: str, *options: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return ran(place, f"tools.{tool}", *options, **environment)


def ran(place: Path, module: str, *options: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """A module of Python that finds the extension in `place`."""
    path = os.pathsep.join((str(place), *sys.path))
    command = [sys.executable, "-m", module, *options]
    variables = {**os.environ, "PYTHONPATH": path, **environment}
    return subprocess.run(command, env=variables, cwd=CRATE.parent, capture_output=True, text=True, check=False)


def copied(tmp_path: Path, plant: Plant | None = None) -> Path:
    """A copy of the crate, with this bug in it, if any."""
    copy = shutil.copytree(CRATE, tmp_path / "native", ignore=shutil.ignore_patterns("target"))
    (copy / "src" / "lib.rs").touch()  # cargo looks at times alone, and would give what it made of another copy
    if plant is not None:
        name, sound, wrong = plant
        source = copy / "src" / name
        text = source.read_text()
        assert text.count(sound) == 1
        source.write_text(text.replace(sound, wrong))
    return copy


def test_without_a_plant_there_is_no_difference(tmp_path: Path, target: Path) -> None:
    done = fuzzed(compiled(copied(tmp_path), target), *TOOL)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("plant", PLANTS)
def test_a_plant_is_found(tmp_path: Path, target: Path, plant: str) -> None:
    done = fuzzed(compiled(copied(tmp_path, PLANTS[plant]), target), *TOOL)
    assert (done.returncode, "differs for" in done.stdout) == (1, True), done.stderr
