"""Reads records: fetches assigned partitions from their leaders, all brokers in parallel.

Promises:

- Per partition, records come in offset order from the assigned offset on, none twice and none left out.
- A changed leader is followed.
- An offset that no longer exists is an error that names it, never a silent jump.
- A partition without a leader does not hold up the others.

Checks each batch's CRC. Buffers at most one answer per broker. Reads everything below the high watermark
(`read_uncommitted`), or with `committed_only` what a consumer under `read_committed` gets. With `tells_states` each
record comes with the state of its transaction, and that costs those who do not ask nothing:

- A fetch gets all records. The markers among them decide most transactions.
- Where a marker is not among them, they are read up to that transaction. Where they begin with it, they are fetched
  again under read_committed, for the list of aborted transactions.
- From the last stable offset on there is no such list. Markers are looked for in what follows, within bounds.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from contextlib import suppress
from operator import attrgetter
from types import TracebackType
from typing import Any, NamedTuple, Self

from crc32c import crc32c

from headrace.base.errors import CorruptData
from headrace.base.ids import NO_OFFSET, BrokerId, Offset, PartitionIndex, TopicId
from headrace.base.limits import STATES_AHEAD_BYTES_MAX, STATES_AHEAD_MARKERS_MAX
from headrace.net.client.cluster import Cluster
from headrace.net.client.errors import ClientError, GaveUpError, RefusedError, refusal
from headrace.net.client.offsets import READ_COMMITTED, READ_UNCOMMITTED
from headrace.net.client.states import Judged, Markers, State, TransactionState, states_by_list
from headrace.net.client.view import PartitionView
from headrace.wire.apis import ApiKey
from headrace.wire.batches import CRC_START, decode_records, iterate_headers, whole_batches
from headrace.wire.errors import ErrorCode
from headrace.wire.messages import fetch as wire
from headrace.wire.records import Record
from headrace.wire.transactions import OpenTransaction

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
    last_stable_offset: Offset = NO_OFFSET
    """Readers under read_committed get no record from here on yet."""
    states: Sequence[State] = ()
    """With `tells_states`: the state of each record's transaction."""


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
    last_stable_offset: Offset
    aborted: tuple[OpenTransaction, ...]
    """Under read_committed: the aborted transactions among the batches."""
    states: Sequence[State] | None = None
    """The state of each batch; None: nobody asks for them."""


