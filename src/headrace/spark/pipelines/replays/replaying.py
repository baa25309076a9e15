"""Replays topics into another one, in portions: a portion is recorded first, then its records are written, then its end
is recorded.

Promises that the target holds what the function makes of the source's records, and that records of one partition keep
their order. After a crash, a run writes again only records that the target lacks, or that were still under way to it.
With the writer's headers a reader's ``dropRepeats`` leaves these out. Without them, records are written at least once.

With ``delivery = "exactly-once"`` a portion is a batch of `headrace.spark.write.exactly`: it is written once.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from threading import Event
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from headrace.base.errors import UsageError
from headrace.base.limits import REPLAY_OFFSETS_MAX
from headrace.net.client.offsets import LATEST
from headrace.net.client.two_phase import Prepared
from headrace.spark.brokers import Brokers
from headrace.spark.pipelines.meter import Meter
from headrace.spark.pipelines.replays.log import Origin, Portion, Replayed, ReplayLog, made_anew
from headrace.spark.pipelines.replays.pacing import Pace
from headrace.spark.pipelines.replays.turns import Turn
from headrace.spark.pipelines.spec import Replay
from headrace.spark.pipelines.tables.materialising import Planned
from headrace.spark.pipelines.tables.ranges import sizes_of
from headrace.spark.pipelines.tables.writing import PLACE
from headrace.spark.read.columns import Columns
from headrace.spark.read.extent import ReadTopic
from headrace.spark.read.follow import Follower, Limits
from headrace.spark.read.plan import Part, Task, plan_tasks
from headrace.spark.read.positions import StreamOffsets, formatted, is_same, parsed
from headrace.spark.results import collected
from headrace.spark.write.exactly.commit import Batch, check_brokers, commit, give_up, new_run
from headrace.spark.write.sink import WriteOptions, check_columns
from headrace.spark.write.writing import find_target
from headrace.storage.objects import open_objects

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from headrace.spark.pipelines.replays.forwarding import Forward, Sent


@dataclass(slots=True)
class Sum:
    """The amounts that a run wrote."""

    portions: int = 0
    records: int = 0
    bytes: int = 0
    """Bytes of batches, as they were sent."""
    repeated: int = 0
    """Number of rows that an earlier run had written."""


def planned_replay(spec: Replay) -> list[Planned]:
    """The ranges that a run would read now. Neither starts Spark nor writes anything."""
    follower = Follower(spec.source)
    try:
        with Brokers(spec.target.bootstrap, spec.target.security) as brokers:
            run = _Run(spec, follower, brokers)
            start = formatted(run.state.positions) if run.state is not None else follower.initial()
            ranges = follower.ranges(parsed(start), parsed(follower.latest(start, Limits())))
            sizes = sizes_of(follower.sources, ranges)
        return [
            Planned(each.topic.name, each.partition, each.start, each.end, round(size))
            for each, size in zip(ranges, sizes, strict=True)
        ]
    finally:
        follower.close()


def replay(
    session: Callable[[], SparkSession],
    spec: Replay,
    *,
    meter: Meter | None = None,
    stop: Event | None = None,
    now: Callable[[], float] = time.monotonic,
    wait: Callable[[float], bool] | None = None,
) -> Sum:
    """Replay all present records into the target, or, continuously, all until `stop` is set.

    `session` is called once there is something to do. `wait` passes time, and returns whether to stop. Raises
    UsageError, DataLoss, DamagedHistory, ClientError, ConcurrentReplay, and Spark's own exceptions.
    """
    stop = stop or Event()
    wait = wait or stop.wait
    follower = Follower(spec.source)
    try:
        with Brokers(spec.target.bootstrap, spec.target.security) as brokers:
            run = _Run(spec, follower, brokers, session, meter or Meter())
            pace = Pace(spec.records_per_second, spec.bytes_per_second)
            run.begin()
            while True:
                if not spec.continuous:
                    follower.stop_at_what_is_there()
                run.tell_stage()
                while not stop.is_set() and run.has_more(pace):
                    if wait(pace.wait_s(now())):
                        return run.sum
                    run.plan()  # late, to notice a run that continued meanwhile
                    began = now()
                    sent = run.forward()
                    pace.wrote(began, sent.records, sent.bytes)
                if not spec.continuous or wait(spec.poll_seconds):
                    return run.sum
    finally:
        follower.close()


class _Run:
    """One run. `state` is the checkpoint as this run knows it. If another run continues from it, this run's next put
    fails.
    """

    def __init__(
        self,
        spec: Replay,
        follower: Follower,
        brokers: Brokers,
        session: Callable[[], SparkSession] | None = None,
        meter: Meter | None = None,
    ) -> None:
        """Raises UsageError where the checkpoint is another replay's, or a topic is another one; ClientError."""
        assert spec.target.topic is not None, "the file names it"
        self.spec = spec
        self.sum = Sum()
        self._follower = follower
        self._brokers = brokers
        self._session = session
        self._meter = meter or Meter()
        self._spark: SparkSession | None = None
        self._id = uuid4().hex
        self._log = ReplayLog(open_objects(spec.checkpoint))
        self._target = find_target(brokers, spec.target.topic)
        self._configs = brokers.configs(spec.target.topic)
        self._is_resumed = False
        """Whether another run began the pending portion."""
        self._due: StreamOffsets | None = None
        """End of the next portion."""
        self.state = self._log.state()
        self._check_topics(follower.sources.topics())

    def _check_topics(self, topics: Sequence[ReadTopic]) -> None:
        if any(each.id == self._target.id for each in topics):
            raise UsageError(f"Topic '{self._target.topic}' cannot be replayed into itself: give another one.")
        self._check_width(topics)
        state = self.state
        if state is None:
            return
        if (state.name, state.target) != (self.spec.name, self._target.topic):
            raise UsageError(
                f"The checkpoint at '{self.spec.checkpoint}' belongs to pipeline '{state.name}' into topic "
                f"'{state.target}': give this one another."
            )
        if state.target_id != str(self._target.id):
            raise made_anew(self._target.topic)
        self._check_ids({each.name: str(each.id) for each in topics})

    def _check_width(self, topics: Iterable[ReadTopic]) -> None:
        """Raises UsageError where a source partition's number does not exist in the target."""
        wide = max((partition + 1 for each in topics for partition in each.partitions), default=0)
        if self.spec.keeps_partitions and wide > self._target.partitions:
            raise UsageError(
                f"With partition = \"keep\", topic '{self._target.topic}' needs {wide} partitions, as the source has, "
                f"and has {self._target.partitions}: add some, or place records by their keys."
            )

    def _check_ids(self, there: Mapping[str, str]) -> None:
        """Raises UsageError where a source topic is another one than was replayed so far."""
        assert self.state is not None, "it was begun"
        for name, topic in self.state.positions.items():
            if name in there and not topic.is_of(there[name]):
                raise made_anew(name)

    def begin(self) -> None:
        """Put the first object where there is none, so that a later run continues from here. Raises UsageError where
        the brokers cannot write as is asked."""
        if self.spec.target.exactly_once:
            check_brokers(self._brokers)
        self._tell_what_is_lost()
        if self.state is not None:
            return
        begun = Replayed(
            version=0,
            name=self.spec.name,
            query=f"replay-{uuid4()}",
            target=self._target.topic,
            target_id=str(self._target.id),
            next=self._follower.initial(),
        )
        self.state = self._log.begin(begun, self._id)
        where = self.spec.checkpoint
        text = f"{self.spec.name}: nothing was put down at '{where}', so that the replay begins anew."
        self._meter.say("begin", text, checkpoint=where, positions=begun.next)

    def _tell_what_is_lost(self) -> None:
        topic, kept = self._target.topic, self._configs.get("retention.ms") or "-1"
        if self._configs.get("message.timestamp.type") == "LogAppendTime":
            text = f"Topic '{topic}' gives records its own time (message.timestamp.type): theirs are not kept."
            self._meter.say("note", text, note=text)
        if int(kept) >= 0 and "delete" in (self._configs.get("cleanup.policy") or "delete"):
            text = (
                f"Topic '{topic}' deletes what is older than {int(kept) // 1000} s by its own time (retention.ms): "
                "such records leave it soon after they are replayed."
            )
            self._meter.say("note", text, note=text)

    def tell_stage(self) -> None:
        assert self.state is not None, "it was begun"
        start = formatted(self.state.positions)
        begins, ends = parsed(start), parsed(self._follower.latest(start, Limits()))
        if not is_same(begins, ends):
            self._meter.stage("replay", sum(sizes_of(self._follower.sources, self._follower.ranges(begins, ends))))

    def has_more(self, pace: Pace) -> bool:
        """Whether a portion is due."""
        assert self.state is not None, "it was begun"
        if self.state.pending is not None:
            return True
        source = self.spec.source
        limits = Limits(
            pace.records_max(min(source.trigger_records_max or REPLAY_OFFSETS_MAX, REPLAY_OFFSETS_MAX)),
            pace.bytes_max(source.trigger_bytes_max),
        )
        begins = self.state.positions
        self._due = self._follower.latest(formatted(begins), limits)
        return not is_same(begins, parsed(self._due))

    def plan(self) -> None:
        """Put the due portion, or an object by which this run continues a portion of another. Raises UsageError where
        the portion cannot be written as it is.
        """
        assert self.state is not None, "it was begun"
        self._is_resumed = self.state.pending is not None
        if self._is_resumed:
            self.state = self._log.take(self.state, self._id)
            return
        end = self._due
        assert end is not None, "there is more"
        self._check_ids({name: topic.id for name, topic in parsed(end).items()})
        ranges = self._follower.ranges(self.state.positions, parsed(end))
        target = self._target = find_target(self._brokers, self._target.topic)
        if str(target.id) != self.state.target_id:
            raise made_anew(target.topic)
        self._check_width(each.topic for each in ranges)
        ends = self._brokers.offsets(target.topic, range(target.partitions), LATEST)
        portion = Portion(
            number=self.state.number + 1,
            origins=tuple(Origin(each.topic.name, each.partition, each.start, each.end) for each in ranges),
            end=end,
            partitions=target.partitions,
            target_ends={int(partition): found.offset for partition, found in ends.items()},
        )
        self.state = self._log.plan(self.state, portion, self._id)

    def forward(self) -> Sent:
        """Write the pending portion, as far as it is not there yet. Raises ConcurrentReplay where another run has
        continued it.
        """
        assert self.state is not None, "it was begun"
        assert self.state.pending is not None, "it was planned"
        portion, sources = self.state.pending, self._follower.sources
        ranges = self._follower.ranges(self.state.positions, parsed(portion.end))
        tasks, size = tasks_of(portion, plan_tasks(sources, ranges)), sum(sizes_of(sources, ranges))
        sent = self._sent(portion, tasks, size)
        self.state = self._log.done(self.state, self._id, sent.records)
        self.sum.portions += 1
        self.sum.records += sent.records
        self.sum.bytes += sent.bytes
        self.sum.repeated += sent.repeated
        self._meter.done(sent.records, size, portion=portion.number, repeated=sent.repeated)
        return sent

    def _sent(self, portion: Portion, tasks: Sequence[Task], size: float) -> Sent:
        from headrace.spark.pipelines.replays.forwarding import Forward, Sent, recall

        assert self.state is not None, "it was begun"
        exactly_once = self.spec.target.exactly_once
        batch = Batch(self.state.query, portion.number, new_run())
        if not any(task.parts for task in tasks):
            if exactly_once and self._is_resumed:  # an earlier run may have decided it
                commit(self.spec.target.bootstrap, batch, (), self.spec.target.security)
            return Sent(0, 0, 0)
        name, version = self.spec.name, self.state.version
        keeps = self.spec.keeps_partitions  # it needs the target's present partitions
        work = Forward(
            options=self.spec.target,
            target=self._target if keeps else self._target._replace(partitions=portion.partitions),
            is_compacted="compact" in (self._configs.get("cleanup.policy") or ""),
            keeps_partitions=keeps,
            query=self.state.query,
            turn=Turn.at(self.spec.checkpoint, name, version),
            portion=portion,
            known={},
            run=batch.run,
        )
        if self._is_resumed and not exactly_once:
            work = replace(work, known=recall(work))
        with self._meter.working(self._started(), size):
            self._log.check(name, version)
            frame = _frame(self._started(), self.spec, work, tasks)
            rows = written_once(batch, frame, work.options) if exactly_once else collected(frame)
        return Sent(*(sum(row[name] for row in rows) for name in Sent._fields))

    def _started(self) -> SparkSession:
        if self._spark is None:
            assert self._session is not None, "a plan starts none"
            self._spark = self._session()
        return self._spark


