"""Every client can read all that we write or rewrite.

Java, librdkafka, aiokafka and Spark get equal rows of it, and Kafka's own tool finds no fault in the files. These rows
are compared with the written records: none differs, and none is missing that compaction must keep.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import aiokafka
import pytest

from headrace.spark.write.packing import STAMP_HEADERS
from tests.interop.support.kafka_batches import CannotReadError, KafkaBatches, Row
from tests.promises.history.test_sparks_rows_equal_a_consumers import collected
from tests.promises.support.rewriting import (
    COMPACTED,
    HISTORY,
    INTERNAL,
    OLDER,
    PLAIN,
    TOPICS,
    Rewriting,
    files_of,
    rewriting,
    unreadable_on_disk,
)
from tests.promises.test_files_are_kafkas import FAULT
from tests.spark.world import consumed
from tests.wire.emptied import unreadable_in
from tools import kafka_jars

pytestmark = [
    pytest.mark.timeout(600),
    pytest.mark.skipif(kafka_jars.missing_tool() is not None, reason=kafka_jars.missing_tool() or ""),
]
PARTITIONS = int(os.environ.get("HEADRACE_PROMISE_ROUNDS", "1"))
"""Of each topic, each with a history of its own."""
SEED = int(os.environ.get("HEADRACE_SEED", "30"))
ALL = (*TOPICS, INTERNAL)
POLL_MS = 1_000


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rewriting]:
    with rewriting(tmp_path_factory.mktemp("rewriting"), seed=SEED, partitions=PARTITIONS) as made:
        yield made


@pytest.fixture(scope="module")
def java() -> Iterator[KafkaBatches]:
    with KafkaBatches() as asked:
        yield asked


@pytest.fixture(scope="module")
def rows(here: Rewriting, java: KafkaBatches) -> list[Row]:
    """As Java's consumer gives them."""
    return java.consumed(here.world.bootstrap, ALL)


def by_topic(rows: Sequence[Row]) -> dict[str, list[Row]]:
    return {topic: [row for row in rows if row[0] == topic] for topic in ALL}


def test_librdkafka_reads_what_java_reads(here: Rewriting, rows: list[Row]) -> None:
    assert by_topic(consumed(here.world.bootstrap, ALL)) == by_topic(rows)


async def test_aiokafka_reads_what_java_reads(here: Rewriting, rows: list[Row]) -> None:
    found: list[Row] = []
    places = [aiokafka.TopicPartition(topic, each) for topic in TOPICS for each in range(PARTITIONS)]
    places.append(aiokafka.TopicPartition(INTERNAL, 0))
    async with aiokafka.AIOKafkaConsumer(
        bootstrap_servers=here.world.bootstrap, enable_auto_commit=False, isolation_level="read_committed"
    ) as consumer:
        consumer.assign(places)
        await consumer.seek_to_beginning(*places)
        ends = await consumer.end_offsets(places)
        while any([await consumer.position(place) < ends[place] for place in places]):
            for place, records in (await consumer.getmany(timeout_ms=POLL_MS)).items():
                found += [
                    (
                        *(place.topic, place.partition, each.offset, each.timestamp, each.timestamp_type),
                        *(each.key, each.value, tuple(each.headers)),
                    )
                    for each in records
                ]
    assert by_topic(sorted(found, key=lambda row: row[:3])) == by_topic(rows)


@pytest.mark.parametrize("with_store", [False, True])
def test_spark_reads_what_java_reads(here: Rewriting, rows: list[Row], spark: Any, with_store: bool) -> None:
    found: list[Row] = []
    for options in (here.world.options("", topicPattern="rw-.*"), here.world.options(INTERNAL)):
        if not with_store:
            del options["store"]
        found += collected(spark.read.format("headrace").options(**options).load())
    assert by_topic(found) == by_topic(rows)


def test_what_they_read_is_what_was_written(here: Rewriting, rows: list[Row]) -> None:
    found = by_topic(rows)
    written = by_topic(sorted(here.written.values(), key=lambda row: row[:3]))
    for topic in (*COMPACTED, *HISTORY, *OLDER, "rw-recompressed", "rw-merged"):
        is_stamped = topic == "rw-stamped"
        meant = {row[:3]: row for row in written[topic]}
        for row in found[topic]:
            (*place, time, kind), own = row[:5], meant[row[:3]]
            assert place == [*own[:3]]
            assert (kind, row[5:]) == (int(is_stamped), own[5:])
            assert is_stamped or time == own[3]
        if topic in PLAIN:
            assert len(found[topic]) == len(meant)
        else:
            assert owed(written[topic]) <= {row[:3] for row in found[topic]}
            assert len(found[topic]) < len(meant)
    for topic in ("rw-spark", "rw-produced"):
        stamped = STAMP_HEADERS if topic == "rw-spark" else 0
        contents = [(row[3], *row[5:7], row[7][: len(row[7]) - stamped]) for row in found[topic]]
        assert Counter(contents) == Counter(here.placed[topic])
    assert found[INTERNAL]


def owed(written: Sequence[Row]) -> set[tuple[str, int, int]]:
    """Places of records that no compaction may take: those without a key, and the last of each that is no tombstone."""
    last = {(row[1], row[5]): row for row in written if row[5] is not None}
    kept = [row for row in last.values() if row[6] is not None]
    return {row[:3] for row in (*kept, *(row for row in written if row[5] is None))}


def test_the_files_are_what_they_are_to_be(here: Rewriting, java: KafkaBatches) -> None:
    """So that the rest says something: emptied batches in each codec's topic, and older ones where they are to stay."""
    for topic in COMPACTED:
        found = [batch for log in here.logs_of(topic) for file in files_of(log) for batch, _ in java.walk(file)]
        assert [batch for batch in found if not batch.records], f"{topic}: all of a batch is gone, and it stays"
        assert [batch for batch in found if 0 < batch.records <= batch.last_offset - batch.base_offset]
        assert [batch for batch in found if batch.records == batch.last_offset - batch.base_offset + 1]
    assert [len(bodies) > 1 for bodies in map(here.objects, HISTORY)] == [True, True]
    assert [sum(map(unreadable_in, here.objects(topic))) > 0 for topic in HISTORY] == [False, True]
    assert [unreadable_on_disk(here, topic) > 0 for topic in OLDER] == [True, False]
    with pytest.raises(CannotReadError):
        [java.walk(file) for file in files_of(here.log_of("rw-older-served"))]


def test_kafkas_tool_reads_every_file(here: Rewriting, java: KafkaBatches) -> None:
    topics = [topic for topic in ALL if topic not in ("rw-older-served", *HISTORY, "rw-merged")]
    logs = [log for topic in topics for log in here.logs_of(topic) if log.exists()]
    said = java.dump([file for log in logs for file in files_of(log)], "--deep-iteration")
    fault = FAULT.search(said)
    assert fault is None, said[max(0, fault.start() - 500) : fault.end() + 500]
    assert said.count("isvalid: true") > len(logs)


def test_kafkas_classes_read_every_durable_segment(here: Rewriting, java: KafkaBatches, tmp_path: Path) -> None:
    """They are open files: whoever takes their batches for a log has one."""
    for topic in ("rw-history", "rw-merged"):
        for number, body in enumerate(here.objects(topic)):
            file = tmp_path / f"{topic}-{number}.log"
            file.write_bytes(body)
            assert java.walk(file)
