"""The tool that keeps the seeds of planted bugs reads every table whole, and rewrites one row of it."""

from __future__ import annotations

import importlib
from pathlib import Path
from unittest.mock import patch

import pytest

from tests.tools.test_run_tests import TESTS
from tools import plants
from tools.plants import TABLES, Found, Noted, note, noted_in, seeds


@pytest.mark.parametrize("part", TABLES)
def test_every_row_of_a_table_is_read(part: str) -> None:
    module = importlib.import_module(".".join(TABLES[part].relative_to(TESTS.parent).with_suffix("").parts))
    assert {row.plant: row.seed for row in noted_in(part)} == module.FOUND


@pytest.mark.parametrize(("found", "expected"), [(7, 7), (3, 3), (None, 3)])
def test_what_finds_it_now_is_noted_and_nothing_else_changes(tmp_path: Path, found: int | None, expected: int) -> None:
    text = TABLES["records"].read_text(encoding="utf-8")
    rows = {row.plant: row.seed for row in noted_in("records")}
    table = tmp_path / "test_records.py"
    table.write_text(
        text.replace(f'"fetch-offset-counted": {rows["fetch-offset-counted"]},', '"fetch-offset-counted": 3,')
    )
    with patch.object(plants, "TABLES", {"records": table}):
        note(Found(Noted("records", "fetch-offset-counted", 3), found, "lost", 1.0, 2))
        assert {row.plant: row.seed for row in noted_in("records")} == rows | {"fetch-offset-counted": expected}
    assert len(table.read_text().splitlines()) == len(text.splitlines())


def test_the_noted_seed_comes_first_unless_the_first_that_finds_it_is_wanted() -> None:
    assert [*seeds(7, first=False)][:9] == [7, 0, 1, 2, 3, 4, 5, 6, 8]
    assert [*seeds(7, first=True)] == [*range(500)]
