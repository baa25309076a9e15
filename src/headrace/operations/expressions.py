"""Expressions that choose records: JMESPath, to which each record is one JSON object.

Promises:
- An expression is bounded: in its length, in the depth of its tree, and in the steps that it takes on one record. Work
  of the library in C (comparing, sorting, joining) is paid for in steps before it is done.
- A record matches where jmespath says so of the same object. Steps are counted here, and nothing else is changed.
- A record on which the expression fails does not match. Such records are counted, and no error.

It needs the package jmespath. So it is imported where there is an expression, and never by a broker or by help.

Source: https://jmespath.org/specification.html
"""

from __future__ import annotations

import json
import re
import warnings
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import jmespath
from jmespath.exceptions import IncompleteExpressionError, JMESPathError, JMESPathTypeError, LexerError, ParseError
from jmespath.functions import Functions
from jmespath.visitor import TreeInterpreter

from headrace.base.errors import UsageError
from headrace.base.limits import (
    EXPRESSION_CHARS_MAX,
    EXPRESSION_DEPTH_MAX,
    EXPRESSION_JSON_CHARS_MAX,
    EXPRESSION_STEPS_MAX,
)
from headrace.base.reading import json_value
from headrace.operations.reading import Placed, Wanted
from headrace.wire.records import readable_name

FIELDS: Final = ("key", "value", "headers", "partition", "offset", "timestamp", "size", "transaction")
"""The fields of a record's object."""
TOLD: Final = (
    "It sees a record as one object: key and value (JSON where they are JSON, otherwise text, otherwise null), headers "
    "(an object of texts), partition, offset, timestamp (ms since 1970), size (bytes of key and value) "
    "and transaction ('committed', 'aborted', 'open', or null for a record that has none)."
)
CHARS_A_STEP: Final = 64
"""Characters of a text that count as one step."""
SHALLOW: Final = frozenset(
    {
        "ends_with",
        "keys",
        "length",
        "map",
        "merge",
        "not_null",
        "reverse",
        "starts_with",
        "to_array",
        "type",
        "values",
    }
)
"""Functions that do not look into the elements of what they are given; `map` does so step by step."""
_HINT: Final = "write it like value.amount > `100`, or headers.source == 'web'"


def as_object(placed: Placed) -> dict[str, Any]:
    """The record as an expression sees it."""
    record, raw = placed.record, placed.raw or placed.record
    return {
        "key": _piece(record.key),
        "value": _piece(record.value),
        "headers": {readable_name(name): _text(value) for name, value in record.headers},
        "partition": placed.partition,
        "offset": record.offset,
        "timestamp": record.timestamp,
        "size": len(raw.key or b"") + len(raw.value or b""),
        "transaction": None if placed.state is None else placed.state.value,
    }


def _piece(data: bytes | None) -> Any:
    """JSON as what it is, unless it is too large; other text as text; None for bytes that are none."""
    text = _text(data)
    if text is None or len(text) > EXPRESSION_JSON_CHARS_MAX:
        return text
    try:
        return json_value(text)
    except ValueError:
        return text


def _text(data: bytes | None) -> str | None:
    try:
        return None if data is None else data.decode()
    except UnicodeDecodeError:
        return None


class Expression:
    """One expression, and how it fared. It is asked by one thread at a time."""

    def __init__(self, text: str) -> None:
        """Raises UsageError."""
        self.text: Final = text
        self._tree: Final = _parsed(text)
        self._steps: Final = _Steps()
        self._unknown: Final = sorted(set(_fields(self._tree)).difference(FIELDS))
        self._tried = 0
        self._failed = 0
        self._reason = ""
        """Why the first of the failed records failed."""
        self._too_long = 0

    def __call__(self, placed: Placed) -> bool:
        """Whether this record, decoded and masked, is one of them."""
        self._tried += 1
        self._steps.left = EXPRESSION_STEPS_MAX
        try:
            return is_true(self._steps.visit(self._tree, as_object(placed)))
        except _TooManySteps:
            self._too_long += 1
        except (JMESPathError, TypeError, ValueError, ArithmeticError, RecursionError) as error:
            # The library lets some of Python's own errors through: 'a' < `1`, contains('a', `1`), ceil(infinity).
            self._failed += 1
            self._reason = self._reason or _reason(error)
        return False

    def told(self) -> list[str]:
        """Remarks for people: a field that no record has, and records that it could not be asked of."""
        found = []
        if self._unknown:
            found.append(
                f"No record has a field '{self._unknown[0]:.80}': the fields are {', '.join(FIELDS)}, and a text "
                "stands in single quotes."
            )
        if self._failed and self._failed == self._tried:
            found.append(f"The expression fails on every record ({self._tried:,} were tried): {self._reason}.")
        if self._too_long:
            found.append(
                f"The expression takes more than {EXPRESSION_STEPS_MAX:,} steps on some records ({self._too_long:,}), "
                "which are left out: name a smaller piece of the value."
            )
        return found


