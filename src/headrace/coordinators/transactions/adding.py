"""AddPartitionsToTxn: partitions become part of a transaction, or their leaders ask whether they are."""

from __future__ import annotations

from headrace.base.ids import PRODUCER_EPOCH_MAX
from headrace.coordinators.transactions import transitions
from headrace.coordinators.transactions.events import AddPartitions, AddReply, VerifyPartitions, VerifyReply
from headrace.coordinators.transactions.model import Producer, Transaction, TransactionState
from headrace.coordinators.transactions.turn import Turn
from headrace.wire.errors import ErrorCode


def on_add(turn: Turn, event: AddPartitions) -> None:
    """The transition that is under way is checked first: it may be what makes the client's producer id valid."""
    found = turn.transaction
    if found is not None and found.is_busy:
        turn.reply(event.waiter, AddReply(ErrorCode.CONCURRENT_TRANSACTIONS))
        return
    error = owned(turn.id, found, event.producer)
    if error is ErrorCode.NONE and turn.standing.is_kept:
        error = ErrorCode.INVALID_TXN_STATE
    standing = None if found is None else found.standing
    if standing is None or error is not ErrorCode.NONE or _has_all(turn, event):
        turn.reply(event.waiter, AddReply(error))
        return
    version = turn.terms.version.spoken_by(event.client_version)
    turn.append(
        transitions.added(standing, event.partitions, version, turn.now.wall_ms),
        event.waiter,
        AddReply(ErrorCode.NONE),
    )


def _has_all(turn: Turn, event: AddPartitions) -> bool:
    standing = turn.standing
    return standing.state is TransactionState.ONGOING and event.partitions <= standing.partitions


def on_verify(turn: Turn, event: VerifyPartitions) -> None:
    """A write under way is not waited for: the partition's leader looks again when it appends."""
    found = turn.transaction
    error = owned(turn.id, found, event.producer)
    if error is ErrorCode.NONE and turn.standing.state.is_decided:
        error = ErrorCode.CONCURRENT_TRANSACTIONS
    elif error is ErrorCode.NONE and turn.standing.is_kept:
        error = ErrorCode.INVALID_TXN_STATE  # it may only be ended, and its marker has the epoch of such a batch
    if found is None or error is not ErrorCode.NONE:
        turn.reply(event.waiter, VerifyReply(error))
        return
    has = found.standing.partitions
    codes = [ErrorCode.NONE if each in has else ErrorCode.TRANSACTION_ABORTABLE for each in event.partitions]
    turn.reply(event.waiter, VerifyReply(ErrorCode.NONE, tuple(codes)))


def owned(transactional_id: str, found: Transaction | None, producer: Producer) -> ErrorCode:
    """Whether the client is the present one of this id: NONE, or why not. No client is given the highest epoch, which
    stands for a producer that was fenced."""
    if not transactional_id:
        return ErrorCode.INVALID_REQUEST
    if found is None or producer.id != found.standing.client.id:
        return ErrorCode.INVALID_PRODUCER_ID_MAPPING
    is_present = producer.epoch == found.standing.client.epoch != PRODUCER_EPOCH_MAX
    return ErrorCode.NONE if is_present else ErrorCode.PRODUCER_FENCED
