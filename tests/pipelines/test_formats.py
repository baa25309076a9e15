"""Delta and Iceberg beside the table's own log: each commit once, also one that a run could not publish any more."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import pytest

from headrace.base.errors import UsageError
from headrace.spark import pipelines
from headrace.spark.pipelines import materialise
from headrace.spark.pipelines.spec import Materialise, parse
from headrace.spark.pipelines.tables.materialising import _Run
from headrace.spark.pipelines.tables.progress import ProgressLog
from headrace.spark.pipelines.tables.publishing import TakenError, publish, table_format
from headrace.spark.read.follow import Follower
from headrace.storage.objects import open_objects
from tests.pipelines.oracle import consumer_rows, delta_listed, differences, iceberg_listed, listed
from tests.pipelines.test_crash import catalog, fill
from tests.spark.world import World, consumed, world

PACKAGES = {"delta": "deltalake", "iceberg": "pyiceberg"}
ODD = {"columns": {"odd": "concat('a/b =', partition, '%')"}}
pytestmark = pytest.mark.timeout(180)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with world(tmp_path_factory.mktemp("world")) as running:
        running.create("t", 3)
        yield running


def spec_of(made: World, root: Path, kind: str, **table: Any) -> Materialise:
    given = {"bootstrap": made.bootstrap, "topic": "t", "includeHeaders": True, "maxRecordsPerTrigger": 60}
    table |= {"path": str(root / "table"), "partition_by": ["topic", "odd"], "format": kind}
    if kind == "iceberg":
        table |= {"catalog": catalog(root), "identifier": "lake.t"}
    spec = parse({"pipeline": "materialise", "name": "t", "source": given, "table": table, **ODD})
    assert isinstance(spec, Materialise)
    return spec


def unpublished(spark: Any, spec: Materialise) -> None:
    """As a run that dies before the format has its commits."""
    with closing(Follower(spec.source)) as follower:
        run = _Run(spec, follower, lambda: spark)
        run._format = None
        run.begin()
        run.forward()


def names(root: Path, kind: str) -> list[str]:
    if kind == "delta":
        return delta_listed(root / "table")
    return iceberg_listed(root / "table", catalog(root), "lake.t")


def own_reader(root: Path, kind: str) -> list[tuple[int, int]]:
    """Partitions and offsets, as whoever knows nothing of us reads the table."""
    if kind == "delta":
        from deltalake import DeltaTable

        found = DeltaTable(str(root / "table")).to_pyarrow_table()
    else:
        from pyiceberg.catalog import load_catalog

        found = load_catalog("default", **catalog(root)).load_table("lake.t").scan().to_arrow()
    rows = [(row["partition"], row["offset"]) for row in found.select(["partition", "offset"]).to_pylist()]
    assert {*found.column("odd").to_pylist()} == {"a/b =0%", "a/b =1%", "a/b =2%"}
    return sorted(rows)


@pytest.mark.parametrize("kind", PACKAGES)
def test_what_a_run_could_not_publish_the_next_one_does(made: World, spark: Any, tmp_path: Path, kind: str) -> None:
    pytest.importorskip(PACKAGES[kind])
    fill(made, 10, Random(1))
    materialise(lambda: spark, spec_of(made, tmp_path, kind))
    first = names(tmp_path, kind)
    assert sorted(first) == sorted(listed(tmp_path / "table"))
    fill(made, 20, Random(2))
    unpublished(spark, spec_of(made, tmp_path, kind))
    assert names(tmp_path, kind) == first
    started = list[Any]()

    def session() -> Any:
        started.append(spark)
        return spark

    materialise(session, spec_of(made, tmp_path, kind))
    assert started, "with nothing new to read either: types of columns need a session"
    wanted = consumed(made.bootstrap, ["t"])
    assert sorted(names(tmp_path, kind)) == sorted(listed(tmp_path / "table"))
    assert differences(consumer_rows(tmp_path / "table", names(tmp_path, kind)), wanted) == []
    assert own_reader(tmp_path, kind) == [row[1:3] for row in wanted]


@pytest.mark.parametrize("kind", PACKAGES)
def test_two_that_publish_at_once_add_each_file_once(made: World, spark: Any, tmp_path: Path, kind: str) -> None:
    pytest.importorskip(PACKAGES[kind])
    fill(made, 10, Random(3))
    spec = spec_of(made, tmp_path, kind)
    unpublished(spark, spec)
    commits = [*ProgressLog(open_objects(spec.path)).commits()]
    one, other = table_format(spec), table_format(spec)
    assert one is not None
    assert other is not None
    publish(one, commits[:2])
    for commit in commits[2:]:
        assert (one.version(), other.version()) == (commit.version - 1, commit.version - 1)
        one.publish(commit)
        with pytest.raises(TakenError):
            other.publish(commit)
    publish(other, commits)
    assert len(commits) > 2
    assert sorted(names(tmp_path, kind)) == sorted(listed(tmp_path / "table"))


def test_a_property_that_was_changed_lets_nobody_add_twice(made: World, spark: Any, tmp_path: Path) -> None:
    """With retries of its own, pyiceberg commits to whatever is there by then."""
    iceberg = pytest.importorskip("headrace.spark.pipelines.tables.iceberg", exc_type=ImportError)
    fill(made, 10, Random(4))
    spec = spec_of(made, tmp_path, "iceberg")
    unpublished(spark, spec)
    commits = [each for each in ProgressLog(open_objects(spec.path)).commits() if each.added]
    one, other = iceberg.IcebergFormat(spec), iceberg.IcebergFormat(spec)
    publish(one, commits[:1])
    one._catalog.load_table("lake.t").transaction().set_properties({iceberg.RETRIES: "4"}).commit_transaction()
    assert other.version() == commits[0].version
    publish(one, commits[1:2])
    with pytest.raises(TakenError):
        other.publish(commits[1])
    assert sorted(names(tmp_path, "iceberg")) == sorted(file.path for each in commits[:2] for file in each.added)


@pytest.mark.parametrize("kind", PACKAGES)
def test_columns_that_a_format_does_not_take_are_refused_before_anything_is_committed(
    made: World, spark: Any, tmp_path: Path, kind: str
) -> None:
    pytest.importorskip(PACKAGES[kind])
    spec = spec_of(made, tmp_path, kind)
    for more in ({"lag": "timestamp - timestamp'2026-01-01'"}, {"small": "cast(1 as int)"}):
        fill(made, 5, Random(5))
        before = ProgressLog(open_objects(spec.path)).state()
        with pytest.raises(UsageError, match=r"does not (take|hold)"):
            materialise(lambda: spark, replace(spec, columns={**spec.columns, **more}))
        assert not [file for file in ProgressLog(open_objects(spec.path)).state().files if file not in before.files]
        materialise(lambda: spark, replace(spec, columns={**spec.columns, "small": "cast(1 as bigint)"}))
    assert sorted(names(tmp_path, kind)) == sorted(listed(tmp_path / "table"))


@pytest.mark.parametrize("kind", PACKAGES)
def test_fields_in_a_column_may_have_names_that_need_quotes(made: World, spark: Any, tmp_path: Path, kind: str) -> None:
    pytest.importorskip(PACKAGES[kind])
    plain = spec_of(made, tmp_path, kind)
    deep = "named_struct('a-b', offset, 'n', array(map('k', named_struct('x.y', offset))))"
    spec = replace(plain, columns={**plain.columns, "deep": deep})
    for seed in (7, 8):
        fill(made, 3, Random(seed))
        materialise(lambda: spark, spec)
    assert own_reader(tmp_path, kind) == [row[1:3] for row in consumed(made.bootstrap, ["t"])]
    rows = pipelines.table(spark, spec.path)
    found = rows.selectExpr("offset", "deep.`a-b` as a", "deep.n[0]['k'].`x.y` as b").collect()
    assert found
    assert all(row.offset == row.a == row.b for row in found)


def test_an_empty_text_that_delta_would_tell_as_null_is_refused(made: World, spark: Any, tmp_path: Path) -> None:
    pytest.importorskip("deltalake")
    fill(made, 5, Random(6))
    spec = replace(spec_of(made, tmp_path, "delta"), columns={"odd": "''"})
    with pytest.raises(UsageError, match="'odd', by which the table is partitioned, holds an empty text"):
        materialise(lambda: spark, spec)
    assert not ProgressLog(open_objects(spec.path)).state().files


def test_a_format_needs_its_keys() -> None:
    source = {"store": "/s", "topic": "t"}
    for table in ({"format": "iceberg"}, {"catalog": {"type": "sql"}}, {"format": "iceberg", "identifier": "a.b"}):
        with pytest.raises(UsageError, match="need one another"):
            parse({"pipeline": "materialise", "name": "t", "source": source, "table": {"path": "/t", **table}})
