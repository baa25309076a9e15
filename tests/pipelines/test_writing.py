"""Rows into files: all of them once, each file of one combination of values, and named by what it holds."""

from __future__ import annotations

from dataclasses import replace
from datetime import date
from pathlib import Path
from typing import Any

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st
from pyarrow import parquet

from headrace.spark.pipelines.tables.compacting import merged_group, small_groups
from headrace.spark.pipelines.tables.progress import File
from headrace.spark.pipelines.tables.writing import (
    SAMPLE_ROWS,
    Layout,
    TableWriter,
    dictionary_columns,
    file_of,
    parted,
    written,
)

SCHEMA = pa.schema(
    [
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("day", pa.date32()),
        ("kind", pa.string()),
    ]
)


def rows(count: int, start: int = 0) -> list[dict[str, Any]]:
    return [
        {
            "topic": "orders",
            "partition": at % 2,
            "offset": at // 2,
            "day": None if at % 5 == 0 else date(2026, 1, 1 + at % 3),
            "kind": ("a/b=c", "", None)[at % 3],
        }
        for at in range(start, start + count)
    ]


def layout(path: Path, *by: str, file_bytes: int = 1 << 20) -> Layout:
    return Layout(url=str(path), schema=SCHEMA, partition_by=by, file_bytes=file_bytes, compression="zstd")


def batches(found: list[dict[str, Any]], size: int = 10) -> list[Any]:
    return [pa.RecordBatch.from_pylist(found[at : at + size], schema=SCHEMA) for at in range(0, len(found), size)]


def read(path: Path, files: list[File]) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    for file in files:
        with parquet.ParquetFile(path / file.path) as opened:
            found += opened.read().to_pylist()
    return found


def by_place(row: dict[str, Any]) -> tuple[int, int]:
    return row["partition"], row["offset"]


def test_every_row_is_in_one_file_of_its_values(tmp_path: Path) -> None:
    told = [*written(layout(tmp_path, "day", "kind"), batches(rows(60)))]
    files = [file_of(row) for batch in told for row in batch.to_pylist()]
    assert sorted(read(tmp_path, files), key=by_place) == sorted(rows(60), key=by_place)
    assert len(files) == 2 * 3, "day and kind go together but where there is no day"
    for file in files:
        for row in read(tmp_path, [file]):
            assert file.values == {"day": row["day"] and row["day"].isoformat(), "kind": row["kind"]}
    assert sum(file.records for file in files) == 60


def test_a_name_says_the_offsets_and_is_never_given_twice(tmp_path: Path) -> None:
    (file,) = TableWriter(layout(tmp_path)).write(batches(rows(60)))
    name = file.path.removeprefix("data/")
    assert name.startswith(f"part-orders-0-{0:020d}-{29:020d}-and-1-")
    (again,) = TableWriter(layout(tmp_path)).write(batches(rows(60)))
    assert again.path != file.path, "a task that is repeated puts another file"
    assert read(tmp_path, [again]) == read(tmp_path, [file])
    assert len(list((tmp_path / "data").iterdir())) == 2


def test_columns_of_any_name_partition_a_table(tmp_path: Path) -> None:
    name = "ü." * 100
    schema = SCHEMA.append(pa.field(name, pa.string()))
    found = pa.RecordBatch.from_pylist([{**rows(1)[0], name: "é" * 100}], schema=schema)
    (file,) = TableWriter(replace(layout(tmp_path, name), schema=schema)).write([found])
    assert file.values == {name: "é" * 100}
    assert read(tmp_path, [file])[0][name] == "é" * 100
    (_, directory, _) = file.path.split("/")
    assert len(directory.encode()) <= 255


def test_files_end_where_they_are_large_enough(tmp_path: Path) -> None:
    files = [*TableWriter(layout(tmp_path, file_bytes=1000)).write(batches(rows(400)))]
    assert len(files) > 5
    assert sorted(read(tmp_path, files), key=by_place) == sorted(rows(400), key=by_place)


@given(st.lists(st.tuples(st.sampled_from([None, "", "a", "A"]), st.sampled_from([None, 0, 1, -1])), max_size=30))
def test_parting_loses_no_row(pairs: list[tuple[str | None, int | None]]) -> None:
    made = [{"kind": kind, "number": number, "at": at} for at, (kind, number) in enumerate(pairs)]
    schema = pa.schema([("kind", pa.string()), ("number", pa.int32()), ("at", pa.int64())])
    found = [*parted(pa.Table.from_pylist(made, schema=schema), ("kind", "number"))]
    assert sorted(row["at"] for _, part in found for row in part.to_pylist()) == [*range(len(pairs))]
    assert all((row["kind"], row["number"]) == values for values, part in found for row in part.to_pylist())


