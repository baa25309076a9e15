"""The heir of one partition that is handed over: it keeps the batches that come, and carries them.

It keeps the promises of `forwarding`, which loads it with the first partition that is handed over.
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from contextlib import suppress
from typing import TYPE_CHECKING, Final, NamedTuple

from headrace.base.errors import HeadraceError
from headrace.base.ids import BrokerId, Offset, TopicPartition
from headrace.base.limits import (
    CARRIED_ANSWER_MS_MAX,
    CARRIED_BYTES_MAX,
    CARRIED_LATE_MS_MAX,
    CARRIED_MS_MAX,
    CARRIED_QUIETLY_MS,
    CARRIED_WAIT_MS_MAX,
    CLIENT_REQUESTS_IN_FLIGHT_MAX,
    PARKED_BATCHES_BYTES_MAX,
    PARKED_BATCHES_MAX,
)
from headrace.base.ports import Buffer
from headrace.broker.kit.tasks import started
from headrace.broker.partitions.intake.forwarding import Done, Forwarded, Forwarder, Takes
from headrace.broker.partitions.replica import WriteRefusal
from headrace.logs import get_logger
from headrace.net.client.connection import Connection, connect
from headrace.net.client.errors import ConnectionLostError, UnsupportedError
from headrace.wire.apis import ApiKey
from headrace.wire.batches import HEADER_BYTES, parse_header
from headrace.wire.errors import ErrorCode, error_of
from headrace.wire.plain_produce import TOPIC_ID_VERSION
from headrace.wire.validation import RecordFault

if TYPE_CHECKING:
    from headrace.wire.messages.produce import ProduceResponse

log = get_logger(__name__)

LEFT: Final = WriteRefusal(ErrorCode.NOT_LEADER_OR_FOLLOWER, "The partition is handed over; retry.")
LOST: Final = WriteRefusal(
    ErrorCode.REQUEST_TIMED_OUT, "The batch was carried to the new leader, which has not answered: retry."
)


class Batch(NamedTuple):
    """A batch that waits, or is carried."""

    records: bytes
    needs_isr: bool
    done: Done
    producer: int
    """Whose sequences tell the new owner their order; -1: nobody's."""
    is_late: bool
    """True: it came when the new owner could write already."""


