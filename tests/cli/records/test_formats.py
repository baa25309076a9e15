"""`consume --format`: kcat prints the records of one topic by the same format, byte by byte the same."""

from __future__ import annotations

import subprocess

import pytest
from confluent_kafka import Producer

from headrace.testing import RunningBroker
from tests.cli.test_commands import Headrace
from tools.debian_packages import kcat

FORMATS = [
    "%k %s\\n",
    "%t|%p|%o|%T|%K|%S|%h|%%\\n",
    "%s\\t%k\\r\\n",
    "\\x41\\x4a\\\\ é%s",
    "%R%s",
    "",
]


def fill(bootstrap: str, topic: str) -> None:
    """Records with and without key, value and headers, and bytes that are no text. librdkafka writes them."""
    producer = Producer({"bootstrap.servers": bootstrap})
    for key, value, headers in (
        (b"k", b"v", []),
        (None, None, []),
        (b"", b"", [("a", None), ("b", b""), ("a", b"x,y")]),
        (b"\xff\x00k", b"v\nw", [("ü", b"\xfe=")]),
        ("schlüssel", "größe", [("n", "1")]),
    ):
        producer.produce(topic, key=key, value=value, headers=headers, timestamp=1_700_000_000_000)
    assert producer.flush(60) == 0


@pytest.mark.skipif(kcat.missing() is not None, reason=kcat.missing() or "")
@pytest.mark.parametrize("text", FORMATS)
def test_a_format_prints_what_kcat_prints(headrace: Headrace, headrace_broker: RunningBroker, text: str) -> None:
    headrace.ok("topic", "create", "shown", "--partitions", 1)
    fill(headrace_broker.bootstrap, "shown")
    command = ["kcat", "-b", headrace_broker.bootstrap, "-C", "-t", "shown", "-e", "-q", "-f", text]
    oracle = subprocess.run(command, capture_output=True, check=True, timeout=150)
    code, out, _ = headrace("consume", "shown", "--end", "-f", text)
    assert (code, out) == (0, oracle.stdout)


@pytest.mark.skipif(kcat.missing() is not None, reason=kcat.missing() or "")
def test_a_letter_that_kcat_has_not_is_refused_here_too(headrace: Headrace, headrace_broker: RunningBroker) -> None:
    headrace.ok("topic", "create", "shown", "--partitions", 1)
    for text in ("a%q", "a%"):
        command = ["kcat", "-b", headrace_broker.bootstrap, "-C", "-t", "shown", "-e", "-q", "-f", text]
        assert subprocess.run(command, capture_output=True, check=False, timeout=150).returncode != 0
        assert "choose %t topic" in headrace.refused("consume", "shown", "-f", text, code=2)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["-f", "\\x"], "needs hexadecimal digits"),
        (["-f", "\\300"], "give a number up to \\255"),
        (["-f", "%s", "--json"], "leave --key-separator and --json out"),
        (["-f", "%s", "-K", ":"], "leave --key-separator and --json out"),
    ],
)
def test_a_format_that_means_nothing_is_told(headrace: Headrace, arguments: list[str], said: str) -> None:
    assert said in headrace.refused("consume", "shown", *arguments, code=2)


def test_a_separator_may_be_a_tab(headrace: Headrace, headrace_broker: RunningBroker) -> None:
    headrace.ok("topic", "create", "tabs", "--partitions", 1)
    fill(headrace_broker.bootstrap, "tabs")
    assert headrace.ok("consume", "tabs", "-n", 1, "-K", "\\t") == "k\tv\n"
