"""A pipeline's progress reports. On a terminal they are a bar (stage, records, bytes, time left). Otherwise they are
one line per commit, or JSON objects, one per line.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from threading import Event, Thread
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from rich.progress import Progress, TaskID

LOOK_S: Final = 0.25


class Meter:
    """Reports nothing: for calls without an audience."""

    def stage(self, name: str, total_bytes: float) -> None:
        """Begin a stage that reads about this many bytes."""

    @contextmanager
    def working(self, spark: SparkSession, size: float) -> Iterator[None]:
        """Surrounds Spark's work on a part of the bytes."""
        yield

    def done(self, records: int, size: float, **facts: Any) -> None:
        """A part is done, and committed."""

    def say(self, event: str, text: str, **facts: Any) -> None:
        """Report any other event."""

    def close(self) -> None:
        """End the reports."""


class Lines(Meter):
    """Lines for people on standard error; with `as_json`, objects on standard output."""

    def __init__(self, *, as_json: bool) -> None:
        self._as_json = as_json
        self._stage = ""
        self._total = self._read = 0.0
        self._started = time.monotonic()

    def stage(self, name: str, total_bytes: float) -> None:
        self._stage, self._total, self._read, self._started = name, total_bytes, 0.0, time.monotonic()
        self.say("stage", f"{name}: about {size_text(total_bytes)}", stage=name, bytes=round(total_bytes))

    def done(self, records: int, size: float, **facts: Any) -> None:
        self._read += size
        left = self._left_s()
        listed = ", ".join(f"{name} {value}" for name, value in facts.items())
        text = f"{self._stage}: {records:,} records, {size_text(size)}, {listed}"
        if left is not None:
            text += f", {left:.0f} s left"
        self.say("commit", text, stage=self._stage, records=records, bytes=round(size), left_s=left, **facts)

    def say(self, event: str, text: str, **facts: Any) -> None:
        if self._as_json:
            sys.stdout.write(json.dumps({"event": event, **facts}, ensure_ascii=False) + "\n")
            sys.stdout.flush()
        else:
            sys.stderr.write(f"{text}\n")

    def _left_s(self) -> float | None:
        if not 0 < self._read <= self._total:
            return None
        return round((time.monotonic() - self._started) * (self._total / self._read - 1), 1)


class Bar(Meter):
    """A bar on a terminal."""

    def __init__(self) -> None:
        self._bar: Progress | None = None
        self._task: TaskID | None = None
        self._records = 0
        self._read = 0.0

    def stage(self, name: str, total_bytes: float) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

        self.close()
        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("{task.fields[records]:,} records"),
            DownloadColumn(),
            TimeRemainingColumn(),
        )
        self._records, self._read = 0, 0.0
        self._bar = Progress(*columns, console=Console(stderr=True))
        self._task = self._bar.add_task(name, total=max(1.0, total_bytes), records=0)
        self._bar.start()

    @contextmanager
    def working(self, spark: SparkSession, size: float) -> Iterator[None]:
        ended = Event()
        watcher = Thread(target=self._watch, args=(spark, size, ended), daemon=True)
        watcher.start()
        try:
            yield
        finally:
            ended.set()
            watcher.join()

    def _watch(self, spark: SparkSession, size: float, ended: Event) -> None:
        with suppress(Exception):  # Spark Connect has no tracker, and a dead Java no answers
            tracker = spark.sparkContext.statusTracker()
            while not ended.wait(LOOK_S):
                stages = [tracker.getStageInfo(stage) for stage in tracker.getActiveStageIds()]
                for stage in stages[-1:]:
                    if stage is not None and stage.numTasks:
                        self._show(self._read + size * stage.numCompletedTasks / stage.numTasks)

    def done(self, records: int, size: float, **facts: Any) -> None:
        self._records += records
        self._read += size
        self._show(self._read)

    def _show(self, completed: float) -> None:
        if self._bar is not None and self._task is not None:
            self._bar.update(self._task, completed=completed, records=self._records)

    def say(self, event: str, text: str, **facts: Any) -> None:
        if self._bar is not None:
            self._bar.console.print(text, highlight=False)
        else:
            sys.stderr.write(f"{text}\n")

    def close(self) -> None:
        if self._bar is not None:
            self._bar.stop()
            self._bar = self._task = None


def meter(*, as_json: bool) -> Meter:
    """The meter that suits this process's standard error."""
    return Bar() if sys.stderr.isatty() and not as_json else Lines(as_json=as_json)


def size_text(size: float) -> str:
    """A size in bytes as readable text."""
    from rich.filesize import decimal

    return decimal(round(size))
