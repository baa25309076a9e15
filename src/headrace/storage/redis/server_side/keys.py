"""Names of the keys in Redis (docs/REDIS.md lists their types and fields).

Promises: a name tells everything; no key is ever searched for. All keys of one partition are in one slot of a Cluster,
and so are all keys of the metadata. No two things share a name.

A partition's Stream is `headrace:orders:0`, without braces: its slot is that of its whole name. The partition's other
keys have that name in braces, `{headrace:orders:0}:state`, which gives the same slot. In a Cluster the metadata's keys
begin with the namespace in braces.
"""

from __future__ import annotations

import re
from binascii import crc_hqx
from dataclasses import dataclass
from typing import Final

from headrace.base.errors import UsageError
from headrace.base.ids import LeaderEpoch, PartitionIndex

NAMESPACE: Final = "headrace"
_NAMESPACE: Final = re.compile(r"[A-Za-z0-9._-]{1,100}")
_REGISTRY: Final = "topic"


@dataclass(frozen=True, slots=True)
class PartitionKeys:
    """The keys of one partition."""

    stream: str
    """A Stream: one entry for each record batch, whose id is `<offset after the batch>-0`."""

    @property
    def state(self) -> str:
        return f"{{{self.stream}}}:state"

    @property
    def times(self) -> str:
        return f"{{{self.stream}}}:times"

    @property
    def epochs(self) -> str:
        return f"{{{self.stream}}}:epochs"

    @property
    def producers(self) -> str:
        return f"{{{self.stream}}}:producers"

    @property
    def next(self) -> str:
        return f"{{{self.stream}}}:next"

    @property
    def aborted(self) -> str:
        return f"{{{self.stream}}}:aborted"

    def aside(self, epoch: LeaderEpoch) -> str:
        """The old contents of a log that its leader of that epoch began again."""
        return f"{{{self.stream}}}:aside:{epoch}"


@dataclass(frozen=True, slots=True)
class Keys:
    """The keys of one cluster of brokers."""

    namespace: str = NAMESPACE
    clustered: bool = False
    """Whether the keys are in a Redis Cluster."""

    def __post_init__(self) -> None:
        if _NAMESPACE.fullmatch(self.namespace) is None:
            raise UsageError(
                f"'{self.namespace:.40}' is no namespace for Redis: write up to 100 letters, digits, '.', '_' or '-'."
            )

    @property
    def _metadata(self) -> str:
        return f"{{{self.namespace}}}" if self.clustered else self.namespace

    @property
    def cluster(self) -> str:
        return f"{self._metadata}:cluster"

    @property
    def metadata(self) -> str:
        return f"{self._metadata}:metadata"

    @property
    def head(self) -> str:
        return f"{self._metadata}:metadata:head"

    @property
    def snapshot(self) -> str:
        return f"{self._metadata}:metadata:snapshot"

    @property
    def next_snapshot(self) -> str:
        return f"{self._metadata}:metadata:snapshot:next"

    @property
    def lease(self) -> str:
        return f"{self._metadata}:controller"

    @property
    def topics(self) -> str:
        return f"{self._metadata}:topics"

    def topic(self, name: str) -> str:
        return f"{self._metadata}:{_REGISTRY}:{name}"

    def partition(self, topic: str, partition: PartitionIndex) -> PartitionKeys:
        """The keys of a partition. A topic named `topic` has another colon, because `headrace:topic:0` is the
        registry's name of a topic `0`."""
        name = f":{topic}" if topic == _REGISTRY else topic
        return PartitionKeys(f"{self.namespace}:{name}:{partition}")


def slot_of(key: bytes) -> int:
    """The slot of a key in a Cluster: CRC16 of what is in its first braces, or of the whole key (Redis Cluster
    specification)."""
    start = key.find(b"{")
    if start >= 0 and (end := key.find(b"}", start + 1)) > start + 1:
        key = key[start + 1 : end]
    return crc_hqx(key, 0) % SLOTS


SLOTS: Final = 16384
