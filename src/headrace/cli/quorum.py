"""`headrace quorum`: who keeps the cluster's metadata, and how far each is."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from headrace.cli.bearing import bearing, down_of, losses_borne, voters_of
from headrace.cli.broker import with_members
from headrace.cli.options import DEFAULT_BOOTSTRAP, Bootstrap, Json
from headrace.cli.output import print_json, print_line, print_table

if TYPE_CHECKING:
    from headrace.net.client.members import BrokerView, Members, MemberView, QuorumView


def quorum(bootstrap: Bootstrap = DEFAULT_BOOTSTRAP, json: Json = False) -> None:
    """Show the quorum: its leader, its voters and learners, and how far each is behind."""

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


def _role(member: MemberView) -> str:
    return "voter" if member.voter else "learner"


def _behind(view: QuorumView, member: MemberView) -> int | str:
    """Committed entries that it lacks."""
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
