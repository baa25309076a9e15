"""Produce by a shortcut: one batch for each partition, appended as it came and answered once it is committed.

Nearly every produce request is of this kind, and the shortcut takes a third of the time. It answers exactly as
`headrace.broker.handlers.produce`, which has all rules. Where a partition is not served here, or does not accept
batches as they come, it does nothing. The whole request is then left to that handler.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, ClassVar, Final, TypeAlias, cast
from uuid import UUID

from headrace.base.ids import NO_OFFSET, Offset, PartitionIndex, TopicId
from headrace.base.limits import PLACES_REMEMBERED_MAX, REQUEST_ELEMENTS_AT_ONCE_MAX, REQUEST_WAIT_MS_MIN
from headrace.broker.partitions.partition import Partition
from headrace.broker.partitions.replica import WriteRefusal
from headrace.broker.requests.context import Services, Shortcut
from headrace.broker.requests.current_leaders import MOVED, told_in_produce
from headrace.broker.requests.rights import Rights, named
from headrace.metadata.access.acls import AclOperation, ResourceType
from headrace.native import ROAD
from headrace.net.server.listener import Answer, Connection, Later
from headrace.storage.engine.appending import Appended
from headrace.wire.apis import Api, ApiKey, api
from headrace.wire.batches import is_of_transaction
from headrace.wire.codec import new
from headrace.wire.errors import ErrorCode
from headrace.wire.headers import encode_response_frame
from headrace.wire.messages.produce import PartitionProduceResponse, ProduceResponse, TopicProduceResponse
from headrace.wire.plain_produce import (
    TOPIC_ID_VERSION,
    VERSIONS,
    Batches,
    PlainAnswer,
    read_plain_produce,
    topic_of,
    write_plain_answer,
    write_single_answer,
)
from headrace.wire.walking import Walked

ACKS_ALL: Final = -1
ACKS_LEADER: Final = 1
_CODEC: Final = cast("Api", api(ApiKey.PRODUCE))
NO_ERROR: Final = int(ErrorCode.NONE)
NOT_APPENDED: Final = Appended(NO_OFFSET, NO_OFFSET)

Place: TypeAlias = tuple[Partition, Walked, Appended | WriteRefusal | None]
"""The partition of a batch, and the facts of its records. Where the native road has tried to append it: the outcome."""
API: Final = int(ApiKey.PRODUCE)
"""As a plain number, which is at hand sooner than a member of an enumeration."""


def shortcuts(services: Services) -> dict[int, Shortcut]:
    """Return the shortcuts by version."""
    return {version: _Road(services, version).serve for version in VERSIONS}


class _Road:
    """Serves requests of one version. It remembers which partition each topic and index means."""

    def __init__(self, services: Services, version: int) -> None:
        self._partitions = services.partitions
        self._metadata = services.metadata
        self._deadlines = services.deadlines
        self._version = version
        self._by_id = version >= TOPIC_ID_VERSION
        self._known: dict[tuple[bytes, int], Partition] = {}
        self._rights = services.authority.rights if services.authority.is_asked else None
        self._grants = services.authority.grants()
        self.on_error = services.on_error
        services.partitions.remember_in(self._known)

    def serve(self, frame: memoryview, connection: Connection) -> Answer | Later | None:
        """`Shortcut`."""
        if ROAD.native is not None and self._rights is None:
            taken = ROAD.native.produce_one(frame, self._known)
            if taken is not None:
                return [taken] if isinstance(taken, bytes) else self._once_committed(*taken, connection.listener_name)
        wanted = read_plain_produce(frame)
        if wanted is None or wanted.acks not in (ACKS_ALL, ACKS_LEADER):
            return None
        correlation_id, acks, timeout_ms, topics = wanted
        if self._rights is not None and not self._may_write(topics, self._rights(connection, API)):
            return None
        answer: _Answer | _AnswerOfMany
        if len(topics) == 1 and len(topics[0][1]) == 1:
            topic, ((index, records),) = topics[0]
            partition = self._known.get((topic, index))
            if partition is None:
                partition = self._find(topic, index)
            appended = None if partition is None else partition.append_plain(records, needs_isr=acks == ACKS_ALL)
            if partition is None or appended is None or isinstance(appended, WriteRefusal):  # nothing was done
                return None
            start, listener = partition.start_offset, connection.listener_name
            if acks == ACKS_ALL and partition.has_committed(appended.end):
                base_offset, _, time_ms = appended
                return [write_single_answer(correlation_id, topic, index, NO_ERROR, base_offset, time_ms, start)]
            if acks == ACKS_ALL:
                return self._once_committed(
                    correlation_id, timeout_ms, topic, index, partition, appended, start, listener
                )
            answer = _Answer(self, correlation_id, topic, index, appended, start, listener)
            partition.park_stored(appended.end, answer)
        else:
            if sum(len(batches) for _, batches in topics) > REQUEST_ELEMENTS_AT_ONCE_MAX:
                return None  # it is handled in turns
            found = self._take_all(correlation_id, topics, needs_isr=acks == ACKS_ALL)
            if found is None:
                return None
            if isinstance(found, bytes):
                return [found]
            answer = _AnswerOfMany(self, correlation_id, connection.listener_name)
            places = iter(found)
            for topic, batches in topics:
                answer.take(topic, batches, places, needs_isr=acks == ACKS_ALL)
            answer.all_are_taken()
        return self._once_settled(answer, timeout_ms)

    def _once_committed(
        self,
        correlation_id: int,
        timeout_ms: int,
        topic: bytes,
        index: int,
        partition: Partition,
        appended: Appended,
        log_start_offset: Offset,
        listener: str,
    ) -> Answer | Later:
        """Answer the request of one batch, which is appended, once it is committed."""
        answer = _Answer(self, correlation_id, topic, index, appended, log_start_offset, listener)
        partition.park_commit(appended.end, answer)
        return self._once_settled(answer, timeout_ms)

    def _once_settled(self, answer: _Answer | _AnswerOfMany, timeout_ms: int) -> Answer | Later:
        if answer.is_settled:
            return answer.answer()
        self._deadlines.add(answer, timeout_ms if timeout_ms > REQUEST_WAIT_MS_MIN else REQUEST_WAIT_MS_MIN)
        return answer

    def _may_write(self, topics: Iterable[tuple[bytes, Batches]], rights: Rights) -> bool:
        """Whether the client may write to each topic. Batches of a transaction, or of a topic that does not exist, are
        left to the general handler."""
        for topic, batches in topics:
            if not self._grants.has(rights, topic) and not self._is_granted(topic, rights):
                return False
            for _, records in batches:
                if is_of_transaction(records):
                    return False
        return True

    def _is_granted(self, topic: bytes, rights: Rights) -> bool:
        name = named(topic_of(topic, by_id=self._by_id), self._metadata.image, by_id=self._by_id)
        if name is None or not rights.may(AclOperation.WRITE, ResourceType.TOPIC, name):
            return False
        self._grants.add(rights, topic)
        return True

    def _take_all(
        self, correlation_id: int, topics: list[tuple[bytes, Batches]], *, needs_isr: bool
    ) -> bytes | list[Place] | None:
        """Return the partitions, with the facts of the records. None where one is not served, or does not accept its
        batch as it came. The native road may have appended batches, which it tells, or has done it all. Then it returns
        the frame of the answer."""
        if ROAD.native is not None:
            taken = ROAD.native.append_all(correlation_id, topics, self._known, needs_isr)
            if taken is not None:
                return taken
        places: list[Place] = []
        for topic, batches in topics:
            for index, records in batches:
                partition = self._known.get((topic, index))
                if partition is None:
                    partition = self._find(topic, index)
                if partition is None or (walked := partition.examine(records)) is None:
                    return None
                places.append((partition, walked, None))
        return places

    def _find(self, topic: bytes, index: int) -> Partition | None:
        """Look the partition up as the general handler does; None where that is to say why it is not served."""
        if len(self._known) >= PLACES_REMEMBERED_MAX:
            self._known.clear()
        name = topic_of(topic, by_id=self._by_id)
        image = self._metadata.image
        if self._by_id:
            found = image.topic_by_id(TopicId(UUID(bytes=name)))
        else:
            found = image.topic(name.decode(errors="replace"))
        if found is None or found.internal:
            return None
        partition = self._partitions.called((found.id, PartitionIndex(index)))
        if partition is not None:
            self._known[topic, index] = partition
        return partition

    def answer_of_leaders(
        self, correlation_id: int, answers: list[tuple[bytes, list[PlainAnswer]]], listener: str
    ) -> Answer:
        """Return the answer as the general handler does where other brokers lead some partitions now."""
        response = ProduceResponse(responses=tuple(self._general(topic, parts) for topic, parts in answers))
        response = told_in_produce(response, version=self._version, image=self._metadata.image, listener=listener)
        return encode_response_frame(_CODEC, self._version, correlation_id, response)

    def _general(self, topic: bytes, parts: list[PlainAnswer]) -> TopicProduceResponse:
        place = topic_of(topic, by_id=self._by_id)
        responses = tuple(
            PartitionProduceResponse(
                index=part.partition,
                error_code=part.error_code,
                base_offset=part.base_offset,
                log_append_time_ms=part.log_append_time_ms,
                log_start_offset=part.log_start_offset,
                error_message=part.message,
            )
            for part in parts
        )
        if self._by_id:
            return TopicProduceResponse(topic_id=UUID(bytes=place), partition_responses=responses)
        return TopicProduceResponse(name=place.decode(), partition_responses=responses)


class _Promise:
    """A `Later` that waits for commits, and for its deadline."""

    __slots__ = ("_callback", "is_settled")
    pipelined: ClassVar[bool] = True

    def __init__(self) -> None:
        self._callback: Callable[[Any], object] | None = None
        self.is_settled = False

    def _settle(self) -> None:
        self.is_settled = True
        if self._callback is not None:
            self._callback(self)

    def done(self) -> bool:
        return self.is_settled

    def cancel(self) -> None:
        """Drop the answer, and release the connection: a queue of deadlines may keep this object for a while."""
        self.is_settled = True
        self._callback = None

    def add_done_callback(self, callback: Callable[[Any], object], /) -> None:
        self._callback = callback


class _Answer(_Promise):
    """The answer to a request with one batch; it is the batch's `Commit` too."""

    __slots__ = (
        "_appended",
        "_correlation_id",
        "_error",
        "_index",
        "_listener",
        "_log_start_offset",
        "_road",
        "_topic",
    )

    def __init__(
        self,
        road: _Road,
        correlation_id: int,
        topic: bytes,
        index: int,
        appended: Appended,
        log_start_offset: Offset,
        listener: str,
    ) -> None:
        self._callback = None
        self.is_settled = False
        self._road = road
        self._correlation_id = correlation_id
        self._topic = topic
        self._index = index
        self._appended = appended
        self._log_start_offset = log_start_offset
        self._listener = listener
        self._error = ErrorCode.NONE

    def on_outcome(self, error: ErrorCode) -> None:
        """`Commit`."""
        if not self.is_settled:
            self._error = error
            self._settle()

    def time_out(self) -> None:
        """`Waiting`."""
        self.on_outcome(ErrorCode.REQUEST_TIMED_OUT)

    def answer(self) -> Answer:
        error = self._error
        offset, _, time_ms = self._appended if error is ErrorCode.NONE else NOT_APPENDED
        start = self._log_start_offset
        if error is not ErrorCode.NONE:
            self._road.on_error(ApiKey.PRODUCE, error)
            if error in MOVED:
                part = PlainAnswer(self._index, error, offset, time_ms, start)
                return self._road.answer_of_leaders(self._correlation_id, [(self._topic, [part])], self._listener)
        return [write_single_answer(self._correlation_id, self._topic, self._index, error, offset, time_ms, start)]


