"""Merges small files of a table into large ones, in the workers. The driver commits the exchange.

Promises the same rows: a merge with another number of rows fails. Merges only files with equal values of the table's
partition columns, in the order of their names.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import accumulate
from typing import TYPE_CHECKING, Any

from headrace.base.errors import CorruptData
from headrace.base.limits import (
    PIPELINE_COMPACT_FILES_MAX,
    PIPELINE_COMPACT_FILES_MIN,
    PIPELINE_COMPACT_GROUP_MAX,
    PIPELINE_TASK_BYTES_MAX,
)
from headrace.spark.pipelines.tables.progress import File
from headrace.spark.pipelines.tables.reading import conformed
from headrace.spark.pipelines.tables.shaping import numbered
from headrace.spark.pipelines.tables.writing import FILE_SQL, Layout, file_of, written
from headrace.spark.results import collected
from headrace.storage.objects import open_objects

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def small_groups(
    files: Iterable[File], file_bytes: int, *, least: int = PIPELINE_COMPACT_FILES_MIN
) -> list[list[File]]:
    """Groups of files that are worth merging.

    A group has `least` files or more, with equal values and about equal numbers of records. Each file is smaller than
    `file_bytes` / `least`, and all together are at most `file_bytes`. A merge multiplies the records of a file by
    `least`, so that a record is merged only a few times in all. Files beyond PIPELINE_COMPACT_FILES_MAX wait for the
    next commit.
    """
    alike: dict[tuple[Any, ...], list[File]] = defaultdict(list)
    for file in files:
        if file.bytes * least < file_bytes:
            alike[(_tier(file.records, least), *file.values.items())].append(file)
    groups = [group for some in alike.values() for group in _cut(sorted(some), file_bytes) if len(group) >= least]
    totals = accumulate(len(group) for group in groups)
    return [group for group, total in zip(groups, totals, strict=True) if total <= PIPELINE_COMPACT_FILES_MAX]


def _tier(records: int, base: int) -> int:
    """The exponent of the largest power of `base` that is not above `records`."""
    tier = 0
    while records >= base:
        records, tier = records // base, tier + 1
    return tier


def _cut(files: Sequence[File], file_bytes: int) -> Iterator[list[File]]:
    group: list[File] = []
    held = 0
    for file in files:
        if group and (held + file.bytes > file_bytes or len(group) >= PIPELINE_COMPACT_GROUP_MAX):
            yield group
            group, held = [], 0
        group.append(file)
        held += file.bytes
    yield group


def merged(spark: SparkSession, layout: Layout, groups: Sequence[Sequence[File]]) -> list[File]:
    """Merge the groups. Returns the new files, which hold the same rows; raises CorruptData where they do not."""
    paths = [[file.path for file in group] for group in groups]

    def merge(number: int) -> Iterator[Any]:
        yield from merged_group(layout, paths[number])

    found = [file_of(row) for row in collected(numbered(spark, len(groups), merge, FILE_SQL))]
    before, after = sum(file.records for group in groups for file in group), sum(file.records for file in found)
    if before != after:
        raise CorruptData(f"Files of {before} rows were merged into {after}: nothing was changed in the table.")
    return found


def merged_group(layout: Layout, paths: Sequence[str]) -> Iterator[Any]:
    """Called in a worker: yields as `written`. The total bytes of the sources are bounded, so the result is one file.
    It is not cut at `file_bytes`, which would count uncompressed rows.
    """
    yield from written(replace(layout, file_bytes=PIPELINE_TASK_BYTES_MAX), _rows(layout, paths))


def _rows(layout: Layout, paths: Sequence[str]) -> Iterator[Any]:
    import pyarrow as pa
    from pyarrow import parquet

    objects = open_objects(layout.url)
    for path in paths:
        for batch in parquet.ParquetFile(pa.BufferReader(objects.get(path))).iter_batches():
            yield from conformed(pa.Table.from_batches([batch]), layout.schema).combine_chunks().to_batches()
