"""`headrace topic delete-records`."""

from __future__ import annotations

from typing import Annotated

import typer

from headrace.base.errors import HeadraceError
from headrace.cli.command_config import with_cluster
from headrace.cli.options import DEFAULT_BOOTSTRAP, Bootstrap, Json, whole_number
from headrace.cli.output import note, print_json, print_line


def delete_records(
    name: Annotated[str, typer.Argument(metavar="TOPIC", help="The topic's name.", show_default=False)],
    partition: Annotated[int, typer.Option(min=0, parser=whole_number, help="The partition whose records go.")],
    before: Annotated[str, typer.Option(metavar="OFFSET|end", help="The offset at which it begins then.")],
    execute: Annotated[bool, typer.Option("--execute", help="Do it; else it is only said what would be done.")] = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    json: Json = False,
) -> None:
    """Delete the records of a partition before an offset, from its log and its history. Nothing brings them back."""
    from headrace.net.client.cluster import Cluster
    from headrace.operations.changes.plan import Plan
    from headrace.operations.changes.trimming import trimming

    async def action(cluster: Cluster) -> Plan:
        plan = await trimming(cluster, name, partition, before)
        if plan.obstacle:
            raise HeadraceError(plan.obstacle)
        if execute:
            await plan.carry_out()
        return plan

    plan = with_cluster(bootstrap, action)
    (row,) = plan.rows
    if json:
        print_json(
            {"topic": name, "partition": partition, "before": row.before, "offsets": plan.known, "deleted": execute}
        )
        return
    done = "is" if execute else "would be"
    print_line(f"{name}-{partition}: what is before offset {row.before:,} {done} deleted ({plan.known:,} offsets)")
    if not execute:
        note("nothing was changed: add --execute to do this")
