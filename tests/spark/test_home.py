"""Workers of a local session load PySpark from where pip has put it."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import pyspark
import pytest

from headrace.spark.session import java_pid
from headrace.spark.session.home import ARCHIVE, LINKED, home_without_archives, lasting_home, link_home


def test_workers_take_no_pyspark_out_of_an_archive(spark: Any) -> None:
    def where(_: int) -> str:
        import pyspark

        return pyspark.__file__

    assert spark.sparkContext.parallelize([0], 1).map(where).collect() == [pyspark.__file__]


def test_a_package_without_a_home_in_it_gets_none(tmp_path: Path) -> None:
    (tmp_path / "jars").mkdir()
    assert home_without_archives(tmp_path) is None


@pytest.fixture
def environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A package of Spark's, in an environment without a home that lasts."""
    monkeypatch.setattr(sys, "prefix", str(tmp_path / "environment"))
    package = tmp_path / "pyspark"
    for name in LINKED:
        (package / name).mkdir(parents=True)
    return package


def test_a_home_that_lasts_is_taken_once_it_has_its_classes(environment: Path) -> None:
    lasting = lasting_home()
    assert link_home(environment, lasting)
    assert home_without_archives(environment) != lasting
    (lasting / ARCHIVE).touch()
    assert home_without_archives(environment) == lasting


def test_a_home_of_another_package_is_not_taken(environment: Path, tmp_path: Path) -> None:
    lasting = lasting_home()
    assert link_home(environment, lasting)
    (lasting / ARCHIVE).touch()
    other = tmp_path / "other"
    environment.rename(other)
    found = home_without_archives(other)
    assert found is not None
    assert found != lasting
    assert (found / "jars").resolve() == other / "jars"


def test_java_takes_spark_classes_from_their_archive_where_there_is_one(spark: Any) -> None:
    archive = Path(os.environ["SPARK_HOME"], ARCHIVE)
    if not archive.exists():
        pytest.skip(f"there is no {archive}: make test makes it where Java can")
    mapped = Path(f"/proc/{java_pid(spark)}/maps")
    if not mapped.exists():
        pytest.skip(f"there is no {mapped} to look into")
    assert str(archive.resolve()) in mapped.read_text()
