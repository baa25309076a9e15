"""One task of a replay, in a worker: it writes the rows made of one partition's records, in their order.

A row's number combines its record's place in the portion and its index among the rows made of that record. So the
number is the same in every run, even if the source was compacted in between.

Promises that a row is left out only in these cases:

- The target has a row of its number.
- The target is compacted and has a later row of its key.
- The target has deleted the beginning of the partition, below a later row of this task.

Rows of other records, or in another order (from a function's shuffle), stop the task before they are written. The task
also stops before its next chunk when its turn is over (`turns`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.base.errors import UsageError
from headrace.base.limits import REPLAY_ROWS_MAX
from headrace.net.client.partitioner import partition_of
from headrace.net.client.two_phase import Prepared
from headrace.spark.pipelines.replays.log import Origin, Portion
from headrace.spark.pipelines.replays.recalling import Recalled, recalled
from headrace.spark.pipelines.replays.turns import Turn
from headrace.spark.write.exactly.names import TaskName
from headrace.spark.write.packing import Stamp
from headrace.spark.write.rows import POSITION, RowError
from headrace.spark.write.sink import WriteOptions
from headrace.spark.write.writing import Target, TaskWriter

SENT_SQL: Final = "records bigint, bytes bigint, repeated bigint, name string, producer_id bigint, epoch int"
SENT_SCHEMA: Final = pa.schema(
    [
        *((name, pa.int64()) for name in ("records", "bytes", "repeated")),
        *(("name", pa.string()), ("producer_id", pa.int64()), ("epoch", pa.int32())),
    ]
)
"""The sums of `Sent`, and the transaction that waits for its end, if any."""
SENT_COLUMNS: Final = ("key", "value", "timestamp", "headers")


@dataclass(frozen=True, slots=True, kw_only=True)
class Forward:
    """One portion, as described to workers."""

    options: WriteOptions
    target: Target
    is_compacted: bool
    """Whether the target is compacted."""
    keeps_partitions: bool
    query: str
    turn: Turn
    portion: Portion
    known: Mapping[int, Recalled]
    """Rows that an earlier run wrote, by task."""
    run: str = ""
    """With exactly-once delivery, the name of this try of the portion, which no other one has."""


class Sent(NamedTuple):
    """The result of one task."""

    records: int
    bytes: int
    repeated: int
    """Number of rows that were there already."""


def forwarded(work: Forward, number: int | None, batches: Iterable[Any]) -> Iterator[Any]:
    """Write the rows of one task, by default of the one that Spark runs. Yields a RecordBatch of SENT_SCHEMA. Raises
    UsageError, ConcurrentReplay, TriedAgainError, WriteFailed, ClientError, StorageFailure.
    """
    from pyspark import TaskContext

    context = TaskContext.get()
    if number is None:
        number = context.partitionId() if context is not None else 0
    attempt = context.attemptNumber() if context is not None else 0
    check = work.turn.taken(number, attempt)  # stops earlier writers, before their rows are searched
    transaction = None
    if work.options.exactly_once:
        unique = context.taskAttemptId() if context is not None else 0
        transaction = TaskName(work.run, work.portion.number, number, unique, work.query).text
    is_repeated = attempt > 0 and transaction is None
    known = recall(work).get(number) if is_repeated else work.known.get(number)
    sent, prepared = send_in(transaction, work, number, known, batches, check)
    row = sent._asdict() | (prepared._asdict() if prepared is not None else {})
    yield pa.RecordBatch.from_pylist([row], schema=SENT_SCHEMA)


def recall(work: Forward) -> Mapping[int, Recalled]:
    """The rows of the portion that the target has, by task. Raises ClientError, DamagedHistory."""
    if not work.options.include_identity:
        return {}
    return recalled(
        work.options.bootstrap,
        work.target,
        work.query,
        work.portion,
        with_keys=work.is_compacted,
        security=work.options.security,
    )


def send(
    work: Forward,
    number: int,
    known: Recalled | None,
    batches: Iterable[Any],
    check: Callable[[], object] | None = None,
) -> Sent:
    """Write the rows of task `number`. `check` is called before each chunk, and raises an exception to stop the
    task.
    """
    return send_in(None, work, number, known, batches, check)[0]


def send_in(
    transaction: str | None,
    work: Forward,
    number: int,
    known: Recalled | None,
    batches: Iterable[Any],
    check: Callable[[], object] | None = None,
) -> tuple[Sent, Prepared | None]:
    """As `send`, in a transaction of this id, if any, which somebody else ends."""
    origins = work.portion.origins
    if number >= len(origins):
        if any(batch.num_rows for batch in batches):
            raise disordered("of any partition that this task replays")
        return Sent(0, 0, 0), None
    rows = Rows(work, origins[number], known)
    stamp = Stamp(work.query, str(work.portion.number), str(number)) if work.options.include_identity else None
    writer = TaskWriter(work.options, {work.target.topic: work.target}, stamp, transaction=transaction)
    try:
        tally = writer.write(rows.of(batches), check)
    except RowError as error:
        at = rows.origin.start + error.row // REPLAY_ROWS_MAX
        raise UsageError(
            f"The record at offset {at} of topic '{rows.origin.topic}', partition {rows.origin.partition} cannot be "
            f"written: {error.reason}"
        ) from error
    return Sent(tally.records, tally.bytes, rows.repeated), writer.prepared


class Rows:
    """The rows of one task: numbered, placed, and without those that are there already."""

    def __init__(self, work: Forward, origin: Origin, known: Recalled | None) -> None:
        self.origin = origin
        self.repeated = 0
        self._work = work
        self._known = known
        self._last = -1
        """Offset of the record of the previous row."""
        self._of_last = 0
        """Number of its rows so far."""

    def of(self, batches: Iterable[Any]) -> Iterator[Any]:
        """Yields the new rows. Raises UsageError."""
        for batch in batches:
            if batch.num_rows:
                numbers = self._numbers(batch)
                columns = [name for name in SENT_COLUMNS if name in batch.schema.names]
                names = [*columns, "partition", POSITION]
                arrays = [*(batch.column(name) for name in columns), self._partitions(batch), pa.array(numbers)]
                yield self._new(pa.RecordBatch.from_arrays(arrays, names), numbers)

    def _numbers(self, batch: Any) -> Any:
        offsets = self._offsets(batch)
        begins = np.concatenate([[offsets[0] != self._last], offsets[1:] != offsets[:-1]])
        at = np.arange(len(offsets))
        begun = np.maximum.accumulate(np.where(begins, at, -1))
        ordinals = np.where(begun < 0, at + self._of_last, at - begun)
        self._last, self._of_last = int(offsets[-1]), int(ordinals[-1]) + 1
        if int(ordinals.max()) >= REPLAY_ROWS_MAX:
            many = int(offsets[int(ordinals.argmax())])
            raise UsageError(f"Of the record at offset {many} the function makes more than {REPLAY_ROWS_MAX} rows.")
        return (offsets - self.origin.start) * REPLAY_ROWS_MAX + ordinals

    def _offsets(self, batch: Any) -> Any:
        origin, column = self.origin, batch.column("offset")
        own = column.null_count == 0 and all(
            name not in batch.schema.names or pc.all(pc.equal(batch.column(name), value), skip_nulls=False).as_py()
            for name, value in (("topic", origin.topic), ("partition", origin.partition))  # a null is not its own
        )
        offsets = np.asarray(column.fill_null(-1), np.int64)
        if not (own and origin.start <= offsets.min() and offsets.max() < origin.end):
            raise self._disordered()
        if offsets[0] < self._last or (offsets[1:] < offsets[:-1]).any():
            raise self._disordered()
        return offsets

    def _disordered(self) -> UsageError:
        return disordered(f"of topic '{self.origin.topic}', partition {self.origin.partition}")

    def _partitions(self, batch: Any) -> Any:
        """Partitions in the target; null where the key chooses. All rows without a key from one partition go to one
        partition.
        """
        own, count = self.origin.partition, batch.num_rows
        if self._work.keeps_partitions:
            return pa.array(np.full(count, own, np.int32))
        chosen = np.full(count, own % self._work.target.partitions, np.int32)
        if "key" not in batch.schema.names:
            return pa.array(chosen)
        return pa.array(chosen, mask=np.asarray(batch.column("key").is_valid()))

    def _new(self, batch: Any, numbers: Any) -> Any:
        """The rows that the target lacks."""
        if self._known is None:
            return batch
        there = np.isin(numbers, self._known.numbers)
        if self._known.newest and "key" in batch.schema.names:
            keys = batch.column("key").cast(pa.binary()).to_pylist()
            newest = np.array([self._known.newest.get(key, -1) if key is not None else -1 for key in keys])
            there |= newest > numbers
        if self._known.firsts:
            there |= numbers < self._firsts(batch, self._known.firsts)
        self.repeated += int(there.sum())
        return batch.filter(pa.array(~there))

    def _firsts(self, batch: Any, firsts: Mapping[int, int]) -> Any:
        """The lowest remaining number in the target partition of each row. Rows below it were written, and deleted
        since.
        """
        count, nothing = self._work.target.partitions, [None] * batch.num_rows
        keys = batch.column("key").cast(pa.binary()).to_pylist() if "key" in batch.schema.names else nothing
        places = [
            partition_of(key, count) if chosen is None else chosen
            for chosen, key in zip(batch.column("partition").to_pylist(), keys, strict=True)
        ]
        return np.array([firsts.get(place, -1) for place in places], np.int64)


def disordered(whose: str) -> UsageError:
    return UsageError(
        f"A row that the function gave is not {whose}, or comes in another order: a replay keeps the order of records, "
        "so let the function neither shuffle, sort nor repartition, and leave columns topic, partition and offset be."
    )
