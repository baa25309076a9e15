"""EndTxn, timeouts, markers, and expiry."""

from __future__ import annotations

from dataclasses import replace

import pytest

from headrace.base.ids import PRODUCER_EPOCH_MAX
from headrace.base.limits import TRANSACTION_REFUSED_RETRY_MS, TRANSACTION_RETRY_MS
from headrace.coordinators.transactions import events as ev
from headrace.coordinators.transactions.model import (
    Producer,
    Terms,
    TransactionState,
    TransactionVersion,
)
from headrace.wire.errors import ErrorCode
from tests.coordinators.transactions.world import CONFIG, OK, TV0, TV1, TV2, World, at, producer

VERSIONS = (TV0, TV2)


def ongoing(version: TransactionVersion = TV2, *, automark: bool = True) -> tuple[World, Producer]:
    world = World(automark=automark)
    who = world.begun()
    assert world.error(world.add(who, "a0", "b0", version=version)) is OK
    return world, who


@pytest.mark.parametrize("commit", [True, False])
def test_with_tv2_the_client_goes_on_with_the_next_epoch(commit: bool) -> None:
    world, who = ongoing()
    assert world.ended(world.end(who, commit=commit)) == (OK, who.id, who.epoch + 1)
    assert [(marker.partition, marker.producer, marker.commit) for marker in world.marked] == [
        (partition, (who.id, who.epoch + 1), commit) for partition in sorted(at("a0", "b0"))
    ]
    assert world.standing().producer == (who.id, who.epoch + 1)
    assert world.error(world.add(who, "a0")) is ErrorCode.PRODUCER_FENCED


@pytest.mark.parametrize("commit", [True, False])
def test_with_tv1_the_epoch_stays(commit: bool) -> None:
    world, who = ongoing(TV0)
    assert world.ended(world.end(who, commit=commit, version=TV0)) == (OK, -1, -1)
    assert {marker.producer for marker in world.marked} == {who}
    assert world.error(world.add(who, "a0", version=TV0)) is OK


@pytest.mark.parametrize("version", VERSIONS)
def test_nobody_hears_of_a_decision_that_is_not_durable(version: TransactionVersion) -> None:
    world, who = ongoing(version)
    world.autowrite = world.automark = False
    waiter = world.end(who, version=version)
    assert waiter not in world.replies
    assert not world.markers
    assert world.state() is TransactionState.ONGOING
    world.settle()
    assert world.error(waiter) is OK
    assert len(world.markers) == 2


@pytest.mark.parametrize("version", VERSIONS)
def test_a_decision_that_the_log_refused_is_none(version: TransactionVersion) -> None:
    world, who = ongoing(version)
    world.refuse_next = ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert world.error(world.end(who, version=version)) is ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert world.state() is TransactionState.ONGOING
    assert world.ended(world.end(who, commit=False, version=version)).error is OK
    assert {marker.commit for marker in world.marked} == {False}


@pytest.mark.parametrize("version", VERSIONS)
def test_an_end_that_is_asked_for_again_is_not_decided_again(version: TransactionVersion) -> None:
    world, who = ongoing(version, automark=False)
    first = world.ended(world.end(who, version=version))
    assert world.error(world.end(who, version=version)) is ErrorCode.CONCURRENT_TRANSACTIONS
    world.mark()
    world.mark()
    length = len(world.log)
    assert world.ended(world.end(who, version=version)) == first
    assert world.error(world.end(who, commit=False, version=version)) is ErrorCode.INVALID_TXN_STATE
    assert len(world.log) == length


def test_with_tv2_a_late_end_does_not_end_the_next_transaction() -> None:
    """Jepsen found this in Bufstream 0.1.0, and Kafka's protocol before KIP-890 has it."""
    world, who = ongoing()
    after = Producer(*world.ended(world.end(who))[1:])
    world.add(after, "c0")
    assert world.error(world.end(who)) is ErrorCode.PRODUCER_FENCED
    assert world.error(world.end(who, commit=False)) is ErrorCode.PRODUCER_FENCED
    assert world.state() is TransactionState.ONGOING


