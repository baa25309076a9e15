"""``format("headrace")``: Spark's rows equal a consumer's rows for the same offsets; damage stops the job by name."""

from __future__ import annotations

import json
import shutil
import zlib
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from headrace.cli.demo import job as flights
from headrace.spark.read.columns import ARROW_TYPES, Columns
from headrace.spark.results import reason
from headrace.spark.source import HeadraceDataSource
from headrace.storage.objects import open_objects
from headrace.wire.records import Record
from tools.servers.s3_server import S3Server

pytestmark = pytest.mark.timeout(180)


def load(spark: Any, store: Any, **options: str) -> Any:
    reader = spark.read.format("headrace").option("store", store.url).option("topic", "orders")
    return reader.options(**options).load()


def as_row(record: Record, partition: int) -> tuple[Any, ...]:
    """A consumer's record, in the columns of Spark's own Kafka source."""
    stamp = datetime.fromtimestamp(record.timestamp / 1000, UTC).replace(tzinfo=None)
    headers = [(key, None if value is None else bytearray(value)) for key, value in record.headers]
    key, value = (None if data is None else bytearray(data) for data in (record.key, record.value))
    return (key, value, "orders", partition, record.offset, stamp, 0, headers)


@pytest.fixture(autouse=True)
def utc(monkeypatch: pytest.MonkeyPatch) -> None:
    """collect() gives naive timestamps in the machine's zone."""
    import time

    monkeypatch.setenv("TZ", "UTC")
    time.tzset()


def test_spark_rows_equal_a_consumers_rows(spark: Any, store: Any) -> None:
    frame = load(spark, store, includeHeaders="true", maxBytesPerPartition="3000")
    found = sorted((tuple(row) for row in frame.collect()), key=lambda row: (row[3], row[4]))
    expected = [as_row(record, index) for index in range(3) for record in store.rows["orders", index]]
    assert [(*row[:7], [tuple(header) for header in row[7]]) for row in found] == expected
    assert frame.rdd.getNumPartitions() > 2


def test_the_schema_is_that_of_sparks_kafka_source(spark: Any, store: Any) -> None:
    from pyspark.sql.pandas.types import to_arrow_schema

    frame = load(spark, store, includeHeaders="true")
    assert to_arrow_schema(frame.schema, timezone="UTC").equals(Columns(tuple(ARROW_TYPES)).arrow_schema)
    assert frame.schema.simpleString() == (
        "struct<key:binary,value:binary,topic:string,partition:int,offset:bigint,timestamp:timestamp,"
        "timestampType:int,headers:array<struct<key:string,value:binary>>>"
    )
    assert load(spark, store).columns == list(ARROW_TYPES)[:-1]


def test_a_range_and_chosen_columns_and_nothing_at_all(spark: Any, store: Any) -> None:
    ranged = load(
        spark,
        store,
        columns="offset,value",
        startingOffsets='{"orders": {"0": 105, "1": 200}}',
        endingOffsets='{"orders": {"0": 333}}',
    )
    assert ranged.columns == ["offset", "value"]
    expected = [(r.offset, None if r.value is None else bytearray(r.value)) for r in store.rows["orders", 0][105:333]]
    assert sorted(tuple(row) for row in ranged.collect()) == expected
    assert load(spark, store, startingOffsets='{"orders": {"0": 400, "1": 200}}').count() == 0


def test_a_damaged_segment_stops_the_job_and_is_named(spark: Any, store: Any) -> None:
    from pyspark.errors import PySparkException

    segment = store.segments["orders", 0][1]
    path = store.root / segment.key
    whole = path.read_bytes()
    path.write_bytes(whole[: segment.batch_bytes - 20] + b"?" + whole[segment.batch_bytes - 19 :])
    try:
        with pytest.raises(PySparkException) as caught:
            load(spark, store).count()
    finally:
        path.write_bytes(whole)
    last_batch = store.rows["orders", 0][-40].offset
    words = f"topic 'orders', partition 0 is damaged at offset {last_batch} in object '{segment.key}'"
    assert words in str(caught.value)
    assert words in reason(caught.value)


def test_permissive_reads_around_damage_and_the_table_says_where(spark: Any, store: Any, tmp_path: Path) -> None:
    segment = store.segments["orders", 0][1]
    path = store.root / segment.key
    whole = path.read_bytes()
    path.write_bytes(whole[: segment.batch_bytes - 20] + b"?" + whole[segment.batch_bytes - 19 :])
    table = str(tmp_path / "quarantine")
    try:
        count = load(spark, store, mode="PERMISSIVE", quarantinePath=table).count()
    finally:
        path.write_bytes(whole)
    assert count == 600 - 40
    (told,) = spark.read.parquet(table).collect()
    assert (told.topic, told.partition, told.first_offset, told.last_offset) == ("orders", 0, 360, 399)
    assert told.object == segment.key
    assert "CRC32C" in told.reason


