"""The command line of the demo. Imports nothing heavy: the story is loaded when it is told."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from headrace.base.errors import UsageError
from headrace.cli.options import (
    DEFAULT_BOOTSTRAP,
    LOCAL,
    Engine,
    Json,
    NoBootstrap,
    check_engine,
    whole_number,
)


def demo(
    rows: Annotated[
        int | None, typer.Option("--rows", parser=whole_number, metavar="N", help="Only the first N flights.")
    ] = None,
    keep: Annotated[bool, typer.Option("--keep", help="Leave the broker up, and say what to try next.")] = False,
    directory: Annotated[
        Path | None,
        typer.Option(
            "--dir",
            envvar="HEADRACE_DEMO_DIR",
            show_envvar=False,
            metavar="DIR",
            help="Where to work; must be empty. Default: a new one.",
        ),
    ] = None,
    engine: Engine = LOCAL,
    bootstrap: NoBootstrap = DEFAULT_BOOTSTRAP,
    json: Json = False,
) -> None:
    """Run the main job on real input: flights in, flights out, durable segments, Spark.

    It starts a broker of its own. A real Kafka client writes 336,776 real flights, and another reads them back. The
    broker exports them as durable segments, and Spark turns these into Parquet. Exit code 0 only where every check
    holds.
    """
    from headrace.cli.demo.story import tell

    if rows is not None and rows < 1:
        raise UsageError("--rows is 1 or more.")
    check_engine(engine, None)
    raise typer.Exit(tell(rows=rows, keep=keep, directory=directory, json=json, engine=engine))
