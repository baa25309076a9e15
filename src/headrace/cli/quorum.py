"""`headrace quorum`: who keeps the cluster's metadata, and how far each is."""

from __future__ import annotations

from headrace.cli.broker import with_members
from headrace.cli.options import DEFAULT_BOOTSTRAP, Bootstrap, Json
from headrace.cli.output import print_json, print_line, print_table


def quorum(bootstrap: Bootstrap = DEFAULT_BOOTSTRAP, json: Json = False) -> None:
    """Show the quorum: its leader, its voters and learners, and how far each is behind."""
    view = with_members(bootstrap, lambda members: members.quorum())
    fields = [
        {
            "broker": member.id,
            "role": "voter" if member.voter else "learner",
            "leader": member.id == view.leader,
            "log_end": member.log_end,
            "behind": max(0, view.high_watermark - member.log_end) if member.log_end >= 0 else None,
            "last_caught_up_ms": member.last_caught_up_ms,
            "directory_id": str(member.directory_id),
        }
        for member in view.members
    ]
    if json:
        head = {"leader": view.leader, "epoch": view.epoch, "high_watermark": view.high_watermark}
        print_json({**head, "members": fields})
        return
    print_line(f"leader {view.leader}  epoch {view.epoch}  committed up to {view.high_watermark}")
    print_line("")
    rows = [
        (
            one["broker"],
            one["role"] + (", leads" if one["leader"] else ""),
            one["log_end"],
            "unknown" if one["behind"] is None else one["behind"],
            one["directory_id"],
        )
        for one in fields
    ]
    print_table(("BROKER", "ROLE", "LOG END", "BEHIND", "DIRECTORY"), rows)