def test_with_tv2_an_abort_without_a_transaction_raises_the_epoch() -> None:
    """The client does not know whether a partition was added."""
    world = World()
    who = world.begun()
    assert world.ended(world.end(who, commit=False)) == (OK, who.id, who.epoch + 1)
    assert world.state() is TransactionState.COMPLETE_ABORT
    again = producer(who.id, who.epoch + 1)
    assert world.ended(world.end(again, commit=False)) == (OK, who.id, who.epoch + 2)
    assert not world.marked


@pytest.mark.parametrize("version", VERSIONS)
def test_a_commit_without_a_transaction_is_refused(version: TransactionVersion) -> None:
    world = World()
    who = world.begun()
    assert world.error(world.end(who, version=version)) is ErrorCode.INVALID_TXN_STATE
    if version is TV0:
        assert world.error(world.end(who, commit=False, version=version)) is ErrorCode.INVALID_TXN_STATE


@pytest.mark.parametrize("version", VERSIONS)
def test_another_producer_is_refused(version: TransactionVersion) -> None:
    world, who = ongoing(version)
    assert world.error(world.end(producer(5, 0), version=version)) is ErrorCode.INVALID_PRODUCER_ID_MAPPING
    other = producer(who.id, who.epoch + 1)
    assert world.error(world.end(other, version=version)) is ErrorCode.PRODUCER_FENCED
    assert world.error(world.end(who, name="u", version=version)) is ErrorCode.INVALID_PRODUCER_ID_MAPPING


def test_where_the_cluster_is_older_a_new_client_is_served_as_an_old_one() -> None:
    world = World(terms=Terms(coordinator_epoch=1, version=TV1, config=CONFIG))
    who = world.begun()
    world.add(who, "a0", version=TV2)
    assert world.ended(world.end(who, version=TV2)) == (OK, -1, -1)
    assert world.standing().client_version is TV0


def test_in_the_last_epoch_the_client_goes_on_with_another_producer_id() -> None:
    world, who = ongoing()
    found = world.transactions["t"]
    last = producer(who.id, PRODUCER_EPOCH_MAX - 1)
    world.transactions["t"] = replace(found, standing=replace(found.standing, producer_epoch=last.epoch))
    world.automark = False
    assert world.ended(world.end(last)) == (OK, 1001, 0)
    assert {marker.producer for marker in world.markers} == {(who.id, PRODUCER_EPOCH_MAX)}
    world.fail_over()
    world.mark()
    world.mark()
    assert world.ended(world.end(last)) == (OK, 1001, 0)
    assert world.error(world.end(last, commit=False)) is ErrorCode.INVALID_TXN_STATE


# --- timeouts ---


@pytest.mark.parametrize("version", VERSIONS)
def test_a_transaction_that_takes_too_long_is_aborted_and_its_producer_fenced(version: TransactionVersion) -> None:
    world, who = ongoing(version)
    world.advance(60_000)
    assert world.state() is TransactionState.ONGOING
    world.advance(1)
    assert world.state() is TransactionState.COMPLETE_ABORT
    assert {(marker.producer, marker.commit) for marker in world.marked} == {((who.id, who.epoch + 1), False)}
    assert world.error(world.add(who, "a0", version=version)) is ErrorCode.PRODUCER_FENCED
    assert world.error(world.end(who, version=version)) is ErrorCode.PRODUCER_FENCED


def test_a_timeout_counts_over_a_failover() -> None:
    world, _ = ongoing()
    world.advance(40_000)
    world.fail_over()
    world.advance(20_001)
    assert world.state() is TransactionState.COMPLETE_ABORT


