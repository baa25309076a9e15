"""``headrace pipeline run``, whose Java is killed as it begins to hand over its COUNT-th result: connected, and nothing
sent yet. ``python -m tests.pipelines.dying_java COUNT FILE.toml --json``.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import psutil
import pyspark.util

from headrace.spark.pipelines.__main__ import main


def _java() -> list[int]:
    found = []
    for each in psutil.Process().children(recursive=True):
        with suppress(psutil.NoSuchProcess):
            if each.name() == "java":
                found.append(each.pid)
    return found


def dies(connect: Callable[..., Any], count: int) -> Callable[..., Any]:
    """As PySpark connects for a result, but the `count`-th time to a Java that is stopped, and killed then."""
    left = count

    def connected(*place: Any) -> Any:
        nonlocal left
        left -= 1
        java = _java() if left == 0 else []
        for pid in java:
            os.kill(pid, signal.SIGSTOP)  # the kernel takes connections for it
        found = connect(*place)
        for pid in java:
            os.kill(pid, signal.SIGKILL)
        return found

    return connected


if __name__ == "__main__":
    pyspark.util.local_connect_and_auth = dies(pyspark.util.local_connect_and_auth, int(sys.argv[1]))
    sys.exit(main(sys.argv[2:]))
