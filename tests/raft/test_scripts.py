"""Every transcript in tests/scripts/raft leads to what it says. `HEADRACE_REWRITE=1` rewrites them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.raft.script import rewritten

SCRIPTS = sorted((Path(__file__).parent.parent / "scripts" / "raft").glob("*.txt"))


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.stem)
def test_script(path: Path) -> None:
    written = path.read_text("utf-8")
    today = rewritten(written)
    if os.environ.get("HEADRACE_REWRITE"):
        path.write_text(today, "utf-8")
        return
    assert today.splitlines() == written.splitlines()