def test_a_timeout_that_the_log_refuses_is_tried_again() -> None:
    world, _ = ongoing()
    world.refuse_next = ErrorCode.COORDINATOR_NOT_AVAILABLE
    world.advance(60_001)
    assert world.state() is TransactionState.ONGOING
    world.advance(1_000)
    assert world.state() is TransactionState.COMPLETE_ABORT


def test_an_abort_that_is_refused_again_and_again_is_tried_less_and_less_often_and_told_once() -> None:
    world, _ = ongoing()
    world.refuse_all = ErrorCode.COORDINATOR_NOT_AVAILABLE
    world.effects_seen.clear()
    world.advance(60_001 + 600_000)
    tries = [effect for effect in world.effects_seen if isinstance(effect, ev.Append)]
    assert 600_000 / TRANSACTION_REFUSED_RETRY_MS < len(tries) < 600_000 / TRANSACTION_REFUSED_RETRY_MS + 10
    assert not [effect for effect in world.effects_seen if isinstance(effect, ev.Noted)], "nothing is aborted yet"
    world.refuse_all = OK
    world.advance(TRANSACTION_REFUSED_RETRY_MS)
    assert world.state() is TransactionState.COMPLETE_ABORT
    (noted,) = (effect for effect in world.effects_seen if isinstance(effect, ev.Noted))
    assert "60000 ms" in noted.text


def test_after_a_write_that_succeeds_a_refused_one_is_soon_tried_again() -> None:
    world, _ = ongoing()
    world.refuse_all = ErrorCode.COORDINATOR_NOT_AVAILABLE
    world.advance(60_001 + 60_000)
    world.refuse_all, world.automark = OK, False
    world.advance(TRANSACTION_REFUSED_RETRY_MS)
    world.mark()
    world.refuse_next = ErrorCode.COORDINATOR_NOT_AVAILABLE
    world.mark()
    assert world.state() is TransactionState.PREPARE_ABORT
    world.advance(TRANSACTION_RETRY_MS)
    assert world.state() is TransactionState.COMPLETE_ABORT


def test_a_timeout_meets_a_write_under_way() -> None:
    world, who = ongoing()
    world.autowrite = False
    world.end(who)
    world.advance(100_000)
    world.settle()
    assert world.state() is TransactionState.PREPARE_COMMIT


# --- markers ---


def test_the_end_is_written_once_all_markers_are() -> None:
    world, who = ongoing(automark=False)
    world.end(who)
    world.mark()
    assert world.state() is TransactionState.PREPARE_COMMIT
    world.mark()
    assert world.state() is TransactionState.COMPLETE_COMMIT


@pytest.mark.parametrize("error", [ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.INVALID_PRODUCER_EPOCH])
def test_a_marker_that_could_not_be_written_is_sent_again(error: ErrorCode) -> None:
    world, who = ongoing(automark=False)
    world.end(who)
    world.mark(0, error)
    assert [marker.partition for marker in world.markers] == list(at("b0"))
    world.advance(10_000)
    assert sorted(marker.partition for marker in world.markers) == sorted(at("a0", "b0"))
    world.mark()
    world.mark()
    assert world.state() is TransactionState.COMPLETE_COMMIT


def test_a_partition_that_is_gone_needs_no_marker() -> None:
    world, who = ongoing(automark=False)
    world.end(who)
    world.mark(gone=True)
    world.mark()
    assert world.state() is TransactionState.COMPLETE_COMMIT


def test_outcomes_of_markers_may_come_together() -> None:
    world, who = ongoing(automark=False)
    world.end(who)
    number = world.markers[0].number
    world.markers.clear()
    world.send("t", ev.MarkersSettled(number=number, errors=dict.fromkeys(at("a0", "b0"), OK)))
    assert world.state() is TransactionState.COMPLETE_COMMIT


