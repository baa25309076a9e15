"""Output of commands: results on standard output, everything else on standard error."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

COUNTS: Final = frozenset(
    {"BEHIND", "BYTES", "BYTES LEFT", "LAG", "LEADS", "PARTITIONS", "RECORDS", "SECONDS OLD", "SEGMENTS", "STORED"}
)
"""Columns of numbers that nobody types again, as he does offsets and ids."""
NONE: Final = "-"
"""Stands where there is no number."""


def print_json(value: Any) -> None:
    """Print one JSON object on one line of standard output."""
    sys.stdout.write(json.dumps(value, ensure_ascii=False, separators=(", ", ": ")) + "\n")


def print_line(text: str) -> None:
    sys.stdout.write(text + "\n")


def note(text: str) -> None:
    """Print a remark for people, on standard error."""
    sys.stderr.write(text + "\n")


def counted(number: int, noun: str) -> str:
    """The number and the noun, which takes an s where there is not one: "1 record", "2,000 records"."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def print_table(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Print aligned columns, numbers to the right. On a terminal the heading is bold, and COUNTS have separators.
    Nothing is ever cut: a pipe gets whole values, and plain ones.
    """
    rows, on_terminal = list(rows), sys.stdout.isatty()
    cells = [
        [_text(cell, name in COUNTS and on_terminal) for name, cell in zip(columns, row, strict=True)] for row in rows
    ]
    widths = [max(len(text) for text in column) for column in zip(columns, *cells, strict=True)]
    numeric = [all(isinstance(cell, int) or cell == NONE for cell in column) for column in zip(*rows, strict=True)]
    aligns = [str.rjust if is_number else str.ljust for is_number in numeric or [False] * len(columns)]
    heading = _aligned(columns, widths, aligns)
    print_line(f"\x1b[1m{heading}\x1b[0m" if on_terminal else heading)
    for row in cells:
        print_line(_aligned(row, widths, aligns))


def _text(cell: object, separated: bool) -> str:
    return f"{cell:,}" if separated and isinstance(cell, int) else str(cell)


def _aligned(cells: Sequence[str], widths: Sequence[int], aligns: Sequence[Callable[[str, int], str]]) -> str:
    return "  ".join(align(cell, width) for cell, width, align in zip(cells, widths, aligns, strict=True)).rstrip()
