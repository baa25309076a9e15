"""One step in progress: the transactional id so far and the effects so far.

Promises: the value that went in never changes. The effects keep their order, with at most one `Wake`, last.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from headrace.base.ids import ProducerId
from headrace.base.values import replaced
from headrace.coordinators.transactions.events import (
    AnyReply,
    Append,
    Effect,
    Noted,
    Reply,
    TransactionForgotten,
    TransactionStands,
    Wake,
)
from headrace.coordinators.transactions.model import Pending, Standing, Terms, Transaction
from headrace.coordinators.values import Moment


@dataclass(slots=True)
class Turn:
    id: str
    transaction: Transaction | None
    now: Moment
    terms: Terms
    fresh: ProducerId | None
    """A producer id that nobody has, if the driver got one."""
    effects: list[Effect] = field(default_factory=list)

    def finish(self) -> tuple[Transaction | None, list[Effect]]:
        found = self.transaction
        if found is None or found.is_nothing:
            return None, self.effects
        due = found.deadline_ms(self.now)
        if due is not None:
            self.effects.append(Wake(due))
        return found, self.effects

    @property
    def known(self) -> Transaction:
        """The transactional id, in a step that has looked whether it exists."""
        assert self.transaction is not None
        return self.transaction

    @property
    def standing(self) -> Standing:
        return self.known.standing

    def update(self, **changes: Any) -> None:
        self.transaction = replaced(self.known, **changes)

    def reply(self, waiter: int | None, reply: AnyReply | None) -> None:
        if waiter is not None and reply is not None:
            self.effects.append(Reply(waiter, reply))

    def tell(self, text: str) -> None:
        self.effects.append(Noted(text))

    def append(
        self, then: Standing | None, waiter: int | None = None, reply: AnyReply | None = None, *, tells: str = ""
    ) -> None:
        """Append the record of the next standing, or a tombstone. Once it is durable it counts, `waiter` gets `reply`,
        and the log `tells`."""
        number = self.known.next_number
        self.update(next_number=number + 1, retry_ms=None, pending=Pending(number, then, waiter, reply, tells))
        record = TransactionForgotten(self.id) if then is None else TransactionStands(self.id, then)
        self.effects.append(Append(number, record, self.terms.version))
