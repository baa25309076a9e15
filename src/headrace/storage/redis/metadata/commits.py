"""Sends the controller's entries to the commit log in Redis, in order, and the changes of the topic registry with them.

Promises:
- An entry is sent behind the one before it, or not at all. After a lost answer it is sent again, which commits it once.
- Once the lease is over, or the log ends elsewhere, everything that waits is dropped.
- Entries that wait go in one round trip.
- An entry counts once it is as durable as records are at `acks=all`, as far as there are replicas (`durability.py`).
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Final

from headrace.base.limits import (
    REDIS_BACKOFF_MS_MAX,
    REDIS_BACKOFF_MS_MIN,
    REDIS_METADATA_INLINE_BYTES,
    REDIS_METADATA_SENT_AT_ONCE,
    REDIS_METADATA_UNCOMMITTED_BYTES_MAX,
)
from headrace.metadata.codec import decode_events
from headrace.metadata.delta import ImageDelta
from headrace.metadata.image import MetadataImage
from headrace.metadata.values import TopicImage
from headrace.storage.redis.errors import RedisFailure, RedisNoFunction
from headrace.storage.redis.links.client import Redis
from headrace.storage.redis.links.troubles import Troubles
from headrace.storage.redis.metadata.doubting import ANOTHER
from headrace.storage.redis.metadata.durability import Durability
from headrace.storage.redis.server_side.functions import Answer, Call, Lease, MetadataFunctions, Status, answer_of


@dataclass(slots=True)
class Outgoing:
    """An entry that is not known to be durable."""

    index: int
    data: bytes
    call: Call | None = None
    """Made right before it is sent."""


class Commits:
    """The entries of one holding of the lease. `image` is that behind which they go."""

    def __init__(
        self,
        client: Redis,
        functions: MetadataFunctions,
        lease: Lease,
        image: MetadataImage,
        *,
        over: Callable[[str], None],
        on_end: Callable[[asyncio.Task[None]], None],
        durability: Durability,
        troubles: Troubles,
    ) -> None:
        """`over`: called where the lease proves to be over, with the reason. `on_end`: called with the task that
        sends, once it has ended."""
        self._client = client
        self._functions = functions
        self._lease: Final = lease
        self._image = image
        """That behind the last entry whose call is made."""
        self._over = over
        self._durability: Final = durability
        self._troubles: Final = troubles
        self._queue: deque[Outgoing] = deque()
        self._bytes = 0
        self._last = self._durable_to = image.index
        self._stored: Outgoing | None = None
        """The last entry that Redis has, as long as it may not be durable."""
        self._stopped = False
        self._filled = asyncio.Event()
        self._progress = asyncio.Event()
        self._sending = asyncio.get_running_loop().create_task(self._send())
        self._sending.add_done_callback(on_end)

    def stop(self) -> None:
        """Send nothing more."""
        self._stopped = True
        self._sending.cancel()
        self._queue.clear()
        self._progress.set()

    @property
    def next_index(self) -> int:
        return self._last + 1

    def add(self, entries: Sequence[bytes]) -> str | None:
        """Send these entries behind all others; all or none. Returns why not, or None."""
        size = sum(map(len, entries))
        if self._queue and self._bytes + size > REDIS_METADATA_UNCOMMITTED_BYTES_MAX:
            return "Too many changes of the metadata wait for Redis; try again."
        for data in entries:
            self._last += 1
            self._queue.append(Outgoing(self._last, data))
        self._bytes += size
        self._filled.set()
        return None

    def is_foreign(self, index: int, data: bytes) -> bool:
        """Whether the entry at this index is another than the one that was sent."""
        if not self._queue:
            return False
        at = index - self._queue[0].index
        return 0 <= at < len(self._queue) and self._queue[at].data != data

    async def durable(self, index: int) -> None:
        """Wait until the entry at this index is durable, if it is of this holding, or until this has stopped."""
        while self._durable_to < index <= self._last and not self._stopped:
            self._progress.clear()
            await self._progress.wait()

    async def _send(self) -> None:
        pause_ms = REDIS_BACKOFF_MS_MIN
        while True:
            self._filled.clear()
            if not self._queue and self._stored is None:
                await self._filled.wait()
            try:
                await self._send_some()
                await self._make_durable()
            except RedisFailure as error:
                self._troubles.note(error)
                await asyncio.sleep(pause_ms / 1000)
                pause_ms = min(2 * pause_ms, REDIS_BACKOFF_MS_MAX)
            else:
                self._troubles.over()
                pause_ms = REDIS_BACKOFF_MS_MIN

    async def _send_some(self) -> None:
        """Raises RedisFailure where not all of them are committed; they are sent again."""
        batch = list(islice(self._queue, REDIS_METADATA_SENT_AT_ONCE))
        calls = await self._calls(batch)
        answers = await asyncio.gather(*map(self._client.run, calls), return_exceptions=True)
        for answer in answers:
            if isinstance(answer, BaseException):
                raise answer
            if answer.status is not Status.DONE:
                self._end(answer)
                return
            self._stored = self._queue.popleft()
            self._bytes -= len(self._stored.data)

    async def _calls(self, batch: Sequence[Outgoing]) -> list[Call]:
        """The calls of entries. Those of large ones are made in a worker thread."""
        new = [each for each in batch if each.call is None]
        if sum(len(each.data) for each in new) > REDIS_METADATA_INLINE_BYTES:
            await asyncio.to_thread(self._make_calls, new)
        else:
            self._make_calls(new)
        return [each.call for each in batch if each.call is not None]

    def _make_calls(self, entries: Iterable[Outgoing]) -> None:
        image = self._image
        for each in entries:
            delta = ImageDelta.of(image, decode_events(each.data), index=each.index)
            put, remove = registry_changes(delta)
            each.call = self._functions.commit(self._lease, image.index, each.data, put=put, remove=remove)
            image = delta.after
        self._image = image

    async def _make_durable(self) -> None:
        """Wait until all that Redis has is durable. Raises RedisFailure where that is not known."""
        last = self._stored
        if last is None:
            return
        if waits := self._durability.waits(self._image):
            assert last.call is not None, "it was sent"
            # Redis still has it, and a write of this connection is behind it: the waits are for both.
            calls = (last.call, self._functions.renew(self._lease, self._durability.lease_ms))
            node = self._client.node_of(last.call.keys[0])
            try:
                stored, renewed, *waited = await asyncio.gather(
                    *(node.call(*call.command, payload=call.buffers) for call in calls),
                    *(node.call(*command) for command in waits),
                )
            except RedisNoFunction:
                await node.load_functions()
                raise
            for answer in (answer_of(stored), answer_of(renewed)):
                if answer.status is not Status.DONE:
                    self._end(answer)
                    return
            self._durability.check(waits, waited)
        self._stored, self._durable_to = None, last.index
        self._progress.set()

    def _end(self, answer: Answer) -> None:
        self._queue.clear()
        self._stored = None
        self._over(_REASONS.get(answer.status, f"Redis refused an entry ({answer})"))


_REASONS: Final = {
    Status.FENCED: "another broker took it",
    Status.AT: "Redis has another log than this broker decided on",
    Status.CHANGED: ANOTHER,
}


def registry_changes(delta: ImageDelta) -> tuple[dict[str, Mapping[str, str | int]], list[str]]:
    """Return topics to put into the registry, with all their fields, and names of topics to take from it."""
    put: dict[str, Mapping[str, str | int]] = {}
    remove: list[str] = []
    for before, after in delta.changed_topics():
        if after is None:
            assert before is not None, "it differs"
            remove.append(before.name)
        elif before is None or fields_of(before) != fields_of(after):
            put[after.name] = fields_of(after)
    return put, [name for name in remove if name not in put]


def fields_of(topic: TopicImage) -> dict[str, str | int]:
    """Return the fields of a topic in the registry: its id, its partitions' count, and every config that is set."""
    fields: dict[str, str | int] = dict(sorted(topic.configs.items()))
    return {"id": str(topic.id), "partitions": len(topic.partitions), "birth": topic.created_index, **fields}
