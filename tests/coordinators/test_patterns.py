"""Regular expressions over topic names: what Python's `re` says of them, in linear time, and what is refused."""

from __future__ import annotations

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.base.limits import GROUP_PATTERN_REMEMBERED_MAX
from headrace.coordinators.groups.consumer.expressions import PatternError
from headrace.coordinators.groups.consumer.patterns import Pattern
from tests.tiers import examples

CHARS = "abB1._-"
ATOMS = [
    "a",
    "b",
    "B",
    "1",
    r"\.",
    "-",
    ".",
    "[ab]",
    "[^a]",
    "[a-z0-9]",
    r"\d",
    r"\w",
    r"\W",
    r"[\d_-]",
    "^",
    "$",
    r"\A",
]


def expressions() -> st.SearchStrategy[str]:
    def deeper(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
        repeats = st.sampled_from(["*", "+", "?", "{2}", "{1,3}", "{0,}", "*?"])
        return st.one_of(
            st.lists(inner, max_size=4).map("".join),
            st.lists(inner, min_size=2, max_size=3).map(lambda each: "(?:" + "|".join(each) + ")"),
            st.tuples(inner, repeats).map(lambda each: f"(?:{each[0]}){each[1]}"),
            inner.map(lambda each: f"(?i:{each})"),
            inner.map(lambda each: f"(?P<name>{each})" if "?P<" not in each else each),
        )

    return st.recursive(st.sampled_from(ATOMS), deeper, max_leaves=10)


@settings(max_examples=examples(500))
@given(expressions(), st.lists(st.text(CHARS, max_size=8), min_size=5, max_size=10))
def test_it_means_what_python_means_by_it(expression: str, names: list[str]) -> None:
    try:
        wanted = re.compile(expression)
    except re.error:
        return  # one group's name occurs twice
    pattern = Pattern(expression)
    for name in names:
        assert pattern.matches(name) == (wanted.fullmatch(name) is not None), name


@pytest.mark.parametrize(
    ("expression", "takes", "leaves"),
    [
        ("", [""], ["a"]),
        (r"\Qa.b|c\E", [], ["a.b", "axb"]),
        (r"\Qa.b\E+|no", ["a.b", "a.bbb", "no"], ["axb", "a.ba.b"]),
        ("a{,2}", [], ["", "aa"]),
        ("[[:upper:]_]+", ["AB_"], ["a"]),
        ("[[:^upper:]]", ["a"], ["A"]),
        ("[]a]", ["a"], ["b"]),
        ("(?i)Orders-.*", ["orders-1", "ORDERS-"], ["order"]),
        ("(?i:A)b", ["ab", "Ab"], ["aB"]),
        (r"\x61\x{62}", ["ab"], ["a"]),
        ("orders.*", ["orders", "orders.eu"], ["xorders"]),
    ],
)
def test_forms_that_python_has_not(expression: str, takes: list[str], leaves: list[str]) -> None:
    pattern = Pattern(expression)
    assert all(map(pattern.matches, takes))
    assert not any(map(pattern.matches, leaves))


@pytest.mark.parametrize(
    "expression",
    [
        *(
            "(",
            ")",
            "a)",
            "[a",
            "[b-a]",
            "*",
            "a**",
            "a{2}{3}",
            r"(a)\1",
            "(?=a)",
            "(?<!a)",
            "(?>a)",
            r"\bword",
            r"\pL",
        ),
        *("a{1001}", "a{3,2}", "(?x)a", "\\", "(?P<1>a)", "((a{100}){100}){100}", "(" * 60 + ")" * 60, "a" * 1001),
        *("[[:none:]]", r"\x6", "(?", r"[\w-a]x[z-\d]"),
    ],
)
def test_what_is_none_is_refused(expression: str) -> None:
    with pytest.raises(PatternError):
        Pattern(expression)


@pytest.mark.parametrize("expression", ["(a*)*b", "(a|a)*b", "a*a*a*a*a*a*b", "(a|b|ab)*c", "(.*)(.*)(.*)(.*)(.*)z"])
def test_no_expression_takes_long(expression: str) -> None:
    """These take a backtracking matcher until the end of time."""
    assert not Pattern(expression).matches("a" * 249)


def test_what_is_remembered_is_bounded_and_what_is_not_is_counted() -> None:
    pattern = Pattern("(?:[ab]{0,20}){40}x")
    before = pattern.work
    for number in range(50):
        assert not pattern.matches(f"{number:012b}".replace("0", "a").replace("1", "b"))
        assert pattern.remembered <= GROUP_PATTERN_REMEMBERED_MAX
    assert pattern.work > before + 10_000
    pattern.forget()
    assert pattern.remembered == 0
    simple = Pattern("orders-.*")
    assert simple.matches("orders-" + "1" * 240)
    work = simple.work
    assert simple.matches("orders-" + "1" * 200)
    assert simple.work == work, "each step was met before"