def is_true(found: Any) -> bool:
    """JMESPath's truth: all but null, false, and an empty text, list or object."""
    return not (found is None or found is False or (isinstance(found, (str, list, dict)) and not found))


def expression_of(text: str) -> Expression | None:
    """The expression, or None where there is none. Raises UsageError."""
    return Expression(text) if text else None


def words_of(wanted: Wanted) -> list[str]:
    """Options of `headrace consume` that choose the same records."""
    words = ["--grep", f"(?i){re.escape(wanted.has)}"] if wanted.has else []
    conditions = [] if wanted.key is None else [f"key == {_literal_text(wanted.key.decode(errors='replace'))}"]
    if isinstance(wanted.test, Expression):
        conditions.append(wanted.test.text)
    if len(conditions) > 1:
        conditions[1] = f"({conditions[1]})"
    return [*words, "--filter", " && ".join(conditions)] if conditions else words


def _literal_text(key: str) -> str:
    """A literal that equals this key: a text, or the JSON that it is."""
    try:
        known = json_value(key)
    except ValueError:
        known = key
    return "`" + json.dumps(known, ensure_ascii=False).replace("`", "\\`") + "`"


def _parsed(text: str) -> Any:
    """The tree. Raises UsageError."""
    if len(text) > EXPRESSION_CHARS_MAX:
        raise UsageError(
            f"The expression has {len(text):,} characters, and may have {EXPRESSION_CHARS_MAX:,}: write a shorter one."
        )
    try:
        with warnings.catch_warnings():  # `word` in place of 'word' is an old form, which the library still takes
            warnings.simplefilter("ignore")
            tree = jmespath.compile(text).parsed
        _check(tree)
    except RecursionError:
        raise UsageError(_too_deep()) from None
    except JMESPathError as error:
        raise UsageError(_told(error, text)) from None
    return tree


def _too_deep() -> str:
    return f"The expression is nested deeper than {EXPRESSION_DEPTH_MAX} levels: write a flatter one."


def _told(error: JMESPathError, text: str) -> str:
    """The sentence for an expression that cannot be parsed."""
    if isinstance(error, IncompleteExpressionError) or not isinstance(error, ParseError) or not text.strip():
        return f"The expression ends before it is complete: {_HINT}."
    at = error.lex_position
    where = f"at character {at + 1}, near '{' '.join(text[at : at + 20].split())}'"
    if isinstance(error, LexerError) and error.message.startswith("Unclosed"):
        return f"The expression has a quote that is not closed, {where}: close it, or {_HINT}."
    if error.token_type == "EOF":
        return f"The expression ends before it is complete: {_HINT}."
    if error.token_type == "NUMBER":
        return f"The expression has a number without backticks {where}: write `{error.token_value}`."
    return f"The expression cannot be read {where}: {_HINT}."


def _check(tree: Any) -> None:
    """The library would find these things when it is asked of a record. Raises UsageError."""
    left = [(tree, 1)]
    while left:
        node, depth = left.pop()
        if depth > EXPRESSION_DEPTH_MAX:
            raise UsageError(_too_deep())
        if node["type"] == "slice" and node["children"][2] == 0:
            raise UsageError("The expression has a slice with steps of 0: write another step, or none.")
        if node["type"] == "function_expression":
            _check_call(node["value"], len(node["children"]))
        left += [(child, depth + 1) for child in _nodes(node)]


