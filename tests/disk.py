"""Directories on the disk, for tests whose subject is what a disk keeps: tests/storage and tests/promises.

The short tier has the directories of all other tests in memory, where a sync costs nothing (tools/run_tests.py).
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

__all__ = ["tmp_path"]


@pytest.fixture
def tmp_path(request: pytest.FixtureRequest) -> Iterator[Path]:
    """As pytest's own. It stays where the test failed."""
    failed = request.session.testsfailed
    path = Path(tempfile.mkdtemp(prefix="headrace-test-")).resolve()
    yield path
    if request.session.testsfailed == failed:
        shutil.rmtree(path, ignore_errors=True)
