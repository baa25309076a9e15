"""Files of tests that several processes of pytest share: each takes the next one when it is free.

`tools/run_tests.py` fills the pool and starts the processes. Each process collects all files that were left when it
began, and runs those that it takes. Fixtures of a session live as long as the process. All others end with their file.
"""

from __future__ import annotations

import json
import os
import resource
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from tools.run_tests import RAN, take


class Pool:
    """The plugin of one process."""

    def __init__(self, place: Path, kind: str) -> None:
        """`kind`: of the files that it takes."""
        self._place = place
        self._kind = kind

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        """Runs the files that it takes, also where another one could not be collected: that is told, and fails."""
        items = defaultdict[Path, list[pytest.Item]](list)
        for item in session.items:
            items[item.path].append(item)
        while (path := take(self._place, self._kind)) is not None:
            with self._recorded(session, path):
                _run(session, items[session.startpath / path])
        return True

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
