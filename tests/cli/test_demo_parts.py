"""The demo's own parts: the flights, the ledger that proves the clients, the wait for durability, Spark's words."""

from __future__ import annotations

import asyncio
import importlib.util
import json
import os
import signal
from collections.abc import Sequence
from pathlib import Path
from zlib import crc32

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.base.errors import HeadraceError
from headrace.cli.demo import spark, story
from headrace.cli.demo.clients import read_flights, write_flights
from headrace.cli.demo.export import verify, wait_until_durable
from headrace.cli.demo.flights import count_flights, flights
from headrace.cli.demo.ledger import Ledger, differences
from headrace.cli.demo.process import SIGNALLED, BrokerProcess, ended_by_signals
from headrace.cli.demo.screen import Screen
from headrace.net.client.admin import Admin
from headrace.net.client.cluster import Cluster
from headrace.storage.tier.reader import Store

Row = tuple[int, bytes, bytes, int]
"""Partition, key, value, timestamp; offsets follow from the order."""

rows = st.lists(
    st.tuples(st.integers(0, 2), st.binary(max_size=2), st.binary(max_size=8), st.integers(0, 2**40)),
    max_size=30,
).map(lambda found: [(crc32(key) % 3, key, value, at) for _, key, value, at in found])


def ledger(found: Sequence[Row], offsets: Sequence[int] | None = None) -> Ledger:
    made, ends = Ledger(), [0, 0, 0]
    for number, (partition, key, value, at) in enumerate(found):
        made.add(partition, ends[partition] if offsets is None else offsets[number], key, value, at)
        ends[partition] += 1
    return made


def wrong(written: Ledger, read: Ledger) -> set[str]:
    return {check for check, problems in differences(written, read).items() if problems}


@given(rows)
def test_what_is_read_as_written_has_no_difference(found: list[Row]) -> None:
    assert wrong(ledger(found), ledger(found)) == set()


@given(rows.filter(bool), st.data())
def test_a_lost_repeated_or_changed_record_is_found(found: list[Row], data: st.DataObject) -> None:
    at = data.draw(st.integers(0, len(found) - 1))
    partition, key, value, when = found[at]
    assert "count" in wrong(ledger(found), ledger(found[:at] + found[at + 1 :]))
    assert "count" in wrong(ledger(found), ledger([*found[: at + 1], *found[at:]]))
    changed = [*found[:at], (partition, key, value + b"!", when), *found[at + 1 :]]
    assert {"order per key", "checksum per partition"} <= wrong(ledger(found), ledger(changed))
    moved = [*found[:at], (partition, key, value, when + 1), *found[at + 1 :]]
    assert wrong(ledger(found), ledger(moved)) == {"order per key"}


def test_records_of_one_key_that_change_places_are_found() -> None:
    written = ledger([(0, b"k", b"1", 0), (0, b"k", b"2", 0)])
    swapped = ledger([(0, b"k", b"2", 0), (0, b"k", b"1", 0)])
    assert wrong(written, swapped) == {"order per key", "checksum per partition"}
    gap = ledger([(0, b"k", b"1", 0), (0, b"k", b"2", 0)], offsets=[0, 2])
    assert "offsets contiguous per partition" in wrong(written, gap)


@given(rows)
def test_the_checksum_is_the_one_that_spark_is_told(found: list[Row]) -> None:
    """Written again from its definition: a sum over records, modulo 2^32."""
    sums: dict[str, int] = {}
    ends = [0, 0, 0]
    for partition, key, value, _ in found:
        framed = ends[partition].to_bytes(8, "big") + len(key).to_bytes(4, "big") + key + value
        sums[str(partition)] = (sums.get(str(partition), 0) + crc32(framed)) % 2**32
        ends[partition] += 1
    told = ledger(found).expectation()["partitions"]
    assert {index: part["checksum"] for index, part in told.items()} == {i: f"{n:08x}" for i, n in sums.items()}
    assert {index: part["end"] for index, part in told.items()} == {i: ends[int(i)] for i in sums}