class Consumer:
    """Reads assigned partitions of one cluster. An async context manager."""

    def __init__(
        self,
        cluster: Cluster,
        *,
        wait_ms: int = FETCH_WAIT_MS,
        bytes_max: int = FETCH_BYTES,
        partition_bytes_max: int = PARTITION_BYTES,
        committed_only: bool = False,
        tells_states: bool = False,
    ) -> None:
        """An empty fetch is answered after `wait_ms`. The sizes bound one answer and one partition's share of it.
        `committed_only`: no record of a transaction that is open or aborted, and none behind an open one.
        `tells_states`: the state of each record's transaction as well.
        """
        self._cluster = cluster
        self._wait_ms = wait_ms
        self._bytes_max = bytes_max
        self._partition_bytes_max = partition_bytes_max
        self._committed_only = committed_only
        self._tells_states = tells_states
        self._markers: dict[Place, Markers] = {}
        """With `tells_states`: the markers that were read of each partition, perhaps ahead of its position."""
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
        self._markers.pop((topic, PartitionIndex(partition)), None)

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
        return [self._unpacked(answer) for answer in found]

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
        answers = await self._ask(leader, asked, committed_only=self._committed_only)
        if self._committed_only:
            return [_told_by_list(answer) for answer in answers]
        return await self._told(leader, answers) if self._tells_states else answers

    async def _told(self, leader: BrokerId, answers: list[_Answer]) -> list[_Answer]:
        """The answers with states, perhaps cut or fetched again. See the module."""
        told: list[_Answer] = []
        unclear: list[_Asked] = []
        ahead: list[tuple[_Answer, Judged]] = []
        for answer in answers:
            if answer.error_code or not answer.data:
                told.append(answer)
                continue
            markers = self._markers_from(answer.asked)
            markers.read(answer.data)
            judged = markers.judge(answer.data, answer.last_stable_offset)
            if not judged.size:
                unclear.append(answer.asked)
            elif judged.size == len(answer.data) and judged.opened:
                ahead.append((answer, judged))
            else:
                told.append(answer._replace(data=answer.data[: judged.size], states=judged.states))
        if ahead:
            await self._look_ahead(leader, ahead)
        for answer, _ in ahead:
            states = self._markers_from(answer.asked).judge(answer.data, answer.last_stable_offset).states
            told.append(answer._replace(states=states))
        if unclear:
            told += map(_told_by_list, await self._ask(leader, unclear, committed_only=True))
        return told

    def _markers_from(self, asked: _Asked) -> Markers:
        """The markers that were read from this position on, as far as that was."""
        place, position = (asked.topic, asked.view.index), asked.position
        markers = self._markers.get(place)
        if markers is None or not markers.begin <= position <= markers.end:
            markers = self._markers[place] = Markers(position)
        markers.forget_below(position)
        return markers

    async def _look_ahead(self, leader: BrokerId, ahead: Sequence[tuple[_Answer, Judged]]) -> None:
        """Read markers behind these answers, until they have decided the open transactions, or all was read."""
        left = {(answer.asked.topic, answer.asked.view.index): (answer, judged) for answer, judged in ahead}
        sizes = dict.fromkeys(left, 0)
        while True:
            for place, (answer, judged) in list(left.items()):
                markers = self._markers_from(answer.asked)
                is_over = markers.end >= answer.high_watermark or sizes[place] >= STATES_AHEAD_BYTES_MAX
                is_full = len(markers) >= STATES_AHEAD_MARKERS_MAX
                states = map(markers.state_of, judged.opened.values())
                if is_over or is_full or TransactionState.OPEN not in states:
                    del left[place]
            asked = [
                answer.asked._replace(position=self._markers_from(answer.asked).end) for answer, _ in left.values()
            ]
            if not asked:
                return
            for found in await self._ask(leader, asked, committed_only=False):
                place = (found.asked.topic, found.asked.view.index)
                answer, _ = left[place]
                self._markers_from(answer.asked).read(found.data)
                sizes[place] += len(found.data)
                if found.error_code or not found.data:
                    del left[place]

    async def _ask(self, leader: BrokerId, asked: list[_Asked], *, committed_only: bool) -> list[_Answer]:
        """The leader's answers, cut at the last whole batch. Raises ClientError."""
        connection = await self._cluster.broker_connection(leader, FETCH_LANE)
        version = connection.version(ApiKey.FETCH)
        by_id = version >= TOPIC_IDS_SINCE
        request = self._request(asked, committed_only=committed_only)
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
                    answers.append(_answer(one, part))
        return answers

    def _request(self, asked: list[_Asked], *, committed_only: bool) -> Any:
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
            isolation_level=READ_COMMITTED if committed_only else READ_UNCOMMITTED,
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
            if answer.data:
                self._positions[place] = _next_offset(answer.data, asked.position)
                found.append(answer)
        return error

    def _unpacked(self, answer: _Answer) -> Fetched:
        """The records of an answer from the position on, without control batches, and with `committed_only` without
        those of aborted transactions. Raises CorruptData."""
        asked, records, told = answer.asked, list[Record](), list[State]()
        for number, (at, header) in enumerate(iterate_headers(answer.data)):
            batch = answer.data[at : at + header.size]
            if crc32c(batch[CRC_START:]) != header.crc:
                raise CorruptData(f"{_subject(asked)}: the batch at offset {header.base_offset} fails its CRC32C.")
            state = None if answer.states is None else answer.states[number]
            if header.is_control or (self._committed_only and state is TransactionState.ABORTED):
                continue
            records += decode_records(batch)
            if self._tells_states:
                told += [state] * (len(records) - len(told))
        if records and records[0].offset < asked.position:  # a batch is sent whole, from its start
            skipped = bisect_left(records, asked.position, key=attrgetter("offset"))
            records, told = records[skipped:], told[skipped:]
        ends = (answer.high_watermark, answer.last_stable_offset)
        return Fetched(asked.topic, asked.view.index, records, *ends, told)

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


def _answer(asked: _Asked, part: wire.PartitionData) -> _Answer:
    data = memoryview(part.records if part.records is not None else b"")
    whole = data[: whole_batches(data)]
    aborted = tuple(OpenTransaction(*each) for each in part.aborted_transactions or ())
    ends = (Offset(part.high_watermark), Offset(part.last_stable_offset))
    return _Answer(asked, part.error_code, whole, *ends, aborted)


def _told_by_list(answer: _Answer) -> _Answer:
    """An answer under read_committed, with its states."""
    return answer._replace(states=states_by_list(answer.data, answer.aborted))


def _subject(asked: _Asked) -> str:
    return f"Partition {asked.view.index} of topic '{asked.topic}'"


def _detail(answer: _Answer) -> str | None:
    if answer.error_code == ErrorCode.OFFSET_OUT_OF_RANGE:
        return f"offset {answer.asked.position} is not there (any more); see 'headrace topic describe'"
    return None
