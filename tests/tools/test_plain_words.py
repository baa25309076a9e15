"""The sentences that `tools.plain_words` refuses, and that `tools.same_code` sees a change of code."""

from __future__ import annotations

import pytest

from tools.plain_words import faults_of, faults_of_page
from tools.same_code import tree


def whys(docstring: str) -> list[str]:
    return [fault.why for fault in faults_of(f'"""{docstring}"""\n')]


@pytest.mark.parametrize(
    ("docstring", "expected"),
    [
        ("Fences a broker that stays silent.", []),
        ("Who is silent is fenced.", ["has no head"]),
        ("What is known.", ["has no head"]),
        ("What leads here? The leader does.", []),
        ("Of these.", ["begins in the middle"]),
        ("The same, for a follower.", ["begins in the middle"]),
        ("The copy is taken anew.", ['"anew"']),
        (" ".join(["word"] * 25) + ".", []),
        (" ".join(["word"] * 26) + ".", ["26 words"]),
        ("First sentence. Word " + "word " * 29 + ".", ["30 words"]),
        ("Code counts once: `a b c d e f g h i j k l m n o p q r s t u v w x y z a b`.", []),
    ],
)
def test_which_sentences_are_refused(docstring: str, expected: list[str]) -> None:
    assert whys(docstring) == expected


def test_comments_and_strings_behind_names_are_read_with_their_lines() -> None:
    source = 'LIMIT = 3\n"""What is taken anew."""\n# Who asks\n# is told.\nx = "What is this"\n'
    assert [(fault.line, fault.why) for fault in faults_of(source)] == [(2, "has no head"), (3, "has no head")]


def test_pages_are_read_without_code_headings_and_heads_of_tables() -> None:
    long = "word " * 26
    page = (
        "# What is `headrace`\n\nWho asks\nis **told.** See KIP-73. Plain [words](x.md) - or 5. more.\n"
        f"- What is taken anew\n- {long}\n\n```\n{long}\n```\n"
        f"| What | Why |\n|---|---|\n| plain | {long}|\n<!-- {long}-->\n*It* is taken anew.\n"
    )
    assert [(fault.line, fault.why) for fault in faults_of_page(page)] == [
        (3, "has no head"),
        (5, "has no head"),
        (6, "26 words"),
        (13, "26 words"),
        (15, '"anew"'),
    ]


def test_words_are_not_code() -> None:
    before = 'def f():\n    """Before."""\n    return 1  # one\n'
    assert tree(before) == tree('def f():\n    """After."""\n    return 1\n')
    assert tree(before) != tree('def f():\n    """Before."""\n    return 2\n')
