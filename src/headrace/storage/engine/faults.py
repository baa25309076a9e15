"""Errors that every engine raises, and ranges of a log that cannot be read."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from headrace.base.errors import CorruptData, HeadraceError, StorageFailure
from headrace.base.values import Value

if TYPE_CHECKING:
    from headrace.storage.engine.reading import Fetching


class StampMismatch(StorageFailure):
    """The engine has this topic's data under the log's name, but of another disk or another assignment. It does not
    decide whether that data counts. `LogDirectories.set_aside` moves the data out of the way.
    """


class DamagedLog(CorruptData):
    """Flushed records are gone, and it is unknown how many. The log can only be read."""


class DamagedRange(CorruptData):
    """The requested offset lies in a range that is known to be damaged."""


class Abandoned(StorageFailure):
    """The engine stores nothing more of this leader epoch, though no disk has failed. A flush that ends so acknowledges
    nothing, and is not tried again. The log has to be opened again, in a later epoch.
    """


class Fenced(Abandoned):
    """A later leader epoch has begun."""


class Diverged(Abandoned):
    """The store has other records than this leader, as after a failover that lost some. A later epoch
    has to begin at the store's end, so that clients go back to it.
    """


class Overloaded(StorageFailure):
    """Too much waits for the store already, and nothing was appended. It may be tried again a moment later."""


class Unreachable(StorageFailure):
    """The store cannot be reached now, and nothing is wrong with the records. The engine tells operators by itself."""


class NotAtHand(HeadraceError):  # noqa: N818 - nothing is wrong
    """The log has the records, but a read would have to wait for them. Only engines raise it whose records are
    elsewhere.
    """

    def __init__(self, fetch: Callable[[], Fetching | None]) -> None:
        super().__init__("The records are not in memory.")
        self.fetch = fetch
        """Brings the records that the read asked for into memory. Called on the loop, any number of times: readers of
        one range share one fetch. Returns None where too many fetches wait. Raises StorageFailure where the last one
        has just failed.
        """


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class Damage(Value):
    """A range of offsets below the flushed end whose records cannot be read any more."""

    start: int
    end: int
    """The offset of the next sound batch, or the end of the range that was looked at."""
    reason: str
    """One sentence."""
