"""Tables of commands: numbers to the right, counts with separators for people, and plain values in a pipe."""

from __future__ import annotations

import sys

import pytest

from headrace.cli.output import print_table

COLUMNS = ("TOPIC", "START", "BYTES", "LAG")
ROWS = [("orders", 12_345, 1_234_567, 0), ("o", 7, 89, "-")]


@pytest.mark.parametrize(
    ("on_terminal", "lines"),
    [
        (False, ["TOPIC   START    BYTES  LAG", "orders  12345  1234567    0", "o           7       89    -"]),
        (
            True,
            [
                "\x1b[1mTOPIC   START      BYTES  LAG\x1b[0m",
                "orders  12345  1,234,567    0",
                "o           7         89    -",
            ],
        ),
    ],
)
def test_numbers_are_at_the_right_and_counts_have_separators_where_people_look(
    on_terminal: bool, lines: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: on_terminal)
    print_table(COLUMNS, ROWS)
    assert capsys.readouterr().out.splitlines() == lines


def test_a_table_without_rows_has_its_heading(capsys: pytest.CaptureFixture[str]) -> None:
    print_table(COLUMNS, [])
    assert capsys.readouterr().out == "TOPIC  START  BYTES  LAG\n"
