"""`headrace consume --filter`: records of which an expression is true."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from tests.cli.test_commands import Headrace

EACH = 10


@pytest.fixture
def topic(headrace: Headrace, tmp_path: Path) -> str:
    """Records 0 to 19, even ones in partition 0 and odd ones in partition 1."""
    headrace.ok("topic", "create", "chosen", "--partitions", 2)
    for partition in range(2):
        file = tmp_path / f"{partition}.json"
        values = [json.dumps({"number": number, "name": f"n{number}"}) for number in range(partition, 2 * EACH, 2)]
        headers = [{"name": "source", "value": "web" if partition else "till"}]
        lines = [
            json.dumps({"key": f"k{at}", "value": value, "headers": headers, "timestamp": 1_000 + at})
            for at, value in enumerate(values)
        ]
        file.write_text("\n".join(lines))
        headrace.ok("produce", "chosen", file, "-f", "json", "-p", partition)
    return "chosen"


def test_records_of_which_it_is_true_are_printed(headrace: Headrace, topic: str) -> None:
    def numbers(text: str, *more: object) -> list[int]:
        printed = headrace.ok("consume", topic, "--end", "--filter", text, *more)
        return sorted(json.loads(line)["number"] for line in printed.splitlines())

    assert numbers("value.number > `16`") == [17, 18, 19]
    assert numbers("headers.source == 'web' && value.number < `6`") == [1, 3, 5]
    assert numbers("contains(value.name, '7')") == [7, 17]
    assert numbers("partition == `0` && offset == `3` && key == 'k3' && timestamp == `1003`") == [6]
    assert numbers("value.number > `4`", "--grep", "^k3$") == [6, 7]
    assert numbers("value.number > `4`", "-n", 2, "-p", 0) == [6, 8]
    assert headrace.ok("consume", topic, "--tail", 2, "--filter", "value.number < `4`", "-f", "%k ") == "k1 k1 "


def test_what_is_wrong_with_it_is_said(headrace: Headrace, topic: str) -> None:
    for text, says in (
        ("value.number > 4", "has a number without backticks at character 16, near '4': write `4`."),
        ("", "ends before it is complete"),
        ("a" * 1_001, "has 1,001 characters, and may have 1,000"),
    ):
        assert says in headrace.refused("consume", topic, "--end", "--filter", text, code=2)
    code, out, err = headrace("consume", topic, "--end", "--filter", "abs(value.name) > `4`")
    says = "The expression fails on every record (20 were tried): abs() takes number, and got string.\n"
    assert (code, out, err) == (0, b"", says)


def test_the_package_that_it_needs_is_named(headrace: Headrace, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "headrace.operations.expressions", raising=False)
    monkeypatch.setitem(sys.modules, "jmespath", None)
    says = "--filter needs the package jmespath: pip install 'headrace[console]'."
    assert says in headrace.refused("consume", "t", "--filter", "value", code=2)
