"""Clients that know one broker only, whatever the others say, and record its answers.

A leader that was stopped, or is cut off from the others, has such clients too. Its answers to them must contradict
nobody. They write with acks=all, and read as far as they are shown. No record is sent twice, so none may be there
twice.
"""

from __future__ import annotations

import asyncio
import itertools
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Final

from kafka.record import MemoryRecords

from headrace.wire.batches import encode_batch
from headrace.wire.errors import ErrorCode, error_of
from headrace.wire.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from headrace.wire.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from headrace.wire.records import Record
from tests.broker.group_broker import RawClient
from tests.promises.support.load import DEADLINE_S, PARTITIONS, PartitionLogs

TOPIC: Final = "direct"
PATIENCE_MS: Final = 500
"""For which a leader may wait for its followers."""
FETCH_WAIT_MS: Final = 100
PACE_S: Final = 0.05
"""Between two requests of the same kind for the same partition."""
TIMESTAMP: Final = 1_700_000_000_000


class Insider:
    """Of one broker. Begins at once, in the running loop, and goes on through every death of the broker."""

    def __init__(self, address: str, broker: int) -> None:
        self.acknowledged: PartitionLogs = {partition: {} for partition in range(PARTITIONS)}
        self.shown: PartitionLogs = {partition: {} for partition in range(PARTITIONS)}
        self.answers = 0
        self.refusals: Counter[str] = Counter()
        """With an error that a client retries."""
        self.mistakes: list[str] = []
        self._address = address
        self._broker = broker
        self._numbers = itertools.count()
        self._changed = asyncio.Condition()
        self._stopping = asyncio.Event()
        kinds = (self._write, self._read)
        self._tasks = [
            asyncio.ensure_future(self._again_and_again(kind, partition))
            for kind in kinds
            for partition in range(PARTITIONS)
        ]

    async def answered(self, more: int) -> None:
        """So many more requests than now. Fails after DEADLINE_S."""
        wanted = self.answers + more
        async with self._changed, asyncio.timeout(DEADLINE_S):
            await self._changed.wait_for(lambda: self.answers >= wanted)

    async def stop(self) -> None:
        """Once what is under way is answered. Fails after DEADLINE_S."""
        self._stopping.set()
        async with asyncio.timeout(DEADLINE_S):
            await asyncio.gather(*self._tasks)

    async def give_up(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def check(self, found: PartitionLogs) -> None:
        """Check that its answers are true."""
        assert not self.mistakes, self.mistakes[:3]
        for told, what in ((self.acknowledged, "acknowledged to"), (self.shown, "shown to")):
            for partition, log in told.items():
                wrong = [offset for offset, value in log.items() if found[partition].get(offset) != value]
                assert not wrong, (
                    f"partition {partition}: {len(wrong)} records {what} a client of broker {self._broker} alone are "
                    f"not there, first {wrong[0]}"
                )

    async def _again_and_again(self, kind: Callable[[RawClient, int], Awaitable[ErrorCode]], partition: int) -> None:
        while not self._stopping.is_set():
            try:
                async with RawClient(self._address) as client:
                    while not self._stopping.is_set():
                        await self._note(await kind(client, partition), f"{kind.__name__} of {partition}")
                        await self._pause()
            except (OSError, asyncio.IncompleteReadError):
                await self._pause()  # its process is dead

    async def _pause(self) -> None:
        await asyncio.wait([waiting := asyncio.ensure_future(self._stopping.wait())], timeout=PACE_S)
        waiting.cancel()

    async def _note(self, code: ErrorCode, what: str) -> None:
        if code.retriable:
            self.refusals[code.name] += 1
        elif code is not ErrorCode.NONE:
            self.mistakes.append(f"broker {self._broker}, {what}: {code.name}")
        async with self._changed:
            self.answers += 1
            self._changed.notify_all()

    async def _write(self, client: RawClient, partition: int) -> ErrorCode:
        value = b"through %d: %d" % (self._broker, next(self._numbers))
        batch = encode_batch([Record(0, TIMESTAMP, None, value, ())])
        data = PartitionProduceData(index=partition, records=memoryview(batch))
        topic = TopicProduceData(name=TOPIC, partition_data=(data,))
        answer = await client.ask(9, ProduceRequest(acks=-1, timeout_ms=PATIENCE_MS, topic_data=(topic,)))
        told = answer.responses[0].partition_responses[0]
        code = error_of(told.error_code)
        if code is ErrorCode.NONE:
            if told.base_offset in self.acknowledged[partition]:
                self.mistakes.append(f"broker {self._broker} gave offset {told.base_offset} of {partition} twice")
            self.acknowledged[partition][told.base_offset] = value
        return code

    async def _read(self, client: RawClient, partition: int) -> ErrorCode:
        shown = self.shown[partition]
        wanted = FetchPartition(partition=partition, fetch_offset=len(shown), partition_max_bytes=1024 * 1024)
        topic = FetchTopic(topic=TOPIC, partitions=(wanted,))
        answer = await client.ask(11, FetchRequest(max_wait_ms=FETCH_WAIT_MS, min_bytes=1, topics=(topic,)))
        told = answer.responses[0].partitions[0]
        for batch in MemoryRecords(bytes(told.records or b"")):
            for record in batch:
                if shown.setdefault(record.offset, record.value) != record.value:
                    self.mistakes.append(f"broker {self._broker} shows two records at {record.offset} of {partition}")
        if sorted(shown) != list(range(len(shown))):
            self.mistakes.append(f"broker {self._broker} left out records of {partition} below {max(shown)}")
        return error_of(told.error_code)


def check_sent_once(found: PartitionLogs) -> None:
    """No record of theirs is there twice."""
    counted = Counter(value for log in found.values() for value in log.values())
    assert not [value for value, count in counted.items() if count > 1]
