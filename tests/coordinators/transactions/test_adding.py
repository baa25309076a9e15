"""AddPartitionsToTxn: who may add, what is answered when, and what partitions' leaders hear."""

from __future__ import annotations

import pytest

from headrace.coordinators.transactions.model import Producer, TransactionState, TransactionVersion
from headrace.wire.errors import ErrorCode
from tests.coordinators.transactions.world import OK, TV0, TV2, World, at, producer


def test_added_partitions_count_once_they_are_durable() -> None:
    world = World()
    who = world.begun()
    world.autowrite = False
    waiter = world.add(who, "a0")
    assert waiter not in world.replies
    assert world.verify(who, "a0").partitions == (ErrorCode.TRANSACTION_ABORTABLE,)
    world.settle()
    assert world.error(waiter) is OK
    assert world.verify(who, "a0", "b0").partitions == (OK, ErrorCode.TRANSACTION_ABORTABLE)


def test_partitions_that_are_there_need_no_record() -> None:
    world = World()
    who = world.begun()
    world.add(who, "a0", "a1")
    length = len(world.log)
    assert world.error(world.add(who, "a1")) is OK
    assert len(world.log) == length
    assert world.error(world.add(who, "a2")) is OK
    assert world.standing().partitions == at("a0", "a1", "a2")


def test_the_first_partition_starts_the_clock() -> None:
    world = World()
    who = world.begun()
    world.advance(1_000)
    world.add(who, "a0")
    started_ms = world.standing().started_ms
    assert started_ms == world.moment().wall_ms
    world.advance(1_000)
    world.add(who, "b0")
    assert world.standing().started_ms == started_ms


@pytest.mark.parametrize(
    ("who", "error"),
    [
        (producer(999, 0), ErrorCode.INVALID_PRODUCER_ID_MAPPING),
        (producer(1000, 0), ErrorCode.PRODUCER_FENCED),
        (producer(1000, 2), ErrorCode.PRODUCER_FENCED),
    ],
)
def test_another_producer_is_refused(who: Producer, error: ErrorCode) -> None:
    world = World()
    world.begun()
    world.begun()
    assert world.error(world.add(who, "a0")) is error
    assert world.verify(who, "a0").error is error


def test_an_unknown_id_is_refused() -> None:
    world = World()
    assert world.error(world.add(producer(1, 0), "a0")) is ErrorCode.INVALID_PRODUCER_ID_MAPPING
    assert world.verify(producer(1, 0), "a0").error is ErrorCode.INVALID_PRODUCER_ID_MAPPING
    assert not world.transactions


@pytest.mark.parametrize("version", [TV0, TV2])
def test_the_next_transaction_waits_for_the_markers_of_the_one_before(version: TransactionVersion) -> None:
    world = World(automark=False)
    who = world.begun()
    world.add(who, "a0", version=version)
    reply = world.ended(world.end(who, version=version))
    after = who if version is TV0 else Producer(reply.producer_id, reply.producer_epoch)
    assert world.error(world.add(after, "a0", version=version)) is ErrorCode.CONCURRENT_TRANSACTIONS
    assert world.verify(after, "a0").error is ErrorCode.CONCURRENT_TRANSACTIONS
    world.mark()
    assert world.error(world.add(after, "a0", version=version)) is OK


def test_while_a_write_is_under_way_others_ask_again() -> None:
    world = World()
    who = world.begun()
    world.autowrite = False
    world.add(who, "a0")
    assert world.error(world.add(producer(5, 5), "a1")) is ErrorCode.CONCURRENT_TRANSACTIONS, "before anything else"


def test_partitions_that_the_log_refused_are_not_there() -> None:
    world = World()
    who = world.begun()
    world.refuse_next = ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert world.error(world.add(who, "a0")) is ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert world.state() is TransactionState.EMPTY
    assert world.error(world.add(who, "a0")) is OK


def test_partitions_that_are_durable_on_too_few_replicas_are_there_when_the_client_asks_again() -> None:
    world = World()
    who = world.begun()
    world.autowrite = False
    waiter = world.add(who, "a0")
    world.settle(ErrorCode.COORDINATOR_NOT_AVAILABLE)
    assert world.error(waiter) is ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert world.error(world.add(who, "a0")) is OK


def test_the_batch_of_an_ended_transaction_is_refused() -> None:
    """With TV1 the epoch stays, so it is the partition that is missing; with TV2 the epoch is old, too."""
    for version, error in ((TV0, OK), (TV2, ErrorCode.PRODUCER_FENCED)):
        world = World()
        who = world.begun()
        world.add(who, "a0", version=version)
        world.end(who, version=version)
        reply = world.verify(who, "a0")
        assert reply.error is error
        assert reply.partitions == ((ErrorCode.TRANSACTION_ABORTABLE,) if error is OK else ())
