"""Fetches the public suites of tests/interop/suites that sdists hold: `python tools/suites.py DIR`.

pip downloads an sdist, at the version and with one of the hashes in requirements/suites.txt. It is unpacked under the
suite's name. A second run does nothing while the lock is unchanged. Other suites come from a clone of their repository
that the user names (`unpack_clone`), at the one commit that their data file pins.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Sequence
from io import BytesIO
from pathlib import Path
from typing import Final

from tools.lock import LOCKS, Pin, parse

SDISTS: Final = ("kafka-python",)
STAMP: Final = "VERSION"


def main(target: Path) -> int:
    pins = parse((LOCKS / "suites.txt").read_text())
    for name in SDISTS:
        (pin,) = pins[name]
        unpack_sdist(name, pin, target / name)
    return 0


def unpack_sdist(name: str, pin: Pin, place: Path) -> None:
    """Raises CalledProcessError where pip finds no sdist with a locked hash."""
    stamp = place / STAMP
    if stamp.exists() and stamp.read_text() == pin.version:
        return
    unpacking = place.with_name(f".{name}")
    for rest in (place, unpacking):
        shutil.rmtree(rest, ignore_errors=True)
    with tempfile.TemporaryDirectory() as directory:
        wanted = Path(directory) / "wanted.txt"
        hashes = " ".join(f"--hash={value}" for value in sorted(pin.hashes))
        wanted.write_text(f"{name}=={pin.version} {hashes}\n")
        command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "download", "--quiet", "--no-deps"]
        command += ["--no-binary", name, "--no-build-isolation", "--require-hashes", "--dest", directory]
        subprocess.run([*command, "-r", str(wanted)], check=True)
        (found,) = Path(directory).glob("*.tar.gz")
        with tarfile.open(found) as archive:
            archive.extractall(unpacking, filter="data")
    (unpacked,) = unpacking.iterdir()
    unpacked.rename(place)
    unpacking.rmdir()
    stamp.write_text(pin.version)


def unpack_clone(clone: Path, commit: str, paths: Sequence[str], place: Path) -> None:
    """These parts of that commit's tree, which its id vouches for. Raises CalledProcessError where it is not there."""
    command = ["git", "-C", str(clone), "archive", "--format=tar", commit, *paths]
    tree = subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout
    with tarfile.open(fileobj=BytesIO(tree)) as archive:
        archive.extractall(place, filter="data")


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
