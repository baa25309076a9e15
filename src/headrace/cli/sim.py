"""`headrace sim`: one simulated cluster, from one seed, with its story; identical in every run.

The simulator stands above everything else and is no part of a broker, so it runs as a program of its own.
"""

from __future__ import annotations

import os
import sys
from typing import Annotated

import typer

from headrace.cli.options import DEFAULT_BOOTSTRAP, Json, NoBootstrap, whole_number


def sim(
    seed: Annotated[int, typer.Option(parser=whole_number, help="The seed to replay; with --runs, the first.")] = 0,
    runs: Annotated[
        int | None, typer.Option(parser=whole_number, help="Run so many seeds, until one fails, and tell no stories.")
    ] = None,
    plant: Annotated[str | None, typer.Option(help="Plant this bug in the brokers first.")] = None,
    part: Annotated[str | None, typer.Option(help="Only this part of each seed: metadata or records.")] = None,
    bootstrap: NoBootstrap = DEFAULT_BOOTSTRAP,
    json: Json = False,
) -> None:
    """Simulate a cluster on virtual time: brokers, clients, and all that can go wrong between them."""
    command = [sys.executable, "-m", "headrace.sim", "--cluster", "--seed", str(seed)]
    command += ["--runs", str(runs)] if runs is not None else []
    command += ["--plant", plant] if plant is not None else []
    command += ["--part", part] if part is not None else []
    command += ["--json"] if json else []
    sys.stdout.flush()
    os.execv(sys.executable, command)
