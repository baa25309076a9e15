"""Produce by a shorter road: one batch for one partition, appended as it came and answered once it is committed.

Nearly every produce request is of this kind, and on this road it takes a third of the time. It gives exactly what
`headrace.broker.handlers.produce` gives, which has all rules and all errors in it: what is not to be appended as it
came, for whatever reason, is left to that, and nothing was done then.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar, Final
from uuid import UUID

from headrace.base.ids import NO_OFFSET, Offset, PartitionIndex, TopicId, TopicPartition
from headrace.base.limits import PLACES_REMEMBERED_MAX
from headrace.broker.context import Services, Shortcut
from headrace.broker.partition import Partition
from headrace.net.listener import Answer, Later
from headrace.storage.engine import Appended
from headrace.wire.errors import ErrorCode
from headrace.wire.single_produce import (
    TOPIC_ID_VERSION,
    VERSIONS,
    place_of,
    read_single_produce,
    write_single_answer,
)

ACKS_ALL: Final = -1
ACKS_LEADER: Final = 1
NOT_APPENDED: Final = Appended(NO_OFFSET, NO_OFFSET)


def shortcuts(services: Services) -> dict[int, Shortcut]:
    """By version: topics are named up to 12, and known by their ids from 13 on."""
    by_name, by_id = _Road(services, by_id=False), _Road(services, by_id=True)
    return {version: (by_id if version >= TOPIC_ID_VERSION else by_name).serve for version in VERSIONS}


class _Road:
    """Remembers which partition stands at which place."""

    def __init__(self, services: Services, *, by_id: bool) -> None:
        self._partitions = services.partitions
        self._metadata = services.metadata
        self._deadlines = services.deadlines
        self._by_id = by_id
        self._known: dict[bytes, Partition] = {}
        services.partitions.on_departure.append(self._known.clear)

    def serve(self, frame: memoryview) -> Answer | Later | None:
        """`Shortcut`."""
        wanted = read_single_produce(frame)
        if wanted is None:
            return None
        correlation_id, acks, timeout_ms, place, records = wanted
        if acks not in (ACKS_ALL, ACKS_LEADER):
            return None
        partition = self._known.get(place)
        if partition is None:
            partition = self._find(place)
        if partition is None or not partition.appends_as_is:
            return None
        appended = partition.append(records, needs_isr=acks == ACKS_ALL)
        if not isinstance(appended, Appended):
            return None
        answer = _Answer(correlation_id, place, appended, partition.log.log_start_offset)
        if acks == ACKS_LEADER:
            return answer.answer()
        partition.park_commit(appended.end, answer)
        if answer.is_settled:
            return answer.answer()
        self._deadlines.add(answer, timeout_ms if timeout_ms > 0 else 0)
        return answer

    def _find(self, place: bytes) -> Partition | None:
        """As the long road does; None where that is to say why not."""
        if len(self._known) >= PLACES_REMEMBERED_MAX:
            self._known.clear()
        image = self._metadata.image
        topic, index = place_of(place, by_id=self._by_id)
        if self._by_id:
            found = image.topic_by_id(TopicId(UUID(bytes=topic)))
        else:
            found = image.topic(topic.decode(errors="replace"))
        if found is None or found.internal:
            return None
        partition = self._partitions.find(TopicPartition(found.id, PartitionIndex(index)), image)
        if isinstance(partition, ErrorCode):
            return None
        self._known[place] = partition
        return partition


class _Answer:
    """A `Later` that waits for the commit itself, and for its deadline."""

    __slots__ = (
        "_appended",
        "_callback",
        "_correlation_id",
        "_error",
        "_log_start_offset",
        "_place",
        "is_settled",
    )
    pipelined: ClassVar[bool] = True

    def __init__(self, correlation_id: int, place: bytes, appended: Appended, log_start_offset: Offset) -> None:
        self._correlation_id = correlation_id
        self._place = place
        self._appended = appended
        self._log_start_offset = log_start_offset
        self._error = ErrorCode.NONE
        self._callback: Callable[[Any], object] | None = None
        self.is_settled = False

    def on_outcome(self, error: ErrorCode) -> None:
        """`Commit`."""
        if self.is_settled:
            return
        self.is_settled = True
        self._error = error
        if self._callback is not None:
            self._callback(self)

    def time_out(self) -> None:
        """`Waiting`."""
        self.on_outcome(ErrorCode.REQUEST_TIMED_OUT)

    def done(self) -> bool:
        return self.is_settled

    def cancel(self) -> None:
        self.is_settled = True

    def add_done_callback(self, callback: Callable[[Any], object], /) -> None:
        self._callback = callback

    def answer(self) -> Answer:
        error = self._error
        base_offset, _, time_ms = self._appended if error is ErrorCode.NONE else NOT_APPENDED
        start = self._log_start_offset
        return [write_single_answer(self._correlation_id, self._place, error, base_offset, time_ms, start)]
