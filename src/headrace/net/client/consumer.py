"""Reads records: fetches assigned partitions from their leaders, all brokers in parallel.

Promises:

- Per partition, records come in offset order from the assigned offset on, none twice and none left out.
- A changed leader is followed.
- An offset that no longer exists is an error that names it, never a silent jump.
- A partition without a leader does not hold up the others.

Checks each batch's CRC. Buffers at most one answer per broker. Reads everything below the high watermark
(`read_uncommitted`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import suppress
from types import TracebackType
from typing import Any, NamedTuple, Self

from crc32c import crc32c

from headrace.base.errors import CorruptData
from headrace.base.ids import BrokerId, Offset, PartitionIndex, TopicId
from headrace.net.client.cluster import Cluster
from headrace.net.client.errors import ClientError, GaveUpError, RefusedError, refusal
from headrace.net.client.view import PartitionView
from headrace.wire.apis import ApiKey
from headrace.wire.batches import CRC_START, decode_records, iterate_headers, whole_batches
from headrace.wire.errors import ErrorCode
from headrace.wire.messages import fetch as wire
from headrace.wire.records import Record

FETCH_WAIT_MS = 500
FETCH_BYTES = 16 * 1024 * 1024
PARTITION_BYTES = 4 * 1024 * 1024
TOPIC_IDS_SINCE = 13
"""The Fetch version from which requests name topics by id (KIP-516)."""
FETCH_LANE = "fetch"

Place = tuple[str, PartitionIndex]


class Fetched(NamedTuple):
    """Records that one poll found in one partition."""

    topic: str
    partition: PartitionIndex
    records: list[Record]
    high_watermark: Offset


class _Asked(NamedTuple):
    """One partition of a fetch, with its start position."""

    topic: str
    topic_id: TopicId
    view: PartitionView
    position: Offset


class _Answer(NamedTuple):
    """One partition's share of a fetch response, with the request for it."""

    asked: _Asked
    error_code: int
    data: memoryview
    high_watermark: Offset


