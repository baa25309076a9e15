"""InitProducerId: bumps and their repetition (KIP-360), fencing, exhausted epochs, two-phase commit (KIP-939)."""

from __future__ import annotations

from dataclasses import replace

import pytest

from headrace.base.ids import PRODUCER_EPOCH_MAX
from headrace.coordinators.transactions.model import (
    NO_PRODUCER,
    NO_TIMEOUT_MS,
    Producer,
    Terms,
    TransactionConfig,
    TransactionState,
)
from headrace.wire.errors import ErrorCode
from tests.coordinators.transactions.world import CONFIG, OK, TV0, TV1, TV2, World, at, producer


def with_epoch(world: World, epoch: int) -> Producer:
    """A producer that has used up the epochs below this one."""
    who = world.begun()
    found = world.transactions["t"]
    standing = replace(found.standing, producer_epoch=producer(0, epoch).epoch)
    world.transactions["t"] = replace(found, standing=standing)
    return Producer(who.id, standing.producer_epoch)


def test_a_new_id_gets_a_producer_id_and_epoch_0() -> None:
    world = World(autowrite=False)
    waiter = world.init()
    assert waiter not in world.replies, "answered before it is durable"
    world.settle()
    assert world.initialised(waiter) == (OK, producer(1000, 0), NO_PRODUCER)


def test_each_client_gets_the_next_epoch() -> None:
    world = World()
    assert [world.begun().epoch for _ in range(3)] == [0, 1, 2]


def test_while_a_write_is_under_way_others_ask_again() -> None:
    world = World(autowrite=False)
    world.init()
    assert world.error(world.init()) is ErrorCode.CONCURRENT_TRANSACTIONS


@pytest.mark.parametrize("timeout_ms", [0, -1, 900_001])
def test_a_timeout_out_of_range_is_refused(timeout_ms: int) -> None:
    world = World()
    assert world.error(world.init(timeout_ms=timeout_ms)) is ErrorCode.INVALID_TRANSACTION_TIMEOUT
    assert not world.transactions


def test_an_empty_id_is_refused() -> None:
    assert World().replies == {}
    world = World()
    assert world.error(world.init("")) is ErrorCode.INVALID_REQUEST
    assert world.error(world.end(producer(1, 0), name="")) is ErrorCode.INVALID_REQUEST
    assert world.error(world.add(producer(1, 0), "a0", name="")) is ErrorCode.INVALID_REQUEST


def test_a_new_id_whose_record_is_refused_is_forgotten() -> None:
    world = World(refuse_next=ErrorCode.COORDINATOR_NOT_AVAILABLE)
    assert world.error(world.init()) is ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert not world.transactions
    assert world.begun().epoch == 0


def test_without_a_producer_id_the_client_asks_again() -> None:
    world = World(has_producer_ids=False)
    assert world.error(world.init()) is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS


def test_a_client_that_goes_on_gets_the_next_epoch_and_again_the_same_when_it_repeats() -> None:
    world = World()
    first = world.begun()
    second = world.initialised(world.init(expected=first)).producer
    assert second == (first.id, first.epoch + 1)
    assert world.initialised(world.init(expected=first)).producer == second


def test_a_client_that_goes_on_after_another_began_is_fenced() -> None:
    world = World()
    first = world.begun()
    world.begun()
    assert world.error(world.init(expected=first)) is ErrorCode.PRODUCER_FENCED
    assert world.error(world.init(expected=producer(5, 0))) is ErrorCode.PRODUCER_FENCED


def test_exhausted_epochs_lead_to_another_producer_id() -> None:
    world = World()
    with_epoch(world, PRODUCER_EPOCH_MAX - 1)
    assert world.begun() == producer(1001, 0)


def test_a_client_that_goes_on_with_exhausted_epochs_may_repeat_that() -> None:
    world = World()
    last = with_epoch(world, PRODUCER_EPOCH_MAX - 1)
    fresh = world.initialised(world.init(expected=last)).producer
    assert fresh == producer(1001, 0)
    assert world.initialised(world.init(expected=last)).producer == fresh


