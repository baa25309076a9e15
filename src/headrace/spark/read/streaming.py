"""``spark.readStream.format("headrace")``: Spark's stream reader over `headrace.spark.read.follow`.

Promises what `follow` promises. The options' limits hold for each micro-batch, except where Spark asks for everything
(Trigger.Once). Before Spark 4.2, which added admission control for Python, limits are ignored.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition

from headrace.spark.options import ReadOptions
from headrace.spark.read.columns import Columns
from headrace.spark.read.follow import Follower, Limits
from headrace.spark.read.positions import StreamOffsets
from headrace.spark.source import rows_of
from headrace.spark.telling import alone

if TYPE_CHECKING:
    from pyspark.sql.streaming.datasource import ReadLimit, SupportsTriggerAvailableNow
else:
    try:
        from pyspark.sql.streaming.datasource import SupportsTriggerAvailableNow
    except ImportError:  # Spark 4.1
        SupportsTriggerAvailableNow = object


@alone
class HeadraceStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Plans in a process that the driver keeps; reads in the workers."""

    def __init__(self, options: ReadOptions, columns: Columns) -> None:
        self._options = options
        self._columns = columns
        self._opened: Follower | None = None  # opened on demand: this object is pickled for the workers

    @property
    def _follower(self) -> Follower:
        if self._opened is None:
            self._opened = Follower(self._options)
        return self._opened

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's names, here and below
        return _plain(self._follower.initial())

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxBytes, ReadMaxRows

        if self._options.trigger_records_max is not None:
            return ReadMaxRows(self._options.trigger_records_max)
        if self._options.trigger_bytes_max is not None:
            return ReadMaxBytes(self._options.trigger_bytes_max)
        return ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        self._follower.stop_at_what_is_there()

    def latestOffset(  # noqa: N802
        self, start: dict[str, Any] | None = None, limit: ReadLimit | None = None
    ) -> dict[str, Any]:
        return _plain(self._follower.latest(start or {}, self._limits(limit)))

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802
        return None

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        return [InputPartition(task) for task in self._follower.tasks(start, end)]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """pyarrow.RecordBatch of up to 32,768 rows."""
        return rows_of(self._options, self._columns, partition)

    def stop(self) -> None:
        if self._opened is not None:
            self._opened.close()
            self._opened = None

    def _limits(self, limit: ReadLimit | None) -> Limits:
        """Spark hands back the one limit that `getDefaultReadLimit` gave, or requests everything."""
        if type(limit).__name__ in ("ReadMaxRows", "ReadMaxBytes"):
            return Limits(self._options.trigger_records_max, self._options.trigger_bytes_max)
        return Limits()


def _plain(offsets: StreamOffsets) -> dict[str, Any]:
    return {topic: dict(by_partition) for topic, by_partition in offsets.items()}
