"""JSON lines: what `consume --json` prints, `produce --format json` writes as the same records."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, TopicPartition
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.base.errors import UsageError
from headrace.cli.work import formatting
from headrace.operations.records_as_json import as_json_line
from headrace.testing import RunningBroker
from headrace.wire.records import Record
from tests.cli.records.test_formats import fill
from tests.cli.test_commands import Headrace
from tests.tiers import examples

DATA = st.none() | st.binary(max_size=12) | st.text(max_size=8).map(str.encode)
NAMES = st.binary(max_size=8).map(lambda data: data.decode(errors="surrogateescape"))
RECORDS = st.builds(
    Record,
    st.just(0),
    st.integers(0, 2**63 - 1),
    DATA,
    DATA,
    st.lists(st.tuples(NAMES, DATA), max_size=3).map(tuple),
)


@settings(max_examples=examples(100), deadline=None)
@given(RECORDS)
def test_a_record_comes_back_from_json_as_it_was(record: Record) -> None:
    one = formatting.given(as_json_line("t", 3, record), 1)
    assert one == (record.key, record.value, record.headers, record.timestamp, 3)


@settings(max_examples=examples(200), deadline=None)
@given(st.binary(max_size=60) | st.builds(lambda one: as_json_line("t", 0, one)[:-4], RECORDS))
def test_no_line_is_more_than_refused(line: bytes) -> None:
    with suppress(UsageError):
        formatting.given(line, 7)


def read(bootstrap: str, topic: str, partitions: int = 1) -> list[tuple[Any, ...]]:
    """All records of a topic, as librdkafka reads them."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "g", "enable.partition.eof": True})
    consumer.assign([TopicPartition(topic, index, 0) for index in range(partitions)])
    found, ended = [], 0
    while ended < partitions:
        message = consumer.poll(60)
        assert message is not None
        if message.error():
            ended += 1
            continue
        place = message.partition(), message.offset()
        found.append((*place, message.timestamp(), message.key(), message.value(), message.headers()))
    consumer.close()
    return sorted(found, key=lambda one: one[:2])


def test_a_topic_is_copied_through_a_file(headrace: Headrace, headrace_broker: RunningBroker, tmp_path: Path) -> None:
    for name in ("from", "to"):
        headrace.ok("topic", "create", name, "--partitions", 1)
    fill(headrace_broker.bootstrap, "from")
    file = tmp_path / "records.json"
    file.write_text(headrace.ok("consume", "from", "--end", "--json"))
    assert headrace.ok("consume", "from", "--end", "-f", "json") == file.read_text()
    headrace.ok("produce", "to", file, "--format", "json")
    assert read(headrace_broker.bootstrap, "to") == read(headrace_broker.bootstrap, "from")
    again = headrace.ok("consume", "to", "--end", "--json")
    assert again.replace('"topic": "to"', '"topic": "from"') == file.read_text()


def test_partitions_are_kept_where_that_is_asked(
    headrace: Headrace, headrace_broker: RunningBroker, tmp_path: Path
) -> None:
    for name in ("from", "to"):
        headrace.ok("topic", "create", name, "--partitions", 3)
    lines = tmp_path / "lines"
    lines.write_text("".join(f"value {number}\n" for number in range(30)))
    for partition in range(3):
        headrace.ok("produce", "from", lines, "-p", partition, "-k", f"key {partition}")
    file = tmp_path / "records.json"
    file.write_text(headrace.ok("consume", "from", "--end", "--json"))
    headrace.ok("produce", "to", file, "-f", "json", "--keep-partition")
    assert read(headrace_broker.bootstrap, "to", 3) == read(headrace_broker.bootstrap, "from", 3)


def test_options_fill_what_a_record_lacks(headrace: Headrace, tmp_path: Path) -> None:
    headrace.ok("topic", "create", "filled", "--partitions", 1)
    file = tmp_path / "records.json"
    file.write_text('{"value": "a"}\n\n{"key": "own", "value": null, "headers": [{"name": "h", "value": null}]}\n')
    headrace.ok("produce", "filled", file, "-f", "json", "-k", "other", "-H", "x=y", "--timestamp", 7)
    found = [json.loads(line) for line in headrace.ok("consume", "filled", "--end", "--json").splitlines()]
    assert [(one["key"], one["value"], one["timestamp"]) for one in found] == [("other", "a", 7), ("own", None, 7)]
    header = {"name": "x", "value": "y"}
    assert [one["headers"] for one in found] == [[header], [{"name": "h", "value": None}, header]]


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("plain", "Line 2 is no record in JSON (Expecting value)"),
        ("[]", "it is no object"),
        ('{"vlaue": "a"}', "'vlaue' is no field of it"),
        ('{"value": 3}', "'value' is no text"),
        ('{"value": "a", "value_base64": "YQ=="}', "'value' has to be there once"),
        ('{"value_base64": "?"}', "'value_base64' is no base64"),
        ('{"headers": [{"value": "a"}]}', "a header has no 'name'"),
        ('{"timestamp": "now"}', "'timestamp' is no number"),
    ],
)
def test_a_line_that_is_no_record_is_named(headrace: Headrace, tmp_path: Path, line: str, said: str) -> None:
    headrace.ok("topic", "create", "refusing", "--partitions", 1)
    file = tmp_path / "records.json"
    file.write_text('{"value": "a"}\n' + line)
    assert said in headrace.refused("produce", "refusing", file, "-f", "json", code=2)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["-f", "%s"], "--format is json"),
        (["-f", "json", "-K", ":"], "leave --key-separator out"),
        (["--keep-partition"], "goes with --format json"),
        (["--keep-partition", "-f", "json", "-p", "1"], "without --partition"),
    ],
)
def test_options_that_do_not_go_together(headrace: Headrace, arguments: list[str], said: str) -> None:
    assert said in headrace.refused("produce", "t", *arguments, code=2)
