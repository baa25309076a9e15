"""Whose turn it is to write a portion: of the runs, his who put the last object; of a task's tries, the last one.

Promises that whoever's turn is over sends no further chunk. What is on its way to brokers by then may still come.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple
from urllib.parse import urlsplit

from headrace.base.errors import HeadraceError
from headrace.spark.pipelines.replays.log import ReplayLog
from headrace.storage.objects import directory_of, open_objects

CLAIMS: Final = "_headrace_claims"
"""``<version>/<task>/<attempt>`` under it is put by each try of a task but the first."""


class TriedAgainError(HeadraceError):
    """Spark has begun a task once more, and takes this try of it for dead, or slow."""

    def __init__(self, task: int, attempt: int, later: int) -> None:
        super().__init__(
            f"Task {task} of the replay is being tried again (attempt {later}), so that attempt {attempt} stops."
        )


class Turn(NamedTuple):
    """A run's, as workers are told of it."""

    checkpoint: str
    """Its URL, the same on all machines."""
    name: str
    """Of the pipeline."""
    version: int
    """Of the object by which the run put down what it writes: its turn is over when there is another."""

    @classmethod
    def at(cls, checkpoint: str, name: str, version: int) -> Turn:
        is_directory = urlsplit(checkpoint).scheme in ("", "file")
        return cls(str(directory_of(checkpoint)) if is_directory else checkpoint, name, version)

    def taken(self, task: int, attempt: int) -> Callable[[], None]:
        """By one try of a task. What is given is called before each chunk, and raises ConcurrentReplay, TriedAgainError
        where the turn is over; never on a machine that does not see the checkpoint, as where that is a directory of the
        driver's own. Raises StorageFailure."""
        objects = open_objects(self.checkpoint)
        log, claims = ReplayLog(objects), f"{CLAIMS}/{self.version:020d}/{task}/"
        if not log.has(self.version):
            return lambda: None
        if attempt > 0:
            objects.put(f"{claims}{attempt}", b"{}")

        def check() -> None:
            log.check(self.name, self.version)
            later = max((int(meta.key[len(claims) :]) for meta in objects.list(claims)), default=attempt)
            if later > attempt:
                raise TriedAgainError(task, attempt, later)

        return check
