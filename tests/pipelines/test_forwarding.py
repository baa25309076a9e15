"""One task of a replay: rows numbered and placed by their records, and a portion that several runs write together."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pyarrow as pa
import pyspark
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.base.errors import UsageError
from headrace.base.limits import REPLAY_ROWS_MAX
from headrace.net.client.partitioner import partition_of
from headrace.spark.brokers import Brokers
from headrace.spark.pipelines.replays import forwarding
from headrace.spark.pipelines.replays.forwarding import Forward, Rows, Sent, forwarded, recall, send
from headrace.spark.pipelines.replays.log import ConcurrentReplay, Origin, Portion, Replayed, ReplayLog, key_of
from headrace.spark.pipelines.replays.pacing import Pace
from headrace.spark.pipelines.replays.recalling import Recalled
from headrace.spark.pipelines.replays.turns import TriedAgainError, Turn
from headrace.spark.read.columns import HEADERS_TYPE
from headrace.spark.write import rows as spark_rows
from headrace.spark.write.rows import POSITION
from headrace.spark.write.sink import parse_write_options
from headrace.spark.write.writing import Producer, Target, find_target
from headrace.storage.objects import open_objects
from tests.spark.test_packing import SCHEMA
from tests.spark.world import TIME, World, consumed, read, world
from tests.tiers import of_tier

MANY = REPLAY_ROWS_MAX
SENT = pa.schema([pa.field("offset", pa.int64()), *(SCHEMA.field(n) for n in ("key", "value", "timestamp", "headers"))])


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with world(tmp_path_factory.mktemp("world")) as running:
        yield running
        Producer.forget()


def forward_of(target: Target, bootstrap: str = "nowhere:1", *, origins: Sequence[Origin], **more: Any) -> Forward:
    portion = Portion(
        number=3,
        origins=tuple(origins),
        end={},
        partitions=target.partitions,
        target_ends=dict.fromkeys(range(target.partitions), 0),
    )
    options = {"bootstrap": bootstrap, "topic": target.topic, "includeIdentity": "true", "batchBytes": "300"}
    turn = Turn("/nowhere", "n", 1)
    known: dict[str, Any] = {"is_compacted": False, "keeps_partitions": False, "query": "q", "known": {}, "turn": turn}
    return Forward(options=parse_write_options(options, streaming=True), target=target, portion=portion, **known | more)


TARGET = Target("t", None, 4, 1_000_000)  # type: ignore[arg-type]
ORIGIN = Origin("s", 6, 100, 200)


def batches_of(found: Sequence[tuple[int, bytes | None]], cuts: Sequence[int] = ()) -> list[Any]:
    schema = pa.schema([("offset", pa.int64()), ("key", pa.binary()), ("value", pa.binary())])
    whole = pa.RecordBatch.from_pylist([{"offset": at, "key": key, "value": b""} for at, key in found], schema)
    ends = [0, *sorted(min(cut, len(found)) for cut in cuts), len(found)]
    return [whole.slice(low, high - low) for low, high in pairwise(ends)]


@given(
    offsets=st.lists(st.integers(100, 199), max_size=30).map(sorted),
    cuts=st.lists(st.integers(0, 30), max_size=5),
    known=st.sets(st.tuples(st.integers(0, 99), st.integers(0, 3))),
    keeps=st.booleans(),
)
def test_a_row_has_the_number_of_its_record_however_it_comes(
    offsets: list[int], cuts: list[int], known: set[tuple[int, int]], keeps: bool
) -> None:
    there = Recalled(np.array(sorted(at * MANY + which for at, which in known), np.int64), {}, {})
    rows = Rows(forward_of(TARGET, origins=[ORIGIN], keeps_partitions=keeps), ORIGIN, there)
    given = [(at, None if at % 2 else b"k") for at in offsets]
    found = [row for batch in rows.of(batches_of(given, cuts)) for row in batch.to_pylist()]
    wanted = []
    for place, at in enumerate(offsets):
        which = place - offsets.index(at)
        if (at - 100, which) not in known:
            own = 6 if keeps else 6 % 4 if at % 2 else None
            wanted.append((own, (at - 100) * MANY + which))
    assert [(row["partition"], row[POSITION]) for row in found] == wanted
    assert rows.repeated == len(offsets) - len(wanted)


@pytest.mark.parametrize(
    "batch",
    [
        {"offset": [99]},
        {"offset": [200]},
        {"offset": [150, 149]},
        {"offset": [150, None]},
        {"offset": [150], "partition": [5]},
        {"offset": [150], "topic": ["other"]},
        {"offset": [150, 151], "topic": ["s", None]},
        {"offset": [150, 151], "partition": [None, 6]},
        {"offset": [150], "topic": pa.array([None], pa.string())},
    ],
)
def test_rows_of_others_or_out_of_order_are_refused(batch: dict[str, Any]) -> None:
    rows = Rows(forward_of(TARGET, origins=[ORIGIN]), ORIGIN, None)
    with pytest.raises(UsageError, match="not of topic 's', partition 6, or comes in another order"):
        list(rows.of([pa.RecordBatch.from_pydict({"value": [b""] * len(batch["offset"]), **batch})]))
    with pytest.raises(UsageError, match="not of any partition that this task replays"):
        send(forward_of(TARGET, origins=[ORIGIN]), 1, None, batches_of([(150, None)]))
    assert send(forward_of(TARGET, origins=[ORIGIN]), 1, None, batches_of([])) == Sent(0, 0, 0)


def test_order_is_kept_from_batch_to_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = Rows(forward_of(TARGET, origins=[ORIGIN]), ORIGIN, None)
    with pytest.raises(UsageError, match="another order"):
        list(rows.of(batches_of([(150, None), (120, None)], [1])))
    monkeypatch.setattr(forwarding, "REPLAY_ROWS_MAX", 3)
    rows = Rows(forward_of(TARGET, origins=[ORIGIN]), ORIGIN, None)
    with pytest.raises(UsageError, match="Of the record at offset 150 the function makes more than 3 rows"):
        list(rows.of(batches_of([(150, None)] * 4, [2])))


def test_of_a_compacted_target_what_is_older_than_its_newest_is_there() -> None:
    known = Recalled(np.array([4 * MANY], np.int64), {b"a": 4 * MANY}, {})
    rows = Rows(forward_of(TARGET, origins=[ORIGIN], is_compacted=True), ORIGIN, known)
    given = [(101, b"a"), (102, b"b"), (103, None), (104, b"a"), (105, b"a")]
    (found,) = rows.of(batches_of(given))
    assert [number // MANY for number in found.column(POSITION).to_pylist()] == [2, 3, 5]


def table(random: Random, count: int) -> list[dict[str, Any]]:
    return [
        {
            "offset": 1_000 + at,
            "key": random.choice([None, b"%d" % random.randrange(5)]),
            "value": b"%d" % at,
            "timestamp": (TIME + random.randrange(1_000)) * 1_000,
            "headers": [],
        }
        for at in range(count)
    ]


def killed_at(given: Sequence[dict[str, Any]], until: int) -> Iterator[Any]:
    """Batches of five; where they end before `given`, the task does."""
    for at in range(0, len(given), 5):
        if at >= until:
            raise ConnectionError("it is killed")
        yield pa.RecordBatch.from_pylist(given[at : at + 5], SENT)


@pytest.mark.parametrize("seed", range(of_tier(short=2, long=40)))
def test_runs_that_die_write_a_portion_together(made: World, monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    """Each run knows what is there, and dies at a random row; the source is compacted in between."""
    monkeypatch.setattr(spark_rows, "SPARK_CHUNK_BYTES_MAX", 400)
    random, topic = Random(seed), f"together{seed}"
    made.create(topic, 3, retention_ms="-1")
    origin, given = Origin("s", 1, 1_000, 1_100), table(random, 100)
    with Brokers(made.bootstrap) as brokers:
        work = forward_of(find_target(brokers, topic), made.bootstrap, origins=[Origin("s", 0, 0, 5), origin])

    def run(until: int) -> Sent:
        return send(work, 1, recall(work).get(1), killed_at(given, until))

    others = (replace(work, query="other"), replace(work, portion=replace(work.portion, number=2)))
    for other in others:  # of which nothing is this portion's
        written = [{**row, "value": b"of another"} for row in given[:20]]
        send(other, 1, None, [pa.RecordBatch.from_pylist(written, SENT)])
    for until in (30, 15, 60):
        with pytest.raises(ConnectionError):
            run(min(until, (len(given) - 1) // 5 * 5))  # so many are left in every seed
        newest = {row["key"]: row["offset"] for row in given}
        gone = [row for row in given if row["key"] is not None and newest[row["key"]] > row["offset"]]
        given = [row for row in given if row not in random.sample(gone, len(gone) // 2)]
    sent = run(1_000)
    assert sent.repeated > 0
    found = [row for row in consumed(made.bootstrap, [topic]) if row[6] != b"of another"]
    by_place: dict[int, list[int]] = {}
    for row in found:
        by_place.setdefault(row[1], []).append(int(row[6] or b""))
    assert all(values == sorted(set(values)) for values in by_place.values()), "in order, and each once"
    for left in given:
        place = 1 if left["key"] is None else partition_of(left["key"], 3)
        assert int(left["value"]) in by_place[place]
    monkeypatch.setattr(forwarding, "recalled", lambda *_, **__: {})  # a worker that is late, and knows of nothing
    assert run(1_000).repeated == 0
    twice = consumed(made.bootstrap, [topic])
    assert len(twice) == len(found) + 40 + len(given)
    once = read({"bootstrap": made.bootstrap, "topic": topic, "includeHeaders": "true", "dropRepeats": "true"})
    assert [row for row in once if row[6] != b"of another"] == found


class Tried:
    """A task attempt, as Spark describes it to a task."""

    def __init__(self, attempt: int) -> None:
        self._attempt = attempt

    def partitionId(self) -> int:  # noqa: N802 - Spark's name
        return 1

    def attemptNumber(self) -> int:  # noqa: N802 - Spark's name
        return self._attempt


def test_a_task_that_is_tried_again_looks_what_is_there(
    made: World, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    made.create("again", 2, retention_ms="-1")
    with Brokers(made.bootstrap) as brokers:
        origins, turn = [ORIGIN, Origin("s", 1, 1_000, 1_100)], Turn.at(str(tmp_path), "n", 1)
        work = forward_of(find_target(brokers, "again"), made.bootstrap, origins=origins, turn=turn)
    open_objects(str(tmp_path)).put(key_of(1), b"{}")
    rows = [pa.RecordBatch.from_pylist(table(Random(7), 40), SENT)]
    sent = []
    for attempt in (0, 1):
        monkeypatch.setattr(pyspark.TaskContext, "get", lambda attempt=attempt: Tried(attempt))
        for number in (None, 1):
            sent += [found for batch in forwarded(work, number, iter(rows)) for found in batch.to_pylist()]
    assert [(each["records"], each["repeated"]) for each in sent] == [(40, 0), (40, 0), (0, 40), (0, 40)]
    anew = replace(work, options=replace(work.options, include_identity=False))
    assert recall(anew) == {}
    made.delete("again")
    made.create("again", 2)
    with pytest.raises(UsageError, match="Topic 'again' was made anew"):
        recall(work)


@pytest.mark.parametrize("how", ["another run", "another try"])
def test_whose_turn_is_over_sends_no_further_chunk(
    made: World, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, how: str
) -> None:
    monkeypatch.setattr(spark_rows, "SPARK_CHUNK_BYTES_MAX", 400)
    topic, turn = how.replace(" ", "-"), Turn.at(str(tmp_path), "n", 1)
    made.create(topic, 2, retention_ms="-1")
    with Brokers(made.bootstrap) as brokers:
        origins = [ORIGIN, Origin("s", 1, 1_000, 1_100)]
        work = forward_of(find_target(brokers, topic), made.bootstrap, origins=origins, turn=turn)
    given = table(Random(5), 100)
    objects = open_objects(str(tmp_path))
    objects.put(key_of(1), b"{}")

    def rows() -> Iterator[Any]:
        yield from (pa.RecordBatch.from_pylist(given[at : at + 5], SENT) for at in range(0, 50, 5))
        if how == "another run":
            objects.put(key_of(2), b"{}")
        else:
            turn.taken(1, 1)
        yield from (pa.RecordBatch.from_pylist(given[at : at + 5], SENT) for at in range(50, 100, 5))

    words = (
        r"Another run of pipeline 'n' .* \(its object 2\)|is being tried again \(attempt 1\), so that attempt 0 stops"
    )
    with pytest.raises((ConcurrentReplay, TriedAgainError), match=words):
        send(work, 1, None, rows(), turn.taken(1, 0))
    values = {int(row[6] or b"") for row in consumed(made.bootstrap, [topic])}
    assert values, "what came before"
    assert max(values) < 50
    if how == "another try":
        turn.taken(1, 1)()
        turn.taken(0, 0)()
        objects.put(key_of(2), b"{}")
        turn._replace(version=2).taken(1, 0)()
        unseen = turn._replace(checkpoint=str(tmp_path / "elsewhere"))
        unseen.taken(1, 1)()
        assert not (tmp_path / "elsewhere").exists(), "a checkpoint that this machine does not see is not made"


def test_a_target_that_ends_below_where_it_was_planned_is_looked_through(made: World) -> None:
    """As an unclean election leaves it."""
    made.create("shorter", 2, retention_ms="-1")
    with Brokers(made.bootstrap) as brokers:
        work = forward_of(
            find_target(brokers, "shorter"), made.bootstrap, origins=[ORIGIN, Origin("s", 1, 1_000, 1_100)]
        )
    work = replace(work, portion=replace(work.portion, target_ends={0: 1_000, 1: 0}))
    send(work, 1, None, killed_at(table(Random(6), 60), 60))
    there = [row for row in consumed(made.bootstrap, ["shorter"]) if row[1] == 1]
    assert 0 < len(there) < 60
    assert len(recall(work)[1].numbers) == len(there)


def test_nothing_comes_behind_what_followed_it_where_the_target_has_deleted_it(
    made: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between two runs, half of what the first one wrote to one partition, and all of it in another."""
    monkeypatch.setattr(spark_rows, "SPARK_CHUNK_BYTES_MAX", 400)
    made.create("cut", 3, retention_ms="-1", durable_enable="false")
    with Brokers(made.bootstrap) as brokers:
        work = forward_of(find_target(brokers, "cut"), made.bootstrap, origins=[ORIGIN, Origin("s", 1, 1_000, 1_100)])
    given = table(Random(3), 100)
    send(work, 1, None, killed_at(given[:60], 60))
    before = consumed(made.bootstrap, ["cut"])
    counts = [sum(row[1] == partition for row in before) for partition in range(3)]
    assert min(counts) > 3
    made.delete_records("cut", counts[0] // 2, counts[1], 0)
    sent = send(work, 1, recall(work).get(1), killed_at(given, 100))
    assert sent.repeated == counts[0] + counts[2]
    found = read({"bootstrap": made.bootstrap, "topic": "cut", "includeHeaders": "true"})
    values: dict[int, list[int]] = {partition: [] for partition in range(3)}
    for row in found:
        values[row[1]].append(int(row[6] or b""))
    wanted: dict[int, list[int]] = {partition: [] for partition in range(3)}
    for each in given:
        wanted[1 if each["key"] is None else partition_of(each["key"], 3)].append(int(each["value"]))
    wanted[0] = wanted[0][counts[0] // 2 :]
    assert values == wanted


@pytest.mark.parametrize(
    ("column", "words"),
    [
        ({"timestamp": [1, -5_000_000]}, "before 1970"),
        (
            {"headers": pa.array([[], [{"key": "h", "value": None}] * 3], HEADERS_TYPE)},
            "too many headers, of which a record has 5 at most, 3 of",
        ),
    ],
)
def test_a_record_that_cannot_be_written_is_named(
    made: World, monkeypatch: pytest.MonkeyPatch, column: dict[str, Any], words: str
) -> None:
    monkeypatch.setattr(spark_rows, "RECORD_HEADERS_MAX", 5)
    topic = f"named-{min(column)}"
    made.create(topic, 1, cleanup_policy="compact")
    with Brokers(made.bootstrap) as brokers:
        target = find_target(brokers, topic)
    batch = pa.RecordBatch.from_pydict({"offset": [107, 108], "value": [b"", b""], **column})
    with pytest.raises(UsageError, match=rf"The record at offset 108 of topic 's', partition 6 cannot .* {words}"):
        send(forward_of(target, made.bootstrap, origins=[ORIGIN]), 0, None, [batch])


def test_a_pace_is_held_and_not_made_up_for() -> None:
    pace, now, written = Pace(100.0, 1_000.0), 5.0, 0
    assert (pace.records_max(5_000), pace.bytes_max(None), pace.bytes_max(10)) == (100, 1_000, 10)
    assert (Pace(None, None).records_max(5), Pace(None, None).bytes_max(None)) == (5, None)
    assert Pace(0.1, None).records_max(50) == 1
    for count, size in ((100, 10), (10, 1_000), (50, 500), (7, 0)):
        now += pace.wait_s(now)
        assert written <= 100 * (now - 5.0) + 1e-9
        pace.wrote(now, count, size)
        written += count
    assert now == pytest.approx(5.0 + 1.0 + 1.0 + 0.5), "whichever takes longer"
    now += 1_000
    assert pace.wait_s(now) == 0
    pace.wrote(now, 100, 0)
    assert pace.wait_s(now + 0.25) == pytest.approx(0.75), "nothing is left of the time before"


def begun(log: ReplayLog, run: str) -> Replayed:
    state = Replayed(version=0, name="n", query="q", target="t", target_id="i", next={"s": {"id": "x", "0": 5}})
    return log.begin(state, run)


def test_a_log_says_what_is_under_way(tmp_path: Path) -> None:
    log = ReplayLog(open_objects(str(tmp_path)))
    assert log.state() is None
    state = begun(log, "one")
    assert log.state() == state
    end = {"s": {"id": "x", "0": 9, "from": {"0": 5}}}
    portion = Portion(number=0, origins=(Origin("s", 0, 5, 9),), end=end, partitions=2, target_ends={0: 3, 1: 0})
    state = log.plan(state, portion, "one")
    found = log.state()
    assert found == state
    assert found is not None
    assert found.pending == portion
    with pytest.raises(ConcurrentReplay, match=r"pipeline 'n' went on from this checkpoint meanwhile \(its object 1\)"):
        log.plan(begun(log, "one"), portion, "two")
    log.plan(begun(log, "one"), portion, "one")  # the answer to a put was lost
    with pytest.raises(ConcurrentReplay, match=r"\(its object 1\)"):
        log.check("n", 0)
    log.check("n", 1)
    taken = log.take(state, "two")
    assert taken == replace(state, version=2)
    assert log.state() == taken
    with pytest.raises(ConcurrentReplay, match=r"\(its object 2\)"):
        log.check("n", 1)
    with pytest.raises(ConcurrentReplay, match=r"\(its object 2\)"):
        log.done(state, "one", 4)
    done = log.done(taken, "two", 4)
    assert log.state() == done
    assert (done.number, done.pending, done.next) == (0, None, {"s": {"id": "x", "0": 9}})
