"""The first broker of a test's process imports few modules. Seconds change with what else runs, modules do not."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib.util import find_spec
from typing import Final, NamedTuple

import pytest

from headrace.broker import handlers
from headrace.broker.handlers import OFFERED, SERVED, all_handlers
from headrace.wire.apis import ApiKey, api

SOURCE_BYTES_MAX: Final = 2_130_000
"""Of Headrace's own modules. Without compiled files each megabyte takes some 0.17 s of processor time."""
CODE: Final = """
import dataclasses, json, sys
from pathlib import Path
from headrace.base.values import Value
from headrace.testing import BrokerThread
with BrokerThread():
    assert not {"rich", "structlog"} & sys.modules.keys()
    own = {name: each for name, each in sys.modules.items() if name.partition(".")[0] == "headrace"}
    size = sum(Path(each.__file__).stat().st_size for each in own.values() if each.__file__)
    made = [
        each
        for name, module in own.items()
        for each in vars(module).values()
        if isinstance(each, type) and each.__module__ == name and dataclasses.is_dataclass(each)
    ]
    frozen = [each for each in made if each.__dataclass_params__.frozen]
    unlike = [each.__name__ for each in frozen if not issubclass(each, Value) or "__eq__" in vars(each)]
    print(json.dumps({"size": size, "names": sorted(own), "frozen": len(frozen), "unlike": unlike}))
"""


class First(NamedTuple):
    """The modules that are imported by then."""

    size: int
    """Bytes."""
    names: frozenset[str]
    frozen: int
    """The number of frozen dataclasses in them."""
    unlike: tuple[str, ...]
    """The part of these that compile a comparison of their own."""


@pytest.fixture(scope="module")
def first() -> First:
    shown = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, check=True, timeout=150)
    found = json.loads(shown.stdout.splitlines()[-1])
    return First(found["size"], frozenset(found["names"]), found["frozen"], tuple(found["unlike"]))


def test_it_loads_no_handler_and_few_messages(first: First) -> None:
    names = first.names
    assert not {each for each in names if each.startswith("headrace.broker.handlers.")}
    messages = {each.rpartition(".")[2] for each in names if each.startswith("headrace.wire.messages.")}
    large = {"fetch", "join_group", "metadata", "offset_commit", "offset_fetch", "produce"}
    assert len(messages) < 6
    assert not messages & large


def test_it_loads_no_room_that_it_may_not_need(first: First) -> None:
    late = (
        "broker.durable.exporter",
        "broker.groups.shard",
        "broker.durable.history",
        "broker.replication.copying",
        "broker.replication.followers",
        "broker.requests.audit",
        "broker.requests.authentication",
        "broker.requests.certificates",
        "broker.transactions.gate",
        "broker.transactions.markers",
        "broker.transactions.shard",
        "controller.asks.access",
        "controller.asks.moves",
        "controller.asks.topics",
        "controller.growth",
        "controller.leaders",
        "controller.moves",
        "controller.reassignments",
        "controller.removal",
        "coordinators.groups.model",
        "coordinators.transactions.model",
        "storage.tier.blocks",
        "net.client.cluster",
        "net.client.connection",
        "net.client.security.properties",
        "net.pem",
        "security.scram",
        "storage.log.compaction.cleaning",
        "storage.objects",
        "storage.redis.links.address",
        "testing.refusing",
        "wire.messages.describe_cluster",
    )
    assert all(find_spec(f"headrace.{each}") for each in late)
    assert not {f"headrace.{each}" for each in late} & first.names
    assert first.size < SOURCE_BYTES_MAX


def test_its_frozen_dataclasses_share_their_comparison(first: First) -> None:
    """One that does not takes twice the time to be made."""
    assert first.frozen > 100
    assert first.unlike == ("ResourcePattern",), "it has an order, which `dataclass` makes of its own comparison"


def test_all_that_is_served_is_as_its_handler_says() -> None:
    assert {each.key: each.versions for each in all_handlers()} == {int(key): each for key, each in SERVED.items()}
    assert all(each.is_loaded for each in OFFERED)
    for key in SERVED:
        assert api(key) is not None
    modules = {name for name in vars(handlers) if hasattr(getattr(handlers, name), "HANDLER")}
    assert modules == {ApiKey(key).name.lower() for key in SERVED}
