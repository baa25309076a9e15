"""A call of Java that a test's limit has interrupted, so that its answer is still to come on the connection.

py4j closes a connection only for an Exception, which the limit is not. So the next call would take this answer for its
own.
"""

from __future__ import annotations

import sys
import traceback
from pathlib import Path


def begin_anew(error: BaseException) -> bool:
    """Close this thread's connection and end Spark's jobs over a new one, where `error` came out of a call of Java;
    whether it did."""
    if isinstance(error, Exception) or "pyspark" not in sys.modules:
        return False
    if not any("py4j" in Path(frame.f_code.co_filename).parts for frame, _ in traceback.walk_tb(error.__traceback__)):
        return False
    from pyspark import SparkContext

    context = SparkContext._active_spark_context
    if context is None or context._gateway is None:
        return False
    connection = context._gateway._gateway_client.get_thread_connection()
    if connection is not None:
        connection.close(reset=True)
    context.cancelAllJobs()
    return True
