"""The transactional ids of one partition of `__transaction_state`, rebuilt from its records in the order of the log.

Promises: the last record of each key counts. The result equals the machine's state when the last of these records
became durable, with two differences. The epoch before the last bump is forgotten, as in Kafka. Nothing is under way:
each id needs a `Loaded` for that. Only the last record of each key is decoded.
"""

from __future__ import annotations

from headrace.coordinators.transactions import records
from headrace.coordinators.transactions.events import TransactionForgotten, TransactionStands
from headrace.coordinators.transactions.model import Transaction
from headrace.wire.codec import DecodeError


class Replay:
    """Feed it the records, then take the transactional ids."""

    def __init__(self) -> None:
        self._last: dict[bytes, bytes] = {}
        self.passed_over = 0
        """Records that were damaged or of an unknown kind; counted by `transactions`."""

    def apply(self, key: bytes, value: bytes | None) -> None:
        if value is None:
            self._last.pop(key, None)
        else:
            self._last[key] = value

    @property
    def is_empty(self) -> bool:
        """Whether nothing is left of the records that it was fed."""
        return not self._last

    def transactions(self) -> dict[str, Transaction]:
        """All transactional ids, in the order of their names. Call this once."""
        found = sorted(filter(None, (self._decode(*each) for each in self._last.items())), key=lambda each: each.id)
        return {each.id: each for each in found}

    def _decode(self, key: bytes, value: bytes) -> Transaction | None:
        try:
            record = records.decode(key, value)
        except DecodeError:
            record = None
        match record:
            case TransactionStands(id, standing):
                return Transaction(id=id, standing=standing)
            case None | TransactionForgotten():
                self.passed_over += 1
                return None
