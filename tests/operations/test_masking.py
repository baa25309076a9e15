"""Masks: what a rule names is shown nowhere, and what cannot be looked into is masked as a whole."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.base.errors import UsageError
from headrace.base.limits import MASKED_JSON_BYTES_MAX
from headrace.operations.masking import STARS, Mask, Masks, masks_of, parse_rule, read_rules
from headrace.wire.records import Record


def masked(rule: str, value: bytes | None, **more: Any) -> Record:
    return Mask([parse_rule(rule)])(Record(7, 1, more.get("key"), value, more.get("headers", ())))


def of_json(rule: str, value: Any) -> Any:
    shown = masked(rule, json.dumps(value).encode()).value
    assert shown is not None
    return json.loads(shown)


@pytest.mark.parametrize("rule", ["t:value.card.number=XX", "t:value/card/number=XX"])
def test_a_field_is_replaced_and_the_rest_stays(rule: str) -> None:
    value = {"card": {"number": "4111", "holder": "Ada"}, "total": 1.5, "n": 12345678901234567890}
    assert of_json(rule, value) == {**value, "card": {"number": "XX", "holder": "Ada"}}
    assert of_json(rule, {"total": 1}) == {"total": 1}
    assert of_json(rule, {"card": "4111"}) == {"card": "4111"}, "it has no number"


def test_lists_are_looked_into_and_a_star_stands_for_each_field() -> None:
    items = [{"card": 1, "sku": "a"}, {"card": 2}]
    assert of_json("t:value.items.card", {"items": items}) == {"items": [{"card": STARS, "sku": "a"}, {"card": STARS}]}
    assert of_json("t:value.card", items) == [{"card": STARS, "sku": "a"}, {"card": STARS}]
    assert of_json("t:value.items.1.card", {"items": items}) == {"items": [items[0], {"card": STARS}]}
    assert of_json("t:value.*.pin", {"a": {"pin": 1}, "b": {"pin": 2, "c": 3}}) == {
        "a": {"pin": STARS},
        "b": {"pin": STARS, "c": 3},
    }
    assert of_json("t:value/a~1b", {"a/b": 1}) == {"a/b": STARS}


@pytest.mark.parametrize(
    "value",
    [b"4111 1111", b'"4111"', b"4111", b"\x00\x01avro", b'{"card": 1', b'{"card": 1, "card": 2}', b"[" * 5_000, b"nan"],
)
def test_bytes_that_are_no_json_object_are_masked_as_a_whole(value: bytes) -> None:
    assert masked("t:value.card=XX", value).value == b"XX"


def test_json_that_is_nested_deeply_is_masked_all_the_same() -> None:
    for depth in range(50, 1_500, 25):
        shown = masked("t:value.card=XX", b"[" * depth + b'{"card": "4111"}' + b"]" * depth).value
        assert shown is not None
        assert (b"XX" in shown, b"4111" in shown) == (True, False)


def test_large_json_is_masked_as_a_whole() -> None:
    assert masked("t:value.card=XX", b'{"a": "' + b"x" * MASKED_JSON_BYTES_MAX + b'"}').value == b"XX"


def test_keys_headers_and_whole_values_are_masked_and_null_stays() -> None:
    headers = (("Token", b"s3cret"), ("source", b"till"), ("token", None))
    shown = masked("t:header.token=XX", b"v", key=b"k", headers=headers)
    assert shown.headers == (("Token", b"XX"), ("source", b"till"), ("token", None))
    assert masked("t:key=XX", b"v", key=b"customer-7")[2:4] == (b"XX", b"v")
    assert masked("t:value", b"v").value == STARS.encode()
    assert masked("t:value", None).value is None


def test_rules_count_for_the_topics_that_they_name() -> None:
    masks = Masks([parse_rule("orders*:value=XX"), parse_rule("pay:key")])
    assert [bool(masks.of(topic)) for topic in ("orders", "orders-eu", "pay", "payroll", "clicks")] == [
        True,
        True,
        True,
        False,
        False,
    ]
    assert masks.of("orders").told == ["value"]


@pytest.mark.parametrize(
    "rule", ["", "orders", ":value=x", "t:", "t:valu.card=x", "t:header=x", "t:value.=x", "t:value..a"]
)
def test_a_rule_that_cannot_be_read_is_refused(rule: str) -> None:
    with pytest.raises(UsageError, match="mask"):
        parse_rule(rule)


def test_rules_come_from_a_file_as_well(tmp_path: Path) -> None:
    file = tmp_path / "masks.toml"
    file.write_text(
        '[[mask]]\ntopic = "orders*"\nfield = "value.card"\nwith = "XX"\n[[mask]]\ntopic = "t"\nfield = "key"\n'
    )
    assert read_rules(file) == [parse_rule("orders*:value.card=XX"), parse_rule("t:key")]
    assert len(masks_of(["a:key"], file).rules) == 3
    for wrong in (
        "",
        "mask = 1",
        '[[mask]]\ntopic = "t"\n',
        '[[mask]]\ntopic = "t"\nfield = "key"\nwhit = "x"\n',
        "[[",
    ):
        file.write_text(wrong)
        with pytest.raises(UsageError):
            read_rules(file)
    with pytest.raises(UsageError, match="cannot be read"):
        read_rules(tmp_path / "away.toml")


@given(
    st.recursive(st.none() | st.integers() | st.text(), lambda some: st.lists(some) | st.dictionaries(st.text(), some))
)
def test_the_masked_text_is_nowhere_in_the_record(rest: Any) -> None:
    secret = "4111-1111-1111-1111"
    value = {"rest": rest, "deep": [{"card": secret}, [[{"card": [secret, {"x": secret}]}]]], "card": {"y": secret}}
    shown = masked("t:value.card", json.dumps(value).encode())
    also = masked("t:value.deep.card", shown.value)
    assert secret.encode() not in (also.value or b"")
