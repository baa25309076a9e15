"""`headrace status`: the cluster in ten lines."""

from __future__ import annotations

from headrace.cli.command_config import reached
from headrace.cli.options import DEFAULT_BOOTSTRAP, Bootstrap, Json
from headrace.cli.output import print_json, print_line


def status(bootstrap: Bootstrap = DEFAULT_BOOTSTRAP, json: Json = False) -> None:
    """Show the cluster in ten lines: brokers, quorum, partitions, disks, moves, and the worst problem."""
    from functools import partial

    from headrace.net.loops import run
    from headrace.operations.summary import summary

    found = run(summary(partial(reached, bootstrap)))
    if json:
        print_json({**found.fields(), "level": None if found.levels is None else found.levels.level})
        return
    for line in found.lines():
        print_line(line)
