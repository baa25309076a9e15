"""Expressions: they keep what jmespath says, end soon, and are refused in a sentence that says what is wrong."""

from __future__ import annotations

import json
import warnings
from typing import Any

import jmespath
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from headrace.base.errors import UsageError
from headrace.base.limits import EXPRESSION_CHARS_MAX, EXPRESSION_DEPTH_MAX, EXPRESSION_JSON_CHARS_MAX
from headrace.net.client.states import TransactionState
from headrace.operations.expressions import Expression, as_object, words_of
from headrace.operations.reading import At, Placed, Wanted
from headrace.wire.records import Record

EXPRESSIONS = (
    "value",
    "value.a",
    "value[0]",
    "value[*].a",
    "value.*",
    "value[]",
    "value[::-1][1:]",
    "value.a > `1`",
    "value.a == value.b",
    "value != `{}`",
    "!value.a",
    "!key || value.a && headers.source == 'web'",
    "value[?a >= `0`].b | [0]",
    "contains(value, 'a')",
    "contains(value.a, `1`)",
    "length(value) > `1`",
    "sort(value)[0]",
    "max_by(value, &a).a",
    "sum(value[*].a) < `10`",
    "join('', value)",
    "to_string(value)",
    "to_number(value.a)",
    "map(&[@, a], value)",
    "keys(value)",
    "{x: value.a, y: key}.x",
    "size > `10`",
    "[partition, offset, timestamp] == `[1, 7, 1700000000000]`",
)
LEAVES = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text()
NAMES = st.sampled_from(["a", "b", "c"])
VALUES = st.recursive(LEAVES, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(NAMES, inner), max_leaves=12)
SMALL = st.dictionaries(NAMES, st.integers(0, 3) | st.sampled_from(["", "a", "ab"]), min_size=1)
COMMON = SMALL | st.lists(SMALL, max_size=3) | st.lists(st.integers(0, 3)) | st.lists(st.sampled_from("abc")) | VALUES
WORDS = [
    "value",
    "a",
    '"b"',
    "'c'",
    "`1`",
    '`{"a": [1]}`',
    "`x`",
    "1",
    "-2",
    "sort",
    "abs",
    "map",
    "join",
    "\n",
    "\u202e",
]
SIGNS = [*".*@&|!,:()[]{}=<>'`\"-", "[]", "[?", "[*]", "&&", "||", "==", "contains(", "to_string(", "not_null(", "[::"]
TOKENS = st.sampled_from([*WORDS, *SIGNS])
MANY = [{"name": f"n{number}", "number": number} for number in range(20_000)]


def placed(value: bytes | None, partition: int = 0, **more: Any) -> Placed:
    named = {"key": b"k", "headers": (("source", b"web"),), "offset": 7, "timestamp": 1_700_000_000_000, **more}
    return Placed(partition, Record(value=value, **named))


def refused(text: str) -> str:
    """The sentence that it is refused with."""
    with pytest.raises(UsageError) as found:
        Expression(text)
    told = str(found.value)
    assert told.isprintable()
    assert told.endswith(".")
    return told


@given(COMMON, VALUES, st.sampled_from(EXPRESSIONS))
def test_it_keeps_what_jmespath_says_of_the_same_object(value: Any, key: Any, text: str) -> None:
    data, key_data = json.dumps(value).encode(), json.dumps(key).encode()
    known = {
        "key": key,
        "value": value,
        "headers": {"source": "web"},
        "partition": 1,
        "offset": 7,
        "timestamp": 1_700_000_000_000,
        "size": len(data) + len(key_data),
    }
    try:
        kept = jmespath.search(f"[?{text}]", [known]) == [known]  # the library's own sense of truth
    except (ValueError, TypeError, ArithmeticError):
        kept = False
    wanted = Wanted(partition=None, at=At.OLDEST, offset=0, time_ms=0, key=None, count=1, test=Expression(text))
    assert wanted.is_met(placed(data, 1, key=key_data)) == kept


