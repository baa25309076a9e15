"""The brokers of a cluster, for code that blocks: the client of `headrace.net.client` on an event loop of its own.

Promises that every call ends, and that fetches continue while the caller decodes. `headrace.spark.read.reading` fetches
one answer of a partition ahead. Nothing is opened before the first call.
"""

from __future__ import annotations

import asyncio
import atexit
import re
import threading
import time
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import ExitStack, contextmanager
from functools import partial
from types import TracebackType
from typing import Any, NamedTuple, Self, TypeVar

from headrace.base.ids import PartitionIndex, TopicId
from headrace.base.limits import (
    SPARK_FETCH_BYTES,
    SPARK_FETCH_WAIT_MS,
    SPARK_GROUPS_ASKED_AT_ONCE_MAX,
    SPARK_PRODUCER_IDLE_S,
)
from headrace.net.client.admin import Admin
from headrace.net.client.batches import FetchedBatches, fetch_batches, log_bytes
from headrace.net.client.cluster import Cluster
from headrace.net.client.delivery import Delivery, SealedBatch
from headrace.net.client.errors import ClientError
from headrace.net.client.groups import Groups, TopicPartition
from headrace.net.client.offsets import Found, list_offsets
from headrace.net.client.security.settings import PLAIN, ClientSecurity
from headrace.net.client.transactions import STATE_TOPIC
from headrace.net.client.two_phase import TwoPhase
from headrace.net.client.view import TopicView
from headrace.net.loops import loop_factory

T = TypeVar("T")
EARLIEST_LOCAL = -4
MESSAGE_BYTES = "max.message.bytes"
MESSAGE_BYTES_DEFAULT = 1_048_588
"""Kafka's default, where a broker does not report one."""


