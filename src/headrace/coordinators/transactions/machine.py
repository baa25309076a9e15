"""The entry point: `step` takes a transactional id, an event and a moment, and returns the next value and effects.

Promises: deterministic and total over events. An id that is forgotten becomes None, and None stands for one that does
not exist yet. Never raises for anything that a client sends.
"""

from __future__ import annotations

from typing import Final, assert_never

from headrace.base.ids import ProducerId
from headrace.base.limits import TRANSACTION_REFUSED_RETRY_MS, TRANSACTION_RETRY_MS
from headrace.coordinators.transactions import adding, beginning, ending
from headrace.coordinators.transactions.events import (
    AddPartitions,
    Effect,
    EndTransaction,
    Event,
    Expire,
    InitProducer,
    Loaded,
    MarkersSettled,
    Tick,
    VerifyPartitions,
    WriteRefused,
    Written,
)
from headrace.coordinators.transactions.model import Pending, Terms, Transaction
from headrace.coordinators.transactions.turn import Turn
from headrace.coordinators.values import Moment

DOUBLINGS_MAX: Final = 10
"""Enough for any delay to reach its longest."""


def step(
    transactional_id: str,
    transaction: Transaction | None,
    event: Event,
    now: Moment,
    terms: Terms,
    fresh: ProducerId | None = None,
) -> tuple[Transaction | None, list[Effect]]:
    """Apply one event to one transactional id. `fresh` is a producer id that nobody has, where `wants_producer_id`
    asked for one. A step that needs one and has none answers COORDINATOR_LOAD_IN_PROGRESS, as Kafka does."""
    turn = Turn(id=transactional_id, transaction=transaction, now=now, terms=terms, fresh=fresh)
    _dispatch(turn, event)
    return turn.finish()


def wants_producer_id(transaction: Transaction | None, event: Event) -> bool:
    """Whether `step` may need a producer id for this event: the transactional id is new, or no epochs are left of its
    present one."""
    if transaction is None:
        return isinstance(event, InitProducer)
    exhausted = transaction.standing.client.is_exhausted
    return exhausted and not transaction.is_busy and isinstance(event, InitProducer | EndTransaction | Tick)


def _dispatch(turn: Turn, event: Event) -> None:
    match event:
        case InitProducer():
            beginning.on_init(turn, event)
        case AddPartitions():
            adding.on_add(turn, event)
        case VerifyPartitions():
            adding.on_verify(turn, event)
        case EndTransaction():
            ending.on_end(turn, event)
        case MarkersSettled():
            ending.on_markers(turn, event)
        case Written():
            _on_written(turn, event)
        case WriteRefused():
            _on_refused(turn, event)
        case Loaded():
            _on_loaded(turn)
        case Expire():
            _on_expire(turn)
        case Tick():
            ending.on_tick(turn)
        case _:
            assert_never(event)


def _on_written(turn: Turn, event: Written) -> None:
    pending = _take(turn, event.write)
    if pending.then is None:
        turn.transaction = None
        return
    turn.update(standing=pending.then, marking=None, refusals=0)
    if pending.tells:
        turn.tell(pending.tells)
    reply = pending.reply
    turn.reply(pending.waiter, reply if reply is None or not event.error else type(reply)(event.error))
    if pending.then.state.is_decided:
        ending.begin_marking(turn)


def _on_refused(turn: Turn, event: WriteRefused) -> None:
    """Nothing has changed. A client may ask again. The coordinator tries its own doings again later, and later each
    time: it does not wait much longer than the log has refused them."""
    pending = _take(turn, event.write)
    if pending.reply is not None:
        turn.reply(pending.waiter, type(pending.reply)(event.error))
    before = turn.known.refusals
    turn.update(refusals=before + 1)
    ending.put_off(turn, min(TRANSACTION_RETRY_MS << min(before, DOUBLINGS_MAX), TRANSACTION_REFUSED_RETRY_MS))


def _take(turn: Turn, write: int) -> Pending:
    pending = turn.known.pending
    assert pending is not None
    assert pending.write == write, "one write at a time"
    turn.update(pending=None)
    return pending


def _on_loaded(turn: Turn) -> None:
    """A decided transaction's markers may be written or not: they are sent again, and a second one does no harm."""
    known = turn.known
    if known.standing.state.is_decided and known.marking is None and known.pending is None:
        ending.begin_marking(turn)


def _on_expire(turn: Turn) -> None:
    found = turn.transaction
    if found is None or found.is_busy or not found.standing.state.may_expire:
        return
    if found.standing.updated_ms <= turn.now.wall_ms - turn.terms.config.transactional_id_expiration_ms:
        turn.append(None)
