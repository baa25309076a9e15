"""The end of a transaction: EndTxn, its timeout, the markers, and the record that all is done.

Promises: a transaction is decided once. Its client hears so only when the decision is durable, and markers go out only
then. The end is written only when all markers are durable.
"""

from __future__ import annotations

from headrace.base.ids import PRODUCER_EPOCH_MAX
from headrace.base.limits import TRANSACTION_REFUSED_RETRY_MS, TRANSACTION_RETRY_MS
from headrace.coordinators.transactions import transitions
from headrace.coordinators.transactions.adding import owned
from headrace.coordinators.transactions.beginning import fence
from headrace.coordinators.transactions.events import EndReply, EndTransaction, MarkersSettled, SendMarkers
from headrace.coordinators.transactions.model import (
    NO_PRODUCER,
    Marking,
    Producer,
    Standing,
    TransactionState,
    TransactionVersion,
)
from headrace.coordinators.transactions.turn import Turn
from headrace.wire.errors import ErrorCode

_NEEDS_NO_MARKER = (ErrorCode.NONE, ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT, ErrorCode.UNSUPPORTED_VERSION)
"""Outcomes after which nothing is owed to a partition, as in Kafka."""


def on_end(turn: Turn, event: EndTransaction) -> None:
    version = turn.terms.version.spoken_by(event.client_version)
    if turn.transaction is not None and turn.standing.is_kept:
        version = TransactionVersion.TV2
    outcome = _judged(turn, event, version)
    if isinstance(outcome, EndReply):
        turn.reply(event.waiter, outcome)
        return
    client = outcome.client_after if version.bumps_epoch else NO_PRODUCER
    reply = EndReply(ErrorCode.NONE, *client)
    turn.append(outcome, event.waiter, reply)


def _judged(turn: Turn, event: EndTransaction, version: TransactionVersion) -> Standing | EndReply:
    """The standing in which the transaction is decided, or the answer without a decision."""
    found = turn.transaction
    if version.bumps_epoch:
        if found is not None and found.is_busy:
            return EndReply(ErrorCode.CONCURRENT_TRANSACTIONS)
        return _judged_by_epoch(turn, event, version)
    error = owned(turn.id, found, event.producer)
    if found is None or error is not ErrorCode.NONE:
        return EndReply(error)
    if found.is_busy:
        return EndReply(ErrorCode.CONCURRENT_TRANSACTIONS)
    if found.standing.state is TransactionState.ONGOING:
        return _decision(turn, commit=event.commit, version=TransactionVersion.TV0)
    is_repeated = found.standing.state is _complete(commit=event.commit)
    return EndReply(ErrorCode.NONE if is_repeated else ErrorCode.INVALID_TXN_STATE)


def _judged_by_epoch(turn: Turn, event: EndTransaction, version: TransactionVersion) -> Standing | EndReply:
    """With TV2 the epoch tells a repeated request from the next transaction's (KIP-890)."""
    if turn.transaction is None or not turn.id:
        return EndReply(owned(turn.id, turn.transaction, event.producer))
    standing = turn.standing
    is_repeated = _is_repeated(standing, event.producer)
    error = ErrorCode.NONE if is_repeated else owned(turn.id, turn.transaction, event.producer)
    if error is not ErrorCode.NONE:
        return EndReply(error)
    state = standing.state
    if is_repeated:
        if state is _complete(commit=event.commit):
            return EndReply(ErrorCode.NONE, *standing.producer)
        # A commit came after the coordinator's own abort. Kafka Streams survives this error alone (KAFKA-20785).
        return EndReply(ErrorCode.PRODUCER_FENCED if event.commit else ErrorCode.INVALID_TXN_STATE)
    if state is TransactionState.ONGOING or not event.commit:  # an abort without partitions still raises the epoch
        return _decision(turn, commit=event.commit, version=version)
    return EndReply(ErrorCode.INVALID_TXN_STATE)


