"""The first broker of a test's process imports few modules. Seconds change with what else runs, modules do not."""

from __future__ import annotations

import subprocess
import sys
from typing import Final

import pytest

from headrace.broker import handlers
from headrace.broker.handlers import OFFERED, SERVED, all_handlers
from headrace.wire.apis import ApiKey, api

SOURCE_BYTES_MAX: Final = 2_580_000
"""Of Headrace's own modules. Without compiled files each megabyte takes some 0.17 s of processor time."""
CODE: Final = """
import sys
from pathlib import Path
from headrace.testing import BrokerThread
with BrokerThread():
    assert not {"rich", "structlog"} & sys.modules.keys()
    own = {name: each for name, each in sys.modules.items() if name.partition(".")[0] == "headrace"}
    print(sum(Path(each.__file__).stat().st_size for each in own.values() if each.__file__))
    print(*sorted(own))
"""


@pytest.fixture(scope="module")
def first() -> tuple[int, set[str]]:
    """The bytes of the modules that are imported by then, and their names."""
    shown = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, check=True, timeout=150)
    size, names = shown.stdout.splitlines()[-2:]
    return int(size), set(names.split())


def test_it_loads_no_handler_and_few_messages(first: tuple[int, set[str]]) -> None:
    _, names = first
    assert not {each for each in names if each.startswith("headrace.broker.handlers.")}
    messages = {each.rpartition(".")[2] for each in names if each.startswith("headrace.wire.messages.")}
    large = {"fetch", "join_group", "metadata", "offset_commit", "offset_fetch", "produce"}
    assert len(messages) < 10
    assert not messages & large


def test_it_loads_no_room_that_it_may_not_need(first: tuple[int, set[str]]) -> None:
    size, names = first
    late = (
        "broker.durable.exporter",
        "broker.groups.shard",
        "broker.durable.history",
        "broker.transactions.gate",
        "broker.transactions.markers",
        "broker.transactions.shard",
        "coordinators.groups.model",
        "coordinators.transactions.model",
        "storage.tier.blocks",
        "net.client.cluster",
    )
    assert not {f"headrace.{each}" for each in late} & names
    assert size < SOURCE_BYTES_MAX


def test_all_that_is_served_is_as_its_handler_says() -> None:
    assert {each.key: each.versions for each in all_handlers()} == {int(key): each for key, each in SERVED.items()}
    assert all(each.is_loaded for each in OFFERED)
    for key in SERVED:
        assert api(key) is not None
    modules = {name for name in vars(handlers) if hasattr(getattr(handlers, name), "HANDLER")}
    assert modules == {ApiKey(key).name.lower() for key in SERVED}
