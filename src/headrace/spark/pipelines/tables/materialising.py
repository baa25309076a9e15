"""Writes topics into a table of Parquet files: each record once, whatever process dies meanwhile.

A run plans one offset range of each partition, and the workers write its rows into files with unique names. The run
then commits ranges and files in one object, which can be put only once. So a crash leaves files that no commit lists,
and the next run reads those ranges again. Promises that two simultaneous runs never both commit: the later one stops.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from threading import Event
from typing import TYPE_CHECKING, NamedTuple
from uuid import uuid4

from headrace.base.errors import UsageError
from headrace.base.limits import PIPELINE_COMPACT_EVERY, PIPELINE_TASKS_A_CORE
from headrace.spark.pipelines.meter import Meter
from headrace.spark.pipelines.spec import Materialise
from headrace.spark.pipelines.tables.evolving import evolved
from headrace.spark.pipelines.tables.progress import (
    APPEND,
    BEGIN,
    COMPACT,
    PARQUET,
    Claim,
    Column,
    Commit,
    File,
    ProgressLog,
)
from headrace.spark.pipelines.tables.publishing import TableFormat, publish, table_format
from headrace.spark.pipelines.tables.ranges import claims_between, claims_of, first_claims, holes, portions, sizes_of
from headrace.spark.read.extent import PartitionRange, Sources
from headrace.spark.read.follow import Follower, Limits
from headrace.spark.read.plan import plan_tasks
from headrace.spark.read.positions import Positions, formatted, is_same, parsed
from headrace.spark.session import cores_of
from headrace.storage.objects import open_objects

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from headrace.spark.pipelines.tables.shaping import Shape


class Planned(NamedTuple):
    """One range that would be read."""

    topic: str
    partition: int
    start: int
    end: int
    """Exclusive."""
    bytes: int
    """Approximate."""


@dataclass(slots=True)
class Outcome:
    """The amounts that a run added."""

    version: int = -1
    commits: int = 0
    records: int = 0
    files: int = 0
    bytes: int = 0
    """Bytes of its files."""


def planned(spec: Materialise, *, backfill: bool = False) -> list[Planned]:
    """The ranges that a run would read now. Neither starts Spark nor writes anything."""
    follower = Follower(spec.source)
    try:
        run = _Run(spec, follower)
        ranges = holes(follower.sources, run.state) if backfill else []
        start = formatted(run.state.positions) if run.state.version >= 0 else follower.initial()
        ranges += follower.ranges(parsed(start), parsed(follower.latest(start, Limits())))
        sizes = sizes_of(follower.sources, ranges)
        return [
            Planned(each.topic.name, each.partition, each.start, each.end, round(size))
            for each, size in zip(ranges, sizes, strict=True)
        ]
    finally:
        follower.close()


def materialise(
    session: Callable[[], SparkSession],
    spec: Materialise,
    *,
    backfill: bool = False,
    meter: Meter | None = None,
    stop: Event | None = None,
) -> Outcome:
    """Write all present records into the table, or, continuously, all until `stop` is set.

    `session` is called once there is something to do. Raises UsageError, DataLoss, DamagedHistory, ConcurrentRun, and
    Spark's own exceptions.
    """
    follower = Follower(spec.source)
    try:
        run = _Run(spec, follower, session, meter or Meter(), stop or Event())
        run.begin()
        if backfill:
            run.backfill()
        while True:
            run.forward()
            if not spec.continuous:
                run.compact()
                return run.outcome
            if run.stop.wait(spec.poll_seconds):
                return run.outcome
    finally:
        follower.close()


class _Run:
    """One run. `state` is the table as this run knows it. If another run changes it, this run's next commit fails."""

    def __init__(
        self,
        spec: Materialise,
        follower: Follower,
        session: Callable[[], SparkSession] | None = None,
        meter: Meter | None = None,
        stop: Event | None = None,
    ) -> None:
        """Raises UsageError where the table belongs to another pipeline, or has another format or partitioning."""
        self.spec = spec
        self.follower = follower
        self.meter = meter or Meter()
        self.stop = stop or Event()
        self.outcome = Outcome()
        self._session = session
        self._shape: Shape | None = None
        self._spark: SparkSession | None = None
        self._log = ProgressLog(open_objects(spec.path))
        self._compacted = 0
        self.state = self._log.state()
        if self.state.version >= 0:
            self._check_table()
        self._format = table_format(spec)

    def _check_table(self) -> None:
        if self.state.pipeline != self.spec.name:
            raise UsageError(
                f"The table at '{self.spec.path}' belongs to pipeline '{self.state.pipeline}', not "
                f"'{self.spec.name}': one pipeline writes a table, so give this one another path."
            )
        if self.state.format != self.spec.format:
            raise UsageError(
                f"The table at '{self.spec.path}' is of format {self.state.format}, not {self.spec.format}, which "
                "cannot be changed: write another table."
            )
        if self.state.partition_by != self.spec.partition_by:
            raise UsageError(
                f"The table at '{self.spec.path}' is partitioned by [{', '.join(self.state.partition_by)}], not "
                f"[{', '.join(self.spec.partition_by)}], which cannot be changed: write another table."
            )

    @property
    def sources(self) -> Sources:
        return self.follower.sources

    @property
    def limits(self) -> Limits:
        return Limits(self.spec.source.trigger_records_max, self.spec.source.trigger_bytes_max)

    def begin(self) -> None:
        """Make the table where there is none, so that its pipeline continues from here after a crash."""
        if self._format is not None:
            self._catch_up(self._format)
        if self.state.version < 0:
            claims = first_claims(parsed(self.follower.initial()))
            self._commit(BEGIN, claims=claims)
            text = f"{self.spec.name}: no table was at '{self.spec.path}', so that one is begun there."
            self.meter.say("begin", text, table=self.spec.path, version=self.state.version)

    def _catch_up(self, table: TableFormat) -> None:
        """Publish the commits that an earlier run made and could not publish."""
        left = [commit for commit in self._log.commits(table.version() + 1) if commit.added]
        if left:
            self._started()  # the session knows the columns' types
            publish(table, left)

    def backfill(self) -> None:
        """Add the ranges before the table's beginning, and the gaps in it."""
        ranges = holes(self.sources, self.state)
        self.meter.stage("backfill", sum(sizes_of(self.sources, ranges)))
        for portion in portions(self.sources, ranges, self.limits):
            if self.stop.is_set():
                return
            self._append(portion, claims_of(portion))

    def forward(self) -> None:
        """Add the ranges behind the table's end."""
        if not self.spec.continuous:
            self.follower.stop_at_what_is_there()
        self._tell_stage()
        for begins, ends in self._steps():
            self._append(self.follower.ranges(begins, ends), claims_between(begins, ends))
            if self._compacted + PIPELINE_COMPACT_EVERY <= self.outcome.commits:
                self.compact()

    def _steps(self) -> Iterator[tuple[Positions, Positions]]:
        """Positions before and after each due commit. A commit that would claim nothing is left out, since it would be
        due again at once.
        """
        while not self.stop.is_set():
            start = self.state.positions
            end = parsed(self.follower.latest(formatted(start), self.limits))
            if is_same(start, end) or not claims_between(start, end):
                return
            yield start, end

    def _tell_stage(self) -> None:
        start = formatted(self.state.positions)
        begins, ends = parsed(start), parsed(self.follower.latest(start, Limits()))
        if not is_same(begins, ends):
            self.meter.stage("materialise", sum(sizes_of(self.sources, self.follower.ranges(begins, ends))))

    def _append(self, ranges: Sequence[PartitionRange], claims: tuple[Claim, ...]) -> None:
        """Write the rows, and then commit them."""
        size, shape, files = sum(sizes_of(self.sources, ranges)), self._shaped(), list[File]()
        tasks = plan_tasks(self.sources, ranges, task_bytes=self._task_bytes(size))
        if tasks:
            with self.meter.working(self._started(), size):
                files = shape.write(tasks)
            if self._format is not None:
                self._format.check_files(files)
        columns = self._evolved(shape)
        self._commit(APPEND, claims=claims, added=tuple(files), columns=columns)
        records = sum(file.records for file in files)
        self.outcome.records += records
        self.outcome.files += len(files)
        self.outcome.bytes += sum(file.bytes for file in files)
        self.meter.done(records, size, version=self.state.version, files=len(files))

    def _task_bytes(self, size: float) -> float:
        """Bytes of one task: the user's value, or one that gives all cores equal work and leaves few files to merge."""
        if self.spec.source.partition_bytes_max is not None:
            return self.spec.source.partition_bytes_max
        cores = cores_of(self._started())
        rounds = max(PIPELINE_TASKS_A_CORE, math.ceil(size / self.spec.file_bytes / cores))
        return max(size / (rounds * cores), self.spec.source.task_bytes)

    def compact(self) -> None:
        """Merge small files, where there are many."""
        from headrace.spark.pipelines.tables.compacting import merged, small_groups
        from headrace.spark.pipelines.tables.reading import arrow_schema_of

        self._compacted = self.outcome.commits
        if not self.spec.compact or self.spec.format != PARQUET:  # table formats have tools of their own
            return
        groups = small_groups(self.state.files.values(), self.spec.file_bytes)
        if not groups or self.stop.is_set():
            return
        layout = replace(self._shaped().layout, schema=arrow_schema_of(self.state.columns))
        before = [file for group in groups for file in group]
        self.meter.stage("compact", sum(file.bytes for file in before))
        with self.meter.working(self._started(), sum(file.bytes for file in before)):
            files = merged(self._started(), layout, groups)
        self._commit(COMPACT, added=tuple(files), removed=tuple(file.path for file in before))
        self.meter.done(
            sum(file.records for file in files),
            sum(file.bytes for file in before),
            version=self.state.version,
            files=len(files),
        )

    def _started(self) -> SparkSession:
        if self._spark is None:
            assert self._session is not None, "a plan starts none"
            self._spark = self._session()
        return self._spark

    def _shaped(self) -> Shape:
        """The shape of the rows. Raises UsageError where they do not fit the table."""
        from headrace.spark.pipelines.tables.reading import arrow_schema_of
        from headrace.spark.pipelines.tables.shaping import Shape

        if self._shape is None:
            shape = Shape(self._started(), self.spec)
            columns = self._evolved(shape)
            if self._format is not None:
                self._format.check(arrow_schema_of(columns))
            self._shape = shape
        return self._shape

    def _evolved(self, shape: Shape) -> tuple[Column, ...]:
        return evolved(self.state.columns, shape.columns, widening=self._format is None)

    def _commit(
        self,
        action: str,
        *,
        claims: tuple[Claim, ...] = (),
        added: tuple[File, ...] = (),
        removed: tuple[str, ...] = (),
        columns: tuple[Column, ...] = (),
    ) -> None:
        commit = Commit(
            version=self.state.version + 1,
            action=action,
            pipeline=self.spec.name,
            run=uuid4().hex,
            time_ms=time.time_ns() // 1_000_000,
            format=self.spec.format,
            columns=columns,
            partition_by=self.spec.partition_by,
            claims=claims,
            added=added,
            removed=removed,
        )
        self.state = self._log.commit(self.state, commit)
        self.outcome.version = self.state.version
        if self._format is not None:
            publish(self._format, [commit])
        self.outcome.commits += 1
