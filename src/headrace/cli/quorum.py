"""`headrace quorum`: show the voters and learners of the metadata quorum and their progress; recover a lost quorum."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headrace.cli.broker import with_members
from headrace.cli.options import DEFAULT_BOOTSTRAP, Bootstrap, Json, NoBootstrap
from headrace.cli.output import note, print_json, print_line, print_table
from headrace.operations.bearing import bearing, down_of, losses_borne, voters_of

if TYPE_CHECKING:
    from headrace.net.client.members import BrokerView, Members, MemberView, QuorumView


quorum = typer.Typer(name="quorum", help="Show who keeps the cluster's metadata; recover it where most of it was lost.")


@quorum.callback(invoke_without_command=True)
def show(context: typer.Context, bootstrap: Bootstrap = DEFAULT_BOOTSTRAP, json: Json = False) -> None:
    """Show the quorum: its leader, its voters and learners, and how far each is behind."""
    if context.invoked_subcommand is not None:
        return

    async def action(members: Members) -> tuple[QuorumView, Sequence[BrokerView]]:
        return await members.quorum(), await members.brokers()

    view, brokers = with_members(bootstrap, action)
    voters = voters_of(view)
    left = losses_borne(len(voters), len(down_of(voters, brokers)))
    if json:
        head = {"leader": view.leader, "epoch": view.epoch, "high_watermark": view.high_watermark}
        print_json(
            {
                **head,
                "bears": left,
                "outlook": view.outlook,
                "members": [_fields(view, member) for member in view.members],
            }
        )
        return
    print_line(f"leader {view.leader}  epoch {view.epoch}  committed up to {view.high_watermark}")
    print_line(bearing(view, brokers))
    print_line("")
    rows = [
        (
            member.id,
            _role(member) + (", leads" if member.id == view.leader else ""),
            member.log_end,
            _behind(view, member),
            member.directory_id,
        )
        for member in view.members
    ]
    print_table(("BROKER", "ROLE", "LOG END", "BEHIND", "DIRECTORY"), rows)


@quorum.command()
def recover(
    data: Annotated[
        list[Path],
        typer.Option("--data", metavar="DIR", help="A stopped broker's data directory; name all that can be had here."),
    ],
    accept_loss: Annotated[
        bool, typer.Option("--accept-loss", help="Do it: what only the lost voters knew is given up.")
    ] = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    json: Json = False,
) -> None:
    """Go on where most voters are lost for good, with the longest of these logs. Every broker must be stopped.

    Of several directories the one with the longest log is chosen. Its broker votes alone, and starts first; all others
    come back as learners and are promoted. Without --accept-loss the command only says what it would do.

    It is refused where the voters that are left are enough, or any broker of the cluster answers. It asks the addresses
    that brokers registered, and those of --bootstrap. A voter that was only cut off, and comes back, stops with a
    sentence that says what to do. Exits with 1 unless it was done.
    """
    from headrace.cli.work.lost_quorum import recovered

    with recovered([each.resolve() for each in data], bootstrap, execute=accept_loss) as found:
        if json:
            print_json(found.fields)
        else:
            for line in found.sentences():
                print_line(line)
    if not accept_loss:
        note("nothing was changed: pass --accept-loss to have it done")
        raise typer.Exit(1)


@quorum.command()
def rejoin(
    data: Annotated[Path, typer.Option("--data", metavar="DIR", help="The stopped broker's data directory.")],
    bootstrap: NoBootstrap = DEFAULT_BOOTSTRAP,
    json: Json = False,
) -> None:
    """Set aside the metadata of a broker that the cluster's quorum was recovered without; its partitions' logs stay.

    Use it only after the broker said so, when it started with --join. It comes back as a learner, with --join.
    """
    from headrace.cli.work.lost_quorum import rejoined

    kept = rejoined(data.resolve())
    if json:
        print_json({"data": str(data), "kept": None if kept is None else str(kept)})
    else:
        where = "" if kept is None else f" (the metadata of before lies in {kept})"
        print_line(f"{data} joins again as a learner: start its broker with --join{where}")


def _role(member: MemberView) -> str:
    return "voter" if member.voter else "learner"


def _behind(view: QuorumView, member: MemberView) -> int | str:
    """Number of committed entries that the member lacks."""
    return max(0, view.high_watermark - member.log_end) if member.log_end >= 0 else "unknown"


def _fields(view: QuorumView, member: MemberView) -> dict[str, Any]:
    return {
        "broker": member.id,
        "role": _role(member),
        "leader": member.id == view.leader,
        "log_end": member.log_end,
        "behind": _behind(view, member),
        "last_caught_up_ms": member.last_caught_up_ms,
        "directory_id": str(member.directory_id),
    }
