"""An archive of the classes that Spark loads, so that its Java starts in half the time; and the compiled decoder.

Make them with ``python -m headrace.spark.session.classes``, once after an installation; it takes up to a minute.

When Spark starts, Java reads, verifies and lays out some 12,000 classes from its jars. Java can keep them laid out in a
file, which its next process maps (JEP 310, JEP 350). That needs the same Java, with the same jars in the same place, so
the archive has a permanent home beside it. Where anything differs, Java loads the classes as usual.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from headrace.base.errors import UsageError
from headrace.spark.read.decode import warm_up
from headrace.spark.session.home import ARCHIVE, lasting_home, link_home

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

ARCHIVES_AT_END: Final = "-XX:ArchiveClassesAtExit="
WAIT_S: Final = 600
"""Seconds for Java to write the classes that it has loaded."""


def main() -> int:
    try:
        archive = make()
    except (UsageError, OSError, subprocess.TimeoutExpired) as error:
        print(f"headrace.spark.session.classes: {error}", file=sys.stderr)
        return 2
    print(f"{archive}: {archive.stat().st_size / 1e6:.0f} MB of Spark's classes, for a start in half the time")
    return 0


def make() -> Path:
    """Make the archive again. Raises UsageError where PySpark has no home in its package or Java writes none, OSError
    where this Python's environment cannot be written to.
    """
    try:
        import pyspark
    except ImportError as error:
        raise UsageError("Spark is not installed: pip install 'headrace[spark]'.") from error
    package = Path(pyspark.__file__).parent
    home = lasting_home()
    if not link_home(package, home):
        raise UsageError(f"There is no Spark in {package}: an archive is of the Spark that pip installs.")
    archive, new = home / ARCHIVE, home / f"{ARCHIVE}.{os.getpid()}"
    archive.unlink(missing_ok=True)
    environment = os.environ | {"SPARK_HOME": str(home)}
    command = [sys.executable, "-m", __spec__.name, str(new)]
    with ThreadPoolExecutor() as beside:
        compiling = beside.submit(warm_up)
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=WAIT_S, check=False)
    compiling.result()
    if done.returncode != 0 or not new.exists():
        new.unlink(missing_ok=True)
        said = (done.stderr or done.stdout).strip().splitlines()[-1:] or ["it says nothing"]
        raise UsageError(f"Java wrote no archive of Spark's classes, which works without: {said[0]}")
    new.rename(archive)
    return archive


def load_classes(archive: Path) -> None:
    """Run a session that does a little of everything, so that Java loads its classes and writes them to `archive`."""
    from pyspark import SparkContext

    from headrace.spark.session import JAVA_OPTIONS, SHORT_JOB, spark_session

    options = f"{SHORT_JOB[JAVA_OPTIONS]} {ARCHIVES_AT_END}{archive}"
    spark = spark_session("classes", master="local[2]", settings=SHORT_JOB | {JAVA_OPTIONS: options})
    with tempfile.TemporaryDirectory() as directory:
        parsed = """from_json(format_string('{"number": %d}', id), 'number bigint').number as parsed"""
        rows = spark.range(1_000).selectExpr("id", "id % 7 as key", "cast(string(id) as binary) as value", parsed)
        rows.mapInArrow(lambda batches: batches, rows.schema).write.partitionBy("key").parquet(f"{directory}/rows")
        there = spark.read.parquet(f"{directory}/rows")
        there.join(there.groupBy("key").count(), "key").orderBy("id").toArrow()

        def keep(batch: DataFrame, number: int) -> None:
            batch.write.mode("append").parquet(f"{directory}/stream")

        stream = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 100).load()
        query = stream.writeStream.foreachBatch(keep).option("checkpointLocation", f"{directory}/progress")
        query.trigger(availableNow=True).start().awaitTermination()
    spark.stop()
    java: Any = SparkContext._gateway.proc  # type: ignore[union-attr]
    java.stdin.close()  # this ends it
    if (code := java.wait(WAIT_S)) != 0:
        sys.exit(f"Java ended with {code} as it wrote them.")


if __name__ == "__main__":
    if sys.argv[1:]:
        load_classes(Path(sys.argv[1]))
    else:
        sys.exit(main())
