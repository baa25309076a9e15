"""Fixtures of the promises: the number of rounds of faults, and brokers of their own."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.disk import tmp_path
from tools.servers.broker_process import BrokerProcess
from tools.servers.redis_servers import RedisServer, valkey

__all__ = ["tmp_path"]


@pytest.fixture
def rounds() -> int:
    """How often a test kills: few in every run, many in `make promises`."""
    return int(os.environ.get("HEADRACE_PROMISE_ROUNDS", "3"))


@pytest.fixture
def few_rounds() -> int:
    """The number of rounds where each waits for brokers to be missed, or starts many."""
    return int(os.environ.get("HEADRACE_PROMISE_ROUNDS", "1"))


@pytest.fixture
def server() -> Iterator[RedisServer]:
    """A Valkey whose answers are on the disk."""
    with tempfile.TemporaryDirectory(prefix="hr") as name:
        options = ("--appendonly", "yes", "--appendfsync", "always")
        with RedisServer(valkey(), Path(name), options) as started:
            yield started


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path) as process:
        yield process
