"""Checks that docstrings, comments and pages are plain English, as CONTRIBUTING asks, and that no file gets worse.

A sentence has at most 25 words. It does not begin with "Of these" or "The same". A "Who ..." or "What ..." is a
question. Write "again", not the word of `_ANEW`. Code, headings and the pages of `GENERATED` are not read.
`tools/plain_words.txt` holds the number of sentences that
each file still has to mend: a file may have fewer, never more. `--write` notes today's numbers; `--list FILE...` shows
the sentences. Exit code: 0 where no file has more than was noted.
"""

from __future__ import annotations

import argparse
import ast
import io
import re
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

ROOT: Final = Path(__file__).resolve().parents[1]
NOTED: Final = ROOT / "tools/plain_words.txt"
FOLDERS: Final = ("src", "plugin", "tests", "tools", "benchmarks")
PAGES: Final = ("README.md", "CHANGELOG.md", "CONTRIBUTING.md", "deploy", "docs")
GENERATED: Final = (
    "src/headrace/wire/messages",
    "tests/wire/java",
    "docs/BENCHMARKS.md",
)
WORDS_MAX: Final = 25

_CODE: Final = re.compile(r"``[^`]*``|`[^`]*`|\"[^\"]*\"")
_SENTENCE: Final = re.compile(r"(?<=[.:;?!])\s+(?=[A-Z`(*\"0-9-])|\n\s*\n|\n\s*[-*] ")
_HEADLESS: Final = re.compile(r"^(who|what|whoever|whatever|which)\b[^?]*$", re.IGNORECASE)
_BEGINS: Final = re.compile(r"^(of these|of this|the same|of those)\b", re.IGNORECASE)
_ANEW: Final = re.compile(r"\banew\b", re.IGNORECASE)
_FENCE: Final = re.compile(r"\s*(```|~~~)")
_RULE: Final = re.compile(r"\s*\|[\s|:-]+\|\s*$")
"""The line under the head of a table."""
_ITEM: Final = re.compile(r"^\s*([-*+]|\d+\.)\s")
_APART: Final = re.compile(r"\s*(#|<|:::|!\[|\||\s*$)")
"""A line that ends a paragraph and belongs to none: a heading, HTML, a reference, a picture, a row, a blank one."""
_LINK: Final = re.compile(r"\[([^\]]*)\]\([^)]*\)")


class Fault(NamedTuple):
    line: int
    why: str
    sentence: str


def faults_of(source: str) -> list[Fault]:
    """The sentences of one Python file that are not plain, in the order of their lines. Raises SyntaxError."""
    found = [fault for line, text in texts_of(source) for fault in _faults_in(line, text)]
    return sorted(found)


def faults_of_page(source: str) -> list[Fault]:
    """The sentences of one Markdown page that are not plain, in the order of their lines."""
    found = [fault for line, text in texts_of_page(source) for fault in _faults_in(line, text)]
    return sorted(found)


def texts_of_page(source: str) -> Iterator[tuple[int, str]]:
    """Paragraphs, items of lists and cells of tables, each with its first line; no heading, no head of a table."""
    lines = source.splitlines()
    block: list[str] = []
    first = 0
    fenced = False
    for number, line in enumerate([*lines, ""], 1):
        is_fence = bool(_FENCE.match(line))
        if block and (is_fence or _APART.match(line) or _ITEM.match(line)):
            yield first, "\n".join(block)
            block = []
        fenced ^= is_fence
        if fenced or is_fence:
            continue
        if line.lstrip().startswith("|"):
            if not _RULE.match(line) and not (number < len(lines) and _RULE.match(lines[number])):
                yield from ((number, _plain(cell)) for cell in re.split(r"(?<!\\)\|", line.strip().strip("|")))
        elif not _APART.match(line):
            first = first if block else number
            block.append(_plain(_ITEM.sub("", line)))


def _plain(text: str) -> str:
    """The text without the marks of links and of emphasis."""
    return re.sub(r"\*\*|(?<!\w)\*(?=\w)|(?<=\w)\*(?!\w)", "", _LINK.sub(r"\1", text))


def texts_of(source: str) -> Iterator[tuple[int, str]]:
    """Docstrings, strings that stand alone behind a name, and blocks of comments, each with its first line."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            yield node.lineno, node.value.value
    block: list[str] = []
    first = last = 0
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type != tokenize.COMMENT or re.match(r"#\s*(noqa|type:|!|pragma)", token.string):
            continue
        line = token.start[0]
        if block and line != last + 1:
            yield first, " ".join(block)
            block = []
        first = first if block else line
        block.append(token.string.lstrip("# "))
        last = line
    if block:
        yield first, " ".join(block)


def _faults_in(line: int, text: str) -> Iterator[Fault]:
    at = 0
    for raw in _SENTENCE.split(text):
        start = text.find(raw, at)
        where = line + text.count("\n", 0, max(start, 0))
        at = max(start, at)
        sentence = " ".join(raw.split()).strip("-*# ")
        if why := _why(sentence):
            yield Fault(where, why, sentence)


def _why(sentence: str) -> str | None:
    """The fault of a sentence; None where it has none."""
    prose = _CODE.sub("X", sentence)
    words = [word for word in prose.split() if re.search(r"\w", word)]
    if len(words) > WORDS_MAX and "|" not in sentence and "    " not in sentence:
        return f"{len(words)} words"
    if _BEGINS.match(sentence):
        return "begins in the middle"
    if _HEADLESS.match(sentence):
        return "has no head"
    if _ANEW.search(prose):
        return '"anew"'
    return None


def faults_in(path: Path) -> list[Fault]:
    return (faults_of_page if path.suffix == ".md" else faults_of)(path.read_text())


def files() -> list[Path]:
    every = [path for folder in FOLDERS for path in sorted((ROOT / folder).rglob("*.py"))]
    for page in PAGES:
        every += sorted((ROOT / page).rglob("*.md")) if (ROOT / page).is_dir() else [ROOT / page]
    return [path for path in every if not str(path.relative_to(ROOT)).startswith(GENERATED)]


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description="Check that docstrings, comments and pages are plain English.")
    parser.add_argument("--write", action="store_true", help="note the numbers of today")
    parser.add_argument("--list", nargs="+", metavar="FILE", help="show the sentences of these files")
    parsed = parser.parse_args(arguments)
    if parsed.list:
        for each in parsed.list:
            for fault in faults_in(Path(each)):
                print(f"{each}:{fault.line}: {fault.why}: {fault.sentence}")
        return 0
    now = {str(path.relative_to(ROOT)): faults_in(path) for path in files()}
    if parsed.write:
        NOTED.write_text("".join(f"{len(found)} {name}\n" for name, found in sorted(now.items()) if found))
        return 0
    noted = {name: int(count) for count, name in map(str.split, NOTED.read_text().splitlines())}
    worse = {name: found for name, found in now.items() if len(found) > noted.get(name, 0)}
    for name, found in worse.items():
        print(f"{name} has {len(found)} sentences that are not plain, {noted.get(name, 0)} were noted:")
        print(*(f"  {name}:{fault.line}: {fault.why}: {fault.sentence}" for fault in found), sep="\n")
    if worse:
        print("Write plain sentences of at most 25 words (CONTRIBUTING, Words).")
    return 1 if worse else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
