"""One task's rows on a real broker, read back by librdkafka; keys lie where librdkafka puts them; refusals are told."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from random import Random
from typing import Any

import confluent_kafka
import pyarrow as pa
import pytest

from headrace.base.errors import UsageError
from headrace.base.limits import RECORD_HEADERS_MAX, SPARK_CHUNKS_AHEAD_MAX
from headrace.net.client.cluster import UnknownTopicError
from headrace.spark.brokers import Brokers
from headrace.spark.write import rows, writing
from headrace.spark.write.packing import STAMP_HEADERS, Stamp
from headrace.spark.write.rows import RowError
from headrace.spark.write.sink import check_columns, parse_write_options
from headrace.spark.write.writing import Producer, Tally, Target, TaskWriter, WriteFailed, find_target
from headrace.wire.compression import Compression
from tests.promises.support.load import QUIET
from tests.spark.test_packing import SCHEMA
from tests.spark.world import Row, World, consumed, read, world

TIME = 1_700_000_000_000


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with world(tmp_path_factory.mktemp("world")) as running:
        yield running
        Producer.forget()


def write(
    made: World,
    table: list[dict[str, Any]],
    *,
    known: dict[str, Target] | None = None,
    stamp: Stamp | None = None,
    cut: int = 50,
    **options: str,
) -> Tally:
    """As Spark would have it written, in Arrow batches of `cut` rows."""
    names = [name for name in SCHEMA.names if any(name in row for row in table)]
    batch = pa.RecordBatch.from_pylist(table, pa.schema([SCHEMA.field(name) for name in names or ["value"]]))
    parsed = parse_write_options({"bootstrap": made.bootstrap, **options}, streaming=False)
    parts = [batch.slice(at, cut) for at in range(0, batch.num_rows, cut)]
    return TaskWriter(parsed, known or {}, stamp).write(parts)


def contents(found: list[Row]) -> list[tuple[Any, ...]]:
    """Without partition and offset."""
    return sorted(((row[0], *row[3:]) for row in found), key=lambda row: [str(type(each)) + str(each) for each in row])


@pytest.mark.parametrize("codec", list(Compression))
def test_a_consumer_gets_what_was_written(made: World, codec: Compression, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rows, "SPARK_CHUNK_BYTES_MAX", 30_000)
    random, topic = Random(codec), f"codec-{codec.name.lower()}"
    made.create(topic, 5)
    table: list[dict[str, Any]] = [
        {
            "key": random.choice([None, b"", random.randbytes(8)]),
            "value": random.choice([None, b"", random.randbytes(random.randrange(500)), b"v" * random.randrange(3000)]),
            "timestamp": (TIME + at) * 1000,
            "headers": random.choice([None, [], [{"key": "h", "value": None}, {"key": "größe", "value": b"1"}]]),
        }
        for at in range(700)
    ]
    tally = write(made, table, topic=topic, compression=codec.name.lower(), batchBytes="9000")
    found = consumed(made.bootstrap, [topic])
    expected = [
        (
            topic,
            -1,
            -1,
            TIME + at,
            0,
            row["key"],
            row["value"],
            tuple((h["key"], h["value"]) for h in row["headers"] or ()),
        )
        for at, row in enumerate(table)
    ]
    assert contents(found) == contents(expected)
    assert tally.records == 700
    assert tally.batches > 5
    for partition in range(5):
        times = [row[3] for row in found if row[1] == partition]
        assert times == sorted(times), "in the order of the rows"


def test_a_record_of_as_many_headers_as_there_may_be_is_read_and_no_larger_one_is_written(made: World) -> None:
    made.create("headers", 1)
    own = [{"key": "h", "value": None}] * (RECORD_HEADERS_MAX - STAMP_HEADERS)
    write(made, [{"value": b"v", "headers": own}], topic="headers", stamp=Stamp("q", "0", "0"))
    with pytest.raises(RowError, match="too many headers, of which a record has 100000 at most, 3 of them for who"):
        write(made, [{"value": b"v", "headers": [*own, own[0]]}], topic="headers", stamp=Stamp("q", "0", "1"))
    (row,) = read({"bootstrap": made.bootstrap, "topic": "headers", "includeHeaders": "true"})
    assert len(row[7]) == RECORD_HEADERS_MAX


def test_keys_lie_where_librdkafka_and_java_put_them(made: World) -> None:
    made.create("ours", 7)
    made.create("theirs", 7)
    keys = [b"", *(Random(at).randbytes(at % 30) for at in range(300))]
    write(made, [{"key": key, "value": b""} for key in keys], topic="ours")
    producer = confluent_kafka.Producer({"bootstrap.servers": made.bootstrap, "partitioner": "murmur2_random", **QUIET})
    for key in keys:
        producer.produce("theirs", key=key, value=b"")
    assert producer.flush(150) == 0
    by_key = [{(row[5], row[1]) for row in consumed(made.bootstrap, [topic]) if row[5]} for topic in ("ours", "theirs")]
    assert by_key[0] == by_key[1]


def test_the_same_task_again_writes_the_same_to_the_same_partitions(made: World) -> None:
    made.create("again", 3)
    random = Random(1)
    table = [{"key": random.choice([None, b"%d" % at]), "value": b"v" * 9000} for at in range(400)]
    for cut in (400, 33):
        write(made, table, topic="again", stamp=Stamp("q", "0", "4"), cut=cut, batchBytes=str(cut * 100))
    by_run: dict[Any, list[int]] = {}
    for row in consumed(made.bootstrap, ["again"]):
        by_run.setdefault((row[5], row[6], row[7]), []).append(row[1])
    assert len(by_run) == 400
    assert all(len(places) == 2 and len(set(places)) == 1 for places in by_run.values())
    assert {places[0] for (key, _, _), places in by_run.items() if key is None} == {0, 1, 2}


def test_a_task_that_dies_and_is_run_again_is_read_once(made: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Three runs, of which two end where their rows do not; and two at once, as with speculative execution."""
    monkeypatch.setattr(rows, "SPARK_CHUNK_BYTES_MAX", 200)
    made.create("dies", 3)
    batch = pa.RecordBatch.from_pydict({"value": [b"%d" % (at % 9) for at in range(300)]})
    options = parse_write_options({"bootstrap": made.bootstrap, "topic": "dies", "batchBytes": "700"}, streaming=False)

    def run(until: int) -> Iterator[Any]:
        for at in range(0, until, 10):
            yield batch.slice(at, 10)
        if until < 300:
            raise ConnectionError("the task was killed")

    def write_rows(part: Iterator[Any]) -> None:
        TaskWriter(options, {}, Stamp("q", "3", "1")).write(part)

    for until in (120, 250):
        with pytest.raises(ConnectionError):
            write_rows(run(until))
    write_rows(run(300))
    with ThreadPoolExecutor(2) as pool:
        for done in [pool.submit(write_rows, run(300)) for _ in range(2)]:
            done.result()
    found = consumed(made.bootstrap, ["dies"])
    assert len(found) > 900
    once = read({"bootstrap": made.bootstrap, "topic": "dies", "includeHeaders": "true", "dropRepeats": "true"})
    assert sorted((row[7][2][1], row[6]) for row in once) == [(b"1:%012d" % at, b"%d" % (at % 9)) for at in range(300)]


