"""PySpark's daemon, changed in two ways (`spark.python.daemon.module`).

**Its workers begin with what a reader imports.** PySpark's workers are forked before anything is imported. Each of them
then imports Arrow, numba and Headrace for about a second. PySpark does so because Arrow and pandas may start threads,
and a process that has threads should not fork. Here these are told to start none (`ALONE`). If there is a thread all
the same, the daemon starts again as PySpark has it.

**Its workers end silently when Java releases them.** Spark closes its connection to a worker that was idle for a
minute. PySpark's worker takes that end for a failure, cannot report it, and fails. Over a Unix socket
(`session.LOCAL_SETTINGS`) this happens at once, with two tracebacks on the user's terminal beside a successful query. A
failure while Java listens is reported to Java, as before.
"""

from __future__ import annotations

import os
import socket
import sys
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Final

from pyspark import daemon

LET_GO: Final = 1
"""A worker's exit code that makes the daemon end its process."""
ALONE: Final = {"JE_ARROW_MALLOC_CONF": "background_thread:false", "OMP_NUM_THREADS": "1"}
"""Environment in which the imports start no thread. Arrow reads the first, and numpy's BLAS the second, of which Spark
gives each task one by default. A user who asks for more has a daemon as PySpark's.
"""
FORKS_EARLY: Final = "HEADRACE_SPARK_FORKS_EARLY"
"""Environment variable of a daemon that imports nothing before it forks."""
TASKS: Final = "pyspark.worker"
"""The module of workers that run tasks. Others plan: they create a data source, or ask it for its partitions."""
PLANNERS: Final = ("headrace.spark.source",)
READERS: Final = ("headrace.spark.read.reading", "headrace.spark.read.native")
THREADS: Final = Path("/proc/self/task")

_worker = daemon.worker


def worker(sock: socket.socket, authenticated: bool) -> int:
    """One round of a worker process, as PySpark does it."""
    try:
        return _worker(sock, authenticated)
    except BrokenPipeError:  # Java is gone: nothing can be reported
        return LET_GO


def load_ahead(module: str) -> None:
    """Import what workers of this module of PySpark's import, and load the compiled decoder where it was kept. If
    something cannot be imported, a worker tells so.
    """
    for name in (module, *PLANNERS, *(READERS if module == TASKS else ())):
        with suppress(ImportError):
            import_module(name)
    # From here on, since these import Arrow: its environment has to be there first.
    from headrace.spark.read.decode import is_compiled, warm_up
    from headrace.spark.read.settled import leave_out

    if module == TASKS and is_compiled():
        warm_up()
    leave_out()


def begin_by_chance() -> None:
    """Have numpy's old generator begin elsewhere in each worker: a fork has a copy of its state. Python's own and
    numba's do so by themselves.
    """
    if (found := sys.modules.get("numpy.random")) is not None:
        found.seed()


def threads() -> int:
    """The number of threads of this process: 1 where the system does not tell."""
    return sum(1 for _ in THREADS.iterdir()) if THREADS.is_dir() else 1


def main() -> None:
    """Serve Java until it closes this process's standard input."""
    if FORKS_EARLY not in os.environ:
        for name, value in ALONE.items():
            os.environ.setdefault(name, value)
        load_ahead(next(iter(sys.argv[1:]), TASKS))
        if threads() > 1:
            os.environ[FORKS_EARLY] = "1"
            os.execv(sys.executable, [sys.executable, "-m", "headrace.spark.session.daemon", *sys.argv[1:]])
    os.register_at_fork(after_in_child=begin_by_chance)
    daemon.worker = worker
    daemon.manager()


if __name__ == "__main__":
    main()
