"""The rows of a portion that the target has already, found by their records' headers. A run that continues the portion
reads them.

Promises to search everything that came to the target since the portion was planned, wherever the target ends by now.
Where the beginning of a partition was deleted since, it returns the first remaining row of each task. Only acknowledged
records are sure to be found. A dead worker's last request may still be under way, and its records are then stored
twice.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np
import pyarrow.compute as pc

from headrace.base.ids import PartitionIndex
from headrace.net.client.offsets import EARLIEST, LATEST
from headrace.net.client.security.settings import PLAIN, ClientSecurity
from headrace.spark.brokers import Brokers
from headrace.spark.options import ReadOptions, parse_options
from headrace.spark.pipelines.replays.log import Portion, made_anew
from headrace.spark.read.extent import Sources
from headrace.spark.read.plan import plan_tasks
from headrace.spark.read.reading import TaskReader
from headrace.spark.write.packing import BATCH, QUERY, STAMP_HEADERS, TASK
from headrace.spark.write.writing import Target


class Recalled(NamedTuple):
    """The rows of one task that are there."""

    numbers: Any
    """Numbers of these rows: numpy int64."""
    newest: Mapping[bytes, int]
    """The largest number of each key, if requested."""
    firsts: Mapping[int, int]
    """For partitions of the target whose beginning was deleted since: the smallest remaining number. Rows are written
    in order, so those below it were there.
    """


@dataclass(slots=True)
class _Found:
    numbers: list[int] = field(default_factory=list)
    newest: dict[bytes, int] = field(default_factory=dict)
    firsts: dict[int, int] = field(default_factory=dict)

    def result(self, cut: set[int]) -> Recalled:
        firsts = {place: number for place, number in self.firsts.items() if place in cut}
        return Recalled(np.array(sorted(self.numbers), np.int64), self.newest, firsts)


def recalled(
    bootstrap: str,
    target: Target,
    query: str,
    portion: Portion,
    *,
    with_keys: bool,
    security: ClientSecurity = PLAIN,
) -> Mapping[int, Recalled]:
    """The rows of each task that the target has. Raises UsageError where the target was made again, ClientError,
    DamagedHistory.
    """
    found: dict[int, _Found] = defaultdict(_Found)
    planned = {PartitionIndex(at): portion.target_ends.get(at, 0) for at in range(target.partitions)}
    with Brokers(bootstrap, security) as brokers:
        if brokers.topic(target.topic).id != target.id:
            raise made_anew(target.topic)
        ends = brokers.offsets(target.topic, planned, LATEST)  # an unclean election may have removed some
        starts = {at: min(end, ends[at].offset) for at, end in planned.items()}
        options = replace(_options(bootstrap, target.topic, starts, with_keys=with_keys), security=security)
        sources = Sources(options, brokers=brokers)
        for task in plan_tasks(sources, sources.ranges()):
            with TaskReader(options, options.columns) as reader:
                for batch in reader.read(task):
                    _look(batch, query, portion.number, found)
        begins = brokers.offsets(target.topic, planned, EARLIEST)  # read last, since retention may cut meanwhile
    cut = {int(at) for at, end in planned.items() if begins[at].offset > end}
    return {task: each.result(cut) for task, each in found.items()}


def _options(bootstrap: str, topic: str, starts: Mapping[PartitionIndex, int], *, with_keys: bool) -> ReadOptions:
    given = {
        "bootstrap": bootstrap,
        "topic": topic,
        "columns": "key,partition,headers" if with_keys else "partition,headers",
        "startingOffsets": json.dumps({topic: {str(at): offset for at, offset in starts.items()}}),
        "failOnDataLoss": "false",  # deleted records cannot be searched
        "isolation": "read_uncommitted",  # rows of a replay are in no transaction, but others' may be open below them
    }
    return parse_options(given, streaming=False)


def _look(batch: Any, query: str, portion: int, found: dict[int, _Found]) -> None:
    keys = batch.column("key") if "key" in batch.schema.names else None
    places = np.asarray(batch.column("partition"))
    for row, task, number in _own(batch.column("headers"), query, portion):
        own, place = found[task], int(places[row])
        own.numbers.append(number)
        own.firsts[place] = min(number, own.firsts.get(place, number))
        if keys is not None and (key := keys[row].as_py()) is not None:
            own.newest[key] = max(number, own.newest.get(key, -1))


def _own(headers: Any, query: str, portion: int) -> Iterator[tuple[int, int, int]]:
    """The rows that this portion wrote: row, task and number. A writer puts its headers last."""
    ends = np.asarray(headers.offsets)
    marked = np.nonzero(np.diff(ends) >= STAMP_HEADERS)[0]
    last = ends[1:][marked] - 1
    names, values = headers.values.field("key"), headers.values.field("value")
    wanted = ((2, QUERY, query), (1, BATCH, str(portion)))
    own = pc.equal(names.take(last), TASK)
    for back, name, value in wanted:
        own = pc.and_(own, pc.equal(names.take(last - back), name))
        own = pc.and_(own, pc.equal(values.take(last - back), value.encode()))
    chosen = np.asarray(own.fill_null(False))
    for row, text in zip(marked[chosen].tolist(), values.take(last[chosen]).to_pylist(), strict=True):
        task, _, number = text.rpartition(b":")
        yield row, int(task), int(number)