def test_rows_name_their_topics_partitions_and_nothing_is_written_of_nothing(made: World) -> None:
    made.create("one", 2)
    made.create("two", 3)
    table = [{"topic": ("one", "two")[at % 2], "partition": at % 2, "value": b"%d" % at} for at in range(90)]
    assert write(made, table).records == 90
    found = consumed(made.bootstrap, ["one", "two"])
    assert [(row[0], row[1], row[6]) for row in found] == [
        (topic, at, b"%d" % value) for topic, at in (("one", 0), ("two", 1)) for value in range(at, 90, 2)
    ]
    assert write(made, [], topic="one") == Tally(0, 0, 0)
    assert write(made, [{"topic": "one", "value": b""}], topic="two") == Tally(1, 68, 1)  # the option has it


def test_hundreds_of_partitions(made: World) -> None:
    made.create("wide", 300)
    table = [{"key": b"%d" % at, "value": b"v"} for at in range(3000)]
    assert write(made, table, topic="wide", cut=1000).records == 3000
    assert len({row[5] for row in consumed(made.bootstrap, ["wide"])}) == 3000


def test_large_records_and_those_that_are_too_large(made: World) -> None:
    made.create("large", 1, max_message_bytes="1100000")
    table = [{"key": b"%d" % at, "value": bytes([at]) * 1024 * 1024} for at in range(20)]
    write(made, table, topic="large", cut=7)
    assert [row[6] for row in consumed(made.bootstrap, ["large"])] == [row["value"] for row in table]
    huge = [{"value": Random(2).randbytes(1_200_000)}]
    with pytest.raises(UsageError, match=r"topic 'large', partition 0 .* 1200\d\d\d bytes, .* 1100000 .*max.message.b"):
        write(made, huge, topic="large")
    write(made, [{"value": b"z" * 3_000_000}], topic="large", compression="zstd")  # the sent size counts
    with Brokers(made.bootstrap) as brokers:
        known = {"large": find_target(brokers, "large")._replace(message_bytes_max=2_000_000)}
    with pytest.raises(WriteFailed, match=r"Topic 'large', partition 0 cannot .*MESSAGE_TOO_LARGE.*max.message.bytes"):
        write(made, huge, topic="large", known=known)
    write(made, table[:1], topic="large")


