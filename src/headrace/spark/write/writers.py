"""``df.write.format("headrace")`` and ``df.writeStream``: Spark's writers over `headrace.spark.write.writing`.

Promises at-least-once writes: a task that Spark runs again writes its rows again. With ``includeIdentity=true`` the
headers of each record name the query, batch and task that wrote it, and the row's number. They are equal in every run
of the task, so that a reader can drop repeats.

With ``delivery=exactly-once`` tasks write in transactions, which the driver ends (`headrace.spark.write.exactly`).
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final
from uuid import uuid4

from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from headrace.base.errors import UsageError
from headrace.net.client.two_phase import Prepared
from headrace.spark.brokers import Brokers
from headrace.spark.telling import alone
from headrace.spark.write.exactly.commit import Batch, check_brokers, commit, give_up, new_run
from headrace.spark.write.exactly.names import TaskName
from headrace.spark.write.packing import Stamp
from headrace.spark.write.sink import WriteOptions, check_columns, parse_write_options
from headrace.spark.write.writing import Tally, Target, TaskWriter, find_target

log = logging.getLogger(__name__)

QUERY_PROPERTY: Final = "sql.streaming.queryId"
BATCH_PROPERTY: Final = "streaming.sql.batchId"
"""Properties that Spark gives the tasks of a stream. The query id is kept in the checkpoint, so it is the same after a
restart.
"""


@dataclass(frozen=True)
class Written(WriterCommitMessage):
    """The amounts that one task wrote."""

    records: int
    bytes: int
    batches: int
    query: str = ""
    run: str = ""
    """Of the writer that the task had."""
    prepared: Prepared | None = None
    """The transaction in which it wrote them; None: it is done, or there were no rows."""


def plan_write(options: Mapping[str, str], schema: StructType, overwrite: bool, *, streaming: bool) -> WriteOptions:
    """Check a write's options and columns. Raises UsageError."""
    parsed = parse_write_options(options, streaming=streaming)
    if overwrite:
        what = "outputMode('append') or 'update'" if streaming else "mode('append')"
        raise UsageError(f"A topic is only appended to: write with {what}, and delete records or the topic by itself.")
    check_columns([(field.name, field.dataType.simpleString()) for field in schema.fields], parsed)
    return parsed


@alone
class HeadraceWriter(DataSourceArrowWriter):
    """One batch write: planned in the driver, which looks up the topic, and written in the workers."""

    def __init__(self, options: WriteOptions) -> None:
        """Raises UnknownTopicError where option topic names no topic, UsageError where the brokers do not offer what is
        asked for, ClientError.
        """
        self._options = options
        self._query = options.query_id or str(uuid4())
        self._run = new_run()
        self._targets: dict[str, Target] = {}
        with Brokers(options.bootstrap, options.security) as brokers:
            if options.topic is not None:
                self._targets[options.topic] = find_target(brokers, options.topic)
            if options.exactly_once:
                check_brokers(brokers)

    def write(self, iterator: Iterator[Any]) -> Written:
        return write_task(self._options, self._targets, self._query, 0, self._run, iterator)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        if self._options.exactly_once:
            commit(
                self._options.bootstrap, Batch(self._query, 0, self._run), prepared_by(messages), self._options.security
            )
        tell("The write", messages)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        if self._options.exactly_once:
            give_up(self._options.bootstrap, Batch(self._query, 0, self._run), self._options.security)
        else:
            tell_aborted("The write", messages)


@alone
class HeadraceStreamWriter(DataSourceStreamArrowWriter):
    """The micro-batches of a stream. The tasks look up the topic.

    Spark makes one writer for the tasks of a batch, and others for its commit and its abort. These know the run of the
    tasks by their messages. Where there are none, its name begins with that of the query's start.
    """

    _checked = ""
    """The last start whose brokers this process has checked."""

    def __init__(self, options: WriteOptions, start: str) -> None:
        """Raises UsageError where the brokers do not offer what is asked for, ClientError."""
        self._options = options
        self._start = start
        self._run = new_run(start)
        if options.exactly_once and HeadraceStreamWriter._checked != start:
            with Brokers(options.bootstrap, options.security) as brokers:
                check_brokers(brokers)
            HeadraceStreamWriter._checked = start

    def write(self, iterator: Iterator[Any]) -> Written:
        context = TaskContext.get()
        query = context.getLocalProperty(QUERY_PROPERTY) if context is not None else None
        batch = context.getLocalProperty(BATCH_PROPERTY) if context is not None else None
        for wish, asked in (
            ("includeIdentity", self._options.include_identity),
            ("delivery=exactly-once", self._options.exactly_once),
        ):
            if asked and (query is None or batch is None):
                raise UsageError(f"Spark does not tell this task its query and batch: leave out {wish}.")
        return write_task(self._options, {}, query or "", int(batch or 0), self._run, iterator)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        if self._options.exactly_once and (query := _query_of(messages)) is not None:
            batch = Batch(query, batchId, _run_of(messages) or self._run)
            commit(self._options.bootstrap, batch, prepared_by(messages), self._options.security)
        tell(f"Batch {batchId}", messages)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        if self._options.exactly_once:
            batch = Batch(_query_of(messages), batchId, _run_of(messages) or self._start)
            give_up(self._options.bootstrap, batch, self._options.security)
        else:
            tell_aborted(f"Batch {batchId}", messages)


def write_task(
    options: WriteOptions, targets: Mapping[str, Target], query: str, batch: int, run: str, iterator: Iterable[Any]
) -> Written:
    """Called in a worker: one run of a task."""
    context = TaskContext.get()
    task = context.partitionId() if context is not None else 0
    attempt = context.taskAttemptId() if context is not None else 0
    stamp = Stamp(query, str(batch), str(task)) if options.include_identity else None
    transaction = TaskName(run, batch, task, attempt, query).text if options.exactly_once else None
    writer = TaskWriter(options, targets, stamp, begin=task + batch, transaction=transaction)
    return Written(*writer.write(iterator), query=query, run=run, prepared=writer.prepared)


def prepared_by(messages: Iterable[WriterCommitMessage | None]) -> tuple[Prepared, ...]:
    """The transactions of the tasks whose results Spark takes."""
    return tuple(each.prepared for each in _written(messages) if each.prepared is not None)


def tell(what: str, messages: Iterable[WriterCommitMessage | None]) -> None:
    tally = _sum(messages)
    log.info("%s is done: %d records, %d bytes in %d batches.", what, *tally)


def tell_aborted(what: str, messages: Iterable[WriterCommitMessage | None]) -> None:
    tally = _sum(messages)
    log.warning(
        "%s failed: at least %d records, %d bytes in %d batches of it are written, and will be there twice if it is "
        "run again.",
        what,
        *tally,
    )


def _query_of(messages: Iterable[WriterCommitMessage | None]) -> str | None:
    return next((each.query for each in _written(messages)), None)


def _run_of(messages: Iterable[WriterCommitMessage | None]) -> str | None:
    return next((each.run for each in _written(messages)), None)


def _written(messages: Iterable[WriterCommitMessage | None]) -> list[Written]:
    return [each for each in messages if isinstance(each, Written)]


def _sum(messages: Iterable[WriterCommitMessage | None]) -> Tally:
    there = _written(messages)
    return Tally(
        sum(each.records for each in there), sum(each.bytes for each in there), sum(each.batches for each in there)
    )
