"""Starts Spark as Headrace needs it: this Python in the workers, UTC, a working Java, nothing to register."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

from headrace.base.errors import UsageError
from headrace.base.limits import PIPELINE_CORES, PIPELINE_NICE_MAX
from headrace.spark.session.home import ARCHIVE, home_without_archives
from headrace.spark.session.java import find_java
from headrace.spark.session.quiet import LOG, quietly
from headrace.spark.telling import tell_sentences

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SETTINGS: Final[dict[str, str]] = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
}
SHORT_JOB: Final = {
    # A job of seconds on two cores: compiling less and starting faster beats running faster.
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Xshare:auto",
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.catalogImplementation": "in-memory",
}
PROCESSES: Final = Path("/proc")
JAVA_OPTIONS: Final = "spark.driver.extraJavaOptions"
DEFAULT_JAVA_OPTIONS: Final = "spark.driver.defaultJavaOptions"
SHARED_CLASSES: Final = (
    "-XX:SharedArchiveFile={} -Xshare:auto -Xlog:disable -Xlog:all=warning:stderr -Xlog:cds*=off:stderr"
)
"""Java options for this archive file. Where the file does not fit, Java reports nothing. Java's messages go to standard
error, since a pipeline's results are on standard output. The user's options (`JAVA_OPTIONS`) follow these, and so take
precedence.
"""
LOCAL_SETTINGS: Final[dict[str, str]] = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.driver.host": "127.0.0.1",  # a host's own name may not resolve
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.python.unix.domain.socket.enabled": "true",  # over TCP, Java and workers delay one another
    "spark.python.daemon.module": "headrace.spark.session.daemon",  # idle workers end without a traceback
}


def spark_session(
    app_name: str = "headrace",
    *,
    master: str = "local[*]",
    settings: Mapping[str, str] | None = None,
    quiet: bool = False,
) -> SparkSession:
    """A session on `master`: ``local[*]``, ``spark://host:port``, or a Spark Connect URL, ``sc://host:port``.

    Returns the running session where there is one. `quiet`: a local session writes no log on the terminal, but for
    what ends it. From then on PySpark's exceptions for failures of Headrace consist of one sentence
    (`headrace.spark.telling`). Raises UsageError where PySpark or Java is missing.
    """
    try:
        import pyspark
        from pyspark.sql import SparkSession
    except ImportError as error:
        raise UsageError("Spark is not installed: pip install 'headrace[spark]'.") from error
    local = LOCAL_SETTINGS if master.startswith("local") else {}
    wanted: dict[str, bool | float | str | None] = {**SETTINGS, **local, **(settings or {})}
    builder = SparkSession.Builder().appName(app_name)
    if master.startswith("sc://"):
        return builder.config(map=wanted).remote(master).getOrCreate()
    os.environ["JAVA_HOME"] = str(find_java())
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    if master.startswith("local"):
        os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
        if "SPARK_HOME" not in os.environ and (home := home_without_archives(Path(pyspark.__file__).parent)):
            os.environ["SPARK_HOME"] = str(home)
        if (archive := Path(os.environ.get("SPARK_HOME", os.devnull), ARCHIVE)).exists():
            wanted.setdefault(DEFAULT_JAVA_OPTIONS, SHARED_CLASSES.format(archive))
        if quiet:
            wanted[DEFAULT_JAVA_OPTIONS] = f"{wanted.get(DEFAULT_JAVA_OPTIONS, '')} {LOG}".strip()
    tell_sentences()
    with quietly() if quiet else nullcontext():
        return builder.config(map=wanted).master(master).getOrCreate()


def cores_of(spark: SparkSession) -> int:
    """The number of tasks that the session runs at a time, where it is known."""
    try:
        return max(1, int(spark.sparkContext.defaultParallelism))
    except Exception:  # Spark Connect has none; versions raise various errors
        return PIPELINE_CORES


def make_way(spark: SparkSession, nice: int, *, spare_processors: int = 0) -> None:
    """Lower the priority of a local session, its Java and its workers, to `nice` (0 to 19, nice(1)).

    Brokers on this machine, and their clients, then go first. With 19 they go first at once (SCHED_IDLE, sched(7)):
    with nice alone, a running thread may continue until its slice is over, some milliseconds. Only root can raise the
    priority again. `spare_processors` is the number of processors that the session does not use (sched_setaffinity(2)),
    but it always keeps one. A broker on those never waits for the session. Works on Linux alone; elsewhere nothing
    happens.
    """
    pid = java_pid(spark)
    lower(pid, nice)
    if spare_processors:
        keep_off(pid, spare_processors)


def java_pid(spark: SparkSession) -> int:
    """Process id of a local session's Java."""
    return int(spark.sparkContext._jvm.java.lang.ProcessHandle.current().pid())  # type: ignore[union-attr]


def lower(pid: int, nice: int) -> None:
    """Lower all threads of a process and of its descendants. Processes started later inherit it."""
    for thread in _threads(pid):
        with suppress(ProcessLookupError, PermissionError):  # it has ended, or is another user's
            if os.getpriority(os.PRIO_PROCESS, thread) < nice:
                os.setpriority(os.PRIO_PROCESS, thread, nice)
            if nice == PIPELINE_NICE_MAX and os.sched_getscheduler(thread) != os.SCHED_IDLE:
                os.sched_setscheduler(thread, os.SCHED_IDLE, os.sched_param(0))


def keep_off(pid: int, processors: int) -> None:
    """Restrict those threads to the processors of this process, without the first `processors` of them. At least one
    remains.
    """
    if not hasattr(os, "sched_setaffinity"):
        return
    usable = sorted(os.sched_getaffinity(0))
    for thread in _threads(pid):
        with suppress(ProcessLookupError, PermissionError):
            os.sched_setaffinity(thread, usable[min(processors, len(usable) - 1) :])


def _threads(pid: int) -> Iterator[int]:
    """Threads of a process and its descendants, including those that start meanwhile."""
    done: set[int] = set()
    while left := {thread for process in _family(pid) for thread in _numbers(f"{process}/task")} - done:
        yield from left
        done |= left


def _family(pid: int) -> list[int]:
    """The process, and all its descendants."""
    children: dict[int, list[int]] = {}
    for process in _numbers(""):
        with suppress(OSError):  # it has ended
            about = (PROCESSES / f"{process}/stat").read_bytes()
            parent = int(about[about.rindex(b")") + 1 :].split()[1])  # behind its name, which may contain anything
            children.setdefault(parent, []).append(process)
    found = [pid]
    for each in found:
        found += children.get(each, [])
    return found


def _numbers(directory: str) -> list[int]:
    """Names in a directory of /proc that are numbers."""
    with suppress(OSError):
        return [int(name) for name in os.listdir(PROCESSES / directory) if name.isdecimal()]
    return []