def test_a_compacted_topic_wants_keys_and_takes_tombstones(made: World) -> None:
    made.create("compacted", 1, cleanup_policy="compact")
    write(made, [{"key": b"k", "value": None}], topic="compacted")
    with pytest.raises(WriteFailed, match=r"Topic 'compacted', partition 0 .*no record without a key\.$"):
        write(made, [{"key": None, "value": b"v"}], topic="compacted")


def test_no_topic_is_made_and_none_made_anew_is_taken_for_the_old(made: World) -> None:
    with pytest.raises(UnknownTopicError, match="headrace topic create nowhere"):
        write(made, [{"value": b""}], topic="nowhere")
    with pytest.raises(UnknownTopicError):
        write(made, [{"topic": "nowhere", "value": b""}])
    with pytest.raises(UsageError, match=r"'__consumer_offsets' is the brokers' own|does not exist"):
        write(made, [{"value": b""}], topic="__consumer_offsets")
    made.create("anew", 1)
    with Brokers(made.bootstrap) as brokers:
        known = {"anew": find_target(brokers, "anew")}
    made.delete("anew")
    made.create("anew", 1)
    with pytest.raises(WriteFailed, match=r"Topic 'anew', partition 0 .*made anew"):
        write(made, [{"value": b""}], topic="anew", known=known)


def test_a_worker_that_wrote_to_a_topic_writes_to_the_one_that_is_made_anew(made: World) -> None:
    """As the worker finds it, and as the driver has found it while the worker knows of the old one alone."""
    Producer.forget()
    for at in range(3):
        made.create("phoenix", 1)
        with Brokers(made.bootstrap) as brokers:
            known = {"phoenix": find_target(brokers, "phoenix")} if at == 2 else None
        for value in (b"%d" % at, b"again"):
            write(made, [{"value": value}] * 3, topic="phoenix", known=known)
        assert kept() is not None
        assert [row[6] for row in consumed(made.bootstrap, ["phoenix"])] == [b"%d" % at] * 3 + [b"again"] * 3
        made.delete("phoenix")


def test_a_worker_that_ends_says_nothing(made: World) -> None:
    made.create("ends", 1)
    code = (
        "import pyarrow as pa\n"
        "from headrace.spark.write.sink import parse_write_options\n"
        "from headrace.spark.write.writing import TaskWriter\n"
        f"options = parse_write_options({{'bootstrap': '{made.bootstrap}', 'topic': 'ends'}}, streaming=False)\n"
        "print(TaskWriter(options, {}, None).write([pa.RecordBatch.from_pydict({'value': [b'v']})]).records)\n"
    )
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (told.returncode, told.stdout, told.stderr) == (0, "1\n", "")


def kept() -> Producer | None:
    return Producer._kept


