"""The key of a durable segment's object: its topic and partition, its offsets, and its exporter.

Promises: `SegmentKey.parse(str(key)) == key`, and nothing else is parsed. Sans-IO.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple
from uuid import UUID

from headrace.base.ids import ClusterId, LeaderEpoch, Offset, PartitionIndex, TopicId, TopicPartition
from headrace.metadata.descriptors import DIGEST_CHARS, SegmentDescriptor

_KEY: Final = re.compile(
    r"clusters/([^/]+)/topics/([0-9a-f-]{36})/([0-9]{1,10})/"
    r"([0-9]{20})-([0-9]{20})-([0-9]{10})(?:-([0-9]{10}))?-([0-9a-f]{16})(\.open)?\.segment"
)

UNDECIDED: Final = ".open.segment"


class SegmentKey(NamedTuple):
    """The facts about a segment that its object's key has."""

    cluster_id: ClusterId
    topic_id: TopicId
    partition: PartitionIndex
    start_offset: Offset
    end_offset: Offset
    """Inclusive."""
    leader_epoch: LeaderEpoch
    digest: str
    made_in: LeaderEpoch | None = None
    """For a merged segment: the leader epoch in which it was made."""
    is_undecided: bool = False
    """Whether its footer names transactions that were open when it was exported. Of other segments, a reader need not
    ask."""

    def __str__(self) -> str:
        offsets = f"{self.start_offset:020d}-{self.end_offset:020d}"
        directory = partition_prefix(self.cluster_id, TopicPartition(self.topic_id, self.partition))
        made_in = "" if self.made_in is None else f"-{self.made_in:010d}"
        mark = ".open" if self.is_undecided else ""
        return f"{directory}{offsets}-{self.leader_epoch:010d}{made_in}-{self.digest}{mark}.segment"

    @classmethod
    def parse(cls, key: str) -> SegmentKey | None:
        """The parsed key; None where `str` gives no such key."""
        found = _KEY.fullmatch(key)
        if found is None:
            return None
        cluster, topic, partition, start, end, epoch, made_in, digest, mark = found.groups()
        try:
            topic_id = TopicId(UUID(topic))
        except ValueError:
            return None
        named = cls(
            ClusterId(cluster),
            topic_id,
            PartitionIndex(int(partition)),
            Offset(int(start)),
            Offset(int(end)),
            LeaderEpoch(int(epoch)),
            digest,
            None if made_in is None else LeaderEpoch(int(made_in)),
            mark is not None,
        )
        return named if str(named) == key else None

    @classmethod
    def of(
        cls,
        cluster_id: ClusterId,
        partition: TopicPartition,
        segment: SegmentDescriptor,
        *,
        made_in: LeaderEpoch | None = None,
    ) -> SegmentKey:
        """The key that this segment must have. Its own says whether it is undecided."""
        return cls(
            cluster_id,
            *partition,
            segment.start_offset,
            segment.end_offset,
            segment.leader_epoch,
            segment.sha256[:DIGEST_CHARS],
            made_in,
            is_undecided(segment),
        )


def is_undecided(segment: SegmentDescriptor) -> bool:
    """Whether the segment's footer names transactions that were open when it was exported."""
    return segment.key.endswith(UNDECIDED)


def topics_prefix(cluster_id: ClusterId) -> str:
    """The prefix of a directory for each topic."""
    return f"clusters/{cluster_id}/topics/"


def partition_prefix(cluster_id: ClusterId, key: TopicPartition) -> str:
    return f"{topics_prefix(cluster_id)}{key.topic_id}/{key.partition}/"


def is_misnamed(cluster_id: ClusterId, partition: TopicPartition, segment: SegmentDescriptor) -> bool:
    """Whether the key is not that of an export of the segment. A key that is no segment's key at all is never swept."""
    named = SegmentKey.parse(segment.key)
    return named is not None and named != SegmentKey.of(cluster_id, partition, segment)