def test_small_files_of_the_same_values_belong_together() -> None:
    small = [File(f"data/{at}", 1, 10, {"day": at % 2}) for at in range(20)]
    large = [File("data/l", 1, 60, {"day": 0})]
    groups = small_groups([*small, *large], 100, least=3)
    assert sorted(len(group) for group in groups) == [10, 10]
    assert all(len({file.values["day"] for file in group}) == 1 for group in groups)
    assert [len(group) for group in small_groups(small, 50, least=3)] == [5, 5, 5, 5]
    assert small_groups(small[:4], 100, least=3) == []


def test_files_are_merged_a_few_times_and_then_no_more(tmp_path: Path) -> None:
    """Rows that are small once compressed, so that no file grows as large as it would be without."""
    at = layout(tmp_path, file_bytes=40_000)
    wanted = [{**row, "kind": "x" * 200} for row in rows(2000)]
    made = [file for start in range(0, 2000, 20) for file in TableWriter(at).write(batches(wanted[start : start + 20]))]
    live, ever, written_rows = {file.path: file for file in made}, {file.path for file in made}, 0
    while groups := small_groups(live.values(), at.file_bytes):
        for group in groups:
            told = [row for batch in merged_group(at, [file.path for file in group]) for row in batch.to_pylist()]
            assert len(told) == 1
            new = file_of(told[0])
            assert new.path not in ever, "a name is that of one file"
            ever.add(new.path)
            written_rows += new.records
            live = {path: file for path, file in live.items() if file not in group} | {new.path: new}
        assert written_rows <= 4 * 2000, "each row is merged a few times"
    assert len(live) < 20
    assert written_rows > 0
    assert sorted(read(tmp_path, [*live.values()]), key=by_place) == sorted(wanted, key=by_place)


def test_a_file_that_comes_does_not_have_large_ones_written_again() -> None:
    large = [File(f"data/{at}", 1000, 5_000, {}) for at in range(7)]
    small = [File(f"data/s{at}", 1, 40, {}) for at in range(8)]
    assert small_groups([*large, *small], 1_000_000) == [small]
    many = [File(f"data/{at:05d}", 1, 1, {}) for at in range(25_000)]
    assert {len(group) for group in small_groups(many, 1_000_000)} == {1_000}
    assert sum(map(len, small_groups(many, 1_000_000))) == 10_000, "the rest is for the next commit"


def test_what_hardly_comes_again_gets_no_dictionary(tmp_path: Path) -> None:
    """A writer would give the dictionary up; names are Parquet's own, in lists, structs and maps, too. Short tables get
    all."""
    nested = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
    schema = pa.schema(
        [
            ("topic", pa.string()),
            ("id", pa.binary()),
            ("large", pa.binary()),
            ("offset", pa.int64()),
            ("headers", nested),
            ("tags", pa.map_(pa.string(), pa.list_(pa.int32()))),
        ]
    )

    def rows_of(count: int) -> Any:
        found = [
            {
                "topic": "orders",
                "id": b"%d" % at,
                "large": b"%d" % (at % 3) * 400_000 if count < 100 else b"",
                "offset": at,
                "headers": [{"key": "h", "value": b"v"}],
                "tags": [("k", [at])],
            }
            for at in range(count)
        ]
        return pa.Table.from_pylist(found, schema=schema)

    nested_leaves = ["headers.list.element.key", "headers.list.element.value"]
    nested_leaves += ["tags.key_value.key", "tags.key_value.value.list.element"]
    many = rows_of(SAMPLE_ROWS)
    assert dictionary_columns(many) == ["topic", "large", "offset", *nested_leaves]
    assert dictionary_columns(rows_of(10)) == ["topic", "id", "offset", *nested_leaves], "a megabyte is too large"
    written_by = Layout(url=str(tmp_path), schema=schema, partition_by=(), file_bytes=1 << 24, compression="snappy")
    table = many.append_column("partition", pa.array([0] * len(many), pa.int32()))
    (file,) = TableWriter(replace(written_by, schema=table.schema)).write(table.to_batches())
    with parquet.ParquetFile(tmp_path / file.path) as opened:
        group = opened.metadata.row_group(0)
        columns = [group.column(at) for at in range(group.num_columns)]
        assert opened.read().equals(table)
    with_dictionary = {each.path_in_schema for each in columns if each.has_dictionary_page}
    assert with_dictionary == {"topic", "large", "offset", *nested_leaves, "partition"}
    assert file.bytes == (tmp_path / file.path).stat().st_size
