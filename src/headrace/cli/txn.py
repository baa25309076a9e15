"""`headrace txn`: list and describe transactional ids, and end what a lost producer has left open."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any, Final, TypeVar

import typer

from headrace.base.errors import HeadraceError
from headrace.cli.command_config import reached
from headrace.cli.options import DEFAULT_BOOTSTRAP, Bootstrap, Json, whole_number
from headrace.cli.output import print_json, print_line, print_table

if TYPE_CHECKING:
    from headrace.net.client.transactions import OpenTransaction, Transactions, TransactionView

T = TypeVar("T")
LONGEST_MINUTES: Final = 15
"""As LONGEST_MS of the client's transactions."""

txn = typer.Typer(name="txn", help="List, describe, find and end transactions.", no_args_is_help=True)

Name = Annotated[str, typer.Argument(metavar="ID", help="The transactional id.", show_default=False)]


def _with_transactions(bootstrap: str, action: Callable[[Transactions], Awaitable[T]]) -> T:
    """Run `action` on a cluster that is closed afterwards."""
    from headrace.net.client.transactions import Transactions
    from headrace.net.loops import run

    async def main() -> T:
        async with reached(bootstrap) as cluster:
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


@txn.command("find-hanging")
def find_hanging(
    topic: Annotated[list[str] | None, typer.Option(help="Only in this topic; may be given again.")] = None,
    broker: Annotated[
        int | None, typer.Option(parser=whole_number, help="Only in partitions that this broker leads.")
    ] = None,
    older_than: Annotated[
        int,
        typer.Option(
            parser=whole_number,
            help="Minutes since the producer's last batch; at least the longest timeout that is used.",
        ),
    ] = LONGEST_MINUTES,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    json: Json = False,
) -> None:
    """Find transactions that nobody will end: readers of committed records wait there for ever."""
    from headrace.base.ids import BrokerId

    async def action(transactions: Transactions) -> tuple[OpenTransaction, ...]:
        found = await transactions.open_in(topic or None, None if broker is None else BrokerId(broker))
        return await transactions.hanging(each for each in found if _minutes_since(each) >= older_than)

    found = _with_transactions(bootstrap, action)
    if json:
        for each in found:
            print_json(_about_open(each))
    elif found:
        rows = [tuple(_about_open(each).values()) for each in found]
        print_table(("TOPIC", "PARTITION", "START", "PRODUCER", "EPOCH", "LEADER", "MINUTES"), rows)
        print_line("end each with 'headrace txn abort --topic TOPIC --partition N --start-offset START --execute'")
    else:
        print_line("no transaction hangs")


@txn.command()
def abort(
    name: Annotated[
        str | None, typer.Argument(metavar="[ID]", help="The transactional id.", show_default=False)
    ] = None,
    topic: Annotated[str | None, typer.Option(help="For one that hangs: its topic,")] = None,
    partition: Annotated[int | None, typer.Option(parser=whole_number, help="its partition,")] = None,
    start_offset: Annotated[
        int | None, typer.Option(parser=whole_number, help="and its first offset, as find-hanging shows them.")
    ] = None,
    execute: Annotated[
        bool, typer.Option("--execute", help="Abort it; without this, only what would be done is shown.")
    ] = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    json: Json = False,
) -> None:
    """Abort the open transaction of a producer that will not come back. If it lives, it is fenced.

    Without an id, one that hangs is aborted in one partition, which no coordinator would do.
    """
    if name is None:
        if topic is None or partition is None or start_offset is None:
            raise typer.BadParameter("Give a transactional id, or all of --topic, --partition and --start-offset.")
        _abort_at(bootstrap, topic, partition, start_offset, execute=execute, json=json)
        return

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


@txn.command()
def commit(
    name: Name,
    execute: Annotated[
        bool, typer.Option("--execute", help="Commit it; without this, only what would be done is shown.")
    ] = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    json: Json = False,
) -> None:
    """Commit a prepared transaction (two-phase commit) whose producer will not come back. If it lives, it is fenced.

    Only its writer knows whether all of it is written: look there first.
    """
    from headrace.net.client.transactions import Transactions
    from headrace.net.client.two_phase import NO_TIMEOUT_MS, TwoPhase
    from headrace.net.loops import run

    async def action() -> TransactionView:
        async with reached(bootstrap) as cluster:
            view = await _known(Transactions(cluster), name)
            if view.state != "Ongoing":
                raise HeadraceError(f"'{name}' has no open transaction: its state is {view.state}.")
            if view.timeout_ms != NO_TIMEOUT_MS:
                raise HeadraceError(f"'{name}' is not prepared: its own producer commits it, or its timeout aborts it.")
            if execute:
                two_phase = TwoPhase(cluster)
                await two_phase.end(await two_phase.keep(name), commit=True)
                await two_phase.settle([name])
            return view

    view = run(action())
    if json:
        print_json({**_about(view), "committed": execute})
    else:
        what = "committed" if execute else "would commit"
        more = "" if execute else ": add --execute"
        print_line(f"{what} the transaction of {name} in {len(view.partitions)} partitions{more}")


def _abort_at(bootstrap: str, topic: str, partition: int, start: int, *, execute: bool, json: bool) -> None:
    async def action(transactions: Transactions) -> OpenTransaction:
        found = await transactions.open_in([topic], partitions=[partition])
        for one in found:
            if (one.partition.partition, one.start_offset) == (partition, start):
                if not await transactions.hanging([one]):
                    raise HeadraceError(
                        f"The coordinator of producer {one.producer_id} will end this transaction; 'headrace txn list' "
                        "has its transactional id, which 'headrace txn abort ID' takes."
                    )
                if execute:
                    await transactions.abort_at(one)
                return one
        raise HeadraceError(
            f"No open transaction of partition {partition} of '{topic}' begins at offset {start}; see 'headrace txn "
            "find-hanging'."
        )

    one = _with_transactions(bootstrap, action)
    if json:
        print_json({**_about_open(one), "aborted": execute})
    elif execute:
        print_line(f"aborted the transaction of producer {one.producer_id} in partition {partition} of {topic}")
    else:
        print_line(
            f"would abort the transaction of producer {one.producer_id} in partition {partition} of {topic}: add "
            "--execute"
        )


def _minutes_since(one: OpenTransaction) -> float:
    return (time.time() - one.last_ms / 1000) / 60


def _about_open(one: OpenTransaction) -> dict[str, Any]:
    return {
        "topic": one.partition.topic,
        "partition": one.partition.partition,
        "start_offset": one.start_offset,
        "producer_id": one.producer_id,
        "producer_epoch": one.producer_epoch,
        "leader": one.leader,
        "minutes": round(_minutes_since(one)),
    }


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
