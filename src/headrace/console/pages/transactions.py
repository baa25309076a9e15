"""Transactional ids: how each stands, since when, and the end of one that its producer has left open."""

from __future__ import annotations

import asyncio
from typing import Any, Final, NamedTuple
from urllib.parse import quote

from starlette.requests import Request

from headrace.base.errors import HeadraceError
from headrace.console.changes import Change
from headrace.console.lists import listing
from headrace.console.page import NotFoundError, Page, linked
from headrace.console.sheets import Field, Sheet
from headrace.console.state import Console
from headrace.net.client.transactions import ListedTransaction, Transactions, TransactionView
from headrace.operations.changes.plan import Plan
from headrace.operations.changes.transactions import OPEN, OpenOne, aborting

ENDED: Final = ("Empty", "CompleteCommit", "CompleteAbort", "Dead")
"""States without a transaction under way."""
WORDS: Final = {
    "Ongoing": "open",
    "PrepareCommit": "committing",
    "PrepareAbort": "aborting",
    "PrepareEpochFence": "fencing",
    "CompleteCommit": "committed",
    "CompleteAbort": "aborted",
    "Empty": "none yet",
    "Dead": "gone",
}
"""Kafka's names of states, in words."""


class Row(NamedTuple):
    """One transactional id."""

    listed: ListedTransaction
    view: TransactionView | None
    """None: it has no transaction under way, or its coordinator does not tell."""


KEYS: Final = {
    "name": lambda row: row.name,
    "state": lambda row: (row.state in ENDED, row.state),
    "producer": lambda row: row.producer_id,
    "coordinator": lambda row: row.coordinator,
}


async def values(console: Console, request: Request) -> dict[str, Any]:
    known = console.transactions.value
    assert known is not None, "no part is made without it"
    found = listing(request, known, name=lambda row: row.name, keys=KEYS, default="state")
    transactions = Transactions(console.cluster)
    rows = await asyncio.gather(*(_row(transactions, each) for each in found.rows))
    return {
        "list": found,
        "rows": rows,
        "all": len(known),
        "open": sum(each.state not in ENDED for each in known),
        "words": WORDS,
        "open_state": OPEN,
        "linked": linked,
    }


async def _row(transactions: Transactions, listed: ListedTransaction) -> Row:
    if listed.state in ENDED:
        return Row(listed, None)
    try:
        return Row(listed, await transactions.describe(listed.name))
    except HeadraceError:
        return Row(listed, None)


def name_of(request: Request) -> str:
    name: str = request.path_params["name"]
    return name


async def one(console: Console, request: Request) -> dict[str, Any]:
    view = await Transactions(console.cluster).describe(name_of(request))
    if view is None:
        raise NotFoundError(f"There is no transactional id '{name_of(request)}'; see 'headrace txn list'.")
    return {"view": view, "words": WORDS, "open_state": OPEN}


def feeds(console: Console) -> tuple[Any, ...]:
    return (console.transactions,)


class Asked(NamedTuple):
    """A wish, as the form has it."""

    name: str


async def _plan(console: Console, asked: Asked) -> Plan:
    return await aborting(console.cluster, asked.name)


def _cells(row: OpenOne) -> tuple[Any, ...]:
    places = ", ".join(f"{each.topic}-{each.partition}" for each in row.partitions)
    return row.name, row.producer_id, row.producer_epoch, places or "none"


PAGE: Final = Page(
    path="/transactions",
    template="parts/transactions.html",
    title=lambda _: "Transactions",
    feeds=feeds,
    values=values,
    frame="transactions.html",
)
ONE: Final = Page(
    path="/transactions/{name:path}",
    template="parts/transaction.html",
    title=name_of,
    feeds=feeds,
    values=one,
)
CHANGE: Final = Change(
    path="/transaction-abort",
    title=lambda asked: f"Abort {asked.name}",
    asked=Asked,
    is_asked=lambda asked: bool(asked.name),
    plan=_plan,
    after=lambda asked: f"/transactions/{quote(asked.name, safe='')}",
    typed=lambda asked: asked.name,
    sheet=Sheet(
        crumb=("/transactions", "Transactions"),
        heading=lambda asked: f"Abort the transaction of {asked.name}" if asked.name else "Abort a transaction",
        about="Readers of committed records never see what its producer has written in it; the producer is fenced.",
        fields=(Field("name", "Transactional id", is_required=True),),
        columns=("Transactional id", "Producer", "Epoch", "Partitions"),
        cells=_cells,
        verb=lambda asked: f"abort {asked.name}",
    ),
)
