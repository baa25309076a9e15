"""Identities and positions, each a type of its own, so that an offset is never taken for an epoch."""

from __future__ import annotations

import uuid
from typing import Final, NamedTuple, NewType

Offset = NewType("Offset", int)
"""A record's position in its partition: 0-based, and contiguous except where compaction ran."""

LeaderEpoch = NewType("LeaderEpoch", int)
"""Counts the leaderships of one partition; rises with every election (KIP-101)."""

PartitionEpoch = NewType("PartitionEpoch", int)
"""Counts the changes to one partition's metadata, including those of its ISR (KIP-497)."""

BrokerId = NewType("BrokerId", int)
BrokerEpoch = NewType("BrokerEpoch", int)
"""One incarnation (process start) of a broker; it fences all earlier ones (KIP-631)."""

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
PRODUCER_EPOCH_MAX: Final = ProducerEpoch(2**15 - 1)
"""Only a coordinator that fences a producer uses it. A client has epochs below it, so that it can always be fenced."""
NO_LEADER: Final = BrokerId(-1)


class Lineage(NamedTuple):
    """Identifies the history of the cluster's metadata that a broker follows. A quorum that was lost and recovered by
    force begins another one. A broker of another lineage shares no log with this one and is refused."""

    number: int = 0
    """Number of the recovery, counted from 1; 0: the quorum was never recovered."""
    recovery: str = ""
    """The random id of the recovery."""

    def __str__(self) -> str:
        """As text; empty where there was no recovery."""
        return f"{self.number}:{self.recovery}" if self.number else ""

    @classmethod
    def parsed(cls, text: str) -> Lineage:
        """Parse text that `str` made. Raises ValueError on anything else."""
        if not text:
            return cls()
        number, colon, recovery = text.partition(":")
        if not (colon and number.isascii() and number.isdecimal() and int(number) > 0 and recovery):
            raise ValueError(f"{text!r:.60} names no lineage")
        return cls(int(number), recovery)


NO_LINEAGE: Final = Lineage()
"""The quorum was never recovered."""


class TopicPartition(NamedTuple):
    """A partition by its topic's id. Logs, leaders and the catalog use it as their key."""

    topic_id: TopicId
    partition: PartitionIndex
