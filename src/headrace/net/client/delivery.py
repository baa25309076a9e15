"""Delivers batches that are packed and sealed already, for writers that encode at their own speed, such as Spark's
tasks.

Promises:

- The batches of one partition are stored in the order of `deliver`, each once (idempotent producer, KIP-98). At most
  one batch of a partition is under way, and a repeat has the same bytes.
- Every call ends. It ends at the latest when a batch was not acknowledged within the caller's timeout, even if a broker
  hangs.
- A partition that waits does not keep others from being sent.

The first failure that a pause does not heal ends the delivery. Batches that it did not acknowledge may be stored or
not. Requests always have acks=all.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple, TypeAlias

from headrace.base.ids import BrokerId, TopicId
from headrace.base.limits import (
    CLIENT_PRODUCE_BYTES_MAX,
    CLIENT_PRODUCE_PARTITIONS_MAX,
    CLIENT_PRODUCES_IN_FLIGHT_MAX,
)
from headrace.base.ports import Buffer
from headrace.net.client.batches import TopicReplacedError
from headrace.net.client.cluster import Cluster
from headrace.net.client.connection import Connection
from headrace.net.client.errors import ClientError, ConnectionLostError, GaveUpError, RefusedError, check, refusal
from headrace.net.client.producer import ACKS_ALL, PRODUCE_TIMEOUT_MS, SEQUENCES, new_producer_id
from headrace.net.client.two_phase import Prepared
from headrace.wire.apis import ApiKey
from headrace.wire.errors import ErrorCode
from headrace.wire.messages import produce as wire

ANSWER_SLACK_MS: Final = 5_000
CLOCK_SLACK_S: Final = 0.002
"""A loop may wake too early by this much."""
PRODUCE_LANE: Final = "produce"

Key: TypeAlias = tuple[TopicId, int]
"""Topic id and partition. The id distinguishes topics that have one name after each other."""


class SealedBatch(NamedTuple):
    """A whole record batch, for one partition."""

    topic: str
    topic_id: TopicId
    partition: int
    data: Buffer


class UndeliveredError(ClientError):
    """A batch was not acknowledged. The cause says why."""

    def __init__(self, topic: str, partition: int, reason: ClientError) -> None:
        self.topic = topic
        self.partition = partition
        self.reason = reason
        super().__init__(str(reason))


@dataclass(slots=True, eq=False)
class _Waiter:
    """A call of `deliver`."""

    left: int
    done: asyncio.Future[None]


@dataclass(slots=True, eq=False)
class _Lane:
    """One partition's batches, in order. The first one is under way while the lane is not among the ready ones."""

    topic: str
    topic_id: TopicId
    partition: int
    batches: deque[tuple[SealedBatch, _Waiter]] = field(default_factory=deque)
    failures: int = 0
    """Consecutive failures of the first batch."""
    since: float | None = None
    """When the first batch was first tried, on the loop's clock."""
    is_asked_for: bool = False
    """Whether brokers have described its topic since the lane exists."""

    @property
    def key(self) -> Key:
        return self.topic_id, self.partition

    @property
    def subject(self) -> str:
        return f"Partition {self.partition} of topic '{self.topic}'"


