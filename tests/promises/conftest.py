"""Fixtures of the promises: the number of rounds of faults, and brokers of their own."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tools.broker_process import BrokerProcess


@pytest.fixture
def rounds() -> int:
    """How often a test kills: few in every run, many in `make promises`."""
    return int(os.environ.get("HEADRACE_PROMISE_ROUNDS", "3"))


@pytest.fixture
def few_rounds() -> int:
    """The number of rounds where each waits for brokers to be missed, or starts many."""
    return int(os.environ.get("HEADRACE_PROMISE_ROUNDS", "1"))


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path) as process:
        yield process
