"""``df.write.format("headrace")`` and ``df.writeStream``: Spark's writers over `headrace.spark.write.writing`.

Promises at-least-once writes: a task that Spark runs again writes its rows again. With ``includeIdentity=true`` the
headers of each record name the query, batch and task that wrote it, and the row's number. They are equal in every run
of the task, so that a reader can drop repeats.
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
from headrace.spark.brokers import Brokers
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


def plan_write(options: Mapping[str, str], schema: StructType, overwrite: bool, *, streaming: bool) -> WriteOptions:
    """Check a write's options and columns. Raises UsageError."""
    parsed = parse_write_options(options, streaming=streaming)
    if overwrite:
        what = "outputMode('append') or 'update'" if streaming else "mode('append')"
        raise UsageError(f"A topic is only appended to: write with {what}, and delete records or the topic by itself.")
    check_columns([(field.name, field.dataType.simpleString()) for field in schema.fields], parsed)
    return parsed


class HeadraceWriter(DataSourceArrowWriter):
    """One batch write: planned in the driver, which looks up the topic, and written in the workers."""

    def __init__(self, options: WriteOptions) -> None:
        """Raises UnknownTopicError where option topic names no topic, ClientError."""
        self._options = options
        self._query = options.query_id or str(uuid4())
        self._targets: dict[str, Target] = {}
        if options.topic is not None:
            with Brokers(options.bootstrap) as brokers:
                self._targets[options.topic] = find_target(brokers, options.topic)

    def write(self, iterator: Iterator[Any]) -> Written:
        return write_task(self._options, self._targets, self._query, 0, iterator)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        tell("The write", messages)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        tell_aborted("The write", messages)


class HeadraceStreamWriter(DataSourceStreamArrowWriter):
    """The micro-batches of a stream. The tasks look up the topic."""

    def __init__(self, options: WriteOptions) -> None:
        self._options = options

    def write(self, iterator: Iterator[Any]) -> Written:
        context = TaskContext.get()
        query = context.getLocalProperty(QUERY_PROPERTY) if context is not None else None
        batch = context.getLocalProperty(BATCH_PROPERTY) if context is not None else None
        if self._options.include_identity and (query is None or batch is None):
            raise UsageError("Spark does not tell this task its query and batch: leave out includeIdentity.")
        return write_task(self._options, {}, query or "", int(batch or 0), iterator)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        tell(f"Batch {batchId}", messages)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        tell_aborted(f"Batch {batchId}", messages)


def write_task(
    options: WriteOptions, targets: Mapping[str, Target], query: str, batch: int, iterator: Iterable[Any]
) -> Written:
    """Called in a worker: one run of a task."""
    context = TaskContext.get()
    task = context.partitionId() if context is not None else 0
    stamp = Stamp(query, str(batch), str(task)) if options.include_identity else None
    tally = TaskWriter(options, targets, stamp, begin=task + batch).write(iterator)
    return Written(*tally)


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


def _sum(messages: Iterable[WriterCommitMessage | None]) -> Tally:
    there = [each for each in messages if isinstance(each, Written)]
    return Tally(
        sum(each.records for each in there), sum(each.bytes for each in there), sum(each.batches for each in there)
    )