def _check_call(name: str, count: int) -> None:
    if (known := Functions.FUNCTION_TABLE.get(name)) is None:
        raise UsageError(
            f"The expression calls {name:.80}(), which JMESPath does not have: its functions are "
            f"{', '.join(sorted(Functions.FUNCTION_TABLE))}."
        )
    needs, signature = len(known["signature"]), known["signature"]
    takes_more = bool(signature) and bool(signature[-1].get("variadic"))
    if count < needs or (count > needs and not takes_more):
        raise UsageError(
            f"The expression gives {name}() {count} argument{'' if count == 1 else 's'}: it takes {needs}"
            f"{' or more' if takes_more else ''}."
        )


def _nodes(node: Mapping[str, Any]) -> list[Any]:
    return [child for child in node["children"] if isinstance(child, dict)]  # those of a slice are numbers


def _fields(node: Mapping[str, Any]) -> Iterator[str]:
    """The fields of the record itself that an expression names."""
    match node["type"]:
        case "field":
            yield node["value"]
        case "expref":
            return
        case (
            "comparator"
            | "or_expression"
            | "and_expression"
            | "not_expression"
            | "function_expression"
            | ("multi_select_list" | "multi_select_dict" | "key_val_pair")
        ):
            for child in _nodes(node):
                yield from _fields(child)
        case _:  # the first of them sees the record, and the others what that found
            for child in _nodes(node)[:1]:
                yield from _fields(child)


def _reason(error: Exception) -> str:
    """In place of the error's own text, which has the value in it."""
    if isinstance(error, JMESPathTypeError):
        takes = " or ".join(each.replace("-", " of ") for each in error.expected_types)
        return f"{error.function_name}() takes {takes}, and got {error.actual_type}"
    if isinstance(error, RecursionError):
        return "a value is nested too deeply"
    return "it compares, or counts with, values of types that do not go together"


class _TooManySteps(Exception):  # noqa: N818 - no failure: an outcome
    """An expression takes longer on a record than it may."""


class _Steps(TreeInterpreter):
    """The library's interpreter, which counts its steps down."""

    left = EXPRESSION_STEPS_MAX

    def visit(self, node: Any, *args: Any, **kwargs: Any) -> Any:
        self.left -= 1
        if self.left < 0:
            raise _TooManySteps
        return super().visit(node, *args, **kwargs)

    def _pay(self, steps: int) -> None:
        self.left -= steps
        if self.left < 0:
            raise _TooManySteps

    def visit_comparator(self, node: Any, value: Any) -> Any:
        found = [self.visit(child, value) for child in node["children"]]
        if type(found[0]) is type(found[1]):  # others are told apart at once
            self._pay(min(_weight(each, self.left) for each in found))
        return super().visit_comparator(_with(node, found), value)

    def visit_flatten(self, node: Any, value: Any) -> Any:
        found = self.visit(node["children"][0], value)
        if isinstance(found, list):
            self._pay(sum(len(each) if isinstance(each, list) else 1 for each in found))
        return super().visit_flatten(_with(node, [found]), value)

    def visit_function_expression(self, node: Any, value: Any) -> Any:
        found = [self.visit(child, value) for child in node["children"]]
        self._pay(_cost(node["value"], found, self.left))
        return super().visit_function_expression(_with(node, found), value)


def _with(node: Mapping[str, Any], found: Sequence[Any]) -> Any:
    """The node with children that are known."""
    return {**node, "children": [{"type": "literal", "value": each, "children": []} for each in found]}


def _cost(function: str, found: Sequence[Any], most: int) -> int:
    if function in SHALLOW:
        return sum(_size(each) for each in found)
    steps = sum(_weight(each, most) for each in found)
    if function == "join" and isinstance(found[0], str) and isinstance(found[1], list):
        steps += len(found[0]) * len(found[1]) // CHARS_A_STEP
    return steps


def _size(found: Any) -> int:
    if isinstance(found, str):
        return len(found) // CHARS_A_STEP
    return len(found) if isinstance(found, (list, dict)) else 0


def _weight(found: Any, most: int) -> int:
    """The pieces of a value; one that is in it twice counts twice. It stops counting behind the limit."""
    weight, left = 1, [found]
    while left and weight <= most:
        each = left.pop()
        weight += _size(each)
        if isinstance(each, list):
            left += each
        elif isinstance(each, dict):
            left += each.values()
    return weight