class Consumer:
    """Reads assigned partitions of one cluster. An async context manager."""

    def __init__(
        self,
        cluster: Cluster,
        *,
        wait_ms: int = FETCH_WAIT_MS,
        bytes_max: int = FETCH_BYTES,
        partition_bytes_max: int = PARTITION_BYTES,
    ) -> None:
        """An empty fetch is answered after `wait_ms`. The sizes bound one answer and one partition's share of it."""
        self._cluster = cluster
        self._wait_ms = wait_ms
        self._bytes_max = bytes_max
        self._partition_bytes_max = partition_bytes_max
        self._positions: dict[Place, Offset] = {}
        self._fetches: dict[BrokerId, asyncio.Task[list[_Answer]]] = {}
        self._failures = 0
        self._looks = 0
        """Number of consecutive looks that found a partition without a leader while others were read."""
        self._next_look_s = 0.0

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Stop fetching. Idempotent."""
        fetches = list(self._fetches.values())
        self._fetches.clear()
        for task in fetches:
            task.cancel()
        await asyncio.gather(*fetches, return_exceptions=True)

    def assign(self, topic: str, partition: int, offset: int) -> None:
        """Read this partition from `offset` on (0 or more), replacing any earlier position."""
        assert offset >= 0, offset
        self._positions[topic, PartitionIndex(partition)] = Offset(offset)

    def unassign(self, topic: str, partition: int) -> None:
        """Stop reading this partition."""
        self._positions.pop((topic, PartitionIndex(partition)), None)

    @property
    def positions(self) -> Mapping[Place, Offset]:
        """The next offset of each assigned partition."""
        return self._positions

    async def poll(self) -> list[Fetched]:
        """The next records of some assigned partitions. Empty where none came within the wait, or none is assigned.

        Raises RefusedError (for example OFFSET_OUT_OF_RANGE), CorruptData, and GaveUpError after too many failures in a
        row.
        """
        try:
            await self._start_fetches()
            found = await self._next_answers()
        except ClientError as error:
            self._forget()
            await self._pause(error)
            return []
        self._failures = 0
        with suppress(ClientError):  # the next poll meets it again; the found records must not be lost
            await self._start_fetches()  # decode the found records while the next fetch is under way
        return [_unpacked(answer) for answer in found]

    # inner

    async def _start_fetches(self) -> None:
        """Start one fetch to each leader of assigned partitions that has none under way. Raises ClientError where no
        partition has a leader, or one was looked for too often.
        """
        wanted: dict[BrokerId, list[_Asked]] = {}
        missing: ClientError | None = None
        for (topic, index), position in self._positions.items():
            try:
                view = await self._cluster.partition(topic, index)
            except RefusedError as error:
                if not error.retriable:
                    raise
                missing = error
                continue
            if view.leader not in self._fetches:
                topic_id = (await self._cluster.topic(topic)).id
                wanted.setdefault(view.leader, []).append(_Asked(topic, topic_id, view, position))
        for leader, asked in wanted.items():
            self._fetches[leader] = asyncio.create_task(self._fetch(leader, asked))
        if missing is None:
            self._looks = 0
        elif not self._fetches:
            raise missing
        else:
            self._look_again(missing)

    def _look_again(self, missing: ClientError) -> None:
        """Let the next poll ask for leaders again, after a pause. The other partitions are read meanwhile."""
        now_s = asyncio.get_running_loop().time()
        if now_s < self._next_look_s:
            return
        self._looks += 1
        self._failed(self._looks, missing)
        self._next_look_s = now_s + self._cluster.backoff.pause_s(self._looks)
        self._forget()

    async def _fetch(self, leader: BrokerId, asked: list[_Asked]) -> list[_Answer]:
        connection = await self._cluster.broker_connection(leader, FETCH_LANE)
        version = connection.version(ApiKey.FETCH)
        by_id = version >= TOPIC_IDS_SINCE
        request = self._request(asked)
        timeout_ms = self._cluster.request_timeout_ms + self._wait_ms
        response = await connection.request(ApiKey.FETCH, request, version=version, timeout_ms=timeout_ms)
        if (error := refusal(response.error_code, f"Fetch from {connection.address}")) is not None:
            raise error
        by_place = {(one.topic_id if by_id else one.topic, one.view.index): one for one in asked}
        answers = []
        for topic in response.responses:
            for part in topic.partitions:
                one = by_place.get((topic.topic_id if by_id else topic.topic, part.partition_index))
                if one is not None:
                    data = part.records if part.records is not None else b""
                    answers.append(_Answer(one, part.error_code, memoryview(data), Offset(part.high_watermark)))
        return answers

    def _request(self, asked: list[_Asked]) -> Any:
        topics: dict[tuple[str, TopicId], list[wire.FetchPartition]] = {}
        for one in asked:
            part = wire.FetchPartition(
                partition=one.view.index,
                current_leader_epoch=one.view.leader_epoch,
                fetch_offset=one.position,
                partition_max_bytes=self._partition_bytes_max,
            )
            topics.setdefault((one.topic, one.topic_id), []).append(part)
        return wire.FetchRequest(
            max_wait_ms=self._wait_ms,
            min_bytes=1,
            max_bytes=self._bytes_max,
            topics=tuple(
                wire.FetchTopic(topic=name, topic_id=topic_id, partitions=tuple(parts))
                for (name, topic_id), parts in topics.items()
            ),
        )

    async def _next_answers(self) -> list[_Answer]:
        """Wait for a fetch and move the positions past the records that it found. Raises ClientError where nothing was
        found and something failed. If both happen, the records are returned first, and the next poll meets the failure
        again.
        """
        if not self._fetches:
            return []
        done, _ = await asyncio.wait(self._fetches.values(), return_when=asyncio.FIRST_COMPLETED)
        self._fetches = {broker: task for broker, task in self._fetches.items() if task not in done}
        found: list[_Answer] = []
        failure: ClientError | None = None
        for task in done:
            try:
                failure = self._advance(task.result(), found) or failure
            except ClientError as error:
                failure = error
        if failure is not None:
            if not found:
                raise failure
            self._forget()
        return found

    def _forget(self) -> None:
        """Forget the leaders, so that they are requested again."""
        self._cluster.forget({topic for topic, _ in self._positions})

    def _advance(self, answers: list[_Answer], found: list[_Answer]) -> ClientError | None:
        """Move the positions past these answers' records and add the answers to `found`. Partitions that were
        reassigned meanwhile are dropped. Returns the last partition's error, if any.
        """
        error: ClientError | None = None
        for answer in answers:
            asked = answer.asked
            place = (asked.topic, asked.view.index)
            if self._positions.get(place) != asked.position:
                continue
            if answer.error_code:
                error = refusal(answer.error_code, _subject(asked), _detail(answer))
                continue
            whole = answer.data[: whole_batches(answer.data)]
            if whole:
                self._positions[place] = _next_offset(whole, asked.position)
                found.append(answer._replace(data=whole))
        return error

    async def _pause(self, error: ClientError) -> None:
        """Back off before the next try, or raise the error where it is not retriable or was met too often."""
        if not error.retriable:
            raise error
        self._failures += 1
        self._failed(self._failures, error)
        await asyncio.sleep(self._cluster.backoff.pause_s(self._failures))

    def _failed(self, tries: int, error: ClientError) -> None:
        """Report a failure. Raises GaveUpError where it happened too many times in a row."""
        if tries >= self._cluster.backoff.attempts_max:
            raise GaveUpError(f"{str(error).rstrip('.')}; gave up after {tries} tries.") from error
        self._cluster.backoff.on_failure(error, tries)


def _next_offset(whole: memoryview, position: Offset) -> Offset:
    """The offset after the last batch, found without decoding any."""
    end = position
    for _, header in iterate_headers(whole):
        end = Offset(max(end, header.next_offset))
    return end


def _unpacked(answer: _Answer) -> Fetched:
    """The records of an answer from the position on, without control batches. Raises CorruptData."""
    asked, records = answer.asked, []
    for at, header in iterate_headers(answer.data):
        batch = answer.data[at : at + header.size]
        if crc32c(batch[CRC_START:]) != header.crc:
            raise CorruptData(f"{_subject(asked)}: the batch at offset {header.base_offset} fails its CRC32C.")
        if not header.is_control:
            records += decode_records(batch)
    first = asked.position
    if records and records[0].offset < first:  # a batch is sent whole, from its start
        records = [record for record in records if record.offset >= first]
    return Fetched(asked.topic, asked.view.index, records, answer.high_watermark)


def _subject(asked: _Asked) -> str:
    return f"Partition {asked.view.index} of topic '{asked.topic}'"


def _detail(answer: _Answer) -> str | None:
    if answer.error_code == ErrorCode.OFFSET_OUT_OF_RANGE:
        return f"offset {answer.asked.position} is not there (any more); see 'headrace topic describe'"
    return None
