"""The answers of DescribeTransactions and ListTransactions. They rest on durable records only."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from headrace.coordinators.transactions.model import Standing, Transaction, TransactionState
from headrace.wire.errors import ErrorCode

_BY_TITLE: Final = {state.title: state for state in TransactionState}


def described(transactional_id: str, found: Transaction | None) -> Standing | ErrorCode:
    """The standing that DescribeTransactions tells, or the error."""
    if not transactional_id:
        return ErrorCode.INVALID_REQUEST
    return ErrorCode.TRANSACTIONAL_ID_NOT_FOUND if found is None else found.standing


@dataclass(frozen=True, slots=True, kw_only=True)
class Filter:
    """The filters of ListTransactions. Each, if given, has to hold."""

    states: frozenset[str] = frozenset()
    """Kafka's names of states."""
    producer_ids: frozenset[int] = frozenset()
    longer_than_ms: int = -1
    """Time since the start (KIP-994); negative: any. An id that began nothing has no start, and counts, as in Kafka."""
    matches: Callable[[str], bool] | None = None
    """Whether the whole transactional id matches the pattern (KIP-1152)."""

    @property
    def unknown_states(self) -> list[str]:
        """Names that no state has, for the answer."""
        return sorted(self.states - _BY_TITLE.keys())

    def listed(self, transactions: Iterable[Transaction], now_ms: int) -> Iterator[Transaction]:
        """Those for which all filters hold; `now_ms` is the wall time."""
        states = {_BY_TITLE[title] for title in self.states & _BY_TITLE.keys()}
        for each in transactions:
            standing = each.standing
            if self.producer_ids and standing.producer_id not in self.producer_ids:
                continue
            if self.states and standing.state not in states:
                continue
            if self.longer_than_ms >= 0 and now_ms - standing.started_ms <= self.longer_than_ms:
                continue
            if self.matches is None or self.matches(each.id):
                yield each
