"""Transactions that do not end, for `headrace doctor`. Readers of committed records wait at each of them.

- Overdue: one is open though its timeout has passed, so its coordinator does not abort it.
- Not marked: one is decided, and some partitions lack its marker. It is looked at twice, because each transaction is in
  that state for a moment.
- Hanging: a partition has one open that no coordinator will end.

Times are compared with this machine's clock.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator, Sequence
from typing import Final

from headrace.base.limits import DOCTOR_LOOK_AGAIN_MS, DOCTOR_TRANSACTION_MS, DOCTOR_TRANSACTIONS_MAX
from headrace.net.client.cluster import Cluster
from headrace.net.client.transactions import LONGEST_MS, OpenTransaction, Transactions, TransactionView
from headrace.net.client.two_phase import NO_TIMEOUT_MS
from headrace.operations.finding import Finding

OPEN: Final = "Ongoing"
DECIDED: Final = ("PrepareCommit", "PrepareAbort")
OVERDUE: Final = "transaction overdue"
NOT_MARKED: Final = "transaction not marked"
HANGING: Final = "transaction hanging"
PARTITIONS_SHOWN_MAX: Final = 5
UNENDED: Final = (HANGING, OVERDUE, NOT_MARKED)


async def unended(cluster: Cluster) -> list[Finding]:
    """All findings. Raises HeadraceError where brokers or coordinators do not answer."""
    transactions = Transactions(cluster)
    views = await _begun_long_ago(transactions)
    marked_late = [view for view in views if view.state in DECIDED]
    if marked_late:
        await asyncio.sleep(DOCTOR_LOOK_AGAIN_MS / 1000)
        again = [await transactions.describe(view.name) for view in marked_late]
        marked_late = [
            now for now, then in zip(again, marked_late, strict=True) if now is not None and _same(now, then)
        ]
    hanging = await transactions.hanging(
        each for each in await transactions.open_in() if _age_ms(each.last_ms) >= LONGEST_MS
    )
    return [
        *_counted(HANGING, map(_of_hanging, hanging)),
        *_counted(OVERDUE, (_of_overdue(view) for view in views if _is_overdue(view))),
        *_counted(NOT_MARKED, map(_of_not_marked, marked_late)),
    ]


async def _begun_long_ago(transactions: Transactions) -> list[TransactionView]:
    """Descriptions of some transactions that began longer ago than DOCTOR_TRANSACTION_MS and have not ended. Decided
    ones come first: open ones may be meant to last."""
    listed = await transactions.list_all((OPEN, *DECIDED), longer_than_ms=DOCTOR_TRANSACTION_MS)
    by_worth = sorted(listed, key=lambda each: each.state == OPEN)
    found = [await transactions.describe(each.name) for each in by_worth[:DOCTOR_TRANSACTIONS_MAX]]
    return [view for view in found if view is not None and _age_ms(view.started_ms) > DOCTOR_TRANSACTION_MS]


def _same(now: TransactionView, then: TransactionView) -> bool:
    """Whether both show one decided transaction."""
    return (now.state, now.producer_id, now.started_ms) == (then.state, then.producer_id, then.started_ms)


def _age_ms(since_ms: int) -> float:
    return time.time() * 1000 - since_ms


def _is_overdue(view: TransactionView) -> bool:
    is_timed = view.state == OPEN and view.timeout_ms != NO_TIMEOUT_MS
    return is_timed and _age_ms(view.started_ms) > view.timeout_ms + DOCTOR_TRANSACTION_MS


def _counted(kind: str, found: Iterator[Finding]) -> list[Finding]:
    """As many as are worth reading. The rest are counted."""
    every = list(found)
    more = len(every) - DOCTOR_TRANSACTIONS_MAX
    if more <= 0:
        return every
    shown = every[:DOCTOR_TRANSACTIONS_MAX]
    return [*shown, Finding(kind, "the cluster", f"so are {more} more", "see 'headrace txn find-hanging'")]


def _of_hanging(one: OpenTransaction) -> Finding:
    topic, partition = one.partition
    text = (
        f"a transaction of producer {one.producer_id} is open from offset {one.start_offset} on, for "
        f"{_minutes(one.last_ms)} min, and no coordinator will end it: readers of committed records wait there"
    )
    where = f"--topic {topic} --partition {partition} --start-offset {one.start_offset}"
    todo = f"'headrace txn abort {where} --execute' ends it; 'headrace txn find-hanging' lists all"
    return Finding(HANGING, f"{topic}-{partition}", text, todo)


def _of_overdue(view: TransactionView) -> Finding:
    text = f"its transaction is open for {_minutes(view.started_ms)} min, beyond its timeout of {view.timeout_ms} ms"
    todo = (
        f"'headrace txn abort {view.name} --execute' ends it; where that is refused, the log of broker "
        f"{view.coordinator}, its coordinator, says why"
    )
    return Finding(OVERDUE, f"transactional id {view.name}", text, todo)


def _of_not_marked(view: TransactionView) -> Finding:
    lacking = _listed([f"{each.topic}-{each.partition}" for each in view.partitions])
    text = f"its transaction is decided ({view.state}), and {lacking} may lack its marker: readers wait there"
    todo = (
        f"see that these partitions have leaders and replicas in sync; where they have, the log of broker "
        f"{view.coordinator}, its coordinator, says why"
    )
    return Finding(NOT_MARKED, f"transactional id {view.name}", text, todo)


def _minutes(since_ms: int) -> int:
    return round(_age_ms(since_ms) / 60_000)


def _listed(names: Sequence[str]) -> str:
    few = names[:PARTITIONS_SHOWN_MAX]
    rest = len(names) - len(few)
    return ", ".join(few) + (f" and {rest} more" if rest else "")
