"""An answer to several batches waits for all of them, and tells of each what became of it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from headrace.base.ids import Offset
from headrace.broker.handlers.plain_produce import _AnswerOfMany, _Road
from headrace.broker.kit.parking import Commit
from headrace.broker.partitions.partition import Partition
from headrace.broker.partitions.replica import WriteRefusal
from headrace.storage.engine.appending import Appended
from headrace.wire.apis import ApiKey, api
from headrace.wire.errors import ErrorCode
from headrace.wire.walking import UNWALKED, Walked

TOPIC = b"\2t"


class Scripted:
    """A partition that commits when the test says so."""

    def __init__(self, outcome: Appended | WriteRefusal) -> None:
        self.start_offset = Offset(3)
        self.waiting: list[Commit] = []
        self._outcome = outcome

    def append(self, records: memoryview, *, needs_isr: bool, walked: Walked) -> Appended | WriteRefusal:
        return self._outcome

    def park_commit(self, end: Offset, waiter: Commit) -> None:
        self.waiting.append(waiter)

    def park_stored(self, end: Offset, waiter: Commit) -> None:
        waiter.on_outcome(ErrorCode.NONE)


def at(base: int) -> Scripted:
    return Scripted(Appended(Offset(base), Offset(base + 1)))


def asked(*partitions: Scripted, needs_isr: bool = True) -> _AnswerOfMany:
    road = SimpleNamespace(on_error=lambda api, error: None)  # of it, no more is asked, but where another leads
    answer = _AnswerOfMany(cast("_Road", road), 7, "PLAINTEXT")
    batches = [(number, memoryview(b"")) for number in range(len(partitions))]
    places = iter([(cast("Partition", partition), UNWALKED, None) for partition in partitions])
    answer.take(TOPIC, batches, places, needs_isr=needs_isr)
    answer.all_are_taken()
    return answer


def told(answer: _AnswerOfMany) -> list[tuple[int, int, int]]:
    """Error, offset and log start of each, as the general codec reads them."""
    codec: Any = api(int(ApiKey.PRODUCE))
    (frame,) = answer.answer()
    response = codec.decode_response(9, memoryview(frame)[4 + 4 + 1 :])
    return [
        (each.error_code, each.base_offset, each.log_start_offset)
        for topic in response.responses
        for each in topic.partition_responses
    ]


def test_it_waits_for_all() -> None:
    first, second = at(10), at(20)
    answer = asked(first, second)
    done: list[object] = []
    answer.add_done_callback(done.append)
    first.waiting[0].on_outcome(ErrorCode.NONE)
    assert (answer.done(), done) == (False, [])
    second.waiting[0].on_outcome(ErrorCode.NONE)
    assert (answer.done(), done) == (True, [answer])
    assert told(answer) == [(0, 10, 3), (0, 20, 3)]


@pytest.mark.parametrize("failed_first", [False, True])
def test_one_that_fails_takes_no_other_with_it_and_is_not_told_as_committed(failed_first: bool) -> None:
    first, second = at(10), at(20)
    answer = asked(first, second)
    outcomes = [(first, ErrorCode.KAFKA_STORAGE_ERROR), (second, ErrorCode.NONE)]
    for partition, error in outcomes if failed_first else outcomes[::-1]:
        partition.waiting[0].on_outcome(error)
    assert told(answer) == [(ErrorCode.KAFKA_STORAGE_ERROR, -1, 3), (0, 20, 3)]


def test_at_the_deadline_only_what_is_not_committed_is_told_so_and_comes_too_late() -> None:
    first, second = at(10), at(20)
    answer = asked(first, second)
    done: list[object] = []
    answer.add_done_callback(done.append)
    first.waiting[0].on_outcome(ErrorCode.NONE)
    answer.time_out()
    second.waiting[0].on_outcome(ErrorCode.NONE)
    assert done == [answer]
    assert told(answer) == [(0, 10, 3), (ErrorCode.REQUEST_TIMED_OUT, -1, 3)]


def test_what_is_refused_is_told_beside_what_is_committed() -> None:
    refused, taken = Scripted(WriteRefusal(ErrorCode.CORRUPT_MESSAGE, "It is.")), at(20)
    answer = asked(refused, taken)
    assert not answer.done()
    taken.waiting[0].on_outcome(ErrorCode.NONE)
    assert told(answer) == [(ErrorCode.CORRUPT_MESSAGE, -1, -1), (0, 20, 3)]


def test_what_is_refused_stays_so_at_the_deadline() -> None:
    answer = asked(Scripted(WriteRefusal(ErrorCode.CORRUPT_MESSAGE, "It is.")), at(20))
    answer.time_out()
    assert told(answer) == [(ErrorCode.CORRUPT_MESSAGE, -1, -1), (ErrorCode.REQUEST_TIMED_OUT, -1, 3)]


def test_nothing_is_waited_for_where_the_leader_alone_is_asked_or_all_is_refused() -> None:
    partition = at(10)
    assert told(asked(partition, needs_isr=False)) == [(0, 10, 3)]
    assert partition.waiting == []
    assert asked(Scripted(WriteRefusal(ErrorCode.CORRUPT_MESSAGE, "It is."))).done()


def test_nobody_is_told_once_the_connection_is_gone() -> None:
    partition = at(10)
    done: list[object] = []
    answer = asked(partition)
    answer.add_done_callback(done.append)
    answer.cancel()
    partition.waiting[0].on_outcome(ErrorCode.NONE)
    answer.time_out()
    assert done == []
