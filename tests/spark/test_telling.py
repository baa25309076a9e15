"""A failure of ours is one sentence: in PySpark's exceptions, and in what a pipeline prints."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any, Final

import pytest

from headrace.spark.results import reason
from headrace.spark.session import JAVA_OPTIONS, SHORT_JOB
from headrace.spark.telling import sentence_of
from tests.tiers import IS_LONG

SHORT_JOBS_JAVA: Final = f'"{JAVA_OPTIONS}" = "{SHORT_JOB[JAVA_OPTIONS]}"'
"""A setting of a pipeline. Java takes seconds of a processor less for so short a job."""
pytestmark = pytest.mark.timeout(180)


def test_the_sentence_is_found_in_what_spark_says() -> None:
    text = "Job aborted: x.PythonException: Traceback\n  File\nheadrace.base.errors.CorruptData: It is damaged.\n\tat x"
    assert sentence_of(text) == "It is damaged."
    assert sentence_of("[A] Failed to plan headrace: headrace.base.errors.UsageError: Give one.") == "Give one."
    assert sentence_of("ValueError: headrace is no error") is None


def read(spark: Any, store: Any, **options: str) -> Any:
    return spark.read.format("headrace").options(**{"store": store.url, "topic": "orders", **options}).load()


def test_an_exception_of_a_plan_is_our_sentence_alone(spark: Any, store: Any) -> None:
    from pyspark.errors import PySparkException

    with pytest.raises(PySparkException) as wrong:
        read(spark, store, colour="blue")
    assert str(wrong.value).startswith("There is no option 'colour'; there are: store, ")
    with pytest.raises(PySparkException) as lost:
        read(spark, store, topic="nothing").count()
    for each in (wrong, lost):
        assert len(str(each.value).splitlines()) == 1
        assert reason(each.value) == str(each.value)


@pytest.mark.parametrize("take", ["count", "collect", "toArrow"])
def test_an_exception_of_a_task_is_our_sentence_alone(spark: Any, store: Any, take: str) -> None:
    from pyspark.errors import PySparkException

    segment = store.segments["orders", 0][1]
    path = store.root / segment.key
    whole = path.read_bytes()
    path.write_bytes(whole[: segment.batch_bytes - 20] + b"?" + whole[segment.batch_bytes - 19 :])
    try:
        with pytest.raises(PySparkException) as caught:
            getattr(read(spark, store), take)()
    finally:
        path.write_bytes(whole)
    (line,) = str(caught.value).splitlines()
    assert "topic 'orders', partition 0 is damaged at offset" in line


def test_failures_of_others_keep_what_spark_says(spark: Any) -> None:
    from pyspark.errors import PySparkException

    with pytest.raises(PySparkException, match="UNRESOLVED_COLUMN"):
        spark.range(3).select("nothing").collect()


def test_a_pipeline_prints_its_own_lines_alone(store: Any, tmp_path: Path) -> None:
    file = tmp_path / "p.toml"
    text = f'pipeline = "materialise"\nname = "p"\n[source]\nstore = "{store.url}"\ntopic = "orders"\n'
    more = "" if IS_LONG else f"settings = {{ {SHORT_JOBS_JAVA} }}\n"
    file.write_text(f'{text}[table]\npath = "{tmp_path}/t"\n[spark]\nmaster = "local[2]"\n{more}')
    done = subprocess.run(
        [sys.executable, "-m", "headrace.spark.pipelines", str(file)],
        capture_output=True,
        text=True,
        check=False,
        env={name: value for name, value in os.environ.items() if name != "HEADRACE_DEBUG"},
    )
    assert (done.returncode, done.stdout) == (0, ""), done.stderr
    assert [line for line in done.stderr.splitlines() if not line.startswith(("p: ", "materialise: "))] == []
