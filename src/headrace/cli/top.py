"""`headrace top`: the activity of a cluster, live: rates, groups and replicas that lag, and silent brokers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from headrace.base.errors import UsageError
from headrace.cli.command_config import reached
from headrace.cli.options import DEFAULT_BOOTSTRAP, Bootstrap, Json, plain_number
from headrace.cli.output import print_json

if TYPE_CHECKING:
    from rich.console import RenderableType

    from headrace.net.client.looks import Look, Place, Traffic

ROWS_MAX = 20
"""Maximum rows of each table on the screen. --json has all."""


def top(
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    interval: Annotated[
        float, typer.Option("--interval", parser=plain_number, metavar="SECONDS", help="Time between two looks.")
    ] = 1.0,
    json: Json = False,
) -> None:
    """Watch a cluster: rates, lag of groups, under-replicated partitions and pauses, until interrupted.

    With --json one sample is printed, of two looks --interval apart. A pause is a time in which a partition's leader
    has not answered, or there was none. A group's lag counts the partitions that it has committed something of. Its
    rate is that of its commits.
    """
    if not 0.1 <= interval <= 3600:
        raise UsageError(f"--interval {interval} is not a time between two looks: choose 0.1 to 3600 seconds.")
    from headrace.net.loops import run

    run(_watch(bootstrap, interval, json=json))


async def _watch(bootstrap: str, interval: float, *, json: bool) -> None:
    import asyncio
    from contextlib import nullcontext

    from rich.live import Live

    from headrace.net.client.looks import Pauses, look, traffic

    loop = asyncio.get_running_loop()
    pauses, before = Pauses(), None
    async with reached(bootstrap) as cluster:
        with nullcontext() if json else Live(screen=True, auto_refresh=False) as live:
            while True:
                now = await look(cluster, at=loop.time())
                paused = pauses.note(before, now)
                if before is not None:
                    found = traffic(before, now)
                    if live is None:
                        print_json(sample(now, found, paused))
                        return
                    live.update(_screen(now, found, paused, pauses.longest), refresh=True)
                before = now
                await asyncio.sleep(interval)


def sample(now: Look, found: Traffic, paused: dict[Place, float]) -> dict[str, Any]:
    """The sample as --json prints it."""
    return {
        "cluster": now.view.cluster_id,
        "controller": now.view.controller,
        "seconds": round(found.seconds, 3),
        "brokers": [
            {
                "broker": broker.id,
                "state": "fenced" if broker.fenced else "live",
                "leads": sum(part.leader == broker.id for part in now.partitions().values()),
                "records_per_second": round(found.brokers[broker.id], 1),
            }
            for broker in now.brokers
        ],
        "topics": [
            {
                "topic": name,
                "partitions": len(now.view.topics[name].partitions),
                "records_per_second": round(rate, 1),
            }
            for name, rate in sorted(found.topics.items())
        ],
        "groups": [
            {
                "group": name,
                "type": now.groups[name].kind,
                "state": now.groups[name].state,
                "lag": progress.lag,
                "records_per_second": round(progress.rate, 1),
            }
            for name, progress in found.groups.items()
        ],
        "under_replicated": [
            {"topic": topic, "partition": index, "out_of_sync": list(missing)}
            for (topic, index), missing in sorted(found.behind.items())
        ],
        "offline": [{"topic": topic, "partition": index} for topic, index in found.offline],
        "paused": [
            {"topic": topic, "partition": index, "seconds": round(seconds, 3)}
            for (topic, index), seconds in paused.items()
        ],
    }


def _screen(now: Look, found: Traffic, paused: dict[Place, float], longest: float) -> RenderableType:
    from rich.console import Group
    from rich.text import Text

    sampled = sample(now, found, paused)
    total = sum(topic["records_per_second"] for topic in sampled["topics"])
    head = f"cluster {sampled['cluster']}  controller {sampled['controller']}  {total:,.0f} records/s"
    head += f"  longest pause {longest:.1f} s"
    troubles = (
        ("under-replicated", sampled["under_replicated"]),
        ("offline", sampled["offline"]),
        ("paused", sampled["paused"]),
    )
    state = "  ".join(f"{len(found_)} {name}" for name, found_ in troubles)
    busiest = sorted(sampled["topics"], key=lambda topic: (-topic["records_per_second"], topic["topic"]))
    furthest = sorted(sampled["groups"], key=lambda group: (-group["lag"], group["group"]))
    tables = [_table("brokers", sampled["brokers"]), _table("topics", busiest)]
    tables += [_table("groups", furthest)] if furthest else []
    tables += [_table(name, rows) for name, rows in troubles if rows]
    healthy = not any(rows for _, rows in troubles)
    return Group(Text(head, style="bold"), Text(state, style="green" if healthy else "red"), *tables)


def _table(title: str, rows: list[dict[str, Any]]) -> RenderableType:
    from rich.table import Table

    table = Table(title=title, title_justify="left", box=None, padding=(0, 2, 0, 0))
    for column in rows[0] if rows else ():
        table.add_column(column.replace("_", " "), justify="left" if column in ("topic", "group") else "right")
    for row in rows[:ROWS_MAX]:
        table.add_row(*(_cell(value) for value in row.values()))
    if len(rows) > ROWS_MAX:
        table.caption = f"and {len(rows) - ROWS_MAX} more"
    return table


def _cell(value: object) -> str:
    if isinstance(value, list):
        return ", ".join(map(str, value))
    return f"{value:,}" if isinstance(value, int | float) else str(value)
