"""`headrace status`: the cluster in ten lines."""

from __future__ import annotations

from headrace.cli.options import DEFAULT_BOOTSTRAP, Bootstrap, Json
from headrace.cli.output import print_json, print_line


def status(bootstrap: Bootstrap = DEFAULT_BOOTSTRAP, json: Json = False) -> None:
    """Show the cluster in ten lines: brokers, quorum, partitions, disks, moves, and the worst problem."""
    from headrace.cli.work.summary import summary
    from headrace.net.loops import run

    found = run(summary(bootstrap))
    if json:
        print_json(found.fields())
        return
    for line in found.lines():
        print_line(line)
