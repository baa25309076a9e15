"""``df.write`` and ``df.writeStream`` in Spark, read back by librdkafka.

The tests cover the written records, refusals at planning, and the leftovers of a task that died and was run again.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException

from headrace.net.client.cluster import Cluster
from headrace.net.client.two_phase import TwoPhase
from headrace.spark.brokers import Brokers
from headrace.spark.write.exactly.driving import open_of
from headrace.spark.write.exactly.ledger import Ledger
from headrace.spark.write.exactly.names import Abandoned
from headrace.wire.batches import encode_batch
from headrace.wire.records import Record
from tests.spark.world import World, consumed, read, world

pytestmark = pytest.mark.timeout(180)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    two_phase = {"transaction.two.phase.commit.enable": "true"}
    with world(tmp_path_factory.mktemp("world"), **two_phase) as running:
        yield running


@pytest.fixture(autouse=True)
def active(spark: Any) -> None:
    """Spark looks for a writer in the active session of the JVM's thread, which forgets it once Python has come by
    another connection."""
    spark._jvm.SparkSession.setActiveSession(spark._jsparkSession)


def writer(made: World, frame: Any, topic: str, **options: str) -> Any:
    chosen = {"bootstrap": made.bootstrap, "topic": topic, **options}
    return frame.write.format("headrace").options(**chosen).mode("append")


ROWS = (
    "cast(id as string) as key",
    "if(id % 5 = 0, null, repeat('v', int(id))) as value",
    "timestamp_millis(1700000000000 + id) as timestamp",
    "if(id % 2 = 0, null, array(struct('h' as key, cast('x' as binary) as value))) as headers",
)


def test_a_frame_is_written_by_tasks_of_which_some_are_empty(made: World, spark: Any) -> None:
    made.create("t", 4)
    frame = spark.range(0, 500, 1, 3).where("id < 340").selectExpr(*ROWS)
    writer(made, frame, "t", compression="zstd").save()
    found = consumed(made.bootstrap, ["t"])
    expected = [
        (
            1_700_000_000_000 + at,
            b"%d" % at,
            None if at % 5 == 0 else b"v" * at,
            () if at % 2 == 0 else (("h", b"x"),),
        )
        for at in range(340)
    ]
    assert sorted((row[3], *row[5:]) for row in found) == expected
    writer(made, frame.where("false"), "t").save()
    assert consumed(made.bootstrap, ["t"]) == found


def test_what_cannot_be_is_told_when_the_write_is_planned(made: World, spark: Any) -> None:
    made.create("planned", 1)
    frame = spark.range(1).selectExpr("cast(id as string) as value")
    refused = {
        "Topic 'nowhere' does not exist": writer(made, frame, "nowhere"),
        "Column price cannot be written": writer(made, frame.selectExpr("value", "1 as price"), "planned"),
        "A topic is only appended to": writer(made, frame, "planned").mode("overwrite"),
    }
    for words, refusing in refused.items():
        with pytest.raises(PySparkException, match=words):
            refusing.save()
    for mode in ("error", "ignore"):
        with pytest.raises(PySparkException, match=r"(?i)append"):
            writer(made, frame, "planned").mode(mode).save()
    assert consumed(made.bootstrap, ["planned"]) == []


def test_a_row_that_is_refused_stops_the_job_by_name(made: World, spark: Any) -> None:
    made.create("keyed", 1, cleanup_policy="compact")
    frame = spark.range(1).selectExpr("cast(id as string) as value")
    with pytest.raises(PySparkException, match=r"Topic 'keyed', partition 0 cannot be written to: .*without a key\."):
        writer(made, frame, "keyed").save()


def test_a_stream_that_dies_writes_at_least_once_and_is_read_once(made: World, spark: Any, tmp_path: Path) -> None:
    """The last task of a batch dies, when others have written; the query starts again from its checkpoint. A stream
    reads its records, too, in micro-batches."""
    made.create("source", 1, durable_enable="false")
    made.create("sink", 2)
    made.produce("source", [(0, encode_batch([Record(at, 0, None, b"%d" % at) for at in range(100)]))])
    source = (
        spark.readStream.format("headrace")
        .options(**made.options("source", startingOffsets="earliest", minPartitions="3"))
        .load()
        .selectExpr("string(value) as value")
    )

    def run(value: str) -> None:
        query = (
            source.selectExpr(value)
            .writeStream.format("headrace")
            .options(bootstrap=made.bootstrap, topic="sink", includeIdentity="true", batchBytes="200")
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
        )
        query.start().awaitTermination(120)

    with pytest.raises(PySparkException, match="the last task dies"):
        run("if(value = '95', raise_error('the last task dies'), value) as value")
    run("value")
    found = consumed(made.bootstrap, ["sink"])
    assert len(found) > 100
    assert {row[6] for row in found} == {b"%d" % at for at in range(100)}
    own = [dict(row[7]) for row in found]
    assert {each["headrace.batch"] for each in own} == {b"0"}
    assert len({each["headrace.query"] for each in own}) == 1
    once = read(made.options("sink", dropRepeats="true"))
    assert sorted(row[6] or b"" for row in once) == sorted(b"%d" % at for at in range(100))
    assert len({(dict(row[7])["headrace.batch"], dict(row[7])["headrace.task"]) for row in once}) == 100
    options = made.options("sink", startingOffsets="earliest", dropRepeats="true", maxRecordsPerTrigger="90")
    stream = spark.readStream.format("headrace").options(**options).load().selectExpr("string(value) as value")
    stream.writeStream.format("memory").queryName("once").trigger(availableNow=True).start().awaitTermination(120)
    assert Counter(row.value for row in spark.table("once").collect()) == {str(at): 1 for at in range(100)}


def test_a_batch_written_again_under_its_name_is_read_once(made: World, spark: Any) -> None:
    made.create("named", 3)
    frame = spark.range(0, 300, 1, 2).selectExpr("string(id) as value", "if(id % 3 = 0, string(id), null) as key")
    for _ in range(2):
        writer(made, frame, "named", includeIdentity="true", queryId="load-7").save()
    writer(made, frame, "named", includeIdentity="true").save()
    found = consumed(made.bootstrap, ["named"])
    assert Counter(dict(row[7])["headrace.query"] == b"load-7" for row in found) == {True: 600, False: 300}
    frame = spark.read.format("headrace").options(**made.options("named", dropRepeats="true")).load()
    assert Counter(row.value for row in frame.selectExpr("string(value) as value").collect()) == {
        str(at): 2 for at in range(300)
    }


EXACTLY_ONCE = {"delivery": "exactly-once"}


async def last_decision(cluster: Cluster, query: str) -> tuple[set[str], set[str]]:
    """The transactions that the ledger names, and those of them that their coordinators know to be committed."""
    below = await Ledger(cluster, query).claim(Abandoned(99, "0"))
    assert below.newest is not None
    winners = {each.name for each in below.newest.winners}
    known = await TwoPhase(cluster).describe(winners)
    return winners, {name for name, each in known.items() if each.is_committed}


def test_a_frame_is_written_exactly_once_though_a_task_fails(made: World, spark: Any) -> None:
    made.create("exact", 2, durable_enable="false")
    frame = spark.range(0, 300, 1, 3).selectExpr("string(id) as value")
    writer(made, frame, "exact", queryId="load-1", **EXACTLY_ONCE).save()
    died = frame.selectExpr("if(value = '299', raise_error('the last task dies'), value) as value")
    with pytest.raises(PySparkException, match="the last task dies"):
        writer(made, died, "exact", queryId="load-2", **EXACTLY_ONCE).save()
    once = Counter(row[6] for row in consumed(made.bootstrap, ["exact"]))
    assert once == {b"%d" % at: 1 for at in range(300)}
    for _ in range(2):  # the second one is known for a repeat
        writer(made, frame, "exact", queryId="load-2", **EXACTLY_ONCE).save()
    twice = Counter(row[6] for row in consumed(made.bootstrap, ["exact"]))
    assert twice == {b"%d" % at: 2 for at in range(300)}


def test_a_stream_that_dies_is_written_exactly_once(made: World, spark: Any, tmp_path: Path) -> None:
    """The last task of a batch dies, and the query starts again from its checkpoint; then there is one more batch."""
    made.create("exact-sink", 2)
    (tmp_path / "in").mkdir()

    def run(number: int, value: str) -> None:
        (tmp_path / "in" / f"{number}.txt").write_text("\n".join(str(number * 50 + at) for at in range(50)))
        query = (
            spark.readStream.text(str(tmp_path / "in"))
            .selectExpr(value)
            .writeStream.format("headrace")
            .options(bootstrap=made.bootstrap, topic="exact-sink", **EXACTLY_ONCE)
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
        )
        query.start().awaitTermination(120)

    with pytest.raises(PySparkException, match="it dies"):
        run(0, "if(value = '49', raise_error('it dies'), value) as value")
    query = json.loads((tmp_path / "checkpoint" / "metadata").read_text())["id"]
    with Brokers(made.bootstrap) as brokers:
        assert brokers.ask(lambda cluster: open_of(cluster, query=query)) == [], "nobody waits for what was given up"
        for number in (1, 2):
            run(number, "value")
            winners, committed = brokers.ask(lambda cluster: last_decision(cluster, query))
            assert winners == committed, "another driver finds them"
    found = Counter(row[6] for row in consumed(made.bootstrap, ["exact-sink"]))
    assert found == {b"%d" % at: 1 for at in range(150)}


@pytest.mark.parametrize("mode", ["append", "complete"])
def test_a_stream_only_appends(made: World, spark: Any, tmp_path: Path, mode: str) -> None:
    made.create(f"mode-{mode}", 1)
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.txt").write_text("a\nb\na\n")
    frame = spark.readStream.text(str(tmp_path / "in"))
    if mode == "complete":
        frame = frame.groupBy("value").count().selectExpr("value", "string(count) as key")
    query = (
        frame.writeStream.format("headrace")
        .options(bootstrap=made.bootstrap, topic=f"mode-{mode}", checkpointLocation=str(tmp_path / "checkpoint"))
        .outputMode(mode)
        .queryName(f"only-{mode}")
        .trigger(availableNow=True)
        .start()
    )
    if mode == "complete":
        with pytest.raises(PySparkException, match="A topic is only appended to"):
            query.awaitTermination(120)
    else:
        query.awaitTermination(120)
        assert [row[6] for row in consumed(made.bootstrap, ["mode-append"])] == [b"a", b"b", b"a"]
