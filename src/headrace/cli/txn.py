"""`headrace txn`: list and describe transactional ids, and abort what a lost producer has left open."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from headrace.base.errors import HeadraceError
from headrace.cli.options import DEFAULT_BOOTSTRAP, Bootstrap, Json
from headrace.cli.output import print_json, print_line, print_table

if TYPE_CHECKING:
    from headrace.net.client.transactions import Transactions, TransactionView

T = TypeVar("T")

txn = typer.Typer(name="txn", help="List, describe and abort transactions.", no_args_is_help=True)

Name = Annotated[str, typer.Argument(metavar="ID", help="The transactional id.", show_default=False)]


def _with_transactions(bootstrap: str, action: Callable[[Transactions], Awaitable[T]]) -> T:
    """Run `action` on a cluster that is closed afterwards."""
    from headrace.net.client.cluster import Cluster
    from headrace.net.client.transactions import Transactions
    from headrace.net.loops import run

    async def main() -> T:
        async with Cluster(bootstrap) as cluster:
            return await action(Transactions(cluster))

    return run(main())


@txn.command("list")
def list_(
    state: Annotated[
        list[str] | None, typer.Option(help="Only those in this state: Ongoing, Empty...; may be given again.")
    ] = None,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    json: Json = False,
) -> None:
    """List the transactional ids of all brokers."""
    wanted = {each.lower() for each in state or ()}
    found = _with_transactions(bootstrap, lambda transactions: transactions.list_all())
    shown = [each for each in found if not wanted or each.state.lower() in wanted]
    if json:
        for each in shown:
            print_json(
                {
                    "transactional_id": each.name,
                    "state": each.state,
                    "producer_id": each.producer_id,
                    "coordinator": each.coordinator,
                }
            )
    else:
        rows = [(each.name, each.state, each.producer_id, each.coordinator) for each in shown]
        print_table(("TRANSACTIONAL ID", "STATE", "PRODUCER", "COORDINATOR"), rows)


@txn.command()
def describe(name: Name, bootstrap: Bootstrap = DEFAULT_BOOTSTRAP, json: Json = False) -> None:
    """Show how a transactional id stands, and the partitions of its transaction."""
    view = _with_transactions(bootstrap, lambda transactions: _known(transactions, name))
    about = _about(view)
    if json:
        print_json(about)
        return
    for key, value in about.items():
        if key != "partitions":
            print_line(f"{key.replace('_', ' ')}: {'-' if value is None else value}")
    if view.partitions:
        print_table(("TOPIC", "PARTITION"), [(each.topic, each.partition) for each in view.partitions])


@txn.command()
def abort(
    name: Name,
    execute: Annotated[
        bool, typer.Option("--execute", help="Abort it; without this, only what would be done is shown.")
    ] = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    json: Json = False,
) -> None:
    """Abort the open transaction of a producer that will not come back. If it lives, it is fenced."""

    async def action(transactions: Transactions) -> TransactionView:
        view = await _known(transactions, name)
        if view.state != "Ongoing":
            raise HeadraceError(f"'{name}' has no open transaction: its state is {view.state}.")
        if execute:
            await transactions.end(name)
        return view

    view = _with_transactions(bootstrap, action)
    if json:
        print_json({**_about(view), "aborted": execute})
    elif execute:
        print_line(f"aborted the transaction of {name} in {len(view.partitions)} partitions")
    else:
        print_line(f"would abort the transaction of {name} in {len(view.partitions)} partitions: add --execute")


async def _known(transactions: Transactions, name: str) -> TransactionView:
    view = await transactions.describe(name)
    if view is None:
        raise HeadraceError(f"There is no transactional id '{name}'; see 'headrace txn list'.")
    return view


def _about(view: TransactionView) -> dict[str, Any]:
    started = None if view.started_ms < 0 else datetime.fromtimestamp(view.started_ms / 1000, UTC).isoformat()
    return {
        "transactional_id": view.name,
        "state": view.state,
        "producer_id": view.producer_id,
        "producer_epoch": view.producer_epoch,
        "timeout_ms": view.timeout_ms,
        "started": started,
        "coordinator": view.coordinator,
        "partitions": [{"topic": each.topic, "partition": each.partition} for each in view.partitions],
    }
