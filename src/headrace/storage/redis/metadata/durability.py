"""The controller's entries in Redis wait as records do at `acks=all`.

They wait for the sync of the append-only file where records do, however long it takes. They wait for
`min.insync.replicas - 1` replicas as far as these are connected, and for one that stands still not longer than
REDIS_WAIT_MS. Else such a replica would keep brokers that live from leading.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from headrace.metadata.image import MetadataImage
from headrace.storage.redis.errors import RedisOutcomeUnknown
from headrace.storage.redis.links.connection import Argument, Reply
from headrace.storage.redis.links.watching import Servers
from headrace.storage.redis.metadata.times import LeaseTimes

Wait = tuple[Argument, ...]


class Durability:
    """`insync`: the value of `min.insync.replicas`. None: nothing is waited for."""

    def __init__(
        self,
        servers: Servers | None = None,
        key: str = "",
        insync: Callable[[MetadataImage], int] = lambda _: 1,
        times: LeaseTimes | None = None,
    ) -> None:
        self._servers: Final = servers
        self._key: Final = key
        self._insync: Final = insync
        self.lease_ms: Final = (times or LeaseTimes()).lasts

    def waits(self, image: MetadataImage) -> list[Wait]:
        """Commands that wait, behind the entries."""
        return [] if self._servers is None else self._servers.waits(self._key, self._insync(image) - 1)

    def waits_of_all(self, replicas: int) -> list[Wait]:
        """Commands that wait for so many replicas, and for the file, for a part of a lease."""
        found: list[Wait] = [] if self._servers is None else self._servers.waits(self._key, 0)
        if self._servers is not None and replicas:
            found.insert(0, ("WAIT", replicas, 0))
        return [(*each[:-1], self.lease_ms // 3) for each in found]

    def check(self, waits: Sequence[Wait], replies: Sequence[Reply]) -> None:
        """Raises RedisOutcomeUnknown where the file was not synced in time."""
        for command, reply in zip(waits, replies, strict=True):
            if command[0] == "WAITAOF" and reply[0] < 1:
                raise RedisOutcomeUnknown("Redis has not synced its append-only file yet.")
            if command[0] == "WAIT" and reply < command[1] and self._servers is not None:
                self._servers.miss_replica()