@pytest.mark.parametrize("version", [TV0, TV1, TV2])
def test_an_open_transaction_is_aborted_with_the_next_epoch_first(version: int) -> None:
    world = World(terms=Terms(coordinator_epoch=3, version=TV2 if version == 2 else TV1), automark=False)
    zombie = world.begun()
    world.add(zombie, "a0", "b1")
    assert world.error(world.init()) is ErrorCode.CONCURRENT_TRANSACTIONS
    assert world.state() is TransactionState.PREPARE_ABORT
    assert {marker.partition for marker in world.markers} == at("a0", "b1")
    assert all(marker.producer == (zombie.id, zombie.epoch + 1) and not marker.commit for marker in world.markers)
    assert world.error(world.init()) is ErrorCode.CONCURRENT_TRANSACTIONS
    world.mark()
    world.mark()
    assert world.begun() == (zombie.id, zombie.epoch + 2)
    assert world.error(world.add(zombie, "a0")) is ErrorCode.PRODUCER_FENCED
    assert world.error(world.end(zombie)) is ErrorCode.PRODUCER_FENCED


def test_a_fence_that_the_log_refuses_changes_nothing() -> None:
    world = World()
    who = world.begun()
    world.add(who, "a0")
    world.refuse_next = ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert world.error(world.init()) is ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert world.standing().producer == who
    assert world.error(world.init()) is ErrorCode.CONCURRENT_TRANSACTIONS
    assert world.begun().epoch == who.epoch + 2


def test_a_zombie_that_goes_on_does_not_abort_the_transaction_of_the_client_after_it() -> None:
    """Kafka looks only at the producer id here, and would fence the living client."""
    world = World()
    zombie = world.begun()
    who = world.begun()
    world.add(who, "a0")
    assert world.error(world.init(expected=zombie)) is ErrorCode.PRODUCER_FENCED
    assert world.ended(world.end(who)).error is OK


def test_an_open_transaction_in_the_last_epoch_is_fenced_with_the_highest() -> None:
    world = World()
    last = with_epoch(world, PRODUCER_EPOCH_MAX - 1)
    world.add(last, "a0")
    world.init()
    assert world.marked[0].producer == (last.id, PRODUCER_EPOCH_MAX)
    assert world.begun() == producer(1001, 1)


def test_nobody_writes_with_the_epoch_that_stands_for_a_fenced_producer() -> None:
    world = World(terms=Terms(coordinator_epoch=1, version=TV1, config=CONFIG))
    last = with_epoch(world, PRODUCER_EPOCH_MAX - 1)
    world.add(last, "a0")
    world.init()
    highest = producer(last.id, PRODUCER_EPOCH_MAX)
    assert world.standing().producer == highest
    assert world.error(world.add(highest, "a0")) is ErrorCode.PRODUCER_FENCED
    assert world.error(world.end(highest, commit=False, version=TV0)) is ErrorCode.PRODUCER_FENCED
    after = world.begun()
    assert after.id != last.id
    assert after.epoch == 0


def test_an_open_transaction_in_the_last_epoch_waits_for_a_producer_id() -> None:
    world = World()
    last = with_epoch(world, PRODUCER_EPOCH_MAX - 1)
    world.add(last, "a0")
    world.has_producer_ids = False
    assert world.error(world.init()) is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    assert world.error(world.end(last)) is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    world.advance(60_500)
    assert world.state() is TransactionState.ONGOING
    world.has_producer_ids = True
    world.advance(500)
    assert world.state() is TransactionState.COMPLETE_ABORT


# --- two-phase commit (KIP-939) ---


def test_two_phase_commit_has_to_be_allowed() -> None:
    world = World(terms=Terms(coordinator_epoch=1, config=TransactionConfig()))
    assert world.error(world.init(two_phase_commit=True)) is ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED


