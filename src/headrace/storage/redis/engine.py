"""The engine whose logs are in Redis, so that every broker reaches them (`headrace.storage.engine.engines`).

Promises: a server is refused that may evict records. One line tells what an acknowledgement is worth there. While
Redis is not reachable, flushes wait and readers of older records are refused; both go on by themselves.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from typing import Final, NamedTuple, cast

from headrace.base.errors import NoRoom, StorageFailure, UsageError
from headrace.base.ids import FIRST_OFFSET, NO_EPOCH, LeaderEpoch, Offset
from headrace.base.limits import (
    REDIS_CONNECT_MS_MAX,
    REDIS_FETCH_BYTES,
    REDIS_FETCHES_MAX,
    REDIS_LOGS_LOOKED_AT_ONCE,
    REDIS_OPEN_MS_MAX,
    REDIS_STOP_MS_MAX,
)
from headrace.base.ports import Random, Space
from headrace.logs import get_logger
from headrace.storage.engine.faults import Fenced, Unreachable
from headrace.storage.engine.flushing import FlushTicket
from headrace.storage.engine.identity import LogConfig, LogIdentity
from headrace.storage.engine.medium import REDIS
from headrace.storage.engine.reading import Fetched, Fetching
from headrace.storage.redis.ahead import Ahead
from headrace.storage.redis.cleaning_child import ChildRunner
from headrace.storage.redis.entries import count_for, entries, number_of
from headrace.storage.redis.errors import RedisFailure, RedisOutcomeUnknown
from headrace.storage.redis.flushing import RedisRound, Ticket
from headrace.storage.redis.links.address import RedisAddress, Topology
from headrace.storage.redis.links.connection import LOOK_AGAIN_S
from headrace.storage.redis.links.opening import client_of
from headrace.storage.redis.links.threads import ThreadsRedis
from headrace.storage.redis.links.troubles import Troubles
from headrace.storage.redis.links.watching import Servers
from headrace.storage.redis.log import RedisLog
from headrace.storage.redis.server_side.functions import (
    IndexEntry,
    PartitionFunctions,
    Status,
    delete_partition,
)
from headrace.storage.redis.server_side.keys import Keys
from headrace.storage.redis.tail import Batches, Tail, TailBudget
from headrace.wire.ailments import IN_REDIS, State
from headrace.wire.batches import parse_header

log = get_logger(__name__)


class Found(NamedTuple):
    """A log as it is in Redis."""

    end: Offset
    start: Offset
    size: int
    """Bytes of all batches since the log began, and of those that are deleted."""
    trimmed: int
    claimed: LeaderEpoch
    epochs: Sequence[tuple[LeaderEpoch, Offset]]
    marks: Sequence[IndexEntry]
    open_timestamp: int
    """The highest timestamp of the range that is open; -1: it is empty."""
    cleaned: int
    """The number of the last cleaning."""
    clean_to: Offset
    """The offset that it reached."""
    aborted: Sequence[bytes] = ()
    """The entries of aborted transactions."""


class RedisOpening:
    """A `LogOpening`."""

    must_sync: Final = False

    def __init__(self, finish: Callable[[], RedisLog]) -> None:
        self._finish = finish

    def finish(self) -> RedisLog:
        return self._finish()


class RedisEngine:
    """Made on the loop."""

    files: Final = None
    medium: Final = REDIS
    upkeep: Final = None

    def __init__(
        self,
        address: RedisAddress,
        *,
        random: Random,
        keys: Keys | None = None,
        durability: str = "",
        cleans_in_child: bool = False,
    ) -> None:
        """`durability`: the value of `redis.durability`; empty: an append-only file counts where there is one.
        `cleans_in_child`: compaction has a process of its own, and otherwise a worker thread."""
        self.keys: Final = keys or Keys(clustered=address.topology is Topology.CLUSTER)
        self.owner: Final = f"{random.getrandbits(64):016x}"
        """Tells this life of this broker from all others that claim epochs."""
        self.cleaning_tries: Final = itertools.count(1)
        """Numbers of tries of cleanings, none of which comes twice in this life."""
        self.budget: Final = TailBudget()
        self._address = address
        self._loop = asyncio.get_running_loop()
        self.troubles: Final = Troubles(self._loop.time)
        self.link: Final = client_of(address, random)
        self.ahead: Final = Ahead(self.link)
        self._reading: Final = client_of(address, random)
        self.blocking: Final = ThreadsRedis(self.link, address)
        self.servers: Final = Servers(self.link, self.blocking, durability, self._look_at_logs)
        self.cleaner: Final = ChildRunner(address, self.link.place_of) if cleans_in_child else None
        self.is_given_up = False
        """Nobody waits for Redis any more."""
        self._is_stopping = False
        self._woken = asyncio.Event()
        self.link.on_change = self._on_link
        self._stopping: asyncio.TimerHandle | None = None
        self._waits_since: float | None = None
        self._logs: set[RedisLog] = set()
        self._looking: asyncio.Task[None] | None = None
        self._fetches: dict[tuple[str, int], asyncio.Task[Fetched]] = {}

    # the server

    @property
    def copies(self) -> int:
        return 1 + self.servers.replicas

    @property
    def place(self) -> str:
        return str(self._address)

    async def ready(self) -> None:
        """Wait until Redis is connected. Not needed where one server is named. Raises RedisFailure or UsageError."""
        await self.link.ready(REDIS_OPEN_MS_MAX)

    def start(self) -> list[RedisRemoval]:
        try:
            self.blocking.load_functions()
            self.servers.first_look()
        except RedisFailure as error:
            raise StorageFailure(f"Redis cannot be used: {error}") from error
        return []

    def space(self) -> Space:
        try:
            return self.servers.look()
        except (RedisFailure, UsageError) as error:
            raise OSError(str(error)) from error

    def _look_at_logs(self) -> None:
        """Redis has failed over, or was restarted: look whether it has what it had."""
        if self._looking is None or self._looking.done():
            self._looking = self._loop.create_task(self._looked())

    async def _looked(self) -> None:
        logs = list(self._logs)
        for first in range(0, len(logs), REDIS_LOGS_LOOKED_AT_ONCE):
            some = logs[first : first + REDIS_LOGS_LOOKED_AT_ONCE]
            try:
                await self._reading.ready(REDIS_CONNECT_MS_MAX)
                found = await asyncio.gather(*(self._state(each) for each in some))
            except (RedisFailure, UsageError):
                self.servers.doubt()
                return
            for each, state in zip(some, found, strict=True):
                each.look(*state)

    async def _state(self, of: RedisLog) -> tuple[str, int, int]:
        key = of.keys.state
        topic, epoch, end = await self._reading.call("HMGET", key, "topic", "epoch", "end", key=key)
        return ("" if topic is None else topic.decode()), int(epoch or -1), int(end or 0)

    def states(self) -> Iterator[State]:
        yield from self.troubles.states()
        text = f"its records are in Redis ({self.place}): {self.servers.worth}"
        yield State(kind=IN_REDIS, text=text, todo="docs/REDIS.md says what an acknowledgement is worth")

    # opening and deleting

    def begin_open(
        self,
        identity: LogIdentity,
        config: LogConfig,
        *,
        start: Offset = FIRST_OFFSET,
        leader_epoch: LeaderEpoch = NO_EPOCH,
    ) -> RedisOpening:
        if start:
            raise StorageFailure(f"The log of {identity.name} cannot begin at {start} in Redis.")
        try:
            found = self._find(identity, leader_epoch)
        except RedisFailure as error:
            raise NoRoom(f"The log of {identity.name} cannot be opened: {error}") from error
        return RedisOpening(lambda: self._opened(identity, config, found))

    def _opened(self, identity: LogIdentity, config: LogConfig, found: Found) -> RedisLog:
        opened = RedisLog(self, identity, config, found)
        if found.claimed != NO_EPOCH:
            self._logs.add(opened)
        return opened

    def _find(self, identity: LogIdentity, epoch: LeaderEpoch) -> Found:
        keys = self.keys.partition(identity.topic_name, identity.partition)
        if epoch != NO_EPOCH:
            functions = PartitionFunctions(keys, identity.topic_id, epoch)
            answer = self.blocking.run(functions.claim(identity.created_index, self.owner))
            if answer.status is Status.FENCED:
                raise Fenced(f"Epoch {answer.number} of {identity.name} has begun.")
            if answer.status is not Status.DONE:
                raise StorageFailure(f"The topic of {identity.name} is deleted in Redis, or another has its name.")
        names = ("topic", "end", "start", "bytes", "trimmed", "newest", "cleaned", "clean_to")
        topic, *numbers = self.blocking.call("HMGET", keys.state, *names, key=keys.state)
        if topic is None or topic.decode() != str(identity.topic_id) or None in numbers:
            return Found(FIRST_OFFSET, FIRST_OFFSET, 0, 0, NO_EPOCH, (), (), -1, 0, FIRST_OFFSET)
        end, start, size, trimmed, newest, cleaned, clean_to = map(int, numbers)
        marks = [
            IndexEntry(Offset(number_of(entry)), *(int(value) for value in fields[1::2]))
            for entry, fields in self.blocking.call("XRANGE", keys.times, "-", "+", key=keys.times)
        ]
        began = self.blocking.call("ZRANGE", keys.epochs, 0, -1, "WITHSCORES", key=keys.epochs)
        return Found(
            Offset(end),
            Offset(start),
            size,
            trimmed,
            epoch,
            [(LeaderEpoch(int(number)), Offset(int(at))) for number, at in began],
            marks,
            newest,
            cleaned,
            Offset(clean_to),
            [fields[1] for _, fields in self.blocking.call("XRANGE", keys.aborted, "-", "+", key=keys.aborted)],
        )

    def begin_delete(self, identity: LogIdentity) -> RedisRemoval:
        return RedisRemoval(self, identity)

    # flushing

    def begin_round(self, tickets: Sequence[FlushTicket]) -> RedisRound:
        return RedisRound(self, cast("Sequence[Ticket]", tickets))  # its own logs made them

    def begin_waiting(self) -> None:
        """A round waits for Redis from now on."""
        self._waits_since = self._loop.time()
        self.ahead.begin()

    def end_waiting(self) -> None:
        """The round is over."""
        self._waits_since = None
        self.ahead.end()

    @property
    def has_connected(self) -> bool:
        """Whether there is a connection, or there was, or there could not be one."""
        return self.link.has_tried

    async def pause(self, pause_ms: int) -> None:
        """Pause, or until there is a connection, or the engine gives up."""
        if not self.is_given_up:
            self._woken.clear()
        with suppress(TimeoutError):
            async with asyncio.timeout(pause_ms / 1000):
                await self._woken.wait()

    def _on_link(self) -> None:
        self.ahead.doubt()
        if self.link.is_connected:
            self._woken.set()
            self.servers.look_soon()

    def release(self, log: RedisLog, tail: Tail, unflushed: int, *, is_read: bool = False) -> None:
        """A log is closed; or it has failed, and `is_read` until it is closed. Any thread."""
        self._logs.discard(log)
        self._loop.call_soon_threadsafe(partial(tail.drop, unflushed, is_read=is_read))

    def drop(self, tail: Tail, unflushed: int) -> None:
        """Batches in memory are of no log any more; so many bytes of them were not flushed. Any thread."""
        self._loop.call_soon_threadsafe(tail.drop, unflushed)

    # the end

    def begin_stop(self) -> None:
        """See `LogEngine`. A round that lasts longer than REDIS_STOP_MS_MAX is given up."""
        self._is_stopping = True
        since = self._waits_since
        left = REDIS_STOP_MS_MAX / 1000 - (0.0 if since is None else self._loop.time() - since)
        if left <= 0:
            self.give_up()
        else:
            # A shorter time may be less than the clock can tell, and would never pass.
            self._stopping = self._loop.call_later(max(left, LOOK_AGAIN_S), self.begin_stop)

    def give_up(self) -> None:
        """Rounds whose outcome is unknown end now, and acknowledge nothing. Called on the loop."""
        self.is_given_up = True
        self._woken.set()
        self.link.leave(RedisOutcomeUnknown("The broker stops, and does not wait for Redis."))

    def wait_for_no_other(self) -> None:
        """A log could not be closed cleanly. In a stop, close the others without their last records: each would wait as
        long. Any thread."""
        self.is_given_up |= self._is_stopping

    # reading

    def entries(self, stream: str, start: int, end: int) -> Iterator[tuple[int, bytes]]:
        """Batches of a log below `end`, from the one that holds `start`, with the offset after each. Blocks. Raises
        RedisFailure."""
        return entries(self.blocking.call, stream, start, end)

    def fetch(self, stream: str, start: int) -> Fetching | None:
        """See `NotAtHand.fetch`."""
        key = (stream, start)
        if (under_way := self._fetches.get(key)) is not None:
            return under_way
        if len(self._fetches) >= REDIS_FETCHES_MAX:
            return None
        task = self._fetches[key] = self._loop.create_task(self._fetched(stream, start))
        task.add_done_callback(lambda _: self._fetch_over(key))
        return task

    def _fetch_over(self, key: tuple[str, int]) -> None:
        task = self._fetches.pop(key)
        if not task.cancelled():
            task.exception()  # its callers may all be gone

    async def _fetched(self, stream: str, start: int) -> Fetched:
        batches: list[tuple[int, bytes]] = []
        size, count, at = 0, 1, start
        try:
            if not self._reading.is_connected:
                await self._reading.ready(REDIS_CONNECT_MS_MAX)
            while size < REDIS_FETCH_BYTES // 2:
                found = await self._reading.call("XRANGE", stream, f"({at}-0", "+", "COUNT", count, key=stream)
                batches += ((number_of(entry), fields[1]) for entry, fields in found)
                size += sum(len(fields[1]) for _, fields in found)
                if len(found) < count:
                    break
                at = batches[-1][0]
                count = count_for(size, len(batches), REDIS_FETCH_BYTES - size)
        except (RedisFailure, UsageError) as error:
            raise Unreachable(f"Older records cannot be read from Redis: {error}") from error
        if not batches:
            raise StorageFailure(f"Redis has no records of {stream} from offset {start} on.")
        return Batches(min(start, parse_header(batches[0][1]).base_offset), batches)

    def close(self, *, clean: bool = True) -> None:
        self.blocking.close()
        if self._loop.is_closed():
            return
        disconnecting = asyncio.run_coroutine_threadsafe(self.disconnect(), self._loop)
        try:
            asyncio.get_running_loop()
        except RuntimeError:  # in a worker thread, which may wait
            disconnecting.result()

    async def disconnect(self) -> None:
        """Close all connections, and wait until they are closed. On the loop."""
        self.give_up()
        if self._stopping is not None:
            self._stopping.cancel()
        if self._looking is not None:
            self._looking.cancel()
        self.blocking.close()
        await self.link.close()
        await self._reading.close()


class RedisRemoval:
    """A `LogRemoval`: one call, which may be repeated, by any broker. Nobody else claims the partition meanwhile, but a
    later topic of the name."""

    def __init__(self, engine: RedisEngine, identity: LogIdentity) -> None:
        self.name: Final = identity.name
        self._engine = engine
        self._identity = identity

    def some(self) -> bool:
        identity, engine = self._identity, self._engine
        keys = engine.keys.partition(identity.topic_name, identity.partition)
        try:
            engine.blocking.run(delete_partition(keys, identity.topic_id, identity.created_index))
        except RedisFailure as error:
            raise OSError(f"The log of {identity.name} cannot be deleted: {error}") from error
        return True
