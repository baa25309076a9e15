"""Decides whose turn it is to write a portion: among runs, the one that put the last object; among a task's attempts,
the last.

Promises that a writer whose turn is over sends no further chunk. Chunks already under way to brokers may still arrive.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple
from urllib.parse import urlsplit

from headrace.base.errors import HeadraceError
from headrace.spark.pipelines.replays.log import ReplayLog
from headrace.storage.objects import directory_of, open_objects

CLAIMS: Final = "_headrace_claims"
"""Each attempt of a task but the first puts ``<version>/<task>/<attempt>`` under it."""


class TriedAgainError(HeadraceError):
    """Spark has begun another attempt of a task, because it takes this one for dead or slow."""

    def __init__(self, task: int, attempt: int, later: int) -> None:
        super().__init__(
            f"Task {task} of the replay is being tried again (attempt {later}), so that attempt {attempt} stops."
        )


class Turn(NamedTuple):
    """A run's turn, as described to workers."""

    checkpoint: str
    """URL of the checkpoint, which is the same on all machines."""
    name: str
    """Name of the pipeline."""
    version: int
    """Number of the object with which the run recorded its portion. The turn is over when there is a later object."""

    @classmethod
    def at(cls, checkpoint: str, name: str, version: int) -> Turn:
        is_directory = urlsplit(checkpoint).scheme in ("", "file")
        return cls(str(directory_of(checkpoint)) if is_directory else checkpoint, name, version)

    def taken(self, task: int, attempt: int) -> Callable[[], None]:
        """Take the turn for one attempt of a task. Raises StorageFailure.

        The returned function is called before each chunk, and raises ConcurrentReplay or TriedAgainError where the turn
        is over. It never raises on a machine that does not see the checkpoint, for example where that is a directory on
        the driver's machine.
        """
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
