"""The end of the commit log as a new holder of the lease finds it, and how it goes on where entries may be lost.

A Redis that failed over, or was started again, has another history, which INFO tells. It may lack entries that brokers
have read. It refuses all holders from before, the last one, too: one that slept does not know of them. So the first
holder there adds one entry before it decides anything: `ChangesDoubted`. It raises all epochs above those that lost
entries may have given out. Its own index leaves a gap, so that no index is given twice.

Promises:
- A holder that has itself read more than the log has goes on in this way, too.
- The entry's number is durable, and on each replica that is connected then, before anybody can read the entry. Where
  Redis loses that, too, the next one has another number.
- A call that is repeated after a lost answer adds no second entry.
- A cluster that has no entry yet begins with the first one, as ever.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final, NamedTuple

from headrace.base.limits import DOUBTED_INDEXES
from headrace.logs import get_logger
from headrace.metadata.codec import encode_events
from headrace.metadata.events import ChangesDoubted
from headrace.storage.redis.errors import RedisOutcomeUnknown
from headrace.storage.redis.links.client import Redis
from headrace.storage.redis.links.server import told_in
from headrace.storage.redis.metadata.durability import Durability
from headrace.storage.redis.metadata.stream import MetadataStream, Position
from headrace.storage.redis.server_side.functions import Lease, MetadataFunctions, Status

log = get_logger(__name__)
ANOTHER: Final = "Redis has failed over or was started again"
"""Why a lease is over, as the log tells it."""


class Known(NamedTuple):
    """The part of the log that this node has read."""

    at: Position
    doubts: int


class Doubting:
    """See the module. `known`: what this node has read by now."""

    def __init__(
        self,
        client: Redis,
        functions: MetadataFunctions,
        stream: MetadataStream,
        durability: Durability,
        known: Callable[[], Known],
    ) -> None:
        self._client: Final = client
        self._functions: Final = functions
        self._stream: Final = stream
        self._durability: Final = durability
        self._known: Final = known

    async def end(self, lease: Lease) -> Position:
        """The end behind which the holder of this lease goes on: nobody else can add anything. Raises RedisFailure."""
        server = await self._server()
        history = server.get("master_replid", "")  # empty: it does not tell
        head = await self._stream.state()
        (at, doubts), end = self._known(), head.end
        if head.history == history and not at.is_beyond(end):
            return end
        if not end.index:
            if not at.index:  # else everything is lost, and nobody goes on
                await self._client.run(self._functions.doubt(lease, 0, 0, history, 0, b""))
            return end
        number = max(head.doubts, head.intended, doubts) + 1
        await self._intend(lease, number, int(server.get("connected_slaves", 0)))
        index = max(end.index, at.index) + (number - head.doubts) * DOUBTED_INDEXES
        events = encode_events([ChangesDoubted(number=number)])
        answer = await self._client.run(self._functions.doubt(lease, end.index, index, history, number, events))
        if answer.status is not Status.DONE:
            raise RedisOutcomeUnknown(f"Redis refused to go on behind its last entry ({answer}).")
        log.warning(
            "Redis may have lost the last changes of the metadata: leader epochs rise, and its log leaves a gap",
            last_index=end.index,
            next_index=index,
        )
        return Position(index, str(answer.values[1]).encode())

    async def _intend(self, lease: Lease, number: int, replicas: int) -> None:
        """Make the number durable. Raises RedisFailure."""
        call = self._functions.intend(lease, number)
        if (answer := await self._client.run(call)).status is not Status.DONE:
            raise RedisOutcomeUnknown(f"Redis refused the number of a doubt ({answer}).")
        node = self._client.node_of(self._stream.keys.head)
        waited_for = -1
        while replicas > waited_for:  # it may have been a copy that began before, and ended behind the first look
            waits, waited_for = self._durability.waits_of_all(replicas), replicas
            # It is written once more, by the connection that waits.
            _, *waited = await asyncio.gather(node.call(*call.command), *(node.call(*command) for command in waits))
            self._durability.check(waits, waited)
            replicas = int((await self._server()).get("connected_slaves", 0))

    async def _server(self) -> dict[str, str]:
        """Ask the log's server about its replication. `master_replid` is its history, `connected_slaves` counts its
        replicas. Raises RedisFailure."""
        return told_in(await self._client.call("INFO", "replication", key=self._stream.keys.head))
