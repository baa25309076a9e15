"""Tells the log and operators that Redis fails now.

Promises: the log has at most one line for each kind of failure within REDIS_NOTE_MS, however often it comes. Its
end is logged once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from headrace.base.limits import REDIS_NOTE_MS
from headrace.logs import get_logger
from headrace.storage.redis.errors import RedisFailure
from headrace.wire.ailments import State

log = get_logger(__name__)


class Troubles:
    """One per engine, and one per commit log. Loop-only."""

    def __init__(self, now: Callable[[], float], of: str = "records") -> None:
        """`now` tells the time in seconds. `of`: what Redis does not take."""
        self._now = now
        self._of = of
        self._failure: RedisFailure | None = None
        self._told_at: dict[type[RedisFailure], float] = {}
        """When each kind was told last. There are as many kinds as types of failures."""
        self._is_told = False

    def note(self, failure: RedisFailure) -> None:
        """A command has failed."""
        self._failure, kind, now = failure, type(failure), self._now()
        if now - self._told_at.get(kind, float("-inf")) < REDIS_NOTE_MS / 1000:
            return
        self._told_at[kind] = now
        self._is_told = True
        log.warning(f"Redis does not take {self._of} now; they are sent again", reason=str(failure))

    def over(self) -> None:
        """Everything that waited is done."""
        if self._failure is not None:
            self._failure = None
            if self._is_told:
                log.info(f"Redis takes {self._of} again")
            self._is_told = False

    def states(self) -> Iterator[State]:
        """See `LogEngine.states`."""
        if self._failure is not None:
            text = f"its Redis takes no records ({self._failure})"
            yield State(kind="store unreachable", text=text, todo="see to the Redis; all goes on by itself then")
