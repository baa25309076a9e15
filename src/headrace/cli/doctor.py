"""`headrace doctor`: the problems of a cluster, and what to do about each."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import typer

from headrace.cli.command_config import reached
from headrace.cli.options import DEFAULT_BOOTSTRAP, Bootstrap, Json
from headrace.cli.output import print_json, print_line

if TYPE_CHECKING:
    from headrace.operations.finding import Finding


def doctor(bootstrap: Bootstrap = DEFAULT_BOOTSTRAP, json: Json = False) -> None:
    """Say what is wrong with the cluster, or might be better, and what to do. Exits with 1 where anything is wrong."""
    from functools import partial

    from headrace.net.loops import run
    from headrace.operations.diagnosis import findings

    found = run(findings(partial(reached, bootstrap)))
    if json:
        for finding in found:
            print_json({"kind": finding.kind, "subject": finding.subject, "text": finding.text, "todo": finding.todo})
    else:
        for line in _lines(found):
            print_line(line)
    if any(finding.is_wrong for finding in found):
        raise typer.Exit(1)


def _lines(found: Sequence[Finding]) -> Iterator[str]:
    if not any(finding.is_wrong for finding in found):
        yield "nothing is wrong: every broker lives, and every partition has a leader and all of its replicas in sync"
    from headrace.operations.finding import told

    for each in told(found):
        yield f"{each.named}: {each.text}; {each.todo}"