def test_outcomes_of_markers_of_an_earlier_transaction_are_ignored() -> None:
    world, who = ongoing(automark=False)
    after = Producer(*world.ended(world.end(who))[1:])
    number = world.markers[0].number
    world.mark()
    world.mark()
    world.add(after, "a0")
    world.end(after)
    world.send("t", ev.MarkersSettled(number=number, errors={next(iter(at("a0"))): OK}))
    assert world.state() is TransactionState.PREPARE_COMMIT


def test_an_outcome_that_is_told_again_does_not_write_the_end_again() -> None:
    world, who = ongoing(automark=False)
    world.end(who)
    number, partition = world.markers[0].number, world.markers[0].partition
    world.mark()
    world.autowrite = False
    world.mark()
    world.send("t", ev.MarkersSettled(number=number, errors={partition: OK}))
    assert len(world.in_flight) == 1
    world.settle()
    assert world.state() is TransactionState.COMPLETE_COMMIT


def test_an_end_that_the_log_refuses_is_written_again() -> None:
    world, who = ongoing(automark=False)
    world.end(who)
    world.mark()
    world.refuse_next = ErrorCode.COORDINATOR_NOT_AVAILABLE
    world.mark()
    assert world.state() is TransactionState.PREPARE_COMMIT
    assert world.error(world.end(who)) is ErrorCode.CONCURRENT_TRANSACTIONS
    world.advance(1_000)
    assert world.state() is TransactionState.COMPLETE_COMMIT


@pytest.mark.parametrize("commit", [True, False])
def test_a_decided_transaction_is_finished_by_the_next_coordinator(commit: bool) -> None:
    world, who = ongoing(automark=False)
    world.end(who, commit=commit)
    world.mark()
    world.fail_over()
    assert {marker.coordinator_epoch for marker in world.markers} == {8}
    assert {marker.partition for marker in world.markers} == at("a0", "b0")
    assert {marker.commit for marker in world.markers} == {commit}
    world.mark()
    world.mark()
    assert world.state() is (TransactionState.COMPLETE_COMMIT if commit else TransactionState.COMPLETE_ABORT)


# --- expiry ---


def test_an_id_that_nobody_uses_is_forgotten() -> None:
    world = World()
    who = world.begun()
    world.advance(CONFIG.transactional_id_expiration_ms - 1)
    world.send("t", ev.Expire())
    assert world.transactions
    world.advance(1)
    world.send("t", ev.Expire())
    assert not world.transactions
    assert world.log[-1][1] is None
    assert world.error(world.add(who, "a0")) is ErrorCode.INVALID_PRODUCER_ID_MAPPING
    assert world.begun() == producer(1001, 0)


def test_an_id_with_an_open_transaction_is_not_forgotten() -> None:
    world = World()
    who = world.begun(two_phase_commit=True)
    world.add(who, "a0")
    world.advance(10 * CONFIG.transactional_id_expiration_ms)
    world.send("t", ev.Expire())
    assert world.state() is TransactionState.ONGOING


def test_an_id_whose_tombstone_was_refused_stays() -> None:
    world = World()
    who = world.begun()
    world.advance(CONFIG.transactional_id_expiration_ms)
    world.refuse_next = ErrorCode.COORDINATOR_NOT_AVAILABLE
    world.send("t", ev.Expire())
    assert world.error(world.add(who, "a0")) is OK


def test_an_id_is_not_given_out_while_its_tombstone_is_written() -> None:
    world = World()
    who = world.begun()
    world.advance(CONFIG.transactional_id_expiration_ms)
    world.autowrite = False
    world.send("t", ev.Expire())
    assert world.error(world.init()) is ErrorCode.CONCURRENT_TRANSACTIONS
    assert world.error(world.add(who, "a0")) is ErrorCode.CONCURRENT_TRANSACTIONS
    world.settle()
    assert not world.transactions


def test_events_for_an_id_that_is_gone_do_nothing() -> None:
    world = World()
    for event in (ev.Tick(), ev.Expire(), ev.MarkersSettled(number=0, errors={})):
        world.send("t", event)
    assert not world.transactions
    assert not world.effects_seen
