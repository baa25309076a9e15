"""Watches Redis's servers: their replicas, their room, and whether one has failed over or was restarted.

Promises: a server that comes is looked at once it is connected, and one that may evict records is told then. One that
was restarted may have other settings, so what its answers are worth is asked again. Where a replica is missed, its
coming is seen within REDIS_LOOK_MS. Looks are made by worker threads.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from headrace.base.errors import UsageError
from headrace.base.limits import REDIS_LOOK_MS, REDIS_WAIT_MS
from headrace.base.ports import Space
from headrace.logs import get_logger
from headrace.storage.redis.errors import RedisFailure
from headrace.storage.redis.links.blocking import BlockingConnection
from headrace.storage.redis.links.client import Redis
from headrace.storage.redis.links.connection import Argument
from headrace.storage.redis.links.server import Seen, check, checked, look_at, worth_of
from headrace.storage.redis.links.threads import ThreadsRedis

log = get_logger(__name__)

REFUSED: Final = "a server of Redis is refused"


class Servers:
    """All masters. Made on the loop. `on_doubt` is called there when one may have lost writes."""

    def __init__(self, link: Redis, blocking: ThreadsRedis, durability: str, on_doubt: Callable[[], None]) -> None:
        """`durability`: the value of `redis.durability`."""
        self._link: Final = link
        self._blocking: Final = blocking
        self._durability: Final = durability
        self._on_doubt: Final = on_doubt
        self._loop = asyncio.get_running_loop()
        self._seen: dict[str, Seen] = {}
        """By the place of each, when it was looked at last."""
        self._worst = Seen()
        self._looks = False
        self._is_due = False
        """Another look is wanted behind the one under way, which may have begun too early."""
        self._missed_at = 0.0

    @property
    def replicas(self) -> int:
        """Replicas of the master that has the fewest."""
        return self._worst.look.replicas

    @property
    def worth(self) -> str:
        """The worth of an acknowledgement by that master, as a clause."""
        return self._worst.worth

    def of(self, key: str) -> Seen:
        """The server of a key. One that has just come has no replica yet, as far as anybody knows."""
        with suppress(RedisFailure):
            place = str(self._link.place_of(key))
            return self._seen.get(place) or Seen(waits_for_aof=self._worst.waits_for_aof)
        return self._worst

    def waits(self, key: str, copies: int) -> list[tuple[Argument, ...]]:
        """Commands that wait until earlier writes to the server of this key are in so many replicas, as far as there
        are any. They wait for its append-only file too, where records do."""
        seen = self.of(key)
        found: list[tuple[Argument, ...]] = []
        if (copies := min(copies, seen.look.replicas)) > 0:
            found.append(("WAIT", copies, REDIS_WAIT_MS))
        if seen.waits_for_aof:
            found.append(("WAITAOF", 1, 0, REDIS_WAIT_MS))
        return found

    def first_look(self) -> None:
        """Look at all of them, and tell what an acknowledgement is worth. Blocks. Raises RedisFailure, and UsageError
        where one is refused."""
        self._know({place: self._new(place, each) for place, each in self._blocking.servers().items()})

    def look(self) -> Space:
        """Look at all of them; returns the least room. Blocks. Raises RedisFailure or UsageError where one cannot be
        looked at, or is refused; the others were looked at."""
        was, now = self._seen, dict[str, Seen]()
        failure: RedisFailure | UsageError | None = None
        for place, server in self._blocking.servers().items():
            found = before = was.get(place)
            try:
                found = self._new(place, server) if before is None else self._again(place, server, before)
            except (RedisFailure, UsageError) as error:
                failure = error
            if found is not None:
                now[place] = found
        self._know(now or was)
        if any(place not in was or seen.look.has_lost(was[place].look) for place, seen in now.items()):
            self._loop.call_soon_threadsafe(self._on_doubt)
        if failure is not None:
            raise failure
        return min((seen.look.space for seen in now.values()), key=lambda space: space.usable)

    def look_soon(self) -> None:
        """Look at them in a worker thread: one has come, or come back. On the loop."""
        if not self._seen:
            return
        if self._looks:
            self._is_due = True
            return
        self._looks, self._is_due = True, False
        self._loop.run_in_executor(None, self._look_quietly).add_done_callback(self._on_looked)

    def miss_replica(self) -> None:
        """Look whether a replica has come, or has gone, at most every REDIS_LOOK_MS. On the loop."""
        if self._loop.time() - self._missed_at >= REDIS_LOOK_MS / 1000:
            self._missed_at = self._loop.time()
            self.look_soon()

    def doubt(self) -> None:
        """The next look finds that all of them may have lost writes."""
        self._seen = {place: seen.forgotten() for place, seen in self._seen.items()}

    # inner

    def _new(self, place: str, server: BlockingConnection) -> Seen:
        found = checked(server, place, self._durability)
        return Seen(found, *worth_of(server, place, found, self._durability))

    def _again(self, place: str, server: BlockingConnection, before: Seen) -> Seen:
        """Look at one that is known. Raises RedisFailure, and then the next look does all of it."""
        found = look_at(server)
        if found.history == before.look.history:
            return before._replace(look=found)
        try:
            check(found, place, self._durability)
        except UsageError as error:
            log.error(REFUSED, reason=str(error))
            return before._replace(look=found)
        return Seen(found, *worth_of(server, place, found, self._durability))

    def _on_looked(self, _: object) -> None:
        self._looks = False
        if self._is_due:
            self.look_soon()

    def _know(self, seen: dict[str, Seen]) -> None:
        self._seen = seen
        self._worst = min(seen.values(), key=lambda each: each.look.replicas)

    def _look_quietly(self) -> None:
        try:
            self.look()
        except RedisFailure as error:
            log.debug("Redis could not be looked at", reason=str(error))
        except UsageError as error:
            log.error(REFUSED, reason=str(error))
