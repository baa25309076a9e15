"""Output of commands: results on standard output, everything else on standard error. Rich is loaded only when used."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Sequence
from typing import Any


def print_json(value: Any) -> None:
    """Print one JSON object on one line of standard output."""
    sys.stdout.write(json.dumps(value, ensure_ascii=False, separators=(", ", ": ")) + "\n")


def print_line(text: str) -> None:
    sys.stdout.write(text + "\n")


def note(text: str) -> None:
    """Print a remark for people, on standard error."""
    sys.stderr.write(text + "\n")


def print_table(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Print aligned columns, on a terminal with a bold heading. Nothing is ever cut: a pipe gets whole values."""
    cells = [[str(cell) for cell in row] for row in rows]
    widths = [max(len(text) for text in column) for column in zip(columns, *cells, strict=True)]
    heading = _aligned(columns, widths)
    print_line(f"\x1b[1m{heading}\x1b[0m" if sys.stdout.isatty() else heading)
    for row in cells:
        print_line(_aligned(row, widths))


def _aligned(cells: Sequence[str], widths: Sequence[int]) -> str:
    return "  ".join(cell.ljust(width) for cell, width in zip(cells, widths, strict=True)).rstrip()