def written_once(batch: Batch, frame: DataFrame, target: WriteOptions) -> list[dict[str, Any]]:
    """Run the tasks, and commit what they have prepared. If they fail, it is aborted."""
    try:
        rows = collected(frame)
    except Exception:
        give_up(target.bootstrap, batch, target.security)
        raise
    winners = (Prepared(row["name"], row["producer_id"], row["epoch"]) for row in rows if row["name"] is not None)
    commit(target.bootstrap, batch, tuple(winners), target.security)
    return rows


def tasks_of(portion: Portion, tasks: Iterable[Task]) -> list[Task]:
    """One task for each origin, so that its records are read in their order. It is empty where they are gone."""
    parts: dict[tuple[str, int], list[Part]] = {}
    for part in chain.from_iterable(task.parts for task in tasks):
        parts.setdefault((part.place.topic, part.place.partition), []).append(part)
    return [Task(tuple(parts.get((each.topic, each.partition), ()))) for each in portion.origins]


def _frame(spark: SparkSession, spec: Replay, work: Forward, tasks: Sequence[Task]) -> DataFrame:
    """The amounts that its tasks report as sent."""
    from headrace.spark.pipelines.replays.forwarding import SENT_COLUMNS, SENT_SQL, forwarded
    from headrace.spark.pipelines.tables.shaping import function_of, numbered, read_by

    if spec.function is None:
        direct = read_by(spec.source, Columns((*SENT_COLUMNS, "offset")), tasks)
        return numbered(spark, len(tasks), lambda number: forwarded(work, number, direct(number)), SENT_SQL)
    columns = spec.source.columns
    rows = function_of(spec.function, "transform")(
        numbered(spark, len(tasks), read_by(spec.source, columns, tasks), columns.sql)
    )
    found = [(field.name, field.dataType.simpleString()) for field in rows.schema.fields]
    if missing := [name for name in PLACE if name not in dict(found)]:
        raise UsageError(
            f"The rows of pipeline '{spec.name}' have no column '{missing[0]}': a function has to keep "
            f"{', '.join(PLACE)}, by which a replay knows its records."
        )
    check_columns(found, spec.target)
    return rows.mapInArrow(lambda batches: forwarded(work, None, batches), SENT_SQL)
