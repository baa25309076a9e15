"""The fenced blocks of the pages for users, in their order."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

ROOT: Final = Path(__file__).resolve().parents[2]
SHELL: Final = "sh"
PYTHON: Final = "python"
TOML: Final = "toml"
RUN: Final = (SHELL, PYTHON, TOML)
READ: Final = ("mermaid", "properties", "sql", "text", "yaml")
"""Languages of blocks that nobody types."""
ELSEWHERE: Final = ("docs/IN_TESTS.md",)
"""Pages that other tests run: tests/testing/test_page.py."""
_FENCE: Final = re.compile(r"( *)```(\w*)")


class Block(NamedTuple):
    page: str
    """Path from the root of the project."""
    line: int
    """Where it begins."""
    language: str
    text: str

    @property
    def first(self) -> str:
        """Its first line, by which lists name it."""
        return self.text.split("\n", 1)[0]

    @property
    def is_of_spark(self) -> bool:
        """Whether it starts Spark: a program with a session, or a shell's pipeline."""
        runs = [line for line in self.text.splitlines() if "pipeline run" in line and "--dry-run" not in line]
        is_program = self.language == PYTHON and ("spark" in self.text or 'format("headrace")' in self.text)
        return bool(runs) if self.language == SHELL else is_program


def pages() -> list[str]:
    """The pages whose blocks are run: README.md and docs, without decisions."""
    found = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
    names = [str(page.relative_to(ROOT)) for page in found]
    return [name for name in names if not name.startswith("docs/decisions/") and name not in ELSEWHERE]


def blocks_of(page: str) -> Iterator[Block]:
    """Yields all blocks of a page, of every language. An indented one loses its indent."""
    lines = iter(enumerate((ROOT / page).read_text(encoding="utf-8").splitlines(), 1))
    for number, line in lines:
        if (begun := _FENCE.fullmatch(line)) is None:
            continue
        indent, language = begun.groups()
        text = []
        for _, each in lines:
            if each == f"{indent}```":
                break
            text.append(each.removeprefix(indent))
        yield Block(page, number, language, "\n".join(text))
