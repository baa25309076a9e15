"""Checks that docstrings and comments are plain English, as CONTRIBUTING asks, and that no file gets worse.

A sentence has at most 25 words. It does not begin with "Of these" or "The same". A "Who ..." or "What ..." is a
question. Write "again", not the word of `_ANEW`. `tools/plain_words.txt` holds the number of sentences that
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
FOLDERS: Final = ("src", "tests", "tools", "benchmarks")
GENERATED: Final = ("src/headrace/wire/messages", "tests/wire/java", "src/headrace/metadata/kafka_configs.py")
WORDS_MAX: Final = 25

_CODE: Final = re.compile(r"``[^`]*``|`[^`]*`|\"[^\"]*\"")
_SENTENCE: Final = re.compile(r"(?<=[.:;?!])\s+(?=[A-Z`(*\"0-9-])|\n\s*\n|\n\s*[-*] ")
_HEADLESS: Final = re.compile(r"^(who|what|whoever|whatever|which)\b[^?]*$", re.IGNORECASE)
_BEGINS: Final = re.compile(r"^(of these|of this|the same|of those)\b", re.IGNORECASE)
_ANEW: Final = re.compile(r"\banew\b", re.IGNORECASE)


class Fault(NamedTuple):
    line: int
    why: str
    sentence: str


def faults_of(source: str) -> list[Fault]:
    """The sentences of one Python file that are not plain, in the order of their lines. Raises SyntaxError."""
    found = [fault for line, text in texts_of(source) for fault in _faults_in(line, text)]
    return sorted(found)


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
    words = [word for word in _CODE.sub("X", sentence).split() if re.search(r"\w", word)]
    if len(words) > WORDS_MAX and "|" not in sentence and "    " not in sentence:
        return f"{len(words)} words"
    if _BEGINS.match(sentence):
        return "begins in the middle"
    if _HEADLESS.match(sentence):
        return "has no head"
    if _ANEW.search(sentence):
        return '"anew"'
    return None


def files() -> list[Path]:
    every = [path for folder in FOLDERS for path in sorted((ROOT / folder).rglob("*.py"))]
    return [path for path in every if not str(path.relative_to(ROOT)).startswith(GENERATED)]


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description="Check that docstrings and comments are plain English.")
    parser.add_argument("--write", action="store_true", help="note the numbers of today")
    parser.add_argument("--list", nargs="+", metavar="FILE", help="show the sentences of these files")
    parsed = parser.parse_args(arguments)
    if parsed.list:
        for each in parsed.list:
            for fault in faults_of(Path(each).read_text()):
                print(f"{each}:{fault.line}: {fault.why}: {fault.sentence}")
        return 0
    now = {str(path.relative_to(ROOT)): faults_of(path.read_text()) for path in files()}
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