def _is_repeated(standing: Standing, producer: Producer) -> bool:
    """Whether the client ends a transaction again that has ended: it shows the epoch before the end."""
    if not standing.state.is_complete:
        return False
    if producer.id == standing.producer_id and producer.epoch + 1 == standing.producer_epoch:
        return True
    exhausted = producer.id == standing.previous_producer_id and producer.epoch == PRODUCER_EPOCH_MAX - 1
    return exhausted and standing.producer_epoch == 0


def _complete(*, commit: bool) -> TransactionState:
    return TransactionState.COMPLETE_COMMIT if commit else TransactionState.COMPLETE_ABORT


def _decision(turn: Turn, *, commit: bool, version: TransactionVersion) -> Standing | EndReply:
    after = transitions.decided(
        turn.standing, commit=commit, version=version, fresh=turn.fresh, now_ms=turn.now.wall_ms
    )
    return EndReply(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS) if after is None else after


# --- without being asked ---


def on_tick(turn: Turn) -> None:
    """Abort a transaction that takes too long; or go on with what could not be done before."""
    found = turn.transaction
    if found is None or found.pending is not None:
        return
    if found.retry_ms is not None and turn.now.monotonic_ms < found.retry_ms:
        return
    if found.marking is not None:
        go_on(turn)
        return
    at_ms = found.standing.times_out_at_ms()
    if at_ms is None or turn.now.wall_ms < at_ms:
        return
    then = fence(turn)
    if then is None:
        put_off(turn, TRANSACTION_RETRY_MS)
        return
    turn.append(then, tells=f"a transaction is aborted: it has taken more than {found.standing.timeout_ms} ms")


def put_off(turn: Turn, by_ms: int) -> None:
    """Try again later what could not be done now."""
    turn.update(retry_ms=turn.now.monotonic_ms + by_ms)


# --- markers ---


def begin_marking(turn: Turn) -> None:
    """The decision is durable: have all partitions marked."""
    known = turn.known
    marking = Marking(known.next_number, known.standing.partitions, frozenset())
    turn.update(marking=marking, next_number=known.next_number + 1, retry_ms=None)
    go_on(turn)


def go_on(turn: Turn) -> None:
    """Send the markers that are owed and not under way, or write the end where none is owed."""
    marking = turn.known.marking
    assert marking is not None
    if not marking.waiting:
        turn.append(transitions.completed(turn.standing, turn.now.wall_ms))
        return
    partitions = marking.waiting - marking.sent
    if not partitions:
        return
    turn.update(marking=marking._replace(sent=marking.waiting), retry_ms=None)
    turn.effects.append(
        SendMarkers(
            number=marking.number,
            producer=turn.standing.producer,
            commit=turn.standing.state is TransactionState.PREPARE_COMMIT,
            coordinator_epoch=turn.terms.coordinator_epoch,
            version=turn.standing.client_version,
            partitions=partitions,
        )
    )


def on_markers(turn: Turn, event: MarkersSettled) -> None:
    """An unwritten marker is sent again until it is written: only that ends the transaction in its partition."""
    marking = None if turn.transaction is None else turn.transaction.marking
    if marking is None or marking.number != event.number or turn.known.pending is not None:
        return
    done = {partition for partition, error in event.errors.items() if error in _NEEDS_NO_MARKER} | event.gone
    settled = event.errors.keys() | event.gone
    after = Marking(marking.number, marking.waiting - done, marking.sent - settled)
    turn.update(marking=after)
    refused = [error for error in event.errors.values() if error not in _NEEDS_NO_MARKER and not error.retriable]
    if refused:
        turn.tell(f"a marker was refused: {refused[0].name}")
    if not after.waiting:
        go_on(turn)
    elif after.waiting != after.sent and turn.known.retry_ms is None:
        put_off(turn, TRANSACTION_REFUSED_RETRY_MS if refused else TRANSACTION_RETRY_MS)