class Delivery:
    """The delivery of one producer id to one cluster. It belongs to one event loop; only `next_sequence` is for the
    thread that seals.
    """

    def __init__(self, cluster: Cluster, *, timeout_ms: int, prepared: Prepared | None = None) -> None:
        """`timeout_ms`: the longest time for which a batch is tried. `prepared`: the begun transaction that all batches
        are a part of."""
        self._cluster = cluster
        self.transaction = prepared
        self._timeout_s = timeout_ms / 1000
        self._lanes: dict[Key, _Lane] = {}
        self._ready: dict[Key, _Lane] = {}
        self._in_flight: dict[BrokerId, int] = {}
        self._sequences: dict[Key, int] = {}
        self._wake = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()
        self._dispatching = False
        self._failed: UndeliveredError | None = None
        self.producer: tuple[int, int] = (-1, -1) if prepared is None else (prepared.producer_id, prepared.epoch)
        """Producer id and epoch, after `open`."""

    async def open(self) -> None:
        """Request a producer id, unless a transaction has brought one. Raises ClientError."""
        if self.transaction is None:
            self.producer = await new_producer_id(self._cluster)

    def next_sequence(self, topic_id: TopicId, partition: int, count: int) -> int:
        """The sequence number of the first of `count` records, which must be sealed now and delivered in this order."""
        sequence = self._sequences.get((topic_id, partition), 0)
        self._sequences[topic_id, partition] = (sequence + count) % SEQUENCES
        return sequence

    async def deliver(self, batches: Sequence[SealedBatch]) -> None:
        """Deliver batches; returns once all are acknowledged. Raises UndeliveredError, after which nothing more is
        delivered.
        """
        if self._failed is not None:
            raise self._failed
        if not batches:
            return
        waiter = _Waiter(len(batches), asyncio.get_running_loop().create_future())
        for batch in batches:
            key = (batch.topic_id, batch.partition)
            lane = self._lanes.get(key)
            if lane is None:
                lane = self._lanes[key] = _Lane(batch.topic, batch.topic_id, batch.partition)
            lane.batches.append((batch, waiter))
            if len(lane.batches) == 1:
                self._make_ready([lane])
        if not self._dispatching:
            self._dispatching = True
            self._start(self._dispatch())
        await waiter.done

    async def close(self) -> None:
        """Stop at once. Batches under way may be stored or not, and waiting calls fail. Idempotent."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for lane in self._lanes.values():
            if lane.batches:
                self._fail(lane, GaveUpError("The delivery was closed."))

    # scheduling

    def _start(self, work: Any) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:  # a malformed answer, or a bug
            self._fail(next(iter(self._lanes.values())), GaveUpError(f"Producing failed unexpectedly: {error!r}."))

    def _make_ready(self, lanes: Iterable[_Lane]) -> None:
        if self._failed is None:
            self._ready.update((lane.key, lane) for lane in lanes)
        self._wake.set()

    async def _dispatch(self) -> None:
        """Send each leader its ready batches, in up to CLIENT_PRODUCES_IN_FLIGHT_MAX requests."""
        while self._failed is None:
            self._wake.clear()
            for leader, lanes in self._by_leader().items():
                while lanes and self._in_flight.get(leader, 0) < CLIENT_PRODUCES_IN_FLIGHT_MAX:
                    self._in_flight[leader] = self._in_flight.get(leader, 0) + 1
                    self._start(self._request(leader, self._taken(lanes)))
            await self._wake.wait()

    def _by_leader(self) -> dict[BrokerId, deque[_Lane]]:
        """The ready lanes by their known leader. For the others, metadata are requested meanwhile."""
        found: dict[BrokerId, deque[_Lane]] = {}
        unknown: list[_Lane] = []
        refused: list[tuple[_Lane, ClientError]] = []
        for lane in list(self._ready.values()):
            try:
                leader = self._leader(lane)
            except ClientError as error:
                refused.append((self._tried(lane), error))
                continue
            if leader is None:
                unknown.append(self._tried(lane))
            else:
                found.setdefault(leader, deque()).append(lane)
        if unknown:
            self._start(self._ask_for(unknown))
        if refused:
            self._start(self._settle([], refused))
        return found

    def _leader(self, lane: _Lane) -> BrokerId | None:
        """The leader of a lane; None where nothing is known of the topic. Raises ClientError where there is no leader,
        or the topic is another one.
        """
        view = self._cluster.known_topic(lane.topic)
        if view is None or (view.id != lane.topic_id and not lane.is_asked_for):
            return None
        check(view.error_code, f"Topic '{lane.topic}'")
        if view.id != lane.topic_id:
            raise TopicReplacedError(lane.topic)
        if lane.partition >= len(view.partitions):
            raise RefusedError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, lane.subject)
        leader = view.partitions[lane.partition].leader
        if not self._cluster.is_known(leader):
            raise RefusedError(ErrorCode.LEADER_NOT_AVAILABLE, lane.subject)
        return leader

    def _tried(self, lane: _Lane) -> _Lane:
        """Take the lane from the ready ones."""
        self._ready.pop(lane.key, None)
        if lane.since is None:
            lane.since = asyncio.get_running_loop().time()
        return lane

    def _left_ms(self, lanes: Iterable[_Lane]) -> int:
        """Milliseconds for which the first of these lanes may still be tried; at least 1."""
        since = min(lane.since for lane in lanes if lane.since is not None)
        return max(1, round(1000 * (since + self._timeout_s - asyncio.get_running_loop().time())))

    async def _ask_for(self, lanes: list[_Lane]) -> None:
        """Request the leaders of these lanes."""
        try:
            async with asyncio.timeout(self._left_ms(lanes) / 1000):
                await self._cluster.metadata({lane.topic for lane in lanes})
        except TimeoutError:
            error = ConnectionLostError(f"No broker told in time who leads partitions of topic '{lanes[0].topic}'.")
            self._start(self._settle([], [(lane, error) for lane in lanes]))
        except ClientError as error:
            self._start(self._settle([], [(lane, error) for lane in lanes]))
        else:
            for lane in lanes:
                lane.is_asked_for = True
            self._make_ready(lanes)

    def _taken(self, lanes: deque[_Lane]) -> list[_Lane]:
        """The lanes that fit into one request."""
        taken: list[_Lane] = []
        size = 0
        while lanes and len(taken) < CLIENT_PRODUCE_PARTITIONS_MAX:
            more = len(lanes[0].batches[0][0].data)
            if taken and size + more > CLIENT_PRODUCE_BYTES_MAX:
                break
            size += more
            taken.append(self._tried(lanes.popleft()))
        return taken

    # one request

    async def _request(self, leader: BrokerId, lanes: list[_Lane]) -> None:
        """Send the first batch of each lane."""
        acknowledged: list[_Lane] = []
        try:
            connection = await self._connection(leader, lanes)
            if self._failed is not None:
                return
            timeout_ms = min(PRODUCE_TIMEOUT_MS + ANSWER_SLACK_MS, self._left_ms(lanes))
            response = await connection.request(ApiKey.PRODUCE, self._message(lanes), timeout_ms=timeout_ms)
        except ClientError as error:
            refused = [(lane, error) for lane in lanes]
        else:
            outcomes = _outcomes(response, {lane.topic: lane.topic_id for lane in lanes})
            acknowledged, refused = _sorted_out(lanes, outcomes)
        finally:
            self._in_flight[leader] -= 1
            self._wake.set()
        await self._settle(acknowledged, refused)

    def _message(self, lanes: Iterable[_Lane]) -> wire.ProduceRequest:
        by_topic: dict[tuple[str, TopicId], list[wire.PartitionProduceData]] = {}
        for lane in lanes:
            data = wire.PartitionProduceData(index=lane.partition, records=memoryview(lane.batches[0][0].data))
            by_topic.setdefault((lane.topic, lane.topic_id), []).append(data)
        topics = tuple(
            wire.TopicProduceData(name=name, topic_id=topic_id, partition_data=tuple(partitions))
            for (name, topic_id), partitions in by_topic.items()
        )
        name = None if self.transaction is None else self.transaction.name
        return wire.ProduceRequest(
            transactional_id=name, acks=ACKS_ALL, timeout_ms=PRODUCE_TIMEOUT_MS, topic_data=topics
        )

    async def _connection(self, leader: BrokerId, lanes: list[_Lane]) -> Connection:
        try:
            async with asyncio.timeout(self._left_ms(lanes) / 1000):
                return await self._cluster.broker_connection(leader, PRODUCE_LANE)
        except TimeoutError:
            raise ConnectionLostError(f"Broker {leader} did not take a connection in time.") from None

    async def _settle(self, acknowledged: list[_Lane], refused: list[tuple[_Lane, ClientError]]) -> None:
        for lane in acknowledged:
            lane.failures, lane.since = 0, None
            _, waiter = lane.batches.popleft()
            waiter.left -= 1
            if not waiter.left and not waiter.done.done():
                waiter.done.set_result(None)
        self._make_ready(lane for lane in acknowledged if lane.batches)
        now = asyncio.get_running_loop().time()
        for lane, error in refused:
            lane.failures += 1
            tried_s = 0.0 if lane.since is None else now - lane.since
            if not error.retriable:
                self._fail(lane, error)
            elif tried_s >= self._timeout_s - CLOCK_SLACK_S:
                text = f"{str(error).rstrip('.')}; gave up after {lane.failures} tries in {tried_s:.0f} s."
                gave_up = GaveUpError(text)
                gave_up.__cause__ = error
                self._fail(lane, gave_up)
        if refused and self._failed is None:
            again = [lane for lane, _ in refused]
            pause_s = self._cluster.backoff.pause_s(max(lane.failures for lane in again))
            await asyncio.sleep(min(pause_s, self._left_ms(again) / 1000))
            self._start(self._ask_for(again))

    def _fail(self, lane: _Lane, error: ClientError) -> None:
        """End the delivery: nothing more is sent, and all waiting calls fail."""
        if self._failed is None:
            self._failed = UndeliveredError(lane.topic, lane.partition, error)
            self._failed.__cause__ = error
        for each in self._lanes.values():
            for _, waiter in each.batches:
                if not waiter.done.done():
                    waiter.done.set_exception(self._failed)
        self._ready.clear()
        self._wake.set()


def _outcomes(response: Any, ids: Mapping[str, TopicId]) -> dict[Key, Any]:
    """Results by partition. Answers name topics by id since version 13, and by name before."""
    return {
        (ids.get(topic.name, topic.topic_id), part.index): part
        for topic in response.responses
        for part in topic.partition_responses
    }


def _sorted_out(
    lanes: Iterable[_Lane], outcomes: Mapping[Key, Any]
) -> tuple[list[_Lane], list[tuple[_Lane, ClientError]]]:
    """The acknowledged lanes, including repeats that the broker knows, and the refused ones."""
    acknowledged: list[_Lane] = []
    refused: list[tuple[_Lane, ClientError]] = []
    for lane in lanes:
        part = outcomes.get(lane.key)
        if part is None:
            error: ClientError | None = GaveUpError(f"{lane.subject}: the leader's answer says nothing of it.")
        elif part.error_code == ErrorCode.DUPLICATE_SEQUENCE_NUMBER:
            error = None
        else:
            error = refusal(part.error_code, lane.subject, part.error_message)
        if error is None:
            acknowledged.append(lane)
        else:
            refused.append((lane, error))
    return acknowledged, refused
