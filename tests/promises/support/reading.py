"""Readers of a topic that transactions are written to, and what is there at the end, for the simulator's judges.

Each partition has two readers of bare answers, one of committed records and one of all. They know the last stable
offset and the high watermark that they were told. A reader of librdkafka reads committed records, too. The contents at
the end are those that librdkafka reads.
"""

from __future__ import annotations

import asyncio
import threading
from collections import defaultdict
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, Final

from confluent_kafka import Consumer, KafkaError, Message, TopicPartition

from headrace.base.ids import NO_TOPIC_ID
from headrace.net.client.batches import fetch_batches
from headrace.net.client.cluster import Cluster
from headrace.net.client.groups import Groups
from headrace.net.client.retry import FOREVER
from headrace.sim.cluster.transactions.history import (
    NOT_TOLD,
    Ending,
    History,
    Logged,
    Look,
    Partition,
    Poll,
    Register,
    Seen,
)
from headrace.sim.cluster.transactions.reading import Reading
from tests.promises.support.load import QUIET
from tests.promises.support.transacting import SESSIONS_MAX, Teller
from tests.threads import joined

REQUEST_TIMEOUT_MS: Final = 2_000
"""A broker may be stopped or cut off."""
CONNECT_TIMEOUT_MS: Final = 1_000
WAIT_MS: Final = 500
BYTES_MAX: Final = 1 << 20
POLL_S: Final = 60.0
CONSUMES_S: Final = 0.2
LOOKS_EVERY_S: Final = 0.25


def cluster_of(bootstrap: str) -> Cluster:
    """A client that never gives up."""
    return Cluster(
        bootstrap, backoff=FOREVER, connect_timeout_ms=CONNECT_TIMEOUT_MS, request_timeout_ms=REQUEST_TIMEOUT_MS
    )


def records_of(bootstrap: str, partitions: Iterable[Partition]) -> dict[Partition, list[Seen]]:
    """The committed records of the partitions, from their start to their end, as librdkafka reads them."""
    consumer = Consumer({**_options(bootstrap), "enable.partition.eof": True})
    found: dict[Partition, list[Seen]] = {partition: [] for partition in partitions}
    consumer.assign([TopicPartition(*partition, 0) for partition in found])
    unread = set(found)
    try:
        while unread:
            message = consumer.poll(POLL_S)
            assert message is not None, f"nothing more comes of {unread}"
            partition = Partition(str(message.topic()), int(message.partition() or 0))
            if (error := message.error()) is None:
                found[partition].append(_seen(message))
            else:
                assert error.code() == KafkaError._PARTITION_EOF, error
                unread.discard(partition)
    finally:
        consumer.close()
    return found


def _options(bootstrap: str) -> dict[str, Any]:
    return {
        "bootstrap.servers": bootstrap,
        "group.id": "reader",
        "enable.auto.commit": False,
        "auto.offset.reset": "earliest",
        "isolation.level": "read_committed",
        "check.crcs": True,
        "socket.timeout.ms": REQUEST_TIMEOUT_MS,
        **QUIET,
    }


def _seen(message: Message) -> Seen:
    offset, value = message.offset(), message.value()
    assert offset is not None
    assert isinstance(value, bytes)
    return Seen(offset, value)