def test_a_flight_is_keyed_by_carrier_and_timed_by_its_schedule() -> None:
    first, second = flights(2)
    assert (first.key, second.key) == (b"UA", b"UA")
    row = json.loads(first.value)
    assert len(row) == 19
    assert (row["carrier"], row["tailnum"], row["dep_delay"], row["sched_dep_time"]) == ("UA", "N14228", 2, 515)
    assert first.timestamp_ms == 1_357_035_300_000  # 2013-01-01 05:15 in New York, 10:15 UTC
    assert next(json.loads(one.value)["dep_time"] for one in flights(1_000) if b'"dep_time":null' in one.value) is None


def test_there_are_336_776_flights() -> None:
    assert count_flights() == 336_776


def test_flights_go_through_both_clients_and_become_durable(tmp_path: Path) -> None:
    rows_wanted = 3_000
    url = (tmp_path / "store").as_uri()
    broker = BrokerProcess(tmp_path / "data", url, tmp_path / "log")
    screen = Screen(as_json=True)

    async def create() -> None:
        async with Cluster(broker.bootstrap) as cluster:
            await Admin(cluster).create_topic(story.TOPIC, partitions=story.PARTITIONS, configs=story.TOPIC_CONFIGS)

    try:
        broker.start()
        asyncio.run(create())
        with screen.meter("test", rows_wanted) as meter:
            written = write_flights(broker.bootstrap, story.TOPIC, flights(rows_wanted), meter)
            read = read_flights(broker.bootstrap, story.TOPIC, story.PARTITIONS, meter)
            assert (written.records, wrong(written, read)) == (rows_wanted, set())
            store = Store.open(url)
            ends = {index: sums.next_offset for index, sums in written.partitions.items()}
            topic = wait_until_durable(store, story.TOPIC, ends, broker, meter)
            assert sum(part.records for part in verify(store, topic, meter)) == rows_wanted
    finally:
        assert broker.stop() == 0


def test_a_broker_that_does_not_start_says_why(tmp_path: Path) -> None:
    with pytest.raises(HeadraceError, match=r"did not start .*gopher"):
        BrokerProcess(tmp_path / "data", "gopher://store", tmp_path / "log").start()


def test_a_missing_extra_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "pyspark" else name)
    with pytest.raises(HeadraceError, match=r"pyspark; install with: pip install 'headrace\[demo\]'\.$"):
        story.check_extras()


def test_sparks_words_become_a_report(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    stage = {"event": "stage", "stage": "parquet"}
    partition = {"partition": 0, "rows": 5, "start": 0, "end": 5, "contiguous": True, "checksum": "0" * 8}
    lines = [
        json.dumps(event)
        for event in (
            {**stage, "state": "start"},
            {"event": "progress", "stage": "parquet", "done": 1, "total": 2},
            {**stage, "state": "done", "seconds": 2.0, "rows": 5, "rows_per_second": 2.5},
            {"event": "partition", **partition, "ok": True, "problems": []},
            {"event": "carrier", "carrier": "UA", "flights": 5, "mean_delay_minutes": 1.0},
            {"event": "carrier", "carrier": "XX", "flights": 1, "mean_delay_minutes": None},
            {"event": "result", "ok": True, "rows": 5, "problems": [], "seconds": 2.0},
        )
    ]
    report = spark.SparkReport()
    spark.follow(spark.events_of(["noise of Java's\n", "[]", *lines]), report, Screen(as_json=True), tmp_path)
    assert report.result["rows"] == 5
    assert [one["rows_per_second"] for one in report.stages] == [2.5]
    spark.show_report(report, Screen(as_json=False))
    assert "XX" in capsys.readouterr().out
    failed = spark.events_of([json.dumps({"event": "error", "message": "no store."})])
    with pytest.raises(HeadraceError, match=r"failed: no store; its log"):
        spark.follow(failed, report, Screen(as_json=True), tmp_path)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
@pytest.mark.parametrize("swallowed", [False, True])
def test_a_signal_ends_the_work_of_an_event_loop_in_order(number: signal.Signals, swallowed: bool) -> None:
    done: list[str] = []

    async def client() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)  # as where it says goodbye to a broker
            done.append("client closed")

    async def work() -> None:
        asyncio.get_running_loop().call_soon(os.kill, os.getpid(), number)
        try:
            await asyncio.gather(client(), client())
        except asyncio.CancelledError:
            if not swallowed:
                raise

    with pytest.raises(SystemExit) as ended, ended_by_signals():
        asyncio.run(work())
    assert ended.value.code == SIGNALLED + number
    assert done == ["client closed"] * 2
