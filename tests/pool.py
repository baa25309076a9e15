"""Files of tests that several processes of pytest share: each takes the next one when it is free.

`tools/run_tests.py` fills the pool and starts the processes. A process collects a file when it has taken it, so that it
imports nothing that others run. Fixtures of a session live as long as the process; all others end with their file.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from tools.run_tests import take


class Pool:
    """The plugin of one process: it runs files of the pool instead of what its command line names."""

    def __init__(self, place: Path, kinds: Sequence[str]) -> None:
        """`kinds`: of files that this process takes, the preferred kind first."""
        self._place = place
        self._kinds = kinds

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        ran = 0
        while (path := take(self._place, self._kinds)) is not None:
            items = session.perform_collect([path])
            ran += len(items)
            _run(session, items)
        session.testscollected = ran
        return True

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection(self) -> bool:
        """Collects nothing yet."""
        return True


def _run(session: pytest.Session, items: Sequence[pytest.Item]) -> None:
    """Raises what pytest's own loop raises where a test, or too many failures, ask for the end."""
    for at, item in enumerate(items):
        following = items[at + 1] if at + 1 < len(items) else session  # fixtures of the session stay
        item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
        if session.shouldfail:
            raise session.Failed(session.shouldfail)
        if session.shouldstop:
            raise session.Interrupted(session.shouldstop)
