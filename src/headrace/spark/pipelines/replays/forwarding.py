"""In a worker: one task of a replay, which writes what was made of the records of one partition, in their order.

A row's number is that of its record in the portion and, of several that were made of one record, which it is: so it is
the same whenever it is written, though the source were compacted in between. Promises that a row is left out only where
the target has one of its number, or where a later one of its key is there and the target is compacted, or where the
target has deleted what was before a later one of this task; that rows of other records, or in another order, which a
function's shuffle gives, stop the task before they are written; and that it stops before its next chunk when it is
another's turn (`turns`).
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
from headrace.spark.pipelines.replays.log import Origin, Portion
from headrace.spark.pipelines.replays.recalling import Recalled, recalled
from headrace.spark.pipelines.replays.turns import Turn
from headrace.spark.write.packing import Stamp
from headrace.spark.write.rows import POSITION, RowError
from headrace.spark.write.sink import WriteOptions
from headrace.spark.write.writing import Target, TaskWriter

SENT_SQL: Final = "records bigint, bytes bigint, repeated bigint"
SENT_SCHEMA: Final = pa.schema([("records", pa.int64()), ("bytes", pa.int64()), ("repeated", pa.int64())])
SENT_COLUMNS: Final = ("key", "value", "timestamp", "headers")


@dataclass(frozen=True, slots=True, kw_only=True)
class Forward:
    """One portion, as workers are told of it."""

    options: WriteOptions
    target: Target
    is_compacted: bool
    """The target."""
    keeps_partitions: bool
    query: str
    turn: Turn
    portion: Portion
    known: Mapping[int, Recalled]
    """By task, what an earlier run wrote of it."""


class Sent(NamedTuple):
    """What one task did."""

    records: int
    bytes: int
    repeated: int
    """Rows that were there already."""


def forwarded(work: Forward, number: int | None, batches: Iterable[Any]) -> Iterator[Any]:
    """Write the rows of one task, by default the one that Spark runs; a RecordBatch of SENT_SCHEMA. Raises UsageError,
    ConcurrentReplay, TriedAgainError, WriteFailed, ClientError, StorageFailure."""
    from pyspark import TaskContext

    context = TaskContext.get()
    if number is None:
        number = context.partitionId() if context is not None else 0
    attempt = context.attemptNumber() if context is not None else 0
    check = work.turn.taken(number, attempt)  # so that who wrote before stops, and then what he wrote is looked for
    known = recall(work).get(number) if attempt > 0 else work.known.get(number)
    yield pa.RecordBatch.from_pylist([send(work, number, known, batches, check)._asdict()], schema=SENT_SCHEMA)


def recall(work: Forward) -> Mapping[int, Recalled]:
    """What the target has of the portion. Raises ClientError, DamagedHistory."""
    if not work.options.include_identity:
        return {}
    return recalled(work.options.bootstrap, work.target, work.query, work.portion, with_keys=work.is_compacted)


def send(
    work: Forward,
    number: int,
    known: Recalled | None,
    batches: Iterable[Any],
    check: Callable[[], object] | None = None,
) -> Sent:
    """`check` is called before each chunk, and raises what is to stop it."""
    origins = work.portion.origins
    if number >= len(origins):
        if any(batch.num_rows for batch in batches):
            raise disordered("of any partition that this task replays")
        return Sent(0, 0, 0)
    rows = Rows(work, origins[number], known)
    stamp = Stamp(work.query, str(work.portion.number), str(number)) if work.options.include_identity else None
    try:
        tally = TaskWriter(work.options, {work.target.topic: work.target}, stamp).write(rows.of(batches), check)
    except RowError as error:
        at = rows.origin.start + error.row // REPLAY_ROWS_MAX
        raise UsageError(
            f"The record at offset {at} of topic '{rows.origin.topic}', partition {rows.origin.partition} cannot be "
            f"written: {error.reason}"
        ) from error
    return Sent(tally.records, tally.bytes, rows.repeated)


class Rows:
    """Of one task: numbered, placed, and without those that are there already."""

    def __init__(self, work: Forward, origin: Origin, known: Recalled | None) -> None:
        self.origin = origin
        self.repeated = 0
        self._work = work
        self._known = known
        self._last = -1
        """The offset of the row before."""
        self._of_last = 0
        """Rows of it so far."""

    def of(self, batches: Iterable[Any]) -> Iterator[Any]:
        """Raises UsageError."""
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
        """Of the target; null where the key says it. All rows without a key that come from one partition go to one."""
        own, count = self.origin.partition, batch.num_rows
        if self._work.keeps_partitions:
            return pa.array(np.full(count, own, np.int32))
        chosen = np.full(count, own % self._work.target.partitions, np.int32)
        if "key" not in batch.schema.names:
            return pa.array(chosen)
        return pa.array(chosen, mask=np.asarray(batch.column("key").is_valid()))

    def _new(self, batch: Any, numbers: Any) -> Any:
        """What the target does not have."""
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
        """Of the partition that each row goes to: what is below was there, and was deleted since."""
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