def test_keeping_a_transaction_needs_the_second_version() -> None:
    world = World(terms=Terms(coordinator_epoch=1, version=TV1, config=CONFIG))
    assert world.error(world.init(keep=True)) is ErrorCode.UNSUPPORTED_VERSION


def test_a_transaction_of_two_phase_commit_does_not_time_out() -> None:
    world = World()
    who = world.begun(two_phase_commit=True, timeout_ms=0)
    assert world.standing().timeout_ms == NO_TIMEOUT_MS
    world.add(who, "a0")
    world.advance(10**9)
    assert world.state() is TransactionState.ONGOING


@pytest.mark.parametrize("commit", [True, False])
def test_a_kept_transaction_is_ended_by_the_client_that_kept_it(commit: bool) -> None:
    world = World()
    who = world.begun(two_phase_commit=True)
    world.add(who, "a0")
    error, client, ongoing = world.initialised(world.init(two_phase_commit=True, keep=True))
    assert (error, client, ongoing) == (OK, (who.id, who.epoch + 1), who)
    assert world.error(world.end(who)) is ErrorCode.PRODUCER_FENCED
    assert world.verify(who, "a0").error is ErrorCode.PRODUCER_FENCED
    assert world.error(world.add(client, "b0")) is ErrorCode.INVALID_TXN_STATE
    assert world.verify(client, "a0").error is ErrorCode.INVALID_TXN_STATE
    reply = world.ended(world.end(client, commit=commit))
    assert reply == (OK, who.id, who.epoch + 2)
    assert world.marked[0].producer == (who.id, who.epoch + 1)
    assert world.marked[0].commit is commit
    assert world.ended(world.end(client, commit=commit)) == reply
    other = ErrorCode.INVALID_TXN_STATE if commit else ErrorCode.PRODUCER_FENCED  # a commit after an abort: KAFKA-20785
    assert world.error(world.end(client, commit=not commit)) is other
    assert world.error(world.add(Producer(reply.producer_id, reply.producer_epoch), "a0")) is OK


def test_a_transaction_may_be_kept_again_and_again_and_over_a_failover() -> None:
    world = World()
    who = world.begun(two_phase_commit=True)
    world.add(who, "a0")
    for times in range(1, 4):
        kept = world.initialised(world.init(two_phase_commit=True, keep=True))
        assert kept == (OK, (who.id, who.epoch + times), who)
        world.fail_over()
    assert world.ended(world.end(kept.producer)) == (OK, who.id, who.epoch + 4)


def test_a_kept_transaction_in_the_last_epoch_goes_on_with_another_producer_id() -> None:
    world = World()
    last = with_epoch(world, PRODUCER_EPOCH_MAX - 1)
    world.add(last, "a0")
    kept = world.initialised(world.init(two_phase_commit=True, keep=True))
    assert kept == (OK, producer(1001, 0), last)
    assert world.ended(world.end(kept.producer)) == (OK, 1001, 1)
    assert world.marked[0].producer == (last.id, PRODUCER_EPOCH_MAX)
    assert world.ended(world.end(kept.producer)) == (OK, 1001, 1)


def test_a_kept_transaction_is_aborted_by_a_client_that_keeps_nothing() -> None:
    world = World()
    who = world.begun(two_phase_commit=True)
    world.add(who, "a0")
    kept = world.initialised(world.init(two_phase_commit=True, keep=True)).producer
    assert world.error(world.init()) is ErrorCode.CONCURRENT_TRANSACTIONS
    assert world.state() is TransactionState.COMPLETE_ABORT
    assert world.error(world.end(kept)) is ErrorCode.PRODUCER_FENCED, "a commit, after an abort that was another's"
    assert world.begun().epoch == kept.epoch + 2


def test_keeping_without_a_transaction_is_an_ordinary_beginning() -> None:
    world = World()
    assert world.initialised(world.init(keep=True)) == (OK, producer(1000, 0), NO_PRODUCER)
