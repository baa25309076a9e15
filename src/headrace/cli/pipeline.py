"""`headrace pipeline`: runs one pipeline on Spark, in a process of its own, which loads packages that a broker never
needs.
"""

from __future__ import annotations

import os
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import typer

from headrace.base.errors import UsageError
from headrace.cli.options import DEFAULT_BOOTSTRAP, Bootstrap, FilesBootstrap, Json
from headrace.cli.output import print_json, print_line

pipeline = typer.Typer(
    name="pipeline",
    help="Run pipelines on Spark: history as tables, audits, statistics, replays.",
    no_args_is_help=True,
)


@pipeline.callback()
def root() -> None:
    """Run pipelines on Spark: history as tables, audits, statistics, replays."""


@pipeline.command()
def init(
    file: Annotated[Path, typer.Argument(metavar="FILE.toml", help="Where it is written.", show_default=False)],
    topic: Annotated[str, typer.Option("--topic", metavar="TOPIC", help="The topic that it reads.")] = "orders",
    table: Annotated[
        str | None,
        typer.Option("--table", metavar="PATH", help="The table's place. Default: tables/TOPIC beside the file."),
    ] = None,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    json: Json = False,
) -> None:
    """Write a commented file that makes a table of a topic, and that `headrace pipeline run` takes as it is."""
    from headrace.cli.work.sample_pipeline import sample

    path = table or str(file.absolute().parent / "tables" / topic)
    text = sample(file=str(file), topic=topic, bootstrap=bootstrap, path=path)
    try:
        with file.open("x", encoding="utf-8") as written:
            written.write(text)
    except FileExistsError:
        raise UsageError(f"{file} is there already: name another file, or remove it.") from None
    except OSError as error:
        raise UsageError(f"{file} cannot be written: {error.strerror or error}.") from error
    if json:
        print_json({"file": str(file), "topic": topic, "table": path})
    else:
        print_line(f"{file} makes a table of {topic} at {path}: headrace pipeline run {file}")


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
