"""`headrace consume --isolation-level`, and the states of transactions in JSON and in expressions."""

from __future__ import annotations

import json
from pathlib import Path

from headrace.testing import RunningBroker
from tests.cli.test_commands import Headrace
from tests.interop.support.mixed import STATES, mixed, transaction


def test_committed_records_alone_are_printed(headrace: Headrace, headrace_broker: RunningBroker) -> None:
    def values(*options: object) -> list[str]:
        return headrace.ok("consume", "t", *options).split()

    only = ("--isolation-level", "read_committed")
    with mixed(headrace_broker.bootstrap, "t") as opened:
        everything = [value for value, _ in STATES]
        assert values("--end") == values("--end", "--isolation-level", "read_uncommitted") == everything
        assert values("--end", *only) == ["p0", "c0"]
        assert values("--tail", 2, *only) == ["p0", "c0"], "they are behind markers and an aborted record"
        assert values("-n", 2, *only) == ["p0", "c0"]
        assert values("--to", "P0D", *only) == ["p0", "c0"]
        assert values("--from", "latest", "--end", *only) == []
        assert values("--offset", -4, "--end", *only) == ["c0"], "four offsets before the end that it sees"
        last = headrace.json("consume", "t", "--tail", 1)[0]["timestamp"]
        assert values("--to", last, *only) == ["p0", "c0"]
        opened.commit_transaction(60)
        assert values("-n", 5, *only) == ["p0", "c0", "o0", "c1", "p1"], "it waits for the markers"
    assert "it is not read_committed or read_uncommitted" in headrace.refused(
        "consume", "t", "--isolation-level", "committed", code=2
    )


def test_json_and_expressions_have_the_state(
    headrace: Headrace, headrace_broker: RunningBroker, tmp_path: Path
) -> None:
    with mixed(headrace_broker.bootstrap, "t"):
        lines = headrace.ok("consume", "t", "--end", "--json")
        found = [json.loads(line) for line in lines.splitlines()]
        assert [(line["value"], line.get("transaction")) for line in found] == STATES
        assert headrace.ok("consume", "t", "--tail", 2, "--filter", "transaction == 'committed'").split() == [
            "c0",
            "c1",
        ]
        assert headrace.json("consume", "t", "--tail", 1, "--filter", "transaction")[0]["transaction"] == "committed"
    file = tmp_path / "saved.json"
    file.write_text(lines)
    headrace.ok("topic", "create", "again")
    headrace.ok("produce", "again", file, "-f", "json")
    assert headrace.ok("consume", "again", "--end").split() == [value for value, _ in STATES]
    assert "transaction" not in headrace.ok("consume", "again", "--end", "--json")
    transaction(headrace_broker.bootstrap, "again", "lost", commits=False)
    assert headrace.json("consume", "again", "--end")[-1]["transaction"] == "aborted"
