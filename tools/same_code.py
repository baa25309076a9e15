"""Shows that a change of words changed no code: `python -m tools.same_code BEFORE [AFTER]`, two commits.

Each Python file of both commits is parsed, without docstrings, strings that stand alone and comments. The remaining
trees must be equal. Files that moved are followed as git follows them. Exit code: 0 where all trees are equal.
"""

from __future__ import annotations

import ast
import subprocess
import sys
from typing import Final

HELP: Final = "python -m tools.same_code BEFORE [AFTER]"


def tree(source: str) -> str:
    """The syntax tree of a file as text, without strings that are statements. Raises SyntaxError."""
    module = ast.parse(source)
    for node in ast.walk(module):
        body = getattr(node, "body", None)
        if isinstance(body, list):
            node.body = [each for each in body if not _is_words(each)]  # type: ignore[attr-defined]
    return ast.dump(module)


def _is_words(node: ast.AST) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)


def changed(before: str, after: str) -> list[tuple[str, str]]:
    """Python files that differ between two commits, as (old name, new name); a file that came or went has no other."""
    lines = _git("diff", "--name-status", "-M", before, after, "--", "*.py").splitlines()
    pairs = []
    for line in lines:
        status, *names = line.split("\t")
        match status[0]:
            case "A":
                pairs.append(("", names[0]))
            case "D":
                pairs.append((names[0], ""))
            case _:
                pairs.append((names[0], names[-1]))
    return pairs


def main(arguments: list[str]) -> int:
    if not 1 <= len(arguments) <= 2:
        print(HELP, file=sys.stderr)
        return 2
    before, after = arguments[0], arguments[1] if len(arguments) == 2 else "HEAD"
    pairs = changed(before, after)
    other = [new or old for old, new in pairs if not (old and new) or _tree_at(before, old) != _tree_at(after, new)]
    print(f"{len(pairs)} files differ, {len(other)} of them in code")
    print(*other, sep="\n", end="\n" if other else "")
    return 1 if other else 0


def _tree_at(commit: str, name: str) -> str:
    return tree(_git("show", f"{commit}:{name}"))


def _git(*words: str) -> str:
    return subprocess.run(["git", *words], check=True, capture_output=True, text=True).stdout


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
