"""Values of sasl.jaas.config are read as Kafka reads them, and a bad one is refused without being shown."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.security.jaas import read_jaas

MODULE = "org.apache.kafka.common.security.plain.PlainLoginModule"


def test_the_options_of_a_module() -> None:
    text = rf"""
        /* of the docs */ {MODULE} required
            username="admin" password="a;b=\"c\"" // for brokers
            user_alice='se cret' user_bob=plain;
    """
    module = read_jaas(text)
    assert module.name == MODULE
    assert module.options == {"username": "admin", "password": 'a;b="c"', "user_alice": "se cret", "user_bob": "plain"}
    assert "se cret" not in repr(module)


@given(st.dictionaries(st.from_regex(r"[a-z_]{1,8}", fullmatch=True), st.text(max_size=10), max_size=4))
def test_any_text_may_be_quoted(options: dict[str, str]) -> None:
    quoted = {
        key: value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n") for key, value in options.items()
    }
    told = " ".join(f'{key}="{value}"' for key, value in quoted.items())
    assert read_jaas(f"{MODULE} required {told};").options == options


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "names no login module"),
        (MODULE, "control flag"),
        (f"{MODULE} maybe;", "control flag"),
        (f"{MODULE} required", "semicolon"),
        (f"{MODULE} required user_a=hush", "semicolon"),
        (f"{MODULE} required user_a=;", "KEY=VALUE"),
        (f"{MODULE} required =hush;", "KEY=VALUE"),
        (f"{MODULE} required user_a hush;", "KEY=VALUE"),
        (f'{MODULE} required user_a="hush;', "quotation"),
        (f"{MODULE} required user_a=hush user_a=hush;", "twice"),
        (f"{MODULE} required user_a=hush; {MODULE} required;", "more than one"),
    ],
)
def test_a_bad_value_is_refused_and_not_shown(text: str, words: str) -> None:
    with pytest.raises(ValueError, match=words) as refused:
        read_jaas(text)
    assert "hush" not in str(refused.value)


@given(st.text(max_size=60))
def test_any_text_is_read_or_refused(text: str) -> None:
    try:
        read_jaas(text)
    except ValueError:
        return
