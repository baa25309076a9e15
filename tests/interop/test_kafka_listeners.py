"""Listeners are read as Kafka's own classes read them."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from headrace.base.addresses import Address
from headrace.base.errors import UsageError
from headrace.broker.listeners import read_listeners
from tests.interop.support.asking import asked
from tests.tiers import examples
from tools import kafka_jars

pytestmark = pytest.mark.skipif(kafka_jars.missing_tool() is not None, reason=kafka_jars.missing_tool() or "")

PROGRAM: Final = Path(__file__).parent / "tools" / "Listeners.java"
LISTENERS: Final = st.lists(
    st.builds(
        "{}{}{}{}".format,
        st.sampled_from(("PLAINTEXT", "plaintext", "SSL", "Sasl_Ssl", "SASL_PLAINTEXT", "OTHER", "")),
        st.sampled_from(("://", "://", "://", "://", ":")),
        st.sampled_from(("h", "a.example", "10.0.0.1", "10.0.0.2", "[::1]", "[fe80::1]", "0.0.0.0", "")),
        st.sampled_from((":0", ":1", ":1", ":2", ":3", ":65535", "", ":x", ":-1")),
    ),
    min_size=1,
    max_size=4,
).flatmap(lambda items: st.sampled_from((",", ", ", " ,")).map(lambda mark: mark.join(items)))


@pytest.fixture(scope="module")
def kafka() -> Iterator[Callable[..., str]]:
    command = [*kafka_jars.QUICK_JAVA, "-cp", kafka_jars.newest_class_path(), str(PROGRAM)]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    with asked(process) as put:
        yield lambda *words: put("\t".join(words))


def ours(text: str) -> str:
    """Wildcards are advertised otherwise: that is not Kafka's check."""
    told = {name: f"{name}://x:1" for name in ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")}
    bound = Address("h", 1)
    named = {item.strip().partition(":")[0].upper() for item in text.split(",")}
    present = [name for name in told if name in named]
    configs = {"listeners": text, "advertised.listeners": ",".join(told[name] for name in present)}
    if present:
        configs["inter.broker.listener.name"] = present[0]
    try:
        found = read_listeners(configs, bound=bound, advertised=None)
    except UsageError:
        return "no"
    return ",".join(f"{each.name} {each.protocol} {each.bound.host} {each.bound.port}" for each in found.all)


@settings(max_examples=examples(1000), deadline=None)
@given(LISTENERS)
@example("PLAINTEXT://:9092,SSL://:9093")
@example("PLAINTEXT://127.0.0.1:9092,SSL://[::1]:9092")
def test_listeners_are_read_as_kafka_reads_them(kafka: Callable[..., str], text: str) -> None:
    """Kafka takes a negative port, on which it then cannot listen."""
    theirs = kafka("listeners", text)
    assert ours(text) == ("no" if ":-1" in text else theirs)