class Brokers:
    """A context manager for one thread."""

    def __init__(self, bootstrap: str, security: ClientSecurity = PLAIN) -> None:
        self.bootstrap = bootstrap
        self.security = security
        self._cluster = Cluster(bootstrap, client_id="headrace-spark", security=security)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._ended = threading.Event()
        """Set when the loop's thread has left the loop."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close every connection. Idempotent.

        The thread is not joined. The garbage collector may close this, after a read that was not finished, while
        another thread is starting. A join would then wait for itself.
        """
        loop, self._loop = self._loop, None
        if loop is None:
            return
        asyncio.run_coroutine_threadsafe(self._cluster.close(), loop).result()
        loop.call_soon_threadsafe(loop.stop)
        self._ended.wait()
        loop.close()

    def begin(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        """Start the work on the loop."""
        if self._loop is None:
            self._loop, self._ended = (loop_factory() or asyncio.new_event_loop)(), threading.Event()
            work_on = partial(_run, self._loop, self._ended)
            threading.Thread(target=work_on, name="headrace-spark", daemon=True).start()
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    def _ask(self, work: Coroutine[Any, Any, T]) -> T:
        return self.begin(work).result()

    def ask(self, work: Callable[[Cluster], Coroutine[Any, Any, T]]) -> T:
        """The result of the work on this cluster."""
        return self._ask(work(self._cluster))

    # topics and offsets

    def topics(self, pattern: str) -> list[TopicView]:
        """Topics whose whole name matches, by name, except the brokers' own. Raises ClientError."""
        found = self._ask(Admin(self._cluster).topics())
        return [view for view in found if not view.internal and re.fullmatch(pattern, view.name)]

    def topic(self, name: str) -> TopicView:
        """The topic as it is now. Raises UnknownTopicError where there is none, ClientError."""
        return self._ask(self._cluster.retried(lambda: self._cluster.existing_topic(name, may_be_made=True)))

    def offsets(
        self, topic: str, partitions: Iterable[int], at: int, *, committed_only: bool = False
    ) -> dict[PartitionIndex, Found]:
        """As `list_offsets`. Raises ClientError."""
        return self._ask(list_offsets(self._cluster, topic, partitions, at, committed_only=committed_only))

    def bytes_per_offset(self, topic: str, ends: Mapping[PartitionIndex, int]) -> dict[PartitionIndex, float]:
        """Average bytes per offset of each partition's log, which ends at `ends`. Unknown ones are left out."""
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
        """All configs in force for the topic. Raises ClientError."""
        return {config.name: config.value for config in self._ask(Admin(self._cluster).topic_configs(topic))}

    def committed(self) -> Iterator[tuple[str, Mapping[TopicPartition, int] | None]]:
        """The committed offsets of each consumer group; None where they are unavailable. Raises ClientError where the
        groups themselves are.
        """
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
        """Bytes of the largest batch that the topic accepts. Raises ClientError."""
        return int(self.configs(topic).get(MESSAGE_BYTES) or MESSAGE_BYTES_DEFAULT)

    # records

    def delivery(self, timeout_ms: int, transaction: str | None = None) -> Delivery:
        """A delivery with a producer id of its own; within a transaction of this id, if any, which it begins. Raises
        ClientError.
        """
        return self.begin_delivery(timeout_ms, transaction).result()

    def begin_delivery(
        self,
        timeout_ms: int,
        transaction: str | None = None,
        *,
        topics: Iterable[str] = (),
        behind: Delivery | None = None,
    ) -> Future[Delivery]:
        """Begin to open a delivery as `delivery` has it, once the one `behind` which it comes is stopped. `topics`:
        some to which it will deliver. The future raises ClientError.
        """

        async def opened() -> Delivery:
            if behind is not None:
                await behind.close()
            prepared = None
            if transaction is not None:
                two_phase = TwoPhase(self._cluster)
                if self._cluster.known_topic(STATE_TOPIC) is None:
                    await two_phase.know_coordinators(*topics)
                prepared = await two_phase.begin(transaction)
            delivery = Delivery(self._cluster, timeout_ms=timeout_ms, prepared=prepared)
            await delivery.open()
            return delivery

        return self.begin(opened())

    def deliver(self, delivery: Delivery, batches: Sequence[SealedBatch]) -> Future[None]:
        """Begin to deliver batches, after those begun before. The future raises UndeliveredError."""
        return self.begin(delivery.deliver(batches))

    def stop(self, delivery: Delivery) -> None:
        """Stop the delivery. Unacknowledged batches may be stored or not."""
        self._ask(delivery.close())

    def fetch(
        self, topic: str, topic_id: TopicId, partition: int, offset: int, *, committed_only: bool = False
    ) -> Future[FetchedBatches]:
        """Begin to fetch whole batches from `offset` on, as `fetch_batches`."""
        return self.begin(
            fetch_batches(
                self._cluster,
                topic,
                topic_id,
                partition,
                offset,
                bytes_max=SPARK_FETCH_BYTES,
                wait_ms=SPARK_FETCH_WAIT_MS,
                committed_only=committed_only,
            )
        )


class _Kept(NamedTuple):
    bootstrap: str
    security: ClientSecurity
    brokers: Brokers
    since_s: float


_kept: list[_Kept] = []
"""The last brokers that `kept_brokers` gave, while nobody uses them."""


@contextmanager
def kept_brokers(bootstrap: str, security: ClientSecurity) -> Iterator[Brokers]:
    """Brokers, whose connections this process keeps for the next caller for SPARK_PRODUCER_IDLE_S. After an exception
    they are closed."""
    found = None
    while _kept:
        kept = _kept.pop()
        is_young = time.monotonic() - kept.since_s < SPARK_PRODUCER_IDLE_S
        if found is None and is_young and (kept.bootstrap, kept.security) == (bootstrap, security):
            found = kept.brokers
        else:
            kept.brokers.close()
    with ExitStack() as closing:
        brokers = closing.enter_context(found or Brokers(bootstrap, security))
        yield brokers
        closing.pop_all()
    _kept.append(_Kept(bootstrap, security, brokers, time.monotonic()))
    if len(_kept) == 1:
        atexit.unregister(forget_brokers)
        atexit.register(forget_brokers)


def forget_brokers() -> None:
    """Close what is kept."""
    while _kept:
        _kept.pop().brokers.close()


def _run(loop: asyncio.AbstractEventLoop, ended: threading.Event) -> None:
    """The body of the loop's thread."""
    try:
        loop.run_forever()
    finally:
        ended.set()