class _Part:
    """The outcome of one batch of several: a `Commit`."""

    __slots__ = ("_answer", "base_offset", "error", "index", "is_settled", "log_start_offset", "message", "time_ms")

    def __init__(self, answer: _AnswerOfMany, index: int) -> None:
        self._answer = answer
        self.index = index
        self.error = ErrorCode.NONE
        self.message: str | None = None
        self.base_offset: int = NO_OFFSET
        self.time_ms = -1
        self.log_start_offset: int = NO_OFFSET
        self.is_settled = False

    def on_outcome(self, error: ErrorCode) -> None:
        """`Commit`."""
        if not self.is_settled:
            self.is_settled = True
            if error is not ErrorCode.NONE:
                self.error = error
                self.base_offset, _, self.time_ms = NOT_APPENDED
                self._answer.has_error = True
            self._answer.on_settled()

    def outcome(self) -> PlainAnswer:
        outcome = (self.index, self.error, self.base_offset, self.time_ms, self.log_start_offset, self.message)
        return new(PlainAnswer, outcome)


class _AnswerOfMany(_Promise):
    """The answer to a request with several batches."""

    __slots__ = ("_correlation_id", "_listener", "_road", "_topics", "_waiting", "has_error")

    def __init__(self, road: _Road, correlation_id: int, listener: str) -> None:
        super().__init__()
        self._road = road
        self._correlation_id = correlation_id
        self._listener = listener
        self._topics: list[tuple[bytes, list[_Part]]] = []
        self.has_error = False
        self._waiting = 1
        """Parts that are not settled, and one more until all batches are taken."""

    def take(self, topic: bytes, batches: Batches, places: Iterator[Place], *, needs_isr: bool) -> None:
        """Append the batches of one topic, whose places come next."""
        parts = []
        for (index, records), (partition, walked, taken) in zip(batches, places, strict=False):
            part = _Part(self, index)
            parts.append(part)
            appended = partition.append(records, needs_isr=needs_isr, walked=walked) if taken is None else taken
            if isinstance(appended, WriteRefusal):
                assert not appended.faults, "its records were examined"
                part.is_settled = True
                part.error, part.message = appended.error, appended.message
                self.has_error = True
                continue
            part.base_offset, end, part.time_ms = appended
            part.log_start_offset = partition.start_offset
            self._waiting += 1
            if needs_isr:
                partition.park_commit(end, part)
            else:
                partition.park_stored(end, part)
        self._topics.append((topic, parts))

    def all_are_taken(self) -> None:
        self.on_settled()

    def on_settled(self) -> None:
        """Count one part as settled."""
        self._waiting -= 1
        if not self._waiting and not self.is_settled:
            self._settle()

    def time_out(self) -> None:
        """`Waiting`."""
        for _, parts in self._topics:
            for part in parts:
                part.on_outcome(ErrorCode.REQUEST_TIMED_OUT)

    def cancel(self) -> None:
        super().cancel()
        self._topics = []

    def answer(self) -> Answer:
        """Return the answer. Called once: it releases the parts, which refer to it, so that nothing is left for the
        garbage collector."""
        answers = [(topic, [part.outcome() for part in parts]) for topic, parts in self._topics]
        self._topics = []
        if self.has_error:
            errors = [part.error_code for _, parts in answers for part in parts if part.error_code]
            for error in errors:
                self._road.on_error(ApiKey.PRODUCE, error)
            if not MOVED.isdisjoint(errors):
                return self._road.answer_of_leaders(self._correlation_id, answers, self._listener)
        return [write_plain_answer(self._correlation_id, answers)]
