"""InitProducerId: a client gets its producer id and epoch, and whoever had them before is fenced."""

from __future__ import annotations

from headrace.coordinators.transactions import transitions
from headrace.coordinators.transactions.events import InitProducer, InitReply
from headrace.coordinators.transactions.model import (
    NO_PRODUCER_EPOCH,
    NO_TIMEOUT_MS,
    Producer,
    Standing,
    Transaction,
    TransactionState,
    TransactionVersion,
)
from headrace.coordinators.transactions.turn import Turn
from headrace.wire.errors import ErrorCode


def on_init(turn: Turn, event: InitProducer) -> None:
    error = _refusal(turn, event)
    if error is not ErrorCode.NONE:
        turn.reply(event.waiter, InitReply(error))
        return
    if turn.transaction is None and not _create(turn, event):
        return
    known = turn.known
    if known.is_busy:
        turn.reply(event.waiter, InitReply(ErrorCode.CONCURRENT_TRANSACTIONS))
    elif known.standing.state is TransactionState.ONGOING:
        _interrupt(turn, event)
    else:
        _initialise(turn, event)


def _refusal(turn: Turn, event: InitProducer) -> ErrorCode:
    """Why the request itself is refused, in the order of Kafka's checks."""
    config = turn.terms.config
    if not turn.id or (event.expected is not None and event.expected.epoch < 0):
        return ErrorCode.INVALID_REQUEST
    if event.two_phase_commit and not config.transaction_two_phase_commit_enable:
        return ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    if event.keep_prepared and not turn.terms.version.bumps_epoch:
        return ErrorCode.UNSUPPORTED_VERSION
    if not event.two_phase_commit and not 0 < event.timeout_ms <= config.transaction_max_timeout_ms:
        return ErrorCode.INVALID_TRANSACTION_TIMEOUT
    return ErrorCode.NONE


def _create(turn: Turn, event: InitProducer) -> bool:
    """Make an id that has no record yet. False: there is no producer id for it, and the client was told."""
    if turn.fresh is None:
        turn.reply(event.waiter, InitReply(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS))
        return False
    standing = Standing(
        producer_id=turn.fresh,
        producer_epoch=NO_PRODUCER_EPOCH,
        timeout_ms=_timeout_ms(event),
        updated_ms=turn.now.wall_ms,
    )
    turn.transaction = Transaction(id=turn.id, standing=standing)
    return True


def _timeout_ms(event: InitProducer) -> int:
    return NO_TIMEOUT_MS if event.two_phase_commit else event.timeout_ms


def _initialise(turn: Turn, event: InitProducer) -> None:
    """No transaction is open. The client gets the next epoch, or again the one that its first try got (KIP-360)."""
    standing, expected = turn.standing, event.expected
    producer: Producer | None = standing.producer
    if expected is not None and not standing.is_new and not _had(standing, expected):
        turn.reply(event.waiter, InitReply(ErrorCode.PRODUCER_FENCED))
        return
    if expected is None or standing.is_new or expected.epoch == standing.producer_epoch:
        producer = transitions.raised(standing.producer, turn.fresh)
    if producer is None:
        turn.reply(event.waiter, InitReply(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS))
        return
    last_epoch = NO_PRODUCER_EPOCH if expected is None or standing.is_new else expected.epoch
    then = transitions.initialised(standing, producer, last_epoch, _timeout_ms(event), turn.now.wall_ms)
    turn.append(then, event.waiter, InitReply(ErrorCode.NONE, producer))


def _had(standing: Standing, expected: Producer) -> bool:
    """Whether the client had the present producer, or the one before in a bump whose answer it may not have got. A new
    client makes the last epoch -1, so that no earlier one passes."""
    same = expected.id == standing.producer_id
    before = expected.id == standing.previous_producer_id and expected.is_exhausted
    if not same and not before:
        return False
    return expected.epoch in (standing.producer_epoch, standing.last_producer_epoch)


def _interrupt(turn: Turn, event: InitProducer) -> None:
    """A transaction is open. It is aborted, and the client asks again until that is done; or it is kept, and the client
    can only end it (KIP-939)."""
    standing = turn.standing
    if event.expected is not None and event.expected != standing.client:
        turn.reply(event.waiter, InitReply(ErrorCode.PRODUCER_FENCED))
        return
    if event.keep_prepared:
        client = transitions.raised(standing.client, turn.fresh)
        reply = None if client is None else InitReply(ErrorCode.NONE, client, standing.producer)
        then = None if client is None else transitions.kept(standing, client, turn.now.wall_ms)
    else:
        reply = InitReply(ErrorCode.CONCURRENT_TRANSACTIONS)
        then = fence(turn)
    if then is None:
        turn.reply(event.waiter, InitReply(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS))
    else:
        turn.append(then, event.waiter, reply)


def fence(turn: Turn) -> Standing | None:
    """The standing in which the open transaction is aborted and its producer fenced. None: a fresh producer id is
    needed, and there is none."""
    version = TransactionVersion.TV2 if turn.standing.is_kept else turn.terms.version
    return transitions.fenced(turn.standing, version=version, fresh=turn.fresh, now_ms=turn.now.wall_ms)
