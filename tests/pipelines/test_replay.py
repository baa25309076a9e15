"""A replay: what is in the target is what the function makes of the source, in order, whoever went on with it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from threading import Event
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import functions as f

from headrace.base.errors import CorruptData, UsageError
from headrace.net.client.cluster import UnknownTopicError
from headrace.net.client.two_phase import TwoPhase
from headrace.spark.pipelines import __main__ as pipelines_main
from headrace.spark.pipelines import planned_replay, replay
from headrace.spark.pipelines.replays import replaying
from headrace.spark.pipelines.replays.log import REPLAYED, ConcurrentReplay, ReplayLog
from headrace.spark.pipelines.replays.replaying import Sum
from headrace.spark.pipelines.spec import Replay, parse
from headrace.spark.write.exactly.ledger import Ledger
from headrace.storage.objects import open_objects
from tests.pipelines.replayed import fill, law, once, parts, repeats
from tests.spark.world import TIME, Row, World, consumed, world

pytestmark = pytest.mark.timeout(180)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    two_phase = {"transaction.two.phase.commit.enable": "true"}
    with world(tmp_path_factory.mktemp("world"), **two_phase) as running:
        yield running


class Runner:
    """Replays into a topic of its own."""

    def __init__(self, made: World, spark: Any, checkpoint: Path, source: str, target: str) -> None:
        self.made, self.spark, self.checkpoint, self.source, self.target = made, spark, checkpoint, source, target

    def spec(self, *, source: Any = None, target: Any = None, function: str | None = None, **run: Any) -> Replay:
        found = parse(
            {
                "pipeline": "replay",
                "name": "again",
                "source": {
                    "store": self.made.store,
                    "bootstrap": self.made.bootstrap,
                    "topic": self.source,
                    **(source or {}),
                },
                "target": {"bootstrap": self.made.bootstrap, "topic": self.target, **(target or {})},
                "transform": {} if function is None else {"function": f"tests.pipelines.test_replay:{function}"},
                "run": {"checkpoint": str(self.checkpoint), **run},
            }
        )
        assert isinstance(found, Replay)
        return found

    def run(self, **wanted: Any) -> Sum:
        return replay(lambda: self.spark, self.spec(**wanted))


def test_a_replay_keeps_all_of_a_record(made: World, spark: Any, tmp_path: Path) -> None:
    made.create("s1", 3, segment_bytes="4096")
    made.create("t1", 4, retention_ms="-1")
    fill(made, "s1", 3, 40)
    runner = Runner(made, spark, tmp_path, "s1", "t1")
    plan = planned_replay(runner.spec())
    source = consumed(made.bootstrap, ["s1"])
    assert sum(each.end - each.start for each in plan) == len(source)
    assert not (tmp_path / REPLAYED).exists(), "a plan writes nothing"
    done = runner.run(source={"maxRecordsPerTrigger": 50})
    assert (done.records, done.repeated) == (len(source), 0)
    assert done.portions >= len(source) // 50
    target = consumed(made.bootstrap, ["t1"])
    law(target, source, 4)
    assert runner.run() == Sum()
    fill(made, "s1", 3, 10, seed=2)
    runner.run()
    law(consumed(made.bootstrap, ["t1"]), consumed(made.bootstrap, ["s1"]), 4)


def doubled(frame: Any) -> Any:
    """Of every record with a value two, the latter of another key; others are left out."""
    twice = frame.where("value is not null").withColumn("copy", f.explode(f.array(f.lit(0), f.lit(1))))
    return twice.withColumn("key", f.expr("if(copy = 0, key, cast('other' as binary))")).drop("copy", "timestampType")


def doubled_row(row: Row) -> list[Row]:
    return [] if row[6] is None else [row, (*row[:5], b"other", *row[6:])]


def shuffled(frame: Any) -> Any:
    return frame.repartition(2)


def sorted_down(frame: Any) -> Any:
    return frame.sortWithinPartitions("offset", ascending=False)


def valued(frame: Any) -> Any:
    return frame.select("key", "value")


def priced(frame: Any) -> Any:
    return frame.withColumn("price", f.lit(1))


def test_a_function_makes_more_or_fewer_of_records(made: World, spark: Any, tmp_path: Path) -> None:
    made.create("s2", 3)
    made.create("t2", 2, retention_ms="-1")
    fill(made, "s2", 3, 30)
    runner = Runner(made, spark, tmp_path, "s2", "t2")
    runner.run(function="doubled", source={"maxRecordsPerTrigger": 80}, target={"identity": False})
    law(consumed(made.bootstrap, ["t2"]), consumed(made.bootstrap, ["s2"]), 2, doubled_row)


@pytest.mark.parametrize(
    ("function", "words"),
    [
        ("shuffled", "neither shuffle, sort nor repartition"),
        ("sorted_down", "comes in another order"),
        ("valued", "have no column 'topic': a function has to keep topic, partition, offset"),
        ("priced", "Column price cannot be written"),
        ("nothing", r"Function '.*:nothing' of section \[transform\] cannot be imported"),
    ],
)
def test_a_function_that_would_lose_the_order_is_refused(
    made: World, spark: Any, tmp_path: Path, function: str, words: str
) -> None:
    source, target = f"s-{function}".replace("_", "-"), f"t-{function}".replace("_", "-")
    made.create(source, 2)
    made.create(target, 1)
    fill(made, source, 2, 20)
    with pytest.raises((UsageError, PySparkException), match=words):
        Runner(made, spark, tmp_path, source, target).run(function=function)
    assert consumed(made.bootstrap, [target]) == []


def test_partitions_are_kept_where_that_is_wanted(made: World, spark: Any, tmp_path: Path) -> None:
    made.create("s3", 3)
    made.create("t3", 3, retention_ms="-1")
    made.create("narrow", 2)
    fill(made, "s3", 3, 20)
    with pytest.raises(UsageError, match="topic 'narrow' needs 3 partitions, as the source has, and has 2"):
        Runner(made, spark, tmp_path, "s3", "narrow").run(target={"partition": "keep"})
    middle = TIME + 5_000
    Runner(made, spark, tmp_path, "s3", "t3").run(
        target={"partition": "keep", "compression": "zstd"}, source={"startingTimestamp": middle}
    )
    source = consumed(made.bootstrap, ["s3"])
    begun = {at: min(row[2] for row in source if row[1] == at and row[3] >= middle) for at in range(3)}
    later = [row for row in source if row[2] >= begun[row[1]]]
    assert 0 < len(later) < len(source)
    law(consumed(made.bootstrap, ["t3"]), later, 3, keep=True)


def test_a_source_that_grows_is_refused_until_its_target_has_as_many(made: World, spark: Any, tmp_path: Path) -> None:
    """Where partitions are kept, and while it runs."""
    made.create("s12", 2)
    made.create("t12", 2, retention_ms="-1")
    fill(made, "s12", 2, 10)
    runner, keep = Runner(made, spark, tmp_path, "s12", "t12"), {"partition": "keep"}
    grown = False

    def wait(seconds: float) -> bool:
        nonlocal grown
        if seconds == 7.5:
            assert not grown, "it is refused"
            grown = True
            made.widen("s12", 3)
            fill(made, "s12", 3, 9, seed=2)
        return False

    words = "topic 't12' needs 3 partitions, as the source has, and has 2"
    with pytest.raises(UsageError, match=words):
        replay(lambda: spark, runner.spec(target=keep, continuous=True, poll_seconds=7.5), wait=wait)
    state = ReplayLog(open_objects(str(tmp_path))).state()
    assert state is not None
    assert state.pending is None, "nothing is put down that cannot be written"
    made.widen("t12", 3)
    assert runner.run(target=keep).portions > 0
    law(consumed(made.bootstrap, ["t12"]), consumed(made.bootstrap, ["s12"]), 3, keep=True)


def test_what_was_planned_for_too_narrow_a_target_goes_on_once_that_is_wider(
    made: World, spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a version before this one may have put it down."""
    made.create("s13", 3)
    made.create("t13", 2, retention_ms="-1")
    fill(made, "s13", 3, 12)
    runner, keep = Runner(made, spark, tmp_path, "s13", "t13"), {"partition": "keep"}
    with monkeypatch.context() as patched:
        patched.setattr(replaying._Run, "_check_width", lambda *_: None)
        with pytest.raises(PySparkException, match="names partition 2, and topic 't13' has partitions 0 to 1"):
            runner.run(target=keep)
    with pytest.raises(UsageError, match="topic 't13' needs 3 partitions"):
        runner.run(target=keep)
    made.widen("t13", 3)
    assert runner.run(target=keep).portions == 1
    law(once(consumed(made.bootstrap, ["t13"])), consumed(made.bootstrap, ["s13"]), 3, keep=True)