class Heir:
    """The heir of one partition's batches: another broker, or this one, once its log is open."""

    def __init__(self, forwarder: Forwarder, key: TopicPartition, target: BrokerId) -> None:
        self._forwarder = forwarder
        self._key = key
        self._target = target
        self._queue: deque[Batch] = deque()
        self._asked: set[asyncio.Task[None]] = set()
        """Batches that are carried and not answered, in order."""
        self._bytes = 0
        """Bytes of both."""
        self._connection: Connection | None = None
        """Made for the first batch."""
        self._may_write = False
        """Whether the target may write."""
        self._producers: Counter[int] = Counter()
        """The number of batches of each producer here."""
        self._tells_all = False
        """Whether all answers name the new leader: it is time for all producers to go there."""
        self._is_full = False
        """A batch was refused for want of room, and no later one may overtake it."""
        self._is_over = False
        """Nothing more is accepted."""
        self.news = asyncio.Event()
        """Set when the image has changed, or there is more to carry."""
        self._task: asyncio.Task[None] | None = None

    def begin(self) -> None:
        work = self._keep() if self._target == self._forwarder.node else self._carry()
        self._task = started(work, "batches of a partition that is handed over", self._forwarder.on_bug)
        self._forwarder.working.add(self)
        self._task.add_done_callback(lambda _: self._forwarder.working.discard(self))

    def take(self, records: Buffer, *, needs_isr: bool, done: Done) -> None:
        """As `Takes`: a batch that is not accepted is refused."""
        if not self.takes(records, needs_isr=needs_isr, done=done):
            done(LEFT)

    def takes(self, records: Buffer, *, needs_isr: bool, done: Done) -> bool:
        """Accept the batch and return True: `done` will be called. Else return False."""
        producer = producer_of(records)
        if self._is_over or (self._may_write and producer < 0):
            return False
        self._is_full = self._is_full or not self._has_room(len(records))
        if self._is_full:
            return False
        batch = Batch(bytes(records), needs_isr, done, producer, self._may_write)
        self._count(batch, 1)
        self._queue.append(batch)
        self.news.set()
        return True

    def _has_room(self, size: int) -> bool:
        if len(self._queue) + len(self._asked) >= PARKED_BATCHES_MAX or self._bytes + size > PARKED_BATCHES_BYTES_MAX:
            return False
        return self._forwarder.waiting_bytes + size <= CARRIED_BYTES_MAX

    def _count(self, batch: Batch, by: int) -> None:
        self._bytes += by * len(batch.records)
        self._forwarder.waiting_bytes += by * len(batch.records)
        self._producers[batch.producer] += by
        if not self._producers[batch.producer]:
            del self._producers[batch.producer]

    # this broker is the heir

    async def _keep(self) -> None:
        """Keep the batches until `hand_to`, or until time is up."""
        with suppress(TimeoutError):
            async with asyncio.timeout(CARRIED_WAIT_MS_MAX / 1000):
                while not self._is_over:
                    self.news.clear()
                    await self.news.wait()
        self.end()

    # another broker is the heir

    async def _carry(self) -> None:
        try:
            async with asyncio.timeout(CARRIED_WAIT_MS_MAX / 1000):
                while not await self._finished():
                    pass
            self._may_write = True
            self._refuse_unsequenced()
            await self._send_for(CARRIED_QUIETLY_MS)
            self._tells_all = True
            await self._send_for(CARRIED_MS_MAX - CARRIED_QUIETLY_MS)
            if self._asked:  # batches that come meanwhile wait behind these
                await asyncio.wait(self._asked)
        except UnsupportedError as error:
            log.warning("batches are not carried to a broker of another release", reason=str(error))
        except (HeadraceError, TimeoutError):
            pass  # clients find the way themselves
        finally:
            self.end()
            if self._connection is not None:
                self._connection.abort()

    async def _connected(self) -> Connection:
        """Return the connection to the target. Raises ClientError, and TimeoutError where nobody knows its address."""
        if self._connection is None:
            address = self._forwarder.address_of(self._target)
            if address is None:
                raise TimeoutError
            self._connection = await connect(
                address,
                client_id="headrace-broker",
                timeout_ms=CARRIED_WAIT_MS_MAX,
                security=self._forwarder.security,
            )
            self._connection.version(ApiKey.PRODUCE, TOPIC_ID_VERSION, lowest=TOPIC_ID_VERSION)  # or it takes none
        return self._connection

    async def _finished(self) -> bool:
        """Return whether the target may write; otherwise wait for news. Raises ClientError, and TimeoutError where it
        never will."""
        self.news.clear()
        known = self._forwarder.image().partition(self._key)
        if self._is_over or known is None or known.leader != self._target:
            raise TimeoutError
        if not known.is_sealed:
            return True
        if self._queue and self._connection is None:
            await self._connected()
        else:
            await self.news.wait()
        return False

    def _refuse_unsequenced(self) -> None:
        refused = [batch for batch in self._queue if batch.producer < 0]
        self._queue = deque(batch for batch in self._queue if batch.producer >= 0)
        for batch in refused:
            self._settle(batch, LEFT)

    async def _send_for(self, time_ms: int) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(time_ms / 1000):
                await self._send_all()

    async def _send_all(self) -> None:
        """Send batches until it is over. Raises ClientError, TimeoutError."""
        while not self._is_over:
            self.news.clear()
            if self._target_is_gone:
                self.end()
                self._break()
            elif self._queue and len(self._asked) < CLIENT_REQUESTS_IN_FLIGHT_MAX:
                connection = await self._connected()
                await connection.writable()
                if self._queue:
                    self._send(connection)
            else:
                await self.news.wait()

    @property
    def _target_is_gone(self) -> bool:
        """Whether it is known that the target will not answer."""
        known = self._forwarder.image().brokers.get(self._target)
        return known is None or known.fenced

    def _break(self) -> None:
        """Drop the connection: carried batches count as lost."""
        if self._connection is not None:
            self._connection.abort()

    def _send(self, connection: Connection) -> None:
        """Send the first waiting batch now, so that they go out in the order in which they came. Raises
        ConnectionLostError."""
        from headrace.wire.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData

        batch = self._queue[0]
        data = PartitionProduceData(self._key.partition, batch.records)
        request = ProduceRequest(
            acks=-1 if batch.needs_isr else 1,
            timeout_ms=CARRIED_ANSWER_MS_MAX,
            topic_data=(TopicProduceData(topic_id=self._key.topic_id, partition_data=(data,)),),
        )
        answer = connection.post(ApiKey.PRODUCE, request, version=TOPIC_ID_VERSION)
        self._queue.popleft()
        asked = asyncio.get_running_loop().create_task(self._answered(answer, batch))
        self._asked.add(asked)
        asked.add_done_callback(self._on_answered)

    def _on_answered(self, asked: asyncio.Task[None]) -> None:
        self._asked.discard(asked)
        self.news.set()

    async def _answered(self, answer: asyncio.Future[ProduceResponse], batch: Batch) -> None:
        outcome: Forwarded | WriteRefusal = LOST
        try:
            async with asyncio.timeout((CARRIED_ANSWER_MS_MAX + CARRIED_LATE_MS_MAX) / 1000):
                outcome = _outcome(await answer, tells=self._tells(batch))
        except TimeoutError:
            self._break()
        except ConnectionLostError:
            pass
        finally:
            self._settle(batch, outcome)

    def _tells(self, batch: Batch) -> bool:
        """Whether the producer is to go to the new leader now. A producer of librdkafka waits for a second where it was
        never connected there, and has any other batch in flight. So at first, it is told at a moment when it has none
        in flight, as far as is known here. By then it has sent the batches that gathered while the partition was handed
        over."""
        return self._tells_all or (batch.is_late and self._producers[batch.producer] == 1)

    # ending

    def _settle(self, batch: Batch, outcome: Forwarded | WriteRefusal) -> None:
        self._count(batch, -1)
        batch.done(outcome)

    def end(self) -> None:
        """Refuse the batches that were not carried."""
        for batch in self._close():
            batch.done(LEFT)

    def hand_to(self, partition: Takes) -> None:
        """Give the batches that were not carried to `partition`."""
        for batch in self._close():
            partition.take(batch.records, needs_isr=batch.needs_isr, done=batch.done)

    def open_into(self, partition: Takes) -> None:
        """As `hand_to`, for the log of this broker. Batches of transactions are refused, to come again."""
        for batch in self._close():
            if is_transactional(batch.records):
                batch.done(LEFT)
            else:
                partition.take(batch.records, needs_isr=batch.needs_isr, done=batch.done)

    def _close(self) -> list[Batch]:
        """Accept nothing more, and return the waiting batches. Carried ones are still awaited."""
        self._is_over = True
        self._forwarder.forget(self._key, self)
        batches, self._queue = list(self._queue), deque()
        for batch in batches:
            self._count(batch, -1)
        self.news.set()
        return batches

    async def over(self) -> None:
        """Wait until nothing is carried any more. It has ended."""
        if self._task is not None:
            await asyncio.wait([self._task])


def producer_of(records: Buffer) -> int:
    """Return the idempotent producer that has sent the batch, in no transaction; -1: none."""
    if len(records) < HEADER_BYTES:
        return -1
    header = parse_header(records)
    return header.producer_id if header.base_sequence >= 0 and not header.is_transactional else -1


def is_transactional(records: Buffer) -> bool:
    """Whether the batch is of a transaction."""
    return len(records) >= HEADER_BYTES and parse_header(records).is_transactional


def _outcome(response: ProduceResponse, *, tells: bool) -> Forwarded | WriteRefusal:
    (topic,) = response.responses
    (part,) = topic.partition_responses
    if part.error_code != ErrorCode.NONE:
        error = error_of(part.error_code)
        faults = tuple(
            RecordFault(fault.batch_index, fault.batch_index_error_message or "") for fault in part.record_errors
        )
        return WriteRefusal(error, part.error_message or error.message, faults)
    return Forwarded(Offset(part.base_offset), part.log_append_time_ms, Offset(part.log_start_offset), tells)
