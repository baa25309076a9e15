"""What a target already has of a portion, by the headers that its records bear: read by whoever goes on with it.

Promises to look at all that came to the target since the portion was planned. Only what was acknowledged is sure to be
found: a dead worker's last request may still be on its way, and its records are then there twice.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import pyarrow.compute as pc

from headrace.spark.extent import Sources
from headrace.spark.options import parse_options
from headrace.spark.packing import BATCH, QUERY, STAMP_HEADERS, TASK
from headrace.spark.pipelines.replay_log import Portion, made_anew
from headrace.spark.plan import plan_tasks
from headrace.spark.reading import TaskReader
from headrace.spark.writing import Target


class Recalled(NamedTuple):
    """Of one task."""

    numbers: Any
    """Of its rows that are there: numpy int64."""
    newest: Mapping[bytes, int]
    """The largest of each key, where that was asked for."""


@dataclass(slots=True)
class _Found:
    numbers: list[int] = field(default_factory=list)
    newest: dict[bytes, int] = field(default_factory=dict)


def recalled(
    bootstrap: str, target: Target, query: str, portion: Portion, *, with_keys: bool
) -> Mapping[int, Recalled]:
    """By task. Raises UsageError where the target was made anew, ClientError, DamagedHistory."""
    starts = {str(partition): end for partition, end in portion.target_ends.items()}
    given = {
        "bootstrap": bootstrap,
        "topic": target.topic,
        "columns": "key,headers" if with_keys else "headers",
        "startingOffsets": json.dumps({target.topic: starts}),
        "failOnDataLoss": "false",  # what has left it since is written again
    }
    options = parse_options(given, streaming=False)
    found: dict[int, _Found] = defaultdict(_Found)
    sources = Sources(options)
    try:
        if any(each.id != target.id for each in sources.topics()):
            raise made_anew(target.topic)
        for task in plan_tasks(sources, sources.ranges()):
            with TaskReader(options, options.columns) as reader:
                for batch in reader.read(task):
                    _look(batch, query, portion.number, found)
    finally:
        sources.close()
    return {task: Recalled(np.array(sorted(each.numbers), np.int64), each.newest) for task, each in found.items()}


def _look(batch: Any, query: str, portion: int, found: dict[int, _Found]) -> None:
    keys = batch.column("key") if "key" in batch.schema.names else None
    for row, task, number in _own(batch.column("headers"), query, portion):
        found[task].numbers.append(number)
        if keys is not None and (key := keys[row].as_py()) is not None:
            newest = found[task].newest
            newest[key] = max(number, newest.get(key, -1))


def _own(headers: Any, query: str, portion: int) -> Iterator[tuple[int, int, int]]:
    """Of the rows that this portion wrote: row, task and number. A writer puts its headers last."""
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
