"""Names the leader of partitions that this broker does not lead, in answers of produce and fetch.

The answer gives the leader's address too, so that a client need not ask for metadata first (KIP-951).

Promises:
- All leaders in one answer are from one image.
- A partition without a leader has its error alone.
- An old leader does no harm: clients accept one only where its epoch is newer than the one that they know.
- An answer without such errors is returned as it is.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from headrace.base.ids import BrokerId, LeaderEpoch, TopicId
from headrace.metadata.image import MetadataImage
from headrace.metadata.values import BrokerImage
from headrace.wire.errors import ErrorCode
from headrace.wire.messages import fetch, produce

PRODUCE_VERSION: Final = 10
FETCH_VERSION: Final = 16
"""The first versions whose answers have these fields."""
MOVED: Final = frozenset({ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.FENCED_LEADER_EPOCH})
"""Errors which say that another broker leads, or that the client's leader epoch is old."""


def told_in_produce(
    response: produce.ProduceResponse,
    *,
    version: int,
    image: MetadataImage,
    listener: str,
    carried: Collection[tuple[str | TopicId, int]] = (),
) -> produce.ProduceResponse:
    """Return the answer with the leaders that it can name in this version, and their addresses at the client's
    `listener`. `carried`: batches that another leader has appended."""
    errors = [part.error_code for topic in response.responses for part in topic.partition_responses]
    if version < PRODUCE_VERSION or (MOVED.isdisjoint(errors) and not carried):
        return response
    leaders, taken = _Leaders(image, listener), frozenset(carried)

    def part_of(place: str | TopicId, part: produce.PartitionProduceResponse) -> produce.PartitionProduceResponse:
        is_elsewhere = part.error_code in MOVED or (place, part.index) in taken
        found = leaders.of(place, part.index) if is_elsewhere else None
        return part if found is None else part._replace(current_leader=produce.LeaderIdAndEpoch(*found))

    topics = tuple(
        topic._replace(
            partition_responses=tuple(
                part_of(topic.name or TopicId(topic.topic_id), part) for part in topic.partition_responses
            )
        )
        for topic in response.responses
    )
    nodes = tuple(produce.NodeEndpoint(*node) for node in leaders.nodes())
    return response._replace(responses=topics, node_endpoints=nodes)


def told_in_fetch(
    response: fetch.FetchResponse, *, version: int, image: MetadataImage, listener: str
) -> fetch.FetchResponse:
    """As `told_in_produce`, for fetch, which uses topic ids in these versions."""
    errors = [part.error_code for topic in response.responses for part in topic.partitions]
    if version < FETCH_VERSION or MOVED.isdisjoint(errors):
        return response
    leaders = _Leaders(image, listener)

    def part_of(topic_id: TopicId, part: fetch.PartitionData) -> fetch.PartitionData:
        found = leaders.of(topic_id, part.partition_index) if part.error_code in MOVED else None
        return part if found is None else part._replace(current_leader=fetch.LeaderIdAndEpoch(*found))

    topics = tuple(
        topic._replace(partitions=tuple(part_of(TopicId(topic.topic_id), part) for part in topic.partitions))
        for topic in response.responses
    )
    nodes = tuple(fetch.NodeEndpoint(*node) for node in leaders.nodes())
    return response._replace(responses=topics, node_endpoints=nodes)


class _Leaders:
    """The leaders named in one answer, and then the addresses of their brokers."""

    def __init__(self, image: MetadataImage, listener: str) -> None:
        self._image = image
        self._listener = listener
        self._told: dict[BrokerId, BrokerImage] = {}

    def of(self, topic: str | TopicId, partition: int) -> tuple[BrokerId, LeaderEpoch] | None:
        """Return leader and epoch; None where nobody leads, or there is no such partition (any more)."""
        image = self._image
        found = image.topic(topic) if isinstance(topic, str) else image.topic_by_id(topic)
        if found is None or not 0 <= partition < len(found.partitions):
            return None
        known = found.partitions[partition]
        leader = image.brokers.get(known.leader)
        if leader is None:
            return None
        self._told[leader.id] = leader
        return leader.id, known.leader_epoch

    def nodes(self) -> list[tuple[BrokerId, str, int, str | None]]:
        """Return id, host, port and rack of each leader that has the listener."""
        endpoints = ((broker, broker.endpoint(self._listener)) for broker in self._told.values())
        return [(broker.id, at.host, at.port, broker.rack) for broker, at in endpoints if at is not None]
