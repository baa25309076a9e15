"""Loggers by the names of modules: who gets what is logged."""

from __future__ import annotations

import logging
import subprocess
import sys
from collections.abc import Iterator

import pytest
import structlog

from headrace import logs
from headrace.logs import get_logger
from headrace.testing import logs as testing_logs

LISTENED = """
import sys
from headrace.logs import get_logger, listen

heard = []
log = get_logger("of.a.module")
listen(lambda *told: heard.append(told))
log.info("served", records=3)
assert heard == [("of.a.module", "info", "served", {"records": 3})]
assert "structlog" not in sys.modules

import structlog

log.warning("still unset up")
assert len(heard) == 2
with structlog.testing.capture_logs() as captured:
    log.error("captured", partition=1)
assert captured == [{"event": "captured", "partition": 1, "log_level": "error"}]
assert len(heard) == 2
"""


@pytest.fixture(autouse=True)
def unset_up() -> Iterator[None]:
    """Another test of this process may have set structlog up."""
    before = structlog.get_config()
    structlog.reset_defaults()
    yield
    structlog.configure(**before)


def test_structlog_has_what_no_listener_takes() -> None:
    with structlog.testing.capture_logs() as captured:
        log = get_logger("of.a.module")
        for level in ("debug", "info", "warning", "error", "critical"):
            getattr(log, level)("served", records=3)
    assert [each["log_level"] for each in captured] == ["debug", "info", "warning", "error", "critical"]
    assert all(each["event"] == "served" and each["records"] == 3 for each in captured)


def test_a_listener_needs_no_structlog_and_gives_way_to_one_that_is_set_up() -> None:
    """In a process of its own, where nobody has set up structlog."""
    subprocess.run([sys.executable, "-c", LISTENED], check=True, timeout=150)


def test_pythons_logging_has_the_facts_the_trace_and_the_line(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logs, "_listener", testing_logs._write)
    monkeypatch.setattr(logs, "_has_own_structlog", lambda: False)
    log = get_logger("of.a.module")
    with caplog.at_level(logging.INFO, "of.a.module"):
        log.debug("not heard")
        log.error("a read failed", partition=1, exc_info=ValueError("torn"))
    (record,) = caplog.records
    assert (record.name, record.levelname) == ("of.a.module", "ERROR")
    assert record.getMessage() == "a read failed partition=1"
    assert record.filename == "test_logs.py"
    assert "torn" in caplog.text
