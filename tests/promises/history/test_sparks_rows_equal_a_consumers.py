"""Promise 7: Spark's rows equal a consumer's rows for the same offsets. The consumer is librdkafka.

Histories are random, partly durable and partly hot. They have five codecs, headers, nulls, control batches and gaps of
compaction. Ranges begin and end within batches and across segments.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import pytest

from headrace.broker.partitions.intake import admission
from tests.spark.world import Row, World, consumed, random_batch, read, world

pytestmark = pytest.mark.timeout(300)
ROUNDS = 3 * int(os.environ.get("HEADRACE_PROMISE_ROUNDS", "4"))
TOPICS = ("law-durable", "law-hot", "law-compacted", "law-markers")
PARTITIONS = 2


class Histories(NamedTuple):
    world: World
    rows: list[Row]
    """A consumer's, of all topics."""
    ends: dict[tuple[str, int], int]
    """The log's."""
    durable: dict[tuple[str, int], int]


@pytest.fixture(scope="module")
def histories(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Histories]:
    random = Random(int(os.environ.get("HEADRACE_SEED", "11")))
    with pytest.MonkeyPatch.context() as patch, world(tmp_path_factory.mktemp("law")) as made:
        # control batches, as a coordinator of transactions will write them
        patch.setattr(admission, "UNUSUAL", 0)
        made.create("law-durable", PARTITIONS, segment_bytes="16384")
        made.create("law-hot", PARTITIONS, durable_enable="false", segment_bytes="16384")
        made.create("law-markers", PARTITIONS, segment_bytes="16384")
        compacting = {"cleanup_policy": "compact", "min_cleanable_dirty_ratio": "0", "segment_bytes": "4096"}
        made.create("law-compacted", PARTITIONS, **compacting)
        for topic in TOPICS:
            keyed, markers = topic == "law-compacted", topic == "law-markers"
            made.produce(
                topic,
                [
                    (at % PARTITIONS, random_batch(random, keyed=keyed, control=markers and random.random() < 0.3))
                    for at in range(160)
                ],
            )
        compacted(made, "law-compacted")
        rows = consumed(made.bootstrap, TOPICS)
        ends = {(topic, each): ends_of(made, topic, each) for topic in TOPICS for each in range(PARTITIONS)}
        durable = {
            (topic, each): made.exported(topic, 1, each) if topic in ("law-durable", "law-markers") else 0
            for topic, each in ends
        }
        yield Histories(made, rows, ends, durable)


def ends_of(made: World, topic: str, partition: int) -> int:
    from headrace.spark.brokers import Brokers

    with Brokers(made.bootstrap) as brokers:
        return next(iter(brokers.offsets(topic, [partition], -1).values())).offset


def compacted(made: World, topic: str) -> None:
    """Wait until each closed segment has been cleaned, so that no later cleaning changes anything."""
    logs = Path(made.store.removeprefix("file://")).parent / "data" / "logs"
    while True:
        rows = consumed(made.bootstrap, [topic])
        if all(is_settled(rows, partition, logs / f"{topic}-{partition}") for partition in range(PARTITIONS)):
            return


def is_settled(rows: list[Row], partition: int, log: Path) -> bool:
    """Whether no key is there twice below the segment that is written to."""
    active = max(int(path.stem) for path in log.glob("*.log"))
    keys = [row[5] for row in rows if row[1] == partition and row[2] < active]
    return active > 0 and len(keys) == len(set(keys))


def within(rows: list[Row], starts: dict[tuple[str, int], int], ends: dict[tuple[str, int], int]) -> list[Row]:
    return [row for row in rows if starts.get(row[:2], 0) <= row[2] < ends.get(row[:2], 0)]


def as_json(offsets: dict[tuple[str, int], int]) -> str:
    found: dict[str, dict[str, int]] = {}
    for (topic, partition), offset in offsets.items():
        found.setdefault(topic, {})[str(partition)] = offset
    return json.dumps(found)


def test_the_histories_are_what_they_are_to_be(histories: Histories) -> None:
    """So that the laws below say something."""
    for place, end in histories.ends.items():
        offsets = [row[2] for row in histories.rows if row[:2] == place]
        gaps = end - len(offsets)
        assert (gaps > 0) == (place[0] in ("law-compacted", "law-markers"))
        assert end - histories.durable[place] > 0, "some of it is hot"
        assert (histories.durable[place] > 0) == (place[0] in ("law-durable", "law-markers"))


@pytest.mark.parametrize("seed", range(ROUNDS))
def test_any_range_cut_into_any_tasks(histories: Histories, seed: int) -> None:
    random = Random(seed)
    starts = {place: random.randrange(end + 1) for place, end in histories.ends.items()}
    ends = {place: random.randint(starts[place], end) for place, end in histories.ends.items()}
    options = histories.world.options(
        "",
        topicPattern="law-.*",
        startingOffsets=as_json(starts),
        endingOffsets=as_json(ends),
        maxBytesPerPartition=str(random.choice([2_000, 20_000, 1 << 24])),
        minPartitions=str(random.randrange(1, 12)),
    )
    assert read(options) == within(histories.rows, starts, ends)


def test_sparks_rows_equal_a_consumers(histories: Histories, spark: Any) -> None:
    frame = spark.read.format("headrace").options(
        **histories.world.options("", topicPattern="law-.*", minPartitions="5")
    )
    assert collected(frame.load()) == histories.rows


def test_the_store_alone_gives_a_consumers_rows(histories: Histories, spark: Any) -> None:
    options = {"store": histories.world.store, "topicPattern": "law-.*", "includeHeaders": "true"}
    expected = within(histories.rows, {}, histories.durable)
    assert collected(spark.read.format("headrace").options(**options).load()) == expected
    assert len({row[0] for row in expected}) == 2


def test_a_stream_gives_a_consumers_rows_once(histories: Histories, spark: Any, tmp_path: Path) -> None:
    options = histories.world.options("", topicPattern="law-.*", startingOffsets="earliest", maxRecordsPerTrigger="700")
    stream = spark.readStream.format("headrace").options(**options).load()
    query = (
        stream.writeStream.format("parquet")
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start(str(tmp_path / "table"))
    )
    try:
        assert query.awaitTermination(120)
        batches = [each["numInputRows"] for each in query.recentProgress if each["numInputRows"]]
        assert len(batches) > 1
        assert max(batches) <= 700
        assert query.exception() is None
    finally:
        query.stop()
    assert collected(spark.read.parquet(str(tmp_path / "table"))) == histories.rows


def collected(frame: Any) -> list[Row]:
    """As a consumer's rows; the timestamps as numbers, for collect() takes them to this machine's zone."""
    names = "topic", "partition", "offset", "unix_millis(timestamp)", "timestampType", "key", "value", "headers"
    return sorted(
        (
            *row[:5],
            *(None if each is None else bytes(each) for each in row[5:7]),
            tuple((name, None if value is None else bytes(value)) for name, value in row[7]),
        )
        for row in frame.selectExpr(*names).collect()
    )
