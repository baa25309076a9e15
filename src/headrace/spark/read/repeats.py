"""``dropRepeats``: leaves out records that a Spark task wrote again.

The law concerns records whose headers name the query, batch and task that wrote them, and the row's number. Such a
record is left out if an equal one is among the ``repeatWindow`` offsets before it in its partition. Equal means in key,
value and all headers. The search goes as far back as the log does when the read is planned.

So no record is left out unless an equal one exists, and the cut of a read into tasks makes no difference. A stream that
replays a batch gives the same rows, unless retention has moved the log's start. Memory is bounded by the window.
Records without these headers are never left out.
"""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Iterable, Iterator
from typing import Any, Final, NamedTuple, Protocol

import numpy as np

from headrace.base.ids import TopicId
from headrace.base.limits import SPARK_REPEATS_KEPT_MAX
from headrace.spark.read.columns import Columns
from headrace.spark.write.packing import TASK, ArrowHeaders, ArrowStrings, fixed

LOOKED_AT: Final = ("key", "value", "offset", "headers")
FIRST_ROOM: Final = 1 << 12


class Memory(Protocol):
    """The records of one partition that are remembered, up to some offset."""

    end: int
    """The offset after the last record seen. Later batches must lie there or above."""

    @property
    def size(self) -> int:
        """The approximate number of records that it remembers."""
        ...

    def repeated(self, batch: Any, horizon: int = 0) -> Any:
        """Marks the repeats among the rows of a pyarrow.RecordBatch with the columns LOOKED_AT, as numpy bool. Records
        below `horizon` are not repeated.
        """
        ...


def decoded(columns: Columns) -> Columns:
    """The columns that have to be read for these."""
    return Columns((*columns.names, *(name for name in LOOKED_AT if name not in columns)))


def memory_for(window: int) -> Memory:
    """The fastest memory that this machine has."""
    try:
        return NativeMemory(window)
    except ImportError:
        return PlainMemory(window)


class Once(NamedTuple):
    """The wanted offsets of one partition."""

    start: int
    """The first wanted offset. Earlier records are only remembered."""
    horizon: int
    """Beginning of the window, or of the log: no record repeats one below it."""


def without_repeats(batches: Iterable[Any], memory: Memory, once: Once, columns: Columns) -> Iterator[Any]:
    """The wanted rows without repeats, in these columns."""
    for batch in batches:
        offsets = np.asarray(batch.column("offset"))
        kept = ~memory.repeated(batch, once.horizon) & (offsets >= once.start)
        memory.end = int(offsets[-1]) + 1
        chosen = batch.select(list(columns.names))
        if kept.all():
            yield chosen
        elif kept.any():
            yield chosen.filter(kept)


class NativeMemory:
    """A table of hashes. Raises ImportError where there is no numba."""

    def __init__(self, window: int) -> None:
        from headrace.spark.read import repeatkernel

        self._kernel = repeatkernel
        self._window = window
        self._name = fixed(np.frombuffer(TASK.encode(), np.uint8))
        self._secret = fixed(np.frombuffer(os.urandom(16), np.uint64))
        self._state = np.zeros(1, np.int64)
        self._table = self._empty(FIRST_ROOM)
        self.end = 0

    @property
    def size(self) -> int:
        return len(self._table[2])

    def _empty(self, room: int) -> tuple[Any, Any, Any]:
        places = np.full(room, self._kernel.EMPTY, np.int64)
        return np.zeros(room, np.uint64), np.zeros(room, np.uint64), places

    def repeated(self, batch: Any, horizon: int = 0) -> Any:
        rows = batch.num_rows
        keys, values = (ArrowStrings(batch.column(name), rows) for name in ("key", "value"))
        headers = ArrowHeaders(batch.column("headers"), rows)
        offsets = np.array(batch.column("offset"), np.int64)
        found = np.zeros(rows, np.uint8)
        at = 0
        while True:
            at = self._kernel.find(
                keys.ends,
                keys.bytes,
                keys.valid,
                values.ends,
                values.bytes,
                values.valid,
                headers.ends,
                headers.names.ends,
                headers.names.bytes,
                headers.values.ends,
                headers.values.bytes,
                headers.values.valid,
                offsets,
                at,
                self._window,
                horizon,
                self._name,
                self._secret,
                *self._table,
                self._state,
                found,
            )
            if at == rows:
                return found.view(np.bool_)
            self._make_room(int(offsets[at]) - self._window)

    def _make_room(self, oldest: int) -> None:
        """Drop entries that are too old, and enlarge the table where more than three eighths remain."""
        old = self._table
        live = int(np.count_nonzero(old[2] >= max(oldest, 0)))
        self._table = self._empty(len(old[2]) * (2 if 8 * live > 3 * len(old[2]) else 1))
        self._kernel.move(*old, max(oldest, 0), *self._table, self._state)


class PlainMemory:
    """The slow twin: the records themselves, in a dictionary."""

    def __init__(self, window: int) -> None:
        self._window = window
        self._places: dict[Any, int] = {}
        self.end = 0

    @property
    def size(self) -> int:
        return len(self._places)

    def repeated(self, batch: Any, horizon: int = 0) -> Any:
        found = np.zeros(batch.num_rows, np.bool_)
        for at, row in enumerate(batch.select(list(LOOKED_AT)).to_pylist()):
            headers = tuple((each["key"], each["value"]) for each in row["headers"])
            if any(name == TASK for name, _ in headers):
                record = (row["key"], row["value"], headers)
                found[at] = self._places.get(record, -1) >= max(horizon, row["offset"] - self._window)
                self._places[record] = row["offset"]
        if len(self._places) > 2 * self._window and batch.num_rows:
            oldest = row["offset"] - self._window
            self._places = {record: place for record, place in self._places.items() if place >= oldest}
        return found


class KeptKey(NamedTuple):
    """The key of a kept memory."""

    stream: str
    """Empty for a batch read, whose memory is not kept."""
    topic_id: TopicId
    partition: int
    window: int


class Kept:
    """Memories that a worker keeps from one micro-batch of a stream to the next, so that it looks back less far.

    A memory serves only its own stream. Another read may want records of which this one has seen a copy that compaction
    has since removed.
    """

    def __init__(self, records_max: int = SPARK_REPEATS_KEPT_MAX) -> None:
        self._records_max = records_max
        self._memories: OrderedDict[KeptKey, Memory] = OrderedDict()

    def take(self, key: KeptKey, start: int) -> Memory:
        """A memory that ends at `start` or before, or a new one."""
        known = self._memories.pop(key, None)
        return known if known is not None and known.end <= start else memory_for(key.window)

    def put(self, key: KeptKey, memory: Memory) -> None:
        if key.stream:
            self._memories[key] = memory
        while self._memories and sum(each.size for each in self._memories.values()) > self._records_max:
            self._memories.popitem(last=False)


KEPT: Final = Kept()
