"""Names of keys: no two things share one, and what belongs together has one slot."""

from __future__ import annotations

from typing import Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.base.errors import UsageError
from headrace.base.ids import PartitionIndex
from headrace.storage.redis.links.address import Credentials
from headrace.storage.redis.links.connection import Place, connect
from headrace.storage.redis.server_side.keys import Keys, slot_of
from tests.storage.redis.conftest import Start

names: Final = st.sampled_from(["topic", "topics", "metadata", "controller", "0", "1"]) | st.text(
    "abc._-012", min_size=1
)
partitions: Final = st.integers(0, 3).map(PartitionIndex)


def all_of(keys: Keys, topic: str, partition: PartitionIndex) -> list[str]:
    found = keys.partition(topic, partition)
    return [found.stream, found.state, found.times, found.epochs, found.producers, found.next]


def metadata_of(keys: Keys, topic: str) -> list[str]:
    return [keys.metadata, keys.head, keys.snapshot, keys.next_snapshot, keys.lease, keys.topics, keys.topic(topic)]


def test_names_are_as_documented() -> None:
    keys = Keys()
    assert all_of(keys, "orders", PartitionIndex(0))[:2] == ["headrace:orders:0", "{headrace:orders:0}:state"]
    assert keys.topic("orders") == "headrace:topic:orders"
    assert keys.topics == "headrace:topics"
    assert keys.metadata == "headrace:metadata"


@given(names, names, partitions, partitions, st.booleans())
def test_no_two_things_share_a_name(
    one: str, other: str, first: PartitionIndex, second: PartitionIndex, clustered: bool
) -> None:
    keys = Keys("ns", clustered)
    found = [*all_of(keys, one, first), *metadata_of(keys, one)]
    if (one, first) != (other, second):
        found += all_of(keys, other, second)
    if one != other:
        found.append(keys.topic(other))
    assert len(set(found)) == len(found)


@given(names, partitions)
def test_what_belongs_together_has_one_slot(topic: str, partition: PartitionIndex) -> None:
    keys = Keys("ns", clustered=True)
    for together in (all_of(keys, topic, partition), metadata_of(keys, topic)):
        assert len({slot_of(key.encode()) for key in together}) == 1


@pytest.mark.parametrize("namespace", ["", "a:b", "{a}", "a b", "x" * 101])
def test_a_namespace_has_plain_characters(namespace: str) -> None:
    with pytest.raises(UsageError, match="no namespace for Redis"):
        Keys(namespace)


async def test_slots_are_those_of_the_server(start: Start) -> None:
    server = start("--cluster-enabled", "yes")
    connection = await connect(Place(path=str(server.socket)), Credentials())
    for key in ("", "a", "headrace:orders:0", "{headrace:orders:0}:state", "{}x", "{a", "a{b}c{d}", "123456789"):
        assert await connection.call("CLUSTER", "KEYSLOT", key) == slot_of(key.encode()), key
    await connection.close()
