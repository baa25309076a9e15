"""Identities and positions, each a type of its own, so that an offset is never taken for an epoch."""

from __future__ import annotations

import uuid
from typing import Final, NamedTuple, NewType

Offset = NewType("Offset", int)
"""A record's position in its partition: 0-based, contiguous save where compaction ran."""

LeaderEpoch = NewType("LeaderEpoch", int)
"""Counts the leaderships of one partition; rises with every election (KIP-101)."""

PartitionEpoch = NewType("PartitionEpoch", int)
"""Counts the changes to one partition's metadata, ISR changes included (KIP-497)."""

BrokerId = NewType("BrokerId", int)
BrokerEpoch = NewType("BrokerEpoch", int)
"""One incarnation (process start) of a broker: fences all before it (KIP-631)."""

ProducerId = NewType("ProducerId", int)
ProducerEpoch = NewType("ProducerEpoch", int)
PartitionIndex = NewType("PartitionIndex", int)

TopicId = NewType("TopicId", uuid.UUID)
"""A topic's identity, which outlives its name (KIP-516). Never the zero UUID, which means 'none' on the wire."""

DirectoryId = NewType("DirectoryId", uuid.UUID)
"""Identity of one data directory: a wiped disk comes back under another (KIP-858)."""

IncarnationId = NewType("IncarnationId", uuid.UUID)
"""One process start of a broker, as it names itself before it has a broker epoch (KIP-631)."""

ClusterId = NewType("ClusterId", str)

NO_TOPIC_ID: Final = TopicId(uuid.UUID(int=0))
NO_OFFSET: Final = Offset(-1)
FIRST_OFFSET: Final = Offset(0)
LAST_OFFSET: Final = Offset(2**63 - 1)
NO_EPOCH: Final = LeaderEpoch(-1)
NO_PRODUCER_ID: Final = ProducerId(-1)
NO_LEADER: Final = BrokerId(-1)


class TopicPartition(NamedTuple):
    """A partition by its topic's id: what logs, leaders and the catalog are keyed by."""

    topic_id: TopicId
    partition: PartitionIndex
