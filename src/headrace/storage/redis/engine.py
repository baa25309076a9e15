"""The engine whose logs are in Redis, so that every broker reaches them (`headrace.storage.engine.engines`).

Promises: a server is refused that may evict records. One line tells what an acknowledgement is worth there. While
Redis is not reachable, flushes wait and readers of older records are refused; both go on by themselves.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from typing import Final, NamedTuple, cast

import structlog

from headrace.base.errors import NoRoom, StorageFailure, UsageError
from headrace.base.ids import FIRST_OFFSET, NO_EPOCH, LeaderEpoch, Offset
from headrace.base.limits import (
    REDIS_FETCH_BYTES,
    REDIS_FETCH_ENTRIES_MAX,
    REDIS_FETCHES_MAX,
    REDIS_WAIT_MS,
)
from headrace.base.ports import Random, Space
from headrace.storage.engine.faults import Fenced
from headrace.storage.engine.flushing import FlushTicket
from headrace.storage.engine.identity import LogConfig, LogIdentity
from headrace.storage.engine.reading import Fetched, Fetching
from headrace.storage.redis.address import RedisAddress, Topology
from headrace.storage.redis.blocking import BlockingConnection
from headrace.storage.redis.connection import Argument, Connection, Place, Reply, connect
from headrace.storage.redis.errors import RedisFailure, RedisRefused, RedisUnreachable
from headrace.storage.redis.flushing import RedisRound, Ticket
from headrace.storage.redis.functions import (
    CODE,
    IndexEntry,
    PartitionFunctions,
    Status,
    delete_partition,
)
from headrace.storage.redis.keys import Keys
from headrace.storage.redis.log import RedisLog
from headrace.storage.redis.tail import Batches, Tail, TailBudget
from headrace.wire.ailments import State
from headrace.wire.batches import parse_header

log = structlog.get_logger(__name__)

ENDLESS: Final = 2**62
SURVIVES: Final = "records survive a crash of Redis"
LOSES: Final = "a crash of Redis loses records"
WEAKER: Final = "a crash of its machine or process may lose the last second: this Redis has no WAITAOF"


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


class Link:
    """A connection that is made again when it is lost, with the library of functions loaded. Loop-only."""

    def __init__(self, place: Place, address: RedisAddress) -> None:
        self._place = place
        self._address = address
        self._connection: Connection | None = None
        self._making: asyncio.Task[Connection] | None = None
        self._has_functions = False

    async def connection(self) -> Connection:
        """Raises RedisFailure."""
        if self._connection is not None and self._connection.is_open and self._has_functions:
            return self._connection
        if self._making is None or self._making.done():
            self._making = asyncio.get_running_loop().create_task(self._made())
        self._connection = await asyncio.shield(self._making)
        return self._connection

    def forget_functions(self) -> None:
        """The server has lost the library: it is loaded again before anything else is sent."""
        self._has_functions = False

    async def _made(self) -> Connection:
        made = self._connection
        try:
            if made is None or not made.is_open:
                made = await connect(self._place, self._address.credentials, database=self._address.database)
        except UsageError as error:
            raise RedisUnreachable(str(error)) from None
        try:
            await made.call("FUNCTION", "LOAD", CODE)
        except RedisRefused as error:
            if "already exists" not in error.text:
                made.abort()
                raise
        self._has_functions = True
        return made

    async def close(self) -> None:
        if self._connection is not None:
            await self._connection.close()

    def abort(self) -> None:
        if self._connection is not None:
            self._connection.abort()


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
    upkeep: Final = None

    def __init__(self, address: RedisAddress, *, random: Random, keys: Keys | None = None) -> None:
        if address.topology is not Topology.SERVER:
            raise UsageError(
                "Partitions in a Redis Cluster or behind Sentinels are not supported yet: name one server."
            )
        self.keys: Final = keys or Keys()
        self.owner: Final = f"{random.getrandbits(64):016x}"
        """Tells this life of this broker from all others that claim epochs."""
        self.budget: Final = TailBudget()
        self._address = address
        host, port = address.hosts[0] if address.hosts else ("", 0)
        tls = None if address.tls is None else address.tls.context()
        place = Place(path=address.path, host=host, port=port, tls=tls)
        self.link: Final = Link(place, address)
        self._reading: Final = Link(place, address)
        self.blocking: Final = BlockingConnection(place, address.credentials, database=address.database)
        self._loop = asyncio.get_running_loop()
        self._given_up = asyncio.Event()
        self._fetches: dict[tuple[str, int], asyncio.Task[Fetched]] = {}
        self._waits: tuple[tuple[Argument, ...], ...] = ()
        self._trouble: RedisFailure | None = None

    # the server

    @property
    def place(self) -> str:
        return str(self._address)

    def start(self) -> list[RedisRemoval]:
        try:
            self.blocking.load_functions()
            config = self._config("appendonly", "appendfsync", "maxmemory-policy")
            replicas = _field(self.blocking.call("INFO", "replication"), "connected_slaves")
        except RedisFailure as error:
            raise StorageFailure(f"Redis cannot be used: {error}") from error
        policy = config.get("maxmemory-policy", "")
        if policy.startswith("allkeys"):
            raise UsageError(f"The Redis at {self.place} evicts records ({policy}): set maxmemory-policy noeviction.")
        has_aof = config.get("appendonly") == "yes"
        fsync = config.get("appendfsync", "")
        worth = self._durability(fsync) if has_aof else LOSES
        log.info(
            "Redis has the logs",
            at=self.place,
            version=str(self.blocking.server.get("version")),
            appendonly=config.get("appendonly"),
            appendfsync=fsync,
            replicas=replicas,
            acknowledged=worth,
        )
        return []

    def _durability(self, fsync: str) -> str:
        """Choose what a round waits for where Redis has an append-only file. Returns what an acknowledgement is worth.
        With `always` its answers come after the sync."""
        if fsync != "everysec":
            return SURVIVES if fsync == "always" else LOSES
        try:
            self.blocking.call("WAITAOF", 0, 0, 0)
        except RedisRefused as error:
            if "unknown command" not in error.text.lower():
                raise
            return WEAKER
        self._waits = (("WAITAOF", 1, 0, REDIS_WAIT_MS),)
        return SURVIVES

    def _config(self, *names: str) -> dict[str, str]:
        found = self.blocking.call("CONFIG", "GET", *names)
        return {key.decode(): value.decode() for key, value in found.items()}

    def durability_commands(self) -> Sequence[tuple[Argument, ...]]:
        """Commands behind a round's calls that wait until these are durable."""
        return self._waits

    def is_durable(self, replies: Sequence[Reply]) -> bool:
        """Whether these answers to them say so."""
        for reply in replies:
            if isinstance(reply, RedisFailure):
                self.note(reply)
                return False
            if reply[0] < 1:
                return False
        return True

    def space(self) -> Space:
        try:
            said = self.blocking.call("INFO", "memory")
        except RedisFailure as error:
            raise OSError(str(error)) from error
        limit = _field(said, "maxmemory")
        return Space(limit, max(0, limit - _field(said, "used_memory"))) if limit else Space(0, ENDLESS)

    def note(self, failure: RedisFailure | None) -> None:
        """A command has failed, or a round has ended well. Tells the log once of each change."""
        was, self._trouble = self._trouble, failure
        if failure is not None and was is None:
            log.warning("Redis does not take records now; they are sent again", reason=str(failure))
        elif failure is None and was is not None:
            log.info("Redis takes records again")

    def states(self) -> Iterator[State]:
        if self._trouble is not None:
            text = f"its Redis takes no records ({self._trouble})"
            yield State(kind="store unreachable", text=text, todo="see to the Redis; all goes on by itself then")

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
        return RedisOpening(lambda: RedisLog(self, identity, config, found))

    def _find(self, identity: LogIdentity, epoch: LeaderEpoch) -> Found:
        keys = self.keys.partition(identity.topic_name, identity.partition)
        if epoch != NO_EPOCH:
            functions = PartitionFunctions(keys, identity.topic_id, epoch)
            answer = self.blocking.run(functions.claim(identity.created_index, self.owner))
            if answer.status is Status.FENCED:
                raise Fenced(f"Epoch {answer.number} of {identity.name} has begun.")
            if answer.status is not Status.DONE:
                raise StorageFailure(f"The topic of {identity.name} is deleted in Redis, or another has its name.")
        names = ("topic", "end", "start", "bytes", "trimmed", "newest")
        topic, *numbers = self.blocking.call("HMGET", keys.state, *names)
        if topic is None or topic.decode() != str(identity.topic_id) or None in numbers:
            return Found(FIRST_OFFSET, FIRST_OFFSET, 0, 0, NO_EPOCH, (), (), -1)
        end, start, size, trimmed, newest = map(int, numbers)
        marks = [
            IndexEntry(Offset(_number(entry)), *(int(value) for value in fields[1::2]))
            for entry, fields in self.blocking.call("XRANGE", keys.times, "-", "+")
        ]
        began = self.blocking.call("ZRANGE", keys.epochs, 0, -1, "WITHSCORES")
        return Found(
            Offset(end),
            Offset(start),
            size,
            trimmed,
            epoch,
            [(LeaderEpoch(int(number)), Offset(int(at))) for number, at in began],
            marks,
            newest,
        )

    def begin_delete(self, identity: LogIdentity) -> RedisRemoval:
        return RedisRemoval(self, identity)

    # flushing

    def begin_round(self, tickets: Sequence[FlushTicket]) -> RedisRound:
        return RedisRound(self, cast("Sequence[Ticket]", tickets))  # its own logs made them

    @property
    def is_given_up(self) -> bool:
        return self._given_up.is_set()

    def give_up(self) -> None:
        """The broker stops: rounds whose outcome is unknown end now, and acknowledge nothing. Called on the loop."""
        self._given_up.set()
        self.link.abort()

    async def pause(self, pause_ms: int) -> None:
        """Pause, or until the engine gives up."""
        try:
            await asyncio.wait_for(self._given_up.wait(), pause_ms / 1000)
        except TimeoutError:
            return

    def release(self, tail: Tail, unflushed: int) -> None:
        """A log is closed, or has failed. Any thread."""
        self._loop.call_soon_threadsafe(tail.drop, unflushed)

    # reading

    def entries(self, stream: str, start: int, end: int) -> Iterator[tuple[int, bytes]]:
        """Batches of a log below `end`, from the one that holds `start`, with the offset after each. Blocks. Raises
        RedisFailure."""
        count = 1
        while start < end:
            found = self.blocking.call("XRANGE", stream, f"({start}-0", f"{end}-0", "COUNT", count)
            if not found:
                return
            for entry, fields in found:
                yield _number(entry), fields[1]
            start = _number(found[-1][0])
            count = _count(sum(len(fields[1]) for _, fields in found), len(found))

    def fetch(self, stream: str, start: int) -> Fetching | None:
        """See `NotAtHand.fetch`."""
        key = (stream, start)
        if (under_way := self._fetches.get(key)) is not None:
            return under_way
        if len(self._fetches) >= REDIS_FETCHES_MAX:
            return None
        task = self._fetches[key] = self._loop.create_task(self._fetched(stream, start))
        task.add_done_callback(lambda _: self._fetches.pop(key, None))
        return task

    async def _fetched(self, stream: str, start: int) -> Fetched:
        batches: list[tuple[int, bytes]] = []
        size, count, at = 0, 1, start
        try:
            connection = await self._reading.connection()
            while size < REDIS_FETCH_BYTES // 2:
                found = await connection.call("XRANGE", stream, f"({at}-0", "+", "COUNT", count)
                batches += ((_number(entry), fields[1]) for entry, fields in found)
                size += sum(len(fields[1]) for _, fields in found)
                if len(found) < count:
                    break
                at = batches[-1][0]
                count = _count(size, len(batches), REDIS_FETCH_BYTES - size)
        except RedisFailure as error:
            raise StorageFailure(f"Older records cannot be read from Redis: {error}") from error
        if not batches:
            raise StorageFailure(f"Redis has no records of {stream} from offset {start} on.")
        return Batches(min(start, parse_header(batches[0][1]).base_offset), batches)

    def close(self, *, clean: bool = True) -> None:
        self.blocking.close()
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._abort)

    async def disconnect(self) -> None:
        """Close all connections, and wait until they are closed. On the loop."""
        self.blocking.close()
        await self.link.close()
        await self._reading.close()

    def _abort(self) -> None:
        self.link.abort()
        self._reading.abort()


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


def _number(entry: bytes) -> int:
    return int(entry.partition(b"-")[0])


def _count(size: int, entries: int, wanted: int = REDIS_FETCH_BYTES) -> int:
    """How many entries have about as many bytes as wanted, if they are as those before."""
    return max(1, min(REDIS_FETCH_ENTRIES_MAX, wanted * entries // max(1, size)))


def _field(info: bytes | str, name: str) -> int:
    """A number in the answer to INFO."""
    text = info.decode() if isinstance(info, bytes) else info
    return int(text.partition(f"\n{name}:")[2].split()[0])
