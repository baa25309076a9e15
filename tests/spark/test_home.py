"""Workers of a local session load PySpark from where pip has put it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyspark

from headrace.spark.home import home_without_archives


def test_workers_take_no_pyspark_out_of_an_archive(spark: Any) -> None:
    def where(_: int) -> str:
        import pyspark

        return pyspark.__file__

    assert spark.sparkContext.parallelize([0], 1).map(where).collect() == [pyspark.__file__]


def test_a_package_without_a_home_in_it_gets_none(tmp_path: Path) -> None:
    (tmp_path / "jars").mkdir()
    assert home_without_archives(tmp_path) is None
