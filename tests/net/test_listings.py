"""Lists of all topics: they come in pages, and are as one answer would have them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import Any
from uuid import UUID

import pytest
import pytest_asyncio

from headrace.net.client import cluster as clusters
from headrace.net.client import disks, looks
from headrace.net.client.admin import Admin
from headrace.net.client.cluster import Cluster
from headrace.net.client.connection import Connection
from headrace.net.client.disks import sizes
from headrace.net.client.errors import ClientError
from headrace.net.client.looks import look
from headrace.net.client.producer import Producer
from headrace.net.client.view import ClusterView, Listing, view_of
from headrace.testing import broker
from headrace.wire.apis import ApiKey
from headrace.wire.messages import describe_topic_partitions as wire
from headrace.wire.messages.metadata import MetadataRequest

ONE, OTHER = UUID(int=1), UUID(int=2)
COUNTS = {"a": 1, "b": 7, "c": 3, "d": 10, "e": 2}


@pytest_asyncio.fixture
async def cluster() -> AsyncIterator[Cluster]:
    async with broker() as running, Cluster(running.bootstrap) as found:
        for name, count in COUNTS.items():
            await Admin(found).create_topic(name, partitions=count)
        yield found


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The API keys of all requests."""
    found: list[int] = []
    send: Callable[..., Any] = Connection.request

    async def noted(self: Any, key: ApiKey, message: Any, **settings: Any) -> Any:
        found.append(int(key))
        return await send(self, key, message, **settings)

    monkeypatch.setattr(Connection, "request", noted)
    return found


async def in_one_answer(cluster: Cluster) -> ClusterView:
    return view_of(await cluster.ask_any(ApiKey.METADATA, MetadataRequest(topics=None)))


@pytest.mark.parametrize("most", [1, 2, 3, 5, 7, 10, 22, 23, 24, 1000])
async def test_pages_of_any_size_are_together_what_one_answer_has(
    cluster: Cluster, asked: list[int], monkeypatch: pytest.MonkeyPatch, most: int
) -> None:
    monkeypatch.setattr(clusters, "CLIENT_PARTITIONS_PER_PAGE", most)
    found = await cluster.metadata(None)
    assert asked.count(ApiKey.DESCRIBE_TOPIC_PARTITIONS) == -(-sum(COUNTS.values()) // most)
    assert found == await in_one_answer(cluster)
    assert {name: len(topic.partitions) for name, topic in found.topics.items()} == COUNTS
    assert (await cluster.partition("d", 9)).index == 9  # it is known now


async def test_a_broker_without_pages_is_asked_for_one_answer(cluster: Cluster, asked: list[int]) -> None:
    connection = await cluster.any_connection()
    del connection.versions[ApiKey.DESCRIBE_TOPIC_PARTITIONS]
    found = await cluster.metadata(None)
    assert asked == [ApiKey.METADATA]
    assert {name: len(topic.partitions) for name, topic in found.topics.items()} == COUNTS


async def test_a_broker_that_lists_in_a_circle_is_given_up(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    connection = await cluster.any_connection()
    send = connection.request

    async def answered(key: ApiKey, message: Any, **settings: Any) -> Any:
        page = await send(key, message, **settings)
        return page if key is ApiKey.METADATA else page._replace(next_cursor=wire.ResponseCursor("b", 3))

    monkeypatch.setattr(connection, "request", answered)
    with pytest.raises(ClientError, match="in a circle"):
        await cluster.metadata(None)


def page(*topics: tuple[str, UUID, range], cursor: tuple[str, int] | None = None) -> Any:
    return wire.DescribeTopicPartitionsResponse(
        topics=tuple(
            wire.DescribeTopicPartitionsResponseTopic(
                name=name,
                topic_id=id_,
                partitions=tuple(
                    wire.DescribeTopicPartitionsResponsePartition(partition_index=index) for index in indexes
                ),
            )
            for name, id_, indexes in topics
        ),
        next_cursor=None if cursor is None else wire.ResponseCursor(*cursor),
    )


@pytest.mark.parametrize(
    ("then", "kept"),
    [
        (page(("b", ONE, range(2, 4)), ("c", ONE, range(1))), {"a": 1, "b": 4, "c": 1}),
        (page(("b", OTHER, range(2, 4)), ("c", ONE, range(1))), {"a": 1, "c": 1}),  # deleted, and made again
        (page(("c", ONE, range(1))), {"a": 1, "c": 1}),  # deleted
        (page(), {"a": 1}),
        (page(("b", ONE, range(2, 2))), {"a": 1, "b": 2}),
    ],
)
def test_a_topic_is_there_with_all_its_partitions_or_not_at_all(then: Any, kept: dict[str, int]) -> None:
    listing = Listing()
    listing.add(page(("a", ONE, range(1)), ("b", ONE, range(2)), cursor=("b", 2)))
    listing.add(then)
    found = listing.topics()
    assert {name: len(topic.partitions) for name, topic in found.items()} == kept
    assert all([part.index for part in topic.partitions] == [*range(kept[name])] for name, topic in found.items())


async def test_ends_and_sizes_are_asked_for_some_at_once(
    cluster: Cluster, asked: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    async with Producer(cluster) as producer:
        for name, count in COUNTS.items():
            for index in range(count):
                await producer.send(name, value=b"x" * 100, timestamp_ms=0, partition=index)
    places = [(name, index) for name, count in COUNTS.items() for index in range(count)]
    broker_id = next(iter(cluster.known_brokers))
    at_once = await sizes(cluster, {broker_id: places})
    for module in (looks, disks):
        monkeypatch.setattr(module, "LOOK_PARTITIONS_PER_ASK_MAX", 4)
    del asked[:]
    assert (await look(cluster, at=0.0)).ends == dict.fromkeys(places, 1)
    assert asked.count(ApiKey.LIST_OFFSETS) == 6
    in_parts = await sizes(cluster, {broker_id: places})
    assert asked.count(ApiKey.DESCRIBE_LOG_DIRS) == 6
    assert in_parts[0].keys() == set(places)
    assert min(in_parts[0].values()) > 100
    assert in_parts[0] == at_once[0]
    assert in_parts[1][broker_id].total > 0
