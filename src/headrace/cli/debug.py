"""`headrace debug`: look into files, with no broker running. Never writes."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from headrace.cli.options import DEFAULT_BOOTSTRAP, Json, NoBootstrap

debug = typer.Typer(name="debug", help="Look into a broker's files; none is changed.", no_args_is_help=True)


@debug.command("dump-log")
def dump_log(
    path: Annotated[Path, typer.Argument(metavar="FILE|DIR", help="A .log file, or a partition's directory.")],
    records: Annotated[bool, typer.Option("--records", help="Also each record, unpacked.")] = False,
    bootstrap: NoBootstrap = DEFAULT_BOOTSTRAP,
    json: Json = False,
) -> None:
    """Print the batches of a log, checked; exit code 1 where one is damaged."""
    from headrace.cli.work.dumping import dump_logs

    dump_logs(path, records=records, json=json)


@debug.command("raft-log")
def raft_log(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="A broker's data directory.")],
    bootstrap: NoBootstrap = DEFAULT_BOOTSTRAP,
    json: Json = False,
) -> None:
    """Print every write of the commit log as it lies on the disk: terms, votes, entries, and replacements."""
    from headrace.cli.work.dumping import dump_raft_log

    dump_raft_log(directory, json=json)


@debug.command()
def metadata(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="A broker's data directory.")],
    events: Annotated[bool, typer.Option("--events", help="The events one by one, not what they add up to.")] = False,
    bootstrap: NoBootstrap = DEFAULT_BOOTSTRAP,
    json: Json = False,
) -> None:
    """Print the cluster metadata that a broker's directory holds."""
    from headrace.cli.work.dumping import dump_metadata

    dump_metadata(directory, events=events, json=json)
