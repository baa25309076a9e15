"""The brokers of a cluster, asked from code that blocks: the client of `headrace.net.client` on a loop of its own.

Promises that every call ends, and that fetches go on while the caller decodes: at most FETCHES_AHEAD_MAX answers of one
partition are held. Nothing is opened before the first call.
"""

from __future__ import annotations

import asyncio
import re
import threading
from collections.abc import Coroutine, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from functools import partial
from types import TracebackType
from typing import Any, Self, TypeVar

from headrace.base.ids import PartitionIndex, TopicId
from headrace.base.limits import SPARK_FETCH_BYTES, SPARK_FETCH_WAIT_MS, SPARK_GROUPS_ASKED_AT_ONCE_MAX
from headrace.net.client.admin import Admin
from headrace.net.client.batches import FetchedBatches, fetch_batches, log_bytes
from headrace.net.client.cluster import Cluster
from headrace.net.client.delivery import Delivery, SealedBatch
from headrace.net.client.errors import ClientError
from headrace.net.client.groups import Groups, TopicPartition
from headrace.net.client.offsets import Found, list_offsets
from headrace.net.client.view import TopicView

T = TypeVar("T")
EARLIEST_LOCAL = -4
MESSAGE_BYTES = "max.message.bytes"
MESSAGE_BYTES_DEFAULT = 1_048_588
"""Kafka's own, where a broker does not tell."""


class Brokers:
    """A context manager. For one thread."""

    def __init__(self, bootstrap: str) -> None:
        self.bootstrap = bootstrap
        self._cluster = Cluster(bootstrap, client_id="headrace-spark")
        self._loop: asyncio.AbstractEventLoop | None = None
        self._ended = threading.Event()
        """The loop's thread is as good as over."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close every connection. Idempotent. The thread is not joined: where the garbage collector closes this, at
        the end of a read that nobody took to its end, it may be in the midst of the start of another thread, and there
        a join waits for itself."""
        loop, self._loop = self._loop, None
        if loop is None:
            return
        asyncio.run_coroutine_threadsafe(self._cluster.close(), loop).result()
        loop.call_soon_threadsafe(loop.stop)
        self._ended.wait()
        loop.close()

    def begin(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        """Start it on the loop."""
        if self._loop is None:
            self._loop, self._ended = asyncio.new_event_loop(), threading.Event()
            work_on = partial(_run, self._loop, self._ended)
            threading.Thread(target=work_on, name="headrace-spark", daemon=True).start()
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    def _ask(self, work: Coroutine[Any, Any, T]) -> T:
        return self.begin(work).result()

    # what there is

    def topics(self, pattern: str) -> list[TopicView]:
        """Those whose whole name matches, by name, but none of the brokers' own. Raises ClientError."""
        found = self._ask(Admin(self._cluster).topics())
        return [view for view in found if not view.internal and re.fullmatch(pattern, view.name)]

    def topic(self, name: str) -> TopicView:
        """As it is now. Raises UnknownTopicError where there is none, ClientError."""
        return self._ask(self._cluster.retried(lambda: self._cluster.existing_topic(name)))

    def offsets(self, topic: str, partitions: Iterable[int], at: int) -> dict[PartitionIndex, Found]:
        """As `list_offsets`. Raises ClientError."""
        return self._ask(list_offsets(self._cluster, topic, partitions, at))

    def bytes_per_offset(self, topic: str, ends: Mapping[PartitionIndex, int]) -> dict[PartitionIndex, float]:
        """Of each partition's log, on average, which ends at `ends`; those that are not known are left out."""
        try:
            sizes = self._ask(log_bytes(self._cluster, topic))
            starts = self.offsets(topic, sizes, EARLIEST_LOCAL)
        except ClientError:
            return {}
        return {
            index: size / max(1, ends[index] - starts[index].offset)
            for index, size in sizes.items()
            if index in ends and index in starts
        }

    def configs(self, topic: str) -> dict[str, str | None]:
        """All that hold of it. Raises ClientError."""
        return {config.name: config.value for config in self._ask(Admin(self._cluster).topic_configs(topic))}

    def committed(self) -> Iterator[tuple[str, Mapping[TopicPartition, int] | None]]:
        """How far each consumer group has read, of what it has committed; None where that cannot be had. Raises
        ClientError where not even the groups can."""
        groups = Groups(self._cluster)
        names = [group.name for group in self._ask(groups.list_groups())]
        for at in range(0, len(names), SPARK_GROUPS_ASKED_AT_ONCE_MAX):
            some = names[at : at + SPARK_GROUPS_ASKED_AT_ONCE_MAX]
            yield from zip(some, self._ask(self._committed(groups, some)), strict=True)

    async def _committed(self, groups: Groups, names: Sequence[str]) -> list[Mapping[TopicPartition, int] | None]:
        async def ask(name: str) -> Mapping[TopicPartition, int] | None:
            try:
                return await groups.committed(name)
            except ClientError:
                return None

        return await asyncio.gather(*map(ask, names))

    def message_bytes_max(self, topic: str) -> int:
        """Bytes of the largest batch that it takes. Raises ClientError."""
        return int(self.configs(topic).get(MESSAGE_BYTES) or MESSAGE_BYTES_DEFAULT)

    # records

    def delivery(self, timeout_ms: int) -> Delivery:
        """With a producer id of its own. Raises ClientError."""

        async def open_delivery() -> Delivery:
            delivery = Delivery(self._cluster, timeout_ms=timeout_ms)
            await delivery.open()
            return delivery

        return self._ask(open_delivery())

    def deliver(self, delivery: Delivery, batches: Sequence[SealedBatch]) -> Future[None]:
        """Begin to deliver them; what was begun before goes first. The future raises UndeliveredError."""
        return self.begin(delivery.deliver(batches))

    def stop(self, delivery: Delivery) -> None:
        """What is not acknowledged may be stored or not."""
        self._ask(delivery.close())

    def fetch(self, topic: str, topic_id: TopicId, partition: int, offset: int) -> Future[FetchedBatches]:
        """Begin to fetch whole batches from `offset` on."""
        return self.begin(
            fetch_batches(
                self._cluster,
                topic,
                topic_id,
                partition,
                offset,
                bytes_max=SPARK_FETCH_BYTES,
                wait_ms=SPARK_FETCH_WAIT_MS,
            )
        )


def _run(loop: asyncio.AbstractEventLoop, ended: threading.Event) -> None:
    """What the thread does."""
    try:
        loop.run_forever()
    finally:
        ended.set()
