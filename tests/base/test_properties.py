"""Files of settings mean here what they mean to Kafka's programs."""

from __future__ import annotations

from contextlib import suppress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.base.errors import UsageError
from headrace.base.properties import encode_properties, parse_properties
from tests.tiers import examples

PLAIN = "org.apache.kafka.common.security.plain.PlainLoginModule"


@pytest.mark.parametrize(
    ("text", "key", "value"),
    [  # the examples in the documentation of java.util.Properties, and what Kafka's own files have
        ("Truth = Beauty", "Truth", "Beauty"),
        (" Truth:Beauty", "Truth", "Beauty"),
        ("Truth                    :Beauty", "Truth", "Beauty"),
        ("cheeses", "cheeses", ""),
        ("fruits    apple, banana, \\\n          pear, \\\r\n     mango", "fruits", "apple, banana, pear, mango"),
        ("# a comment \\\na=b", "a", "b"),
        ("\n   ! another\na=b", "a", "b"),
        ("a\\=b\\:c\\ d=e", "a=b:c d", "e"),
        ("a=\\u0041\\t\\z\\\\", "a", "A\tz\\"),
        ("a=b  ", "a", "b  "),
        ("a = = b", "a", "= b"),
        ("path=C\\:\\\\kafka", "path", "C:\\kafka"),
        ("a=b\na=c", "a", "c"),
        ("a=b\\", "a", "b"),
        (
            f'sasl.jaas.config={PLAIN} required \\\n  username="a";',
            "sasl.jaas.config",
            f'{PLAIN} required username="a";',
        ),
    ],
)
def test_a_line_is_read_as_java_reads_it(text: str, key: str, value: str) -> None:
    assert parse_properties(text) == {key: value}


def stored(text: str, *, is_key: bool) -> str:
    """As Java's Properties.store writes it."""
    out = []
    for at, one in enumerate(text):
        if one == " " and (at == 0 or is_key):
            out.append("\\ ")
        elif one in "\t\n\r\f":
            out.append("\\" + {"\t": "t", "\n": "n", "\r": "r", "\f": "f"}[one])
        elif one in "=:#!\\":
            out.append("\\" + one)
        elif not 0x20 <= ord(one) <= 0x7E:
            out.append(f"\\u{ord(one):04X}")
        else:
            out.append(one)
    return "".join(out)


TEXT = st.text(st.characters(max_codepoint=0xFFFF, exclude_categories=["Cs"]), max_size=20)


@given(st.dictionaries(TEXT, TEXT, max_size=5))
@settings(max_examples=examples(200))
def test_what_java_stores_is_read(pairs: dict[str, str]) -> None:
    text = "\n".join(f"{stored(key, is_key=True)}={stored(value, is_key=False)}" for key, value in pairs.items())
    assert parse_properties(f"#Sat Nov 28\n{text}") == pairs


@given(st.text(max_size=60))
@settings(max_examples=examples(200))
def test_no_text_is_more_than_refused(text: str) -> None:
    with suppress(UsageError):
        parse_properties(text)


TEXTS = st.text(st.characters(codec="utf-8"), max_size=12)


@settings(max_examples=examples(200))
@given(st.dictionaries(TEXTS.filter(bool), TEXTS, max_size=4))
def test_what_is_written_is_read_again(wanted: dict[str, str]) -> None:
    text = encode_properties(wanted)
    assert text.isascii()
    assert parse_properties(text) == wanted
