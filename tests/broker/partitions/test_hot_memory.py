"""The crate is compiled with AddressSanitizer. The comparisons of both roads then show that it keeps to its own memory.
Nor is any object of Python freed because the crate gave back a reference too often.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path
from typing import Final

import pytest

from tests.tiers import long_only
from tests.wire.test_native_plants import Plant, copied, ran

FUZZES: Final = (
    ("native_fuzz", "--cases", "20000"),
    ("partition_fuzz", "--operations", "3000"),
    ("partition_fuzz", "--fetches", "--operations", "3000"),
    ("partition_fuzz", "--copies", "--operations", "3000"),
)
PAST_THE_END: Final[Plant] = ("bytes.rs", "cast::<u8>(), size)", "cast::<u8>(), size + 64)")
FOUND: Final = 86


def _runtime() -> str | None:
    """The sanitizer's library, which has to come before all others."""
    if shutil.which("cargo") is None or shutil.which("gcc") is None:
        return None
    asked = ["gcc", "-print-file-name=libasan.so"]
    name = subprocess.run(asked, capture_output=True, text=True, check=True).stdout.strip()
    return name if Path(name).is_file() else None


RUNTIME: Final = _runtime()
pytestmark = [long_only, pytest.mark.skipif(RUNTIME is None, reason="there is no cargo, or no AddressSanitizer")]


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where dependencies are compiled once."""
    return tmp_path_factory.mktemp("target")


def sanitized(copy: Path, target: Path) -> Path:
    """A directory with the extension."""
    version = subprocess.run(["rustc", "-vV"], capture_output=True, text=True, check=True).stdout
    [host] = [line.removeprefix("host: ") for line in version.splitlines() if line.startswith("host: ")]
    build = ["cargo", "build", "--release", "--quiet", "--locked", "--target", host]
    # the flag is for Rust's nightly compiler, but for this variable
    flags = {"RUSTC_BOOTSTRAP": "1", "RUSTFLAGS": "-Zsanitizer=address -g", "CARGO_TARGET_DIR": str(target)}
    subprocess.run(build, cwd=copy, env={**os.environ, **flags}, check=True)
    place = copy / "built"
    place.mkdir()
    shutil.copy(target / host / "release" / "libheadrace_native.so", place / "headrace_native.abi3.so")
    return place


def fuzzed(place: Path, tool: str, *options: str) -> subprocess.CompletedProcess[str]:
    """Python takes each object from the system then, whose bounds the sanitizer knows."""
    assert RUNTIME is not None
    return ran(
        place,
        f"tools.{tool}",
        *options,
        HEADRACE_NATIVE="1",
        LD_PRELOAD=RUNTIME,
        PYTHONMALLOC="malloc",
        ASAN_OPTIONS=f"detect_leaks=0:exitcode={FOUND}",
    )


def test_both_roads_keep_to_their_memory(tmp_path: Path, target: Path) -> None:
    place = sanitized(copied(tmp_path), target)
    for fuzz in FUZZES:
        done = fuzzed(place, *fuzz)
        assert done.returncode == 0, done.stdout + done.stderr


def test_a_read_past_the_end_is_found(tmp_path: Path, target: Path) -> None:
    done = fuzzed(sanitized(copied(tmp_path, PAST_THE_END), target), *FUZZES[0])
    assert (done.returncode, "heap-buffer-overflow" in done.stderr) == (FOUND, True), done.stdout + done.stderr