class DiesError(Exception):
    """As a driver that is killed there."""


def _dies(*_: object) -> None:
    raise DiesError


def dying(frame: Any) -> Any:
    """The last partition's task fails."""
    return frame.withColumn("value", f.expr("if(partition = 1, raise_error('it dies'), value)"))


def test_whoever_goes_on_writes_each_record_exactly_once(
    made: World, spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A task fails; then the driver dies when all is prepared; then when it is decided, and nothing is committed."""
    made.create("s-once", 2)
    made.create("t-once", 2, retention_ms="-1")
    fill(made, "s-once", 2, 20)
    runner = Runner(made, spark, tmp_path, "s-once", "t-once")
    exactly = {"identity": False, "delivery": "exactly-once"}
    with pytest.raises(PySparkException, match="it dies"):
        runner.run(function="dying", target=exactly)
    for place, step in ((Ledger, "claim"), (TwoPhase, "commit_all")):
        with monkeypatch.context() as patched:
            patched.setattr(place, step, _dies)
            with pytest.raises(DiesError):
                runner.run(target=exactly)
        assert consumed(made.bootstrap, ["t-once"]) == []
    assert runner.run(target=exactly).portions == 1
    law(consumed(made.bootstrap, ["t-once"]), consumed(made.bootstrap, ["s-once"]), 2)
    assert runner.run(target=exactly) == Sum()


def test_whoever_goes_on_writes_what_is_not_there(
    made: World, spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """First one of two tasks fails; then the driver dies when all is written, and that is not put down yet."""
    made.create("s4", 2)
    made.create("t4", 3, retention_ms="-1")
    fill(made, "s4", 2, 40)
    runner = Runner(made, spark, tmp_path, "s4", "t4")
    source = consumed(made.bootstrap, ["s4"])
    first = [row for row in source if row[1] == 0]
    with pytest.raises(PySparkException, match="it dies"):
        runner.run(function="dying")
    before = consumed(made.bootstrap, ["t4"])
    found, wanted = parts(before, first, 3)
    assert all(rows == wanted[place][: len(rows)] for place, rows in found.items()), "as far as that one came"
    with monkeypatch.context() as patched:
        patched.setattr(ReplayLog, "done", _dies)
        with pytest.raises(DiesError):
            runner.run()
    there = consumed(made.bootstrap, ["t4"])
    law(once(there), source, 3)
    late = {dict(row[7])["at"] for row in first} - {dict(row[7])["at"] for row in before}
    assert {dict(row[7])["at"] for row in repeats(there)} <= late, (
        "of a task that went on when another's failure ended it"
    )
    assert planned_replay(runner.spec()), "it is not known to be done"
    assert runner.run() == Sum(portions=1, repeated=len(source))
    assert consumed(made.bootstrap, ["t4"]) == there, "of what is there nothing is written"
    assert runner.run() == Sum()


def test_of_two_runs_at_once_one_stops(
    made: World, spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made.create("s5", 1)
    made.create("t5", 1, retention_ms="-1")
    fill(made, "s5", 1, 20)
    runner = Runner(made, spark, tmp_path, "s5", "t5")
    done = ReplayLog.done

    def late(self: Any, *given: Any) -> Any:
        monkeypatch.setattr(ReplayLog, "done", done)
        assert runner.run().repeated > 0
        return done(self, *given)

    monkeypatch.setattr(ReplayLog, "done", late)
    with pytest.raises(ConcurrentReplay, match=r"Another run of pipeline 'again' went on .* \(its object 2\)"):
        runner.run()
    law(consumed(made.bootstrap, ["t5"]), consumed(made.bootstrap, ["s5"]), 1)


@pytest.mark.parametrize("how", ["done", "dead"])
def test_a_run_that_another_has_overtaken_writes_nothing(
    made: World, spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    """Between its plan and its first task; the other has put down that it is done, or dies before."""
    source, target = f"s11-{how}", f"t11-{how}"
    made.create(source, 1)
    made.create(target, 1, retention_ms="-1")
    fill(made, source, 1, 20)
    runner = Runner(made, spark, tmp_path, source, target)
    forward = replaying._Run.forward

    def late(self: Any) -> Any:
        with monkeypatch.context() as patched:
            patched.setattr(replaying._Run, "forward", forward)
            if how == "done":
                assert runner.run().records > 0
            else:
                patched.setattr(ReplayLog, "done", _dies)
                with pytest.raises(DiesError):
                    runner.run()
        return forward(self)

    monkeypatch.setattr(replaying._Run, "forward", late)
    with pytest.raises(ConcurrentReplay, match=r"Another run of pipeline 'again' went on .* \(its object 2\)"):
        runner.run()
    law(consumed(made.bootstrap, [target]), consumed(made.bootstrap, [source]), 1)


@pytest.mark.parametrize("which", ["source", "target"])
def test_a_topic_that_was_made_anew_is_refused(made: World, spark: Any, tmp_path: Path, which: str) -> None:
    def create(name: str) -> None:
        made.create(name, 1, retention_ms="-1")

    source_topic, target_topic = f"s6-{which}", f"t6-{which}"
    anew = source_topic if which == "source" else target_topic
    create(source_topic)
    create(target_topic)
    fill(made, source_topic, 1, 5)
    runner = Runner(made, spark, tmp_path, source_topic, target_topic)
    runner.run()
    made.delete(anew)
    create(anew)
    fill(made, anew, 1, 3, seed=9)
    before = consumed(made.bootstrap, [target_topic])
    for source in ({}, {"failOnDataLoss": False}):
        with pytest.raises(UsageError, match=f"Topic '{anew}' was made anew since this replay began"):
            runner.run(source=source)
        with pytest.raises(UsageError, match="made anew"):
            planned_replay(runner.spec(source=source))
    assert consumed(made.bootstrap, [target_topic]) == before


def test_what_cannot_be_is_told_in_one_sentence(made: World, spark: Any, tmp_path: Path) -> None:
    made.create("s7", 1)
    made.create("t7", 1)
    fill(made, "s7", 1, 3)
    runner = Runner(made, spark, tmp_path, "s7", "t7")
    with pytest.raises(UsageError, match="Topic 's7' cannot be replayed into itself"):
        runner.run(target={"topic": "s7"})
    with pytest.raises(UnknownTopicError, match="Topic 'nowhere' does not exist"):
        runner.run(target={"topic": "nowhere"})
    runner.run()
    made.create("t7-other", 1)
    with pytest.raises(UsageError, match=r"belongs to pipeline 'again' into topic 't7': give this one another"):
        runner.run(target={"topic": "t7-other"})
    (tmp_path / REPLAYED / f"{2:020d}.json").write_text('{"kind": "done"}')
    with pytest.raises(CorruptData, match=r"Object '_headrace_replay/0*2.json' is none of a replay"):
        runner.run()


def test_what_comes_is_replayed_until_it_is_stopped(made: World, spark: Any, tmp_path: Path) -> None:
    made.create("s8", 1)
    made.create("t8", 1, retention_ms="-1")
    fill(made, "s8", 1, 5)
    runner = Runner(made, spark, tmp_path, "s8", "t8")
    polls = iter((2, 3))

    def wait(seconds: float) -> bool:
        if seconds < 7.5:
            return False  # of the pace
        seed = next(polls, None)
        if seed is not None:
            fill(made, "s8", 1, 5, seed=seed)
        return seed is None

    done = replay(lambda: spark, runner.spec(continuous=True, poll_seconds=7.5), wait=wait)
    assert done.portions == 3
    law(consumed(made.bootstrap, ["t8"]), consumed(made.bootstrap, ["s8"]), 1)


def test_the_command_says_what_it_would_do_and_what_it_did(
    made: World, spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(pipelines_main, "session_of", lambda _: spark)
    monkeypatch.setattr(pipelines_main, "stopped_by_sigterm", Event)  # it stays as it is
    made.create("s10", 2)
    made.create("t10", 2, retention_ms="3600000", message_timestamp_type="LogAppendTime")
    fill(made, "s10", 2, 20)
    count = len(consumed(made.bootstrap, ["s10"]))
    file = tmp_path / "again.toml"
    file.write_text(
        f"""
        pipeline = "replay"
        name = "again"
        source = {{ bootstrap = "{made.bootstrap}", topic = "s10" }}
        target = {{ bootstrap = "{made.bootstrap}", topic = "t10" }}
        run = {{ checkpoint = "{tmp_path / "checkpoint"}" }}
        spark = {{ nice = 0 }} # the session is that of all tests
        """
    )

    def told(*more: str) -> list[dict[str, Any]]:
        assert pipelines_main.main([str(file), "--json", *more]) == 0
        return [json.loads(line) for line in capsys.readouterr().out.splitlines() if line.startswith("{")]

    planned = told("--dry-run")
    assert [each["event"] for each in planned] == ["plan", "plan", "total"]
    assert (planned[-1]["offsets"], planned[-1]["commits"]) == (count, 1)
    assert planned[-1]["bytes"] > 0
    assert consumed(made.bootstrap, ["t10"]) == []
    run = told()
    assert [each["event"] for each in run] == ["note", "note", "begin", "stage", "commit", "result"]
    assert "its own time (message.timestamp.type)" in run[0]["note"]
    assert "older than 3600 s by its own time (retention.ms)" in run[1]["note"]
    assert (run[-1]["records"], run[-1]["portions"], run[-1]["repeated"]) == (count, 1, 0)
    assert told()[-1]["records"] == 0
    assert pipelines_main.main([str(file), "--backfill"]) == 2
    made.delete("t10")
    made.create("t10", 2)
    assert pipelines_main.main([str(file)]) == 2
    assert "Topic 't10' was made anew since this replay began" in capsys.readouterr().err


class VirtualTime:
    """Waiting passes it; nothing else does, but `work_s` for each portion."""

    def __init__(self, work_s: float) -> None:
        self.now_s, self.work_s = 100.0, work_s
        self.begun: list[float] = []

    def now(self) -> float:
        self.begun.append(self.now_s)
        return self.now_s

    def wait(self, seconds: float) -> bool:
        self.now_s += seconds
        return False


def test_a_rate_is_held(made: World, spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made.create("s9", 2)
    made.create("t9", 2, retention_ms="-1")
    fill(made, "s9", 2, 30)
    runner, clock = Runner(made, spark, tmp_path, "s9", "t9"), VirtualTime(0.0)
    written: list[tuple[float, int]] = []
    forward = replaying._Run.forward

    def timed(self: Any) -> Any:
        sent = forward(self)
        written.append((clock.now_s, sent.records))
        return sent

    def wait(seconds: float) -> bool:
        state = ReplayLog(open_objects(str(tmp_path))).state()
        assert state is not None
        assert state.pending is None, "it is put down when it may begin, for who has gone on meanwhile is seen then"
        return clock.wait(seconds)

    monkeypatch.setattr(replaying._Run, "forward", timed)
    replay(lambda: spark, runner.spec(records_per_second=25.0), now=clock.now, wait=wait)
    total = sum(count for _, count in written)
    assert total == len(consumed(made.bootstrap, ["s9"]))
    so_far = 0
    for at, count in written:
        assert so_far <= 25 * (at - 100.0) + 1e-6, "before this portion no more than the rate allows"
        assert count <= 25
        so_far += count
    assert 100.0 + (total - 25) / 25 <= clock.now_s <= 100.0 + total / 25, "and no longer than that takes"
