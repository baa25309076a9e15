"""Runs one public suite, unmodified, in its own pytest against one broker, and reads what came of it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import tomllib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final
from xml.etree import ElementTree

from tools import engine_under_test
from tools.lock import LOCKS, parse
from tools.suites import unpack_clone

ROOT: Final = Path(__file__).resolve().parents[2]
SUITES: Final = Path(__file__).parent / "suites"
FETCHED: Final = ROOT / ".venv" / "suites"
CLONES: Final = "HEADRACE_SUITE_CLONES"
CASE_TIMEOUT_S: Final = 120
SUITE_TIMEOUT_S: Final = 3600.0
OF_THE_PLUGIN: Final = ("needs", "deselected")
"""Entries of a data file that only suites/suite_plugin.py reads."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Suite:
    """One data file of `suites/`."""

    name: str
    tests: Sequence[str]
    """Arguments of its pytest: files, folders and options."""
    broker: Mapping[str, str]
    """The broker configs that its own Kafka has."""
    environment: Mapping[str, str]
    """Variables that configure it; `{bootstrap}` is the address."""
    data: Path
    clone: str | None = None
    """The name of its repository, where no sdist has the tests; then what of it is wanted, and the commit."""
    commit: str = ""
    paths: Sequence[str] = ()
    unsteady: Mapping[str, Any] = field(default_factory=dict)
    """`cases` (the starts of their ids) that are tried once more where they fail, and the `reason`, a client's own."""

    @property
    def version(self) -> str:
        """Of the client, as locked."""
        (pin,) = parse((LOCKS / "suites.txt").read_text())[self.name]
        return pin.version


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """The outcome of one run."""

    collected: int
    passed: Sequence[str]
    failed: Mapping[str, str]
    """With the last line of each."""
    skipped: Mapping[str, str]
    """Those that the suite itself skips, with its reason."""
    deselected: Mapping[str, str]
    """Those that the data file lists, with its reason."""
    stale: Sequence[str]
    """Tests that the data file lists and the suite no longer has."""
    unsteady: Sequence[str]
    """Those of `passed` that did so at the second try."""
    seconds: float
    output: str = field(repr=False)

    def line(self, name: str) -> str:
        """The figures, in one line."""
        reasons = ", ".join(f"{reason} {count}" for reason, count in Counter(self.deselected.values()).most_common())
        second = f" ({len(self.unsteady)} of them at the second try)" if self.unsteady else ""
        return (
            f"{name}: {self.collected} collected, {len(self.passed)} passed{second}, {len(self.failed)} failed, "
            f"{len(self.skipped)} skipped by the suite, {len(self.deselected)} deselected ({reasons or 'none'}), "
            f"{self.seconds:.0f} s"
        )


def load(name: str) -> Suite:
    path = SUITES / f"{name}.toml"
    data = tomllib.loads(path.read_text())
    return Suite(**{key: value for key, value in data.items() if key not in OF_THE_PLUGIN}, data=path)


def sources(suite: Suite, place: Path) -> Path | str:
    """The folder that the suite is in, unpacked in `place` where it comes from a clone; or why there is none."""
    if suite.clone is None:
        fetched = FETCHED / suite.name
        return fetched if fetched.is_dir() else f"no sdist of {suite.name} is here: run `make suites`"
    clone = Path(os.environ.get(CLONES, "")) / suite.clone
    if not os.environ.get(CLONES) or not clone.is_dir():
        return f"no sdist of {suite.name} has its tests: `make suites CLONES=DIR` with a git clone DIR/{suite.clone}"
    unpack_clone(clone, suite.commit, suite.paths, place)
    return place


def python_of(suite: Suite) -> Path:
    """That of the suites' environment; a suite from an sdist needs no more than the tests have."""
    return Path(sys.executable) if suite.clone is None else FETCHED / "venv" / "bin" / "python"


def run(suite: Suite, folder: Path, bootstrap: str, results: Path, *, only_listed: bool = False) -> Outcome:
    """Its pytest, in its folder. A case that hangs fails after CASE_TIMEOUT_S. Where nothing fails but what the data
    file says is unsteady, that is tried once more."""
    first = _run(suite, folder, bootstrap, results, suite.tests, only_listed=only_listed)
    prefixes = tuple(suite.unsteady.get("cases", ()))
    again = [case for case in first.failed if case.startswith(prefixes)]
    if only_listed or not again or len(again) < len(first.failed):
        return first
    second = _run(suite, folder, bootstrap, results, again, only_listed=False)
    return replace(
        first,
        passed=[*first.passed, *second.passed],
        failed=second.failed,
        unsteady=second.passed,
        seconds=first.seconds + second.seconds,
    )


def _run(
    suite: Suite, folder: Path, bootstrap: str, results: Path, tests: Sequence[str], *, only_listed: bool
) -> Outcome:
    junit, report = results / "junit.xml", results / "report.json"
    command = [str(python_of(suite)), "-m", "pytest", "-p", "suite_plugin", "-p", "no:cacheprovider", "--tb=short"]
    command += [f"--junitxml={junit}", "-o", "junit_family=xunit1", f"--timeout={CASE_TIMEOUT_S}", *tests]
    environment = {
        **{key: value for key, value in os.environ.items() if key not in ("PYTHONPATH", "PYTEST_ADDOPTS")},
        **{key: value.format(bootstrap=bootstrap, folder=folder) for key, value in suite.environment.items()},
        "HEADRACE_SUITE_DATA": str(suite.data),
        "HEADRACE_SUITE_BOOTSTRAP": bootstrap,
        "HEADRACE_SUITE_REPORT": str(report),
        "HEADRACE_SUITE_ENGINE": "redis" if engine_under_test.is_redis() else "local",
        "HEADRACE_SUITE_ONLY_LISTED": str(int(only_listed)),
        "PYTHONPATH": str(SUITES),
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    began = time.monotonic()
    done = subprocess.run(
        command,
        cwd=folder,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=SUITE_TIMEOUT_S,
    )
    assert junit.exists(), f"{suite.name} did not run:\n{done.stdout[-4000:]}"
    told = json.loads(report.read_text())
    return read(junit, told, seconds=time.monotonic() - began, output=done.stdout)


def read(junit: Path, told: Mapping[str, Any], *, seconds: float, output: str) -> Outcome:
    """A case that fails and whose teardown fails too is in the file twice, and counted once."""
    passed: dict[str, None] = {}
    failed: dict[str, str] = {}
    skipped: dict[str, str] = {}
    for case in ElementTree.parse(junit).iter("testcase"):
        name = _id(case)
        faults = [child for child in case if child.tag in ("failure", "error")]
        if faults:
            failed[name] = (faults[0].get("message") or "").strip()[:300]
        elif (skip := case.find("skipped")) is not None:
            skipped[name] = skip.get("message") or ""
        else:
            passed[name] = None
    return Outcome(
        collected=told["collected"],
        passed=[name for name in passed if name not in failed],
        failed=failed,
        skipped=skipped,
        deselected=told["deselected"],
        stale=told["stale"],
        unsteady=(),
        seconds=seconds,
        output=output,
    )


def _id(case: ElementTree.Element) -> str:
    """As pytest calls it: the file, the class where there is one, the name."""
    file, owner = case.get("file", ""), case.get("classname", "").split(".")
    depth = len(Path(file).with_suffix("").parts)
    return "::".join([file, *owner[depth:], case.get("name", "")])