@given(st.lists(TOKENS, max_size=40).map("".join) | st.text(max_size=80), VALUES)
def test_any_text_is_an_expression_or_is_refused_in_a_sentence(text: str, value: Any) -> None:
    try:
        expression = Expression(text)
    except UsageError as error:
        told = [str(error)]
    else:
        assert expression(placed(json.dumps(value).encode())) in (True, False)
        told = expression.told()
    assert all(each.endswith(".") and "\n" not in each for each in told)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("value.amount >", "ends before it is complete"),
        ("", "ends before it is complete"),
        ("value.amount > 100", "has a number without backticks at character 16, near '100': write `100`."),
        ("value.a = `1`", "cannot be read at character 9, near '= `1`': write it like value.amount > `100`"),
        ("value.a == 'x", "has a quote that is not closed, at character 12"),
        ("value\n a\n\n b", "cannot be read at character 8, near 'a b'"),
        ("contain(value.a, 'x')", "calls contain(), which JMESPath does not have: its functions are abs, avg"),
        ("contains(value.a)", "gives contains() 1 argument: it takes 2."),
        ("not_null()", "gives not_null() 0 arguments: it takes 1 or more."),
        ("value[::0]", "has a slice with steps of 0"),
        ("a" * (EXPRESSION_CHARS_MAX + 1), "has 1,001 characters, and may have 1,000: write a shorter one."),
        ("(" * EXPRESSION_CHARS_MAX, "is nested deeper than 64 levels"),
        ("!" * (EXPRESSION_CHARS_MAX - 1) + "a", "is nested deeper than 64 levels"),
        ("||".join(["a"] * (EXPRESSION_DEPTH_MAX + 1)), "is nested deeper than 64 levels"),
    ],
)
def test_it_is_said_what_is_wrong_where_and_what_to_do(text: str, says: str) -> None:
    assert says in refused(text)


def test_the_deepest_that_is_taken_can_be_asked() -> None:
    text = "||".join(["value.a"] * (EXPRESSION_DEPTH_MAX - 1))
    assert Expression(text)(placed(b'{"a": 1}'))
    refused(f"value.a||{text}")


def test_the_old_form_of_texts_warns_nobody() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert Expression("value == `web`")(placed(b"web"))


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("|".join(["[@,@]"] * 50) + "|to_string(@)", id="text of a value that has itself in it often"),
        pytest.param("[" + ",".join(["|".join(["[@,@]"] * 25)] * 2) + "]|[0]==[1]", id="comparing two of these"),
        pytest.param("|".join(["[@,@]"] * 50) + "|contains(@,@[0])", id="looking for one in one"),
        pytest.param("|".join(["[@,@][]"] * 20), id="lists that double"),
        pytest.param("'aaaaaaaa'|" + "|".join(["join('',[@,@])"] * 40), id="texts that double"),
        pytest.param("|".join(["to_string([@])"] * 31), id="quotes that double"),
        pytest.param("join(to_string(value), value.many[*].name)", id="a long text between many"),
        pytest.param("value.many|" + "|".join(["[" + ",".join(["@"] * 30) + "][]"] * 8), id="lists that grow"),
        pytest.param("value|[" + ",".join(["@"] * 200) + "]|[" + ",".join(["@"] * 150) + "][]|sort_by(@,&text)"),
        pytest.param("map(&map(&map(&[@],`[1,2,3,4,5,6,7,8]`),`[1,2,3,4,5,6,7,8]`),value.many)", id="nested loops"),
    ],
)
def test_an_expression_that_takes_long_is_given_up(text: str) -> None:
    expression = Expression(text)
    value = {"many": MANY, "text": "x" * 100_000}
    assert not expression(placed(json.dumps(value).encode()))
    (told,) = expression.told()
    assert told.startswith("The expression takes more than 250,000 steps on some records (1), which are left out")


@pytest.mark.parametrize(
    "text",
    [
        "value.many[?number > `19998`]",
        "contains(to_string(value.many), 'n19999')",
        "sort_by(value.many, &number)[0].name == 'n0'",
        "value.many == value.many",
        "length(value.many) == `20000` && starts_with(value.text, 'x')",
    ],
)
def test_a_large_value_can_be_asked_plain_questions(text: str) -> None:
    expression = Expression(text)
    assert expression(placed(json.dumps({"many": MANY, "text": "x" * 100_000}).encode())), expression.told()


