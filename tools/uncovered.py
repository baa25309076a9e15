"""Lists the lines of src that no test ran, from coverage.py's JSON: `python tools/uncovered.py FOUND.json`.

It prints the totals, each room's part, and the lines of each file by function. `make coverage` makes the JSON.
Functions that numba compiles are left out (`COMPILED`): their lines run as machine code, which no tracer sees.
"""

from __future__ import annotations

import ast
import json
import sys
from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any, Final

PACKAGE: Final = Path("src/headrace")
COMPILED: Final = ("compiled", "njit")
"""Names of decorators of functions that run as machine code."""


def main(arguments: Sequence[str]) -> int:
    found = json.loads(Path(arguments[0]).read_text())
    files = {Path(name): part for name, part in found["files"].items()}
    rooms: defaultdict[str, list[int]] = defaultdict(lambda: [0, 0, 0, 0])
    for path, part in files.items():
        summary = part["summary"]
        counts = rooms[room_of(path)]
        for at, name in enumerate(("num_statements", "missing_lines", "num_branches", "missing_branches")):
            counts[at] += summary[name]
    totals = [sum(each) for each in zip(*rooms.values(), strict=True)]
    for path, part in sorted(files.items()):
        for function, lines in missing(path, part):
            print(f"{path}: {function}: {ranges(lines)}")
    print(f"{'room':<24} lines  not run  branches  not taken")
    for room, (count, not_run, branches, not_taken) in sorted(rooms.items()):
        print(f"{room:<24} {count:>5} {not_run:>8} {branches:>9} {not_taken:>10}")
    print(f"lines {share(totals[0], totals[1])} of {totals[0]}, branches {share(totals[2], totals[3])} of {totals[2]}")
    return 0


def room_of(path: Path) -> str:
    """The folder below the package; the broker's and the others' rooms by their second name."""
    parts = path.relative_to(PACKAGE).parts if path.is_relative_to(PACKAGE) else path.parts[1:]
    return "/".join(parts[:2] if len(parts) > 2 else parts[:1])


def share(count: int, missing_count: int) -> str:
    return f"{100 * (count - missing_count) / max(count, 1):.1f} %"


def missing(path: Path, part: Any) -> Iterator[tuple[str, list[int]]]:
    """The lines that did not run, by function."""
    spans = list(functions(ast.parse(path.read_text()), ""))

    def owner(line: int) -> tuple[str, bool]:
        inside = [(end - start, name, is_compiled) for start, end, name, is_compiled in spans if start <= line <= end]
        return min(inside)[1:] if inside else ("(module)", False)

    for (name, is_compiled), lines in groupby(part["missing_lines"], owner):
        if not is_compiled:
            yield name, list(lines)


def functions(node: ast.AST, prefix: str) -> Iterator[tuple[int, int, str, bool]]:
    """First line, last line, name, and whether numba compiles it."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
            decorators = " ".join(ast.unparse(each) for each in child.decorator_list)
            yield (
                child.lineno,
                child.end_lineno or child.lineno,
                prefix + child.name,
                any(each in decorators for each in COMPILED),
            )
            yield from functions(child, f"{prefix}{child.name}.")
        elif isinstance(child, ast.ClassDef):
            yield from functions(child, f"{prefix}{child.name}.")
        else:
            yield from functions(child, prefix)


def ranges(lines: Sequence[int]) -> str:
    """As people write them: 3, 5 to 7."""
    texts = []
    for _, run in groupby(enumerate(lines), lambda pair: pair[1] - pair[0]):
        numbers = [line for _, line in run]
        texts.append(f"{numbers[0]}" if len(numbers) == 1 else f"{numbers[0]} to {numbers[-1]}")
    return ", ".join(texts)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