class Readers:
    """All readers of one test, in the running loop. An async context manager's value (`reading_from`)."""

    def __init__(self, cluster: Cluster, bootstrap: str, history: History, partitions: Sequence[Partition]) -> None:
        self._cluster = cluster
        self._bootstrap = bootstrap
        self._history = history
        self._partitions = partitions
        self._teller = Teller(SESSIONS_MAX - 1)
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._consume, name="librdkafka's reader", daemon=True)
        self._tasks: list[asyncio.Task[None]] = []
        self._topic_id = NO_TOPIC_ID

    async def begin(self, registers: Iterable[Register]) -> None:
        (topic,) = {partition.topic for partition in self._partitions}
        self._topic_id = (await self._cluster.existing_topic(topic)).id
        kinds = {"committed": True, "all": False}
        readings = [
            Reading(f"{kind}-{partition.number}", partition, committed_only=committed_only)
            for kind, committed_only in kinds.items()
            for partition in self._partitions
        ]
        work = [*map(self._follow, readings), *map(self._look_often, registers)]
        self._tasks = [asyncio.ensure_future(each) for each in work]
        self._thread.start()

    async def stop(self) -> None:
        """Stop. Raises what a reader met."""
        self._stopping.set()
        await asyncio.to_thread(joined, self._thread)
        for task in self._tasks:
            task.cancel()
        for outcome in await asyncio.gather(*self._tasks, return_exceptions=True):
            if isinstance(outcome, Exception):
                raise outcome

    async def ending(self, registers: Iterable[Register]) -> Ending:
        """The state once all clients have ended. Each partition is read to its end, so no transaction may be open."""
        logs: dict[Partition, list[Logged]] = {}
        for partition in self._partitions:
            reading = Reading(f"end-{partition.number}", partition, committed_only=False)
            while not reading.is_at_the_end:
                await self._poll(self._cluster, reading)
            logs[partition] = reading.log
        contents = await asyncio.to_thread(records_of, self._bootstrap, self._partitions)
        offsets = {register: await self._look(register) for register in registers}
        return Ending(contents, offsets, logs)

    async def _follow(self, reading: Reading) -> None:
        """Read on connections of its own: a fetch that waits for records holds up what follows on its connection."""
        async with cluster_of(self._bootstrap) as cluster:
            while True:
                await self._poll(cluster, reading)

    async def _poll(self, cluster: Cluster, reading: Reading) -> None:
        fetched = await fetch_batches(
            cluster,
            reading.partition.topic,
            self._topic_id,
            reading.partition.number,
            reading.position,
            bytes_max=BYTES_MAX,
            wait_ms=WAIT_MS,
            committed_only=reading.committed_only,
        )
        poll = reading.take(
            fetched.data,
            [(each.first_offset, each.producer_id) for each in fetched.aborted],
            stable=fetched.last_stable_offset,
            high_watermark=fetched.high_watermark,
            answered=self._teller.moment(),
        )
        self._history.polls.append(poll)

    async def _look_often(self, register: Register) -> None:
        while True:
            await self._look(register)
            await asyncio.sleep(LOOKS_EVERY_S)

    async def _look(self, register: Register) -> int:
        """The committed offset; 0: none."""
        found = await Groups(self._cluster).committed(register.group)
        offset = next((at for each, at in found.items() if tuple(each) == tuple(register.partition)), 0)
        self._history.looks.append(Look(register, offset, self._teller.moment()))
        return offset

    def _consume(self) -> None:
        """Read as librdkafka does, which tells no last stable offset."""
        teller = Teller(SESSIONS_MAX - 2)
        consumer = Consumer(_options(self._bootstrap))
        positions: Mapping[Partition, int] = dict.fromkeys(self._partitions, 0)
        consumer.assign([TopicPartition(*partition, 0) for partition in positions])
        while not self._stopping.is_set():
            got: dict[Partition, list[Seen]] = defaultdict(list)
            for message in consumer.consume(1_000, CONSUMES_S):
                if message.error() is None:
                    got[Partition(str(message.topic()), int(message.partition() or 0))].append(_seen(message))
            for partition, records in got.items():
                start, end = positions[partition], records[-1].offset + 1
                positions = {**positions, partition: end}
                told = (start, end, tuple(records), end, NOT_TOLD, teller.moment())
                self._history.polls.append(Poll("librdkafka", partition, True, *told))
        consumer.close()


@asynccontextmanager
async def reading_from(
    bootstrap: str, history: History, partitions: Sequence[Partition], registers: Sequence[Register]
) -> AsyncIterator[Readers]:
    async with cluster_of(bootstrap) as cluster:
        readers = Readers(cluster, bootstrap, history, partitions)
        await readers.begin(registers)
        try:
            yield readers
        finally:
            await readers.stop()
