"""Configs beside Apache Kafka's own classes: which there are, how their texts are read, and what a topic takes."""

from __future__ import annotations

import base64
import math
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from headrace.metadata.config_defs import ConfigType, read, written
from headrace.metadata.config_table import EVERY_TOPIC_DEF
from headrace.metadata.kafka_configs import TOPIC_FACTS, Fact
from tests.interop.support.asking import asked
from tests.tiers import examples, long_only
from tools import generate_kafka_configs, kafka_jars

pytestmark = pytest.mark.skipif(kafka_jars.missing_tool() is not None, reason=kafka_jars.missing_tool() or "")

PROGRAM: Final = Path(__file__).parents[1] / "tools" / "Configs.java"
SMALLER: Final = {"segment.bytes", "internal.segment.bytes"}
"""Segments may be smaller, and are never negative, here."""

TYPES: Final = [each for each in ConfigType if each not in (ConfigType.CLASS, ConfigType.PASSWORD)]
DIGITS: Final = st.text(alphabet="0123456789", max_size=4)
WHOLE: Final = st.builds("{}{}".format, st.sampled_from(["", "+", "-", "--"]), DIGITS)
POWER: Final = st.sampled_from(["", "", "e3", "E-2", "e+1", "e", "p1", "P-3", "e99999", "p99999"])
FRACTIONS: Final = st.builds(
    "{}{}{}{}{}{}".format,
    st.sampled_from(["", "+", "-", "0x", "-0X", "0xf"]),
    DIGITS,
    st.sampled_from(["", ".", "..", ","]),
    DIGITS,
    POWER,
    st.sampled_from(["", "f", "F", "d", "D", "L", "ff"]),
)
NAMED: Final = st.sampled_from(
    (
        *("NaN", "nan", "-NaN", "Infinity", "+Infinity", "-Infinity", "inf", "infinity", "1_000", "0_0.5", "1e400"),
        *("true", "TRUE", "False", "yes", "1", "null", "", "9223372036854775807", "9223372036854775808", "2147483648"),
        "٣",
    )
)
LISTS: Final = st.lists(st.sampled_from(["compact", "delete", "a b", "", "*", "0:1", "10:2"]), max_size=3).flatmap(
    lambda items: st.sampled_from([",", ", ", " ,\t", "\u00a0,", ";"]).map(lambda mark: mark.join(items))
)
BLANKS: Final = st.text(alphabet=" \t\n\r\x00\x0b\x1f\u00a0\u2003\x85", max_size=2)
TEXTS: Final = st.builds(
    "{}{}{}".format, BLANKS, WHOLE | FRACTIONS | NAMED | LISTS | st.text(max_size=6, alphabet="0x_+-.efEnN ,:"), BLANKS
)


@pytest.fixture(scope="module")
def kafka() -> Iterator[Callable[..., str | None]]:
    """The value that Kafka's classes read from a text; None where they refuse it."""
    command = kafka_jars.compiled(PROGRAM, kafka_jars.newest_class_path())
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    with asked(process) as put:

        def answer(*words: str, text: str | None = None) -> str | None:
            coded = [] if text is None else [base64.b64encode(text.encode()).decode()]
            said = put("\t".join((*words, *coded)))
            assert said == "no" or said.endswith("."), said
            return None if said == "no" else base64.b64decode(said[:-1]).decode()

        yield answer


@long_only
def test_the_checked_in_table_is_what_kafka_s_classes_say() -> None:
    assert generate_kafka_configs.main(["--check"]) == 0


def ours(type_: ConfigType, text: str) -> str | None:
    try:
        return written(read(type_, text))
    except ValueError:
        return None


@settings(max_examples=examples(1500), deadline=None)
@given(st.sampled_from(TYPES), TEXTS)
@example(ConfigType.DOUBLE, "4.9e-324")
@example(ConfigType.DOUBLE, "1.7976931348623157E308")
@example(ConfigType.DOUBLE, ".0001")
@example(ConfigType.LONG, "+9223372036854775807")
@example(ConfigType.LONG, "-9223372036854775808")
@example(ConfigType.LIST, "compact, delete")
@example(ConfigType.STRING, "\x00a\u00a0")
def test_every_text_is_read_as_kafka_reads_it(kafka: Callable[..., str | None], type_: ConfigType, text: str) -> None:
    """But for whole numbers in digits of other scripts, which Java's parseInt takes and nobody else reads."""
    theirs, mine = kafka("parse", type_.name, text=text), ours(type_, text)
    if type_ is ConfigType.DOUBLE and theirs is not None and mine is not None:
        found, wanted = read(type_, mine), read(type_, theirs)
        assert found == wanted or (math.isnan(float(found)) and math.isnan(float(wanted)))
    elif not (mine is None and theirs is not None and any(char.isdecimal() > char.isascii() for char in text)):
        assert mine == theirs


@settings(max_examples=examples(1500), deadline=None)
@given(st.sampled_from(TOPIC_FACTS), TEXTS)
def test_a_topic_takes_what_kafka_s_takes_unless_it_asks_for_what_is_not_done(
    kafka: Callable[..., str | None], fact: Fact, text: str
) -> None:
    key = fact.key
    definition = EVERY_TOPIC_DEF[key]
    theirs, problem = kafka("topic", key, text=text), definition.problem(text)
    if theirs is None:
        assert problem is not None or key in SMALLER
    elif problem is None:
        assert definition.kept(text) == theirs
    else:
        not_done = definition.honoured is not None or key in SMALLER
        assert not_done or "NaN" in text or not text.isascii() or definition.pattern is not None


def test_a_topic_is_created_with_every_config_that_a_real_kafka_describes(
    kafka: Callable[..., str | None], bootstrap: str
) -> None:
    """By Kafka's own admin client, as MirrorMaker 2 does."""
    told = kafka("create", bootstrap, "with-every-config")
    assert told is not None
    lines = [line.split("=") for line in told.splitlines()]
    assert len(lines) >= 37
    for key, wanted, found, source in lines:
        assert (key, found, source) == (key, wanted, "DYNAMIC_TOPIC_CONFIG")