def test_records_that_it_fails_on_do_not_match_and_only_all_of_them_are_told_of() -> None:
    expression = Expression("contains(value.name, 'x')")
    assert expression.told() == []
    assert [expression(placed(value)) for value in (b"{}", b"[1]", b"text", None)] == [False] * 4
    says = "The expression fails on every record (4 were tried): contains() takes array or string, and got null."
    assert expression.told() == [says]
    assert expression(placed(b'{"name": "xy"}'))
    assert expression.told() == [], "it can be asked of some"


@pytest.mark.parametrize(
    ("text", "value", "says"),
    [
        ("value < `1`", b"text", "it compares, or counts with, values of types that do not go together"),
        ("contains(value, `1`)", b"text", "it compares, or counts with, values of types that do not go together"),
        ("ceil(to_number(value))", b'"1e999"', "it compares, or counts with, values of types that do not go together"),
        ("sum(value)", b'["secret"]', "sum() takes array of number, and got str"),
        ("to_string(value)", b"[" * 700 + b"]" * 700, "a value is nested too deeply"),
    ],
)
def test_a_failure_is_told_without_the_value(text: str, value: bytes, says: str) -> None:
    expression = Expression(text)
    if says == "a value is nested too deeply" and expression(placed(value)):
        return  # this interpreter goes so deep
    assert not expression(placed(value))
    (told,) = expression.told()
    assert told.partition(": ")[2] == f"{says}."


def test_a_field_that_no_record_has_is_told_of() -> None:
    for text in ('headers.source == "web"', "contains(to_string(web), 'x')", "web[0].key", "value.a || web | key"):
        (told,) = Expression(text).told()
        assert told.startswith("No record has a field 'web': the fields are key, value, headers, partition, offset")
    for text in ("value.web", "value[?web].x", "value | web", "sort_by(value, &web)", "headers.{a: web}", "@"):
        assert Expression(text).told() == []


def test_a_record_is_one_object() -> None:
    headers = (("source", b"till"), ("source", b"web"), ("raw", b"\xff"), ("none", None))
    assert as_object(placed(b'{"a": 1}', 3, key=b"order-1", headers=headers)) == {
        "key": "order-1",
        "value": {"a": 1},
        "headers": {"source": "web", "raw": None, "none": None},
        "partition": 3,
        "offset": 7,
        "timestamp": 1_700_000_000_000,
        "size": 15,
        "transaction": None,
    }
    in_one = placed(b"")._replace(state=TransactionState.ABORTED)
    assert type(as_object(in_one)["transaction"]) is str, "functions take it"
    assert Expression("starts_with(transaction, 'abort') && transaction == 'aborted'")(in_one)
    for data, seen in (
        (b"17", 17),
        (b"null", None),
        (None, None),
        (b"", ""),
        (b"\xff", None),
        (b'{"a": NaN}', '{"a": NaN}'),
        (b'{"a": 1, "a": 2}', '{"a": 1, "a": 2}'),
        ('{"a": 1}'.encode("utf-16"), None),
        (b"[" * 100_000, "[" * 100_000),
    ):
        found = as_object(placed(data, key=data))
        assert (found["key"], found["value"]) == (seen, seen)
    large = json.dumps("x" * EXPRESSION_JSON_CHARS_MAX)
    assert as_object(placed(large.encode()))["value"] == large, "it is not parsed"


@given(st.text(min_size=1) | VALUES.map(json.dumps), st.sampled_from(["", "value", "value || key"]))
@example("a`b", "value || key")
@example('a" && "\\`', "value")
def test_the_command_chooses_the_same_key(key: str, text: str) -> None:
    test = Expression(text) if text else None
    wanted = Wanted(partition=None, at=At.OLDEST, offset=0, time_ms=0, key=key.encode(), count=1, has="a.b", test=test)
    grep, pattern, option, chosen = words_of(wanted)
    assert (grep, pattern, option) == ("--grep", r"(?i)a\.b", "--filter")
    if len(chosen) <= EXPRESSION_CHARS_MAX:
        assert Expression(chosen)(placed(b"[1]", key=key.encode()))
        assert not Expression(chosen)(placed(b"[1]", key=key.encode() + b"x"))