@pytest.fixture
def filters(spark: Any) -> Iterator[None]:
    name = "spark.sql.python.filterPushdown.enabled"
    spark.conf.set(name, "true")
    yield
    spark.conf.unset(name)


@pytest.mark.usefixtures("filters")
def test_filters_keep_segments_from_being_read(spark: Any, store: Any, tmp_path: Path) -> None:
    """Unwanted segments may be missing."""
    copy = tmp_path / "copy"
    shutil.copytree(store.root, copy)
    (copy / store.segments["orders", 0][0].key).unlink()
    (copy / store.segments["orders", 1][0].key).unlink()

    def orders() -> Any:
        options = {"store": f"file://{copy}", "topic": "orders, flights", "pushFilters": "true"}
        return spark.read.format("headrace").options(**options).load()

    wanted = orders().where("offset >= 250 and partition = 0 and topic = 'orders'")
    assert sorted(row.offset for row in wanted.select("offset").collect()) == list(range(250, 400))
    late = orders().where("timestamp > timestamp'1970-01-01 00:00:00.2Z' and topic = 'flights'")
    assert sorted((row.partition, row.offset) for row in late.collect()) == [
        (partition, offset) for partition in range(2) for offset in range(201, 300)
    ]


@pytest.mark.usefixtures("filters")
def test_one_frame_serves_queries_with_and_without_filters(spark: Any, store: Any) -> None:
    """Spark 4.2 would keep the first one's plan for all: filters are taken only where pushFilters says so."""
    frame = load(spark, store)
    assert frame.where("offset > 300").count() == 99
    assert frame.count() == 600
    assert frame.where("offset < 10").unionAll(frame).count() == 620


@pytest.mark.timeout(180)
def test_executors_read_an_s3_store(spark: Any, store: Any, s3: S3Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the credentials of their environment, as everywhere."""
    for name, value in s3.environment.items():
        monkeypatch.setenv(name, value)
        monkeypatch.setitem(spark.sparkContext.environment, name, value)  # the workers'
    url = s3.url("spark")
    objects = open_objects(url)
    for meta in store.objects.list(""):
        objects.put(meta.key, store.objects.get(meta.key))
    spark.dataSource.register(HeadraceDataSource)  # takes the environment of now
    options = {"store": url, "topic": "orders", "maxBytesPerPartition": "3000", "columns": "partition,offset"}
    found = spark.read.format("headrace").options(**options).load().collect()
    assert sorted(tuple(row) for row in found) == [
        (index, row.offset) for index in range(3) for row in store.rows["orders", index]
    ]


def checksum(records: list[Record]) -> str:
    """The definition, independently of Spark."""
    total = 0
    for record in records:
        key, value = record.key or b"", record.value or b""
        total += zlib.crc32(record.offset.to_bytes(8, "big") + len(key).to_bytes(4, "big") + key + value)
    return f"{total % 2**32:08x}"


def test_the_flights_are_proven_from_the_parquet_alone(
    spark: Any, store: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    expected = {
        str(index): {"records": 300, "start": 0, "end": 300, "checksum": checksum(store.rows["flights", index])}
        for index in range(2)
    }
    flights.write_parquet(spark, store.url, "flights", tmp_path)
    frame = flights.read_parquet(spark, tmp_path)
    assert flights.rows_written(tmp_path) == 600
    assert flights.tell_report(flights.read_report(frame), expected) == []
    said = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    delays = [at % 30 for at in range(600) if at % 7 and at % 3 == 0]
    mean = round(sum(delays) / len(delays), 2)
    assert {"event": "carrier", "carrier": "UA", "flights": 200, "mean_delay_minutes": mean} in said
    assert sum(one["flights"] for one in said if one["event"] == "month") == 600
    lost = frame.where("not (kafka_partition = 1 and kafka_offset = 7)")
    twice = frame.unionByName(frame.where("kafka_partition = 0 and kafka_offset = 9"))
    for wrong, words in ((lost, "partition 1: its offsets have gaps"), (twice, "partition 0: records is 301, not 300")):
        problems = flights.tell_report(flights.read_report(wrong), expected)
        assert any(problem.startswith(words) for problem in problems), problems
    assert flights.tell_report(flights.Report(), expected) == [
        "partition 0: it is missing",
        "partition 1: it is missing",
    ]
    flights.draw({"UA": flights.Delays(flights=3, departed=2, minutes=5.0)}, tmp_path / "a" / "b.png")
    assert (tmp_path / "a" / "b.png").read_bytes().startswith(b"\x89PNG")