def test_a_worker_keeps_one_producer_and_gives_up_one_that_failed(made: World, monkeypatch: pytest.MonkeyPatch) -> None:
    made.create("kept", 1)
    Producer.forget()
    write(made, [{"value": b"1"}], topic="kept")
    first = kept()
    write(made, [{"value": b"2"}], topic="kept")
    assert kept() is first is not None
    with pytest.raises(UsageError):
        write(made, [{"value": b"3", "partition": 9}], topic="kept")
    assert kept() is None
    write(made, [{"value": b"4"}], topic="kept")
    monkeypatch.setattr(writing, "SPARK_PRODUCER_IDLE_S", 0.0)
    second = kept()
    write(made, [{"value": b"5"}], topic="kept")
    assert kept() is not second
    assert [row[6] for row in consumed(made.bootstrap, ["kept"])] == [b"1", b"2", b"4", b"5"]


def test_what_waits_for_brokers_is_bounded(made: World, monkeypatch: pytest.MonkeyPatch) -> None:
    made.create("bounded", 1)
    waiting: list[Any] = []
    deliver = Producer.deliver

    def counted(self: Producer, batches: Any) -> Any:
        future = deliver(self, batches)
        waiting.append(future)
        assert sum(not each.done() for each in waiting) <= SPARK_CHUNKS_AHEAD_MAX
        return future

    monkeypatch.setattr(Producer, "deliver", counted)
    monkeypatch.setattr(rows, "SPARK_CHUNK_BYTES_MAX", 1000)
    write(made, [{"value": b"v" * 100} for _ in range(900)], topic="bounded", cut=9)
    assert len(waiting) > 50


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({}, "Option bootstrap is missing"),
        ({"bootstrap": "b", "store": "s"}, "Option store is for reading alone"),
        ({"bootstrap": "b", "startingoffsets": "s"}, "Option startingOffsets is for reading alone"),
        ({"bootstrap": "b", "acks": "1"}, "no option 'acks' of a write; there are: bootstrap, topic"),
        ({"bootstrap": "b", "path": "/x"}, "A topic has no path"),
        ({"bootstrap": "b", "topic": "a,b"}, "Option topic must name one topic, not 'a,b'"),
        ({"bootstrap": "b", "compression": "lzo"}, "must be one of none, gzip, snappy, lz4, zstd, not 'lzo'"),
        ({"bootstrap": "b", "batchBytes": "0"}, "Option batchBytes must be a positive number of bytes"),
        ({"bootstrap": "b", "queryId": "q"}, "Option queryId needs includeIdentity=true"),
        ({"bootstrap": "b", "queryId": "q q", "includeIdentity": "true"}, "letters without spaces"),
    ],
)
def test_options_that_cannot_be_are_refused_by_name(options: dict[str, str], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        parse_write_options(options, streaming=False)


@pytest.mark.parametrize(
    ("columns", "words"),
    [
        ([("key", "binary")], "Column value is missing"),
        ([("value", "binary")], "No topic is named"),
        ([("value", "bigint"), ("topic", "string")], "Column value must be binary or string, not bigint: cast it"),
        ([("value", "string"), ("partition", "bigint")], "Column partition must be int, not bigint"),
        ([("value", "string"), ("timestamp", "timestamp_ntz")], "Column timestamp must be timestamp"),
        ([("value", "string"), ("headers", "map<string,string>")], "Column headers must be array<struct<"),
        ([("value", "string"), ("price", "double")], r"Column price cannot be written: .* to_json"),
        ([("value", "string"), ("value", "string")], "Column value is there twice"),
    ],
)
def test_columns_that_cannot_be_are_refused_by_name(columns: list[tuple[str, str]], words: str) -> None:
    options = parse_write_options({"bootstrap": "b"}, streaming=False)
    with pytest.raises(UsageError, match=words):
        check_columns(columns, options)


def test_what_a_reader_has_besides_is_left_out() -> None:
    options = parse_write_options({"bootstrap": "b", "queryName": "n", "checkpointLocation": "c"}, streaming=True)
    columns = [("value", "binary"), ("topic", "string"), ("offset", "bigint"), ("timestampType", "int")]
    check_columns(columns, options)
    with pytest.raises(UsageError, match=r"queryId is for df.write alone"):
        parse_write_options({"bootstrap": "b", "queryId": "q", "includeIdentity": "true"}, streaming=True)
