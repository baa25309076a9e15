"""Files of tests that several processes of pytest share: each takes the next one when it is free.

`tools/run_tests.py` fills the pool and starts the processes. Each process imports a file when it takes it, so that no
module is imported where its tests are not run. Fixtures of a session live as long as the process. All others end with
their file.
"""

from __future__ import annotations

import json
import os
import resource
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from tools.run_tests import RAN, remaining, take


class Pool:
    """The plugin of one process."""

    def __init__(self, place: Path, kinds: Sequence[str]) -> None:
        """`kinds`: of the files that it takes, the preferred one first."""
        self._place = place
        self._kinds = kinds
        self._files: dict[Path, pytest.Collector] = {}

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection(self, session: pytest.Session) -> bool:
        """Find the files that are left, and import none of them yet."""
        paths = [path for kind in self._kinds for path in remaining(self._place, kind)]
        found = session.perform_collect(paths, genitems=False)
        self._files = {each.path: each for each in found if isinstance(each, pytest.Collector)}
        return True

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        """Runs the files that it takes, also where another one could not be collected: that is told, and fails."""
        collected = 0
        while (path := self._take()) is not None:
            with self._recorded(session, path):
                items = list(session.genitems(self._files[session.startpath / path]))
                session.config.hook.pytest_collection_modifyitems(session=session, config=session.config, items=items)
                _run(session, items)
            collected += len(items)
        session.testscollected = collected
        return True

    @pytest.hookimpl
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Tell at once why a test failed: the process may run for an hour before it tells all at its end."""
        if report.failed:
            print(f"\nFailed: {report.nodeid} ({report.when})", report.longreprtext, sep="\n", flush=True)

    def _take(self) -> str | None:
        return next((path for kind in self._kinds if (path := take(self._place, kind)) is not None), None)

    @contextmanager
    def _recorded(self, session: pytest.Session, path: str) -> Iterator[None]:
        """Leave word of the file's seconds, also of the processes that it has waited for, and of its outcome."""
        failed, began_s, before = session.testsfailed, time.time(), _processor_s()
        passed = False
        try:
            yield
            passed = session.testsfailed == failed
        finally:
            about = {
                "path": path,
                "process": os.getpid(),
                "began_s": round(began_s, 1),
                "seconds": round(time.time() - began_s, 1),
                "processor_s": round(_processor_s() - before, 1),
                "passed": passed,
            }
            place = self._place / RAN
            place.mkdir(exist_ok=True)
            (place / path.replace("/", ",")).write_text(json.dumps(about))


def _processor_s() -> float:
    return sum(
        used.ru_utime + used.ru_stime
        for used in map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    )


def _run(session: pytest.Session, items: Sequence[pytest.Item]) -> None:
    """Raises what pytest's own loop raises where a test, or too many failures, ask for the end."""
    for at, item in enumerate(items):
        following = items[at + 1] if at + 1 < len(items) else session  # fixtures of the session stay
        item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
        if session.shouldfail:
            raise session.Failed(session.shouldfail)
        if session.shouldstop:
            raise session.Interrupted(session.shouldstop)
