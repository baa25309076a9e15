"""Text from outside: what is taken is what was meant, and nothing that only Python reads."""

from __future__ import annotations

import math
import uuid

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.base.reading import (
    LONG_MAX,
    fraction,
    fraction_text,
    is_natural,
    items,
    json_value,
    natural,
    truth,
    uuid_of,
    whole,
)

NOT_NUMBERS = ["", " ", "1_000", "١٢", "５", "²", "1 2", "0x5", "1e3x", "--1", "+-1", "nan", "inf", "infinity", "\xa05"]


@given(st.integers(-LONG_MAX - 1, LONG_MAX), st.text(alphabet=" \t\n\x00\x1f", max_size=3))
def test_a_whole_number_is_read_between_blanks(number: int, blanks: str) -> None:
    assert whole(f"{blanks}{number}{blanks}") == number
    assert is_natural(str(number)) == (number >= 0)
    assert whole("0" * 5_000 + "7") == 7, "Java takes any number of zeros, where Python has a limit"


@pytest.mark.parametrize("text", NOT_NUMBERS)
def test_what_only_python_takes_for_a_number_is_none(text: str) -> None:
    for read in (whole, natural, fraction):
        with pytest.raises(ValueError, match="number"):
            read(text)
    assert not is_natural(text)


def test_bounds_are_kept() -> None:
    for text in (str(LONG_MAX + 1), "9" * 50, str(-LONG_MAX - 2)):
        with pytest.raises(ValueError, match=r"number|between"):
            whole(text)
    for text in ("-1", "+1", " 1", "1 ", "9" * 19, "9" * 5_000, "1.0"):
        assert not is_natural(text)
    assert natural("65535", 65535) == 65535
    assert natural(f"{LONG_MAX:020d}") == LONG_MAX, "as files are named"
    with pytest.raises(ValueError, match="between 0 and 65535"):
        natural("65536", 65535)


@given(st.floats(allow_nan=False))
def test_a_fraction_is_written_so_that_java_and_we_read_it_back(number: float) -> None:
    text = fraction_text(number)
    assert fraction(text) == number
    if math.isfinite(number) and number and not 1e-3 <= abs(number) < 1e7:
        mantissa, _, exponent = text.partition("E")
        assert 1 <= abs(float(mantissa)) < 10
        assert "." in mantissa
        int(exponent)


def test_truth_and_items() -> None:
    assert (truth(" TRUE"), truth("false\n")) == (True, False)
    for text in ("yes", "1", "", "falſe"):
        with pytest.raises(ValueError, match="true or false"):
            truth(text)
    assert items(" a , b,,c ") == ["a", "b", "", "c"]
    assert items("  ") == []


@given(st.uuids())
def test_a_uuid_has_one_form(each: uuid.UUID) -> None:
    assert uuid_of(str(each)) == uuid_of(str(each).upper()) == each
    for other in (each.hex, f"{{{each}}}", each.urn, f" {each}", str(each)[:-1] + "٣"):
        with pytest.raises(ValueError, match="UUID"):
            uuid_of(other)


@pytest.mark.parametrize("text", ["NaN", "[Infinity]", "-Infinity", '{"a": 1e999}', '{"a": 1, "a": 2}', "[" * 100_000])
def test_json_is_json_by_the_letter(text: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        json_value(text)
    assert json_value('{"a": [1, 2.5, null]}') == {"a": [1, 2.5, None]}
