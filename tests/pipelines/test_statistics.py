"""Statistics equal what a plain count over the same records gives."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from pathlib import Path
from random import Random
from typing import Any

import confluent_kafka
import pytest

from headrace.base.errors import UsageError
from headrace.spark.pipelines.__main__ import main
from headrace.spark.pipelines.meter import Lines, size_text
from headrace.spark.pipelines.spec import Statistics, parse
from headrace.spark.pipelines.statistics.report import line, page, retained, tell
from headrace.spark.pipelines.statistics.retaining import Retention
from headrace.spark.pipelines.statistics.surveying import PartitionCounts, TopicCounts, document, key_text, survey
from headrace.storage.tier.reader import Store
from headrace.wire.batches import encode_batch
from headrace.wire.records import Record
from tests.promises.support.load import QUIET
from tests.spark.conftest import StoreBuilder
from tests.spark.world import consumed, world

pytestmark = pytest.mark.timeout(180)
HOUR_MS = 3_600_000


def batch(random: Random) -> bytes:
    """Keys of which some are frequent, hours of some days, a few of them before 1970."""
    keys = [None, b"", b"a", b"a", b"a", b"b", b"\xff"]
    rows = [
        Record(at, random.randrange(-3, 60) * HOUR_MS // 2, random.choice(keys), random.choice([None, b"x" * at]))
        for at in range(20)
    ]
    return encode_batch(rows)


def test_two_topics_of_one_name_are_not_added_up(tmp_path: Path) -> None:
    made = StoreBuilder(tmp_path)
    for _ in range(2):
        made.topic("t", [[[encode_batch([Record(0, 0, None, b"v")])]]])
    ids = ",".join(str(topic.topic_id) for topic in Store.open(made.url).topics())
    spec = parse({"pipeline": "statistics", "name": "s", "source": {"store": made.url, "topic": ids}})
    assert isinstance(spec, Statistics)
    with pytest.raises(UsageError, match="Two topics are called 't'"):
        survey(lambda: pytest.fail("no session"), spec)


def test_partitions_and_topics_in_which_nothing_is_are_counted_too(spark: Any, tmp_path: Path) -> None:
    made = StoreBuilder(tmp_path)
    made.topic("one", [[], [], [[encode_batch([Record(at, at, None, b"v") for at in range(5)])]], []])
    made.topic("none", [[], []])
    spec = parse({"pipeline": "statistics", "name": "s", "source": {"store": made.url, "topicPattern": ".*"}})
    assert isinstance(spec, Statistics)
    none, one = survey(lambda: spark, spec).topics
    assert {at: each.records for at, each in one.partitions.items()} == {0: 0, 1: 0, 2: 5, 3: 0}
    assert {at: (each.start, each.end) for at, each in one.partitions.items()}[2] == (0, 5)
    assert one.skew == 4
    one.retention = Retention(partition_bytes=1000)
    assert one.settles_at == 4000, "of each partition"
    assert (none.name, none.records, len(none.partitions), none.skew) == ("none", 0, 2, 1)
    spec = parse({"pipeline": "statistics", "name": "s", "source": {"store": made.url, "topic": "none"}})
    assert isinstance(spec, Statistics)
    found = survey(lambda: pytest.fail("no session for nothing"), spec)
    assert [topic.name for topic in found.topics] == ["none"]
    assert "none: 0 records" in line(found.topics[0])
    assert "<h2>none</h2>" in page(found)
    assert document(found)["topics"][0]["partitions"] == [
        {"partition": at, "start": 0, "end": 0, "lag": None, "records": 0, "bytes": 0} for at in range(2)
    ]


def test_they_equal_a_plain_count(spark: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    random = Random(5)
    with world(tmp_path / "world", **{"log.retention.ms": "-1"}) as made:
        made.create("t", 2, segment_bytes="2048")
        made.create("none", 1)
        made.produce("t", [(at % 2, batch(random)) for at in range(20)])
        for group, offset in (("far", 150), ("near", 199)):
            consumer = confluent_kafka.Consumer({"bootstrap.servers": made.bootstrap, "group.id": group, **QUIET})
            consumer.commit(offsets=[confluent_kafka.TopicPartition("t", 1, offset)], asynchronous=False)
            consumer.close()
        source = {"store": made.store, "bootstrap": made.bootstrap, "topicPattern": "t|none"}
        report = {"html": str(tmp_path / "s.html"), "json": str(tmp_path / "s.json"), "top": 3}
        spec = parse({"pipeline": "statistics", "name": "s", "source": source, "report": report})
        assert isinstance(spec, Statistics)
        found = survey(lambda: spark, spec)
        rows = consumed(made.bootstrap, ["t"])
        file = tmp_path / "s.toml"
        file.write_text(f'pipeline = "statistics"\nname = "s"\n[source]\nbootstrap = "{made.bootstrap}"\ntopic = "t"\n')
        capsys.readouterr()
        assert main([str(file), "--dry-run", "--json"]) == 0
        assert json.loads(capsys.readouterr().out)["bytes"] > 0
    empty, topic = found.topics
    assert (empty.name, empty.records, empty.groups) == ("none", 0, {})
    assert {at: (each.end, each.lag) for at, each in empty.partitions.items()} == {0: (0, 0)}
    sizes = [len(row[5] or b"") + len(row[6] or b"") for row in rows]
    assert (topic.records, topic.bytes, topic.largest) == (len(rows), sum(sizes), max(sizes))
    assert (topic.keyless, topic.empty) == (sum(row[5] is None for row in rows), sum(row[6] is None for row in rows))
    hours: dict[int, list[int]] = defaultdict(lambda: [0, 0])
    for row, size in zip(rows, sizes, strict=True):
        hours[row[3] // HOUR_MS][0] += 1
        hours[row[3] // HOUR_MS][1] += size
    assert topic.hours == {hour: tuple(hours[hour]) for hour in sorted(hours)}
    keys = Counter(row[5] for row in rows if row[5] is not None)
    assert topic.keys == len(keys)
    assert [(key, count) for key, count, _ in topic.top] == sorted(keys.items(), key=lambda item: -item[1])[:3]
    assert {at: each.records for at, each in topic.partitions.items()} == Counter(row[1] for row in rows)
    assert all(each.lag is not None and 0 <= each.lag <= each.records for each in topic.partitions.values())
    assert topic.groups == {"far": 50, "near": 1}
    assert topic.retention == Retention()
    assert topic.stored > 0
    tell(found, spec, Lines(as_json=True))
    assert json.loads((tmp_path / "s.json").read_text()) == document(found)
    shown = (tmp_path / "s.html").read_text()
    assert "data:image/png;base64," in shown
    assert "<td>far</td><td>50</td>" in shown
    assert "Retention deletes nothing" in shown
    assert all(f"<td>{size_text(each.bytes)}</td>" in shown for each in topic.partitions.values())


def test_rates_and_forecasts_are_of_the_last_week() -> None:
    hours = {0: (1, 1_000_000), **{1000 + at: (1, 10) for at in range(168)}}
    topic = TopicCounts("t", hours=hours)
    assert topic.bytes_per_day == 240
    assert topic.forecast == {30: 30 * 240, 365: 365 * 240}
    assert TopicCounts("t").bytes_per_day == 0
    assert TopicCounts("t", hours={5: (1, 10)}).bytes_per_day == 240


def test_what_retention_makes_of_a_topic() -> None:
    """By time, by size, or by whichever is first; as it is stored."""
    day, limits = 86_400_000, {"retention.ms": str(7 * 86_400_000), "retention.bytes": "1000"}
    both = Retention.of(limits)
    assert both == Retention.of({"cleanup.policy": "compact,delete", **limits}) == Retention(7 * day, 1000)
    assert Retention.of({"cleanup.policy": "compact", **limits}) == Retention.of({"retention.ms": "-1"}) == Retention()
    assert Retention().settles_at(3, 50.0) is None
    assert Retention().deletes_in_days(50.0, 1e9, 0, 10 * day) is None
    assert [both.settles_at(3, rate) for rate in (50.0, 1e6)] == [350, 3000]
    assert both.deletes_in_days(50.0, 100.0, 0, 4 * day) == 3
    assert both.deletes_in_days(250.0, 500.0, 0, 0) == 2
    assert both.deletes_in_days(1000.0, 4000.0, 0, 0) == both.deletes_in_days(0.0, 4000.0, None, 0) == 0
    assert both.deletes_in_days(0.0, 0.0, None, 0) is None
    counts = {0: PartitionCounts(bytes=400, records=2)}
    held = TopicCounts("t", counts, hours={-999: (0, 0), 0: (1, 100), 23: (1, 300)}, stored=100.0)
    held.hours.pop(-999)
    assert held.stored_per_day == 100, "it is compressed to a fourth"
    held.retention, held.now_ms = Retention(2 * day), day
    assert (held.settles_at, held.deletes_in_days) == (200, 1)
    assert retained(held) == "Retention deletes from 1.0 days from now on, and keeps it at 200 bytes as stored."


def test_a_key_that_is_no_text_is_told_in_hexadecimal() -> None:
    assert [key_text(key) for key in (b"a", "größe".encode(), b"\xff", b"\n")] == ["a", "größe", "0xff", "0x0a"]
