"""Sends the controller's entries to the commit log in Redis, in order, and the changes of the topic registry with them.

Promises:
- An entry is sent behind the one before it, or not at all. After a lost answer it is sent again, which commits it once.
- Once the lease is another's, or the log ends elsewhere, everything that waits is dropped.
- Entries that wait go in one round trip.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import structlog

from headrace.base.limits import (
    REDIS_BACKOFF_MS_MAX,
    REDIS_BACKOFF_MS_MIN,
    REDIS_METADATA_SENT_AT_ONCE,
    REDIS_METADATA_UNCOMMITTED_BYTES_MAX,
)
from headrace.metadata.codec import decode_events
from headrace.metadata.delta import ImageDelta
from headrace.metadata.image import MetadataImage
from headrace.metadata.values import TopicImage
from headrace.storage.redis.errors import RedisFailure
from headrace.storage.redis.links.client import Redis
from headrace.storage.redis.server_side.functions import Answer, Call, Lease, MetadataFunctions, Status

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Outgoing:
    """An entry that is not known to be committed."""

    index: int
    data: bytes
    call: Call


class Commits:
    """The entries of one holding of the lease. `image` is that behind which they go."""

    def __init__(
        self,
        client: Redis,
        functions: MetadataFunctions,
        lease: Lease,
        image: MetadataImage,
        over: Callable[[str], None],
        on_end: Callable[[asyncio.Task[None]], None],
    ) -> None:
        """`over`: called where the lease proves to be another's, with the reason. `on_end`: called with the task that
        sends, once it has ended."""
        self._client = client
        self._functions = functions
        self._lease: Final = lease
        self._image = image
        self._over = over
        self._queue: deque[Outgoing] = deque()
        self._bytes = 0
        self._filled = asyncio.Event()
        self._sending = asyncio.get_running_loop().create_task(self._send())
        self._sending.add_done_callback(on_end)

    def stop(self) -> None:
        """Send nothing more."""
        self._sending.cancel()
        self._queue.clear()

    @property
    def next_index(self) -> int:
        return self._image.index + 1

    def add(self, entries: Sequence[bytes]) -> str | None:
        """Send these entries behind all others; all or none. Returns why not, or None."""
        size = sum(map(len, entries))
        if self._queue and self._bytes + size > REDIS_METADATA_UNCOMMITTED_BYTES_MAX:
            return "Too many changes of the metadata wait for Redis; try again."
        for data in entries:
            delta = ImageDelta.of(self._image, decode_events(data), index=self.next_index)
            put, remove = registry_changes(delta)
            call = self._functions.commit(self._lease, self._image.index, data, put=put, remove=remove)
            self._queue.append(Outgoing(self.next_index, data, call))
            self._image = delta.after
        self._bytes += size
        self._filled.set()
        return None

    def is_foreign(self, index: int, data: bytes) -> bool:
        """Whether the entry at this index is another than the one that was sent."""
        if not self._queue:
            return False
        at = index - self._queue[0].index
        return 0 <= at < len(self._queue) and self._queue[at].data != data

    async def _send(self) -> None:
        pause_ms = REDIS_BACKOFF_MS_MIN
        while True:
            self._filled.clear()
            if not self._queue:
                await self._filled.wait()
            batch = [self._queue[at] for at in range(min(len(self._queue), REDIS_METADATA_SENT_AT_ONCE))]
            answers = await asyncio.gather(*(self._client.run(each.call) for each in batch), return_exceptions=True)
            failure = self._settle(answers)
            if failure is None:
                pause_ms = REDIS_BACKOFF_MS_MIN
                continue
            log.info("changes of the metadata are sent again", reason=str(failure))
            await asyncio.sleep(pause_ms / 1000)
            pause_ms = min(2 * pause_ms, REDIS_BACKOFF_MS_MAX)

    def _settle(self, answers: Iterable[Answer | BaseException]) -> RedisFailure | None:
        """Take what is committed off the queue. Returns why the first that is left is not, or None."""
        for answer in answers:
            if isinstance(answer, RedisFailure):
                return answer
            if isinstance(answer, BaseException):
                raise answer
            if answer.status is not Status.DONE:
                self._queue.clear()
                self._over(_REASONS.get(answer.status, f"Redis refused an entry ({answer})"))
                return None
            self._bytes -= len(self._queue.popleft().data)
        return None


_REASONS: Final = {
    Status.FENCED: "another broker took it",
    Status.AT: "Redis has another log than this broker decided on",
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
