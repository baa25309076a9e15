"""`headrace pipeline`: runs one pipeline on Spark, in a process of its own, which loads packages that a broker never
needs.
"""

from __future__ import annotations

import os
import sys
from importlib.util import find_spec
from typing import Annotated

import typer

from headrace.base.errors import UsageError
from headrace.cli.options import DEFAULT_BOOTSTRAP, FilesBootstrap, Json

pipeline = typer.Typer(
    name="pipeline",
    help="Run pipelines on Spark: history as tables, audits, statistics, replays.",
    no_args_is_help=True,
)


@pipeline.callback()
def root() -> None:
    """Run pipelines on Spark: history as tables, audits, statistics, replays."""


@pipeline.command()
def run(
    file: Annotated[str, typer.Argument(metavar="FILE.toml", help="What it is to do.", show_default=False)],
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would be read, with bytes, and stop.")] = False,
    backfill: Annotated[bool, typer.Option("--backfill", help="Also what lies before the table's beginning.")] = False,
    bootstrap: FilesBootstrap = DEFAULT_BOOTSTRAP,
    json: Json = False,
) -> None:
    """Run the pipeline that FILE.toml describes, from where it stopped; docs/PIPELINES.md has the keys."""
    if find_spec("pyspark") is None or find_spec("pyarrow") is None:
        raise UsageError("Spark is not installed: pip install 'headrace[spark]'.")
    command = [sys.executable, "-m", "headrace.spark.pipelines", file]
    command += [flag for flag, wanted in (("--dry-run", dry_run), ("--backfill", backfill), ("--json", json)) if wanted]
    sys.stdout.flush()
    os.execv(sys.executable, command)
