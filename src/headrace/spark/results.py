"""Returns the result of a Spark job to its driver: whole, or an exception.

``DataFrame.collect`` of a session other than Spark Connect's takes the end of Java's connection for the end of the
rows. So ``FramedSerializer.load_stream`` does in PySpark 4.1 and 4.2. If Java is killed while it hands them over, a
part of them, or none, arrives, and no error. A driver that commits such a result would lose the rest. ``toArrow`` has a
written end, and asks Java how it went.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from headrace.base.errors import HeadraceError
from headrace.spark.telling import sentence_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


class SparkEnded(HeadraceError):  # noqa: N818 - a state of the session
    """The session's Java process is gone."""

    def __init__(self) -> None:
        super().__init__(
            "Spark's Java process ended before all of a job's result was there: run it again, and if that is how it "
            "ends, look whether the machine ran out of memory."
        )


def collected(frame: DataFrame) -> list[dict[str, Any]]:
    """All rows, by the columns' names, with their Arrow values: structs are dicts, and times are in UTC. Raises
    SparkEnded, and Spark's own exceptions.
    """
    try:
        rows: list[dict[str, Any]] = frame.toArrow().to_pylist()
    except Exception as error:  # every way to lose a connection, in each version of Spark
        if _is_remote(frame) or _answers(frame.sparkSession):
            raise
        raise SparkEnded from error
    return rows


def _is_remote(frame: DataFrame) -> bool:
    """Whether the frame is Spark Connect's. Its client reports a lost server by itself, after many tries."""
    return type(frame).__module__.startswith("pyspark.sql.connect")


def _answers(spark: SparkSession) -> bool:
    try:
        return bool(spark.version)
    except Exception:
        return False


def reason(error: Exception) -> str:
    """One sentence of a failure: Spark wraps an exception of a worker, or of Java, in many lines."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    causes = [line.removeprefix(": ") for line in lines if line.startswith((": ", "Caused by: "))]
    return sentence_of(str(error)) or (causes or lines or [type(error).__name__])[0]
