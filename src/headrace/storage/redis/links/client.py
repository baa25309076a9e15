"""The broker's way to Redis, and its simplest form: one kept connection to one server.

Promises: a lost connection comes back by itself, after a pause that grows. No command is ever sent twice where it may
have been executed; a missing library means that it was not. A command for which there is no connection is refused at
once. `opening.py` makes the client that fits an address.
"""

from __future__ import annotations

import asyncio
import contextlib
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Final, TypeAlias

from headrace.base.errors import HeadraceError, UsageError
from headrace.base.limits import REDIS_BACKOFF_MS_MAX, REDIS_BACKOFF_MS_MIN, REDIS_REQUEST_MS_MAX
from headrace.base.ports import Buffer, Random
from headrace.storage.redis.errors import (
    RedisDenied,
    RedisFailure,
    RedisGarbled,
    RedisNoFunction,
    RedisOutcomeUnknown,
    RedisReadOnly,
    RedisRefused,
    RedisUnreachable,
)
from headrace.storage.redis.links.address import Credentials, RedisAddress
from headrace.storage.redis.links.connection import Argument, Connection, Done, Place, Reply, connect
from headrace.storage.redis.server_side.functions import CODE, Answer, Call, answer_of

Locate: TypeAlias = Callable[[], Awaitable[Place]]
"""Tells where to connect. Raises RedisFailure."""
Answered: TypeAlias = Callable[[Answer | RedisFailure], object]
"""Called once with a function's answer, or with a RedisFailure as a value."""


class Redis(ABC):
    """Redis, whatever its topology. It belongs to the event loop."""

    is_clustered: bool = False
    """Whether keys are spread over the servers of a Cluster."""
    on_change: Callable[[], object] | None = None
    """Called on the loop when a connection is made or lost, or when a slot has another server."""
    _loading: asyncio.Task[None] | None = None

    @abstractmethod
    def post(self, command: tuple[Argument, ...], done: Done, payload: Sequence[Buffer] = (), *, key: str = "") -> None:
        """Send one command, with this turn's others, to the server of `key`.

        `done` is called later, never within this call, with the reply or a RedisFailure. `payload` are the last
        arguments, which may be large: they are not copied, and must not change. Raises RedisUnreachable or RedisBusy,
        and then nothing was sent and `done` is never called.
        """

    @abstractmethod
    async def ready(self, timeout_ms: int) -> None:
        """Wait until every server that is needed is connected. Raises RedisFailure or UsageError: the last reason why
        one is not."""

    @abstractmethod
    async def load_functions(self) -> None:
        """Load the library into every server that may run it. Raises RedisFailure."""

    @abstractmethod
    def node_of(self, key: str) -> RedisNode:
        """Return the connection to the server of a key, for commands that have to go by one connection, as WAIT behind
        writes. One that belongs elsewhere by now is refused with RedisElsewhere. Raises RedisUnreachable where no
        server is known."""

    @abstractmethod
    def place_of(self, key: str) -> Place:
        """Return where the server of a key is. Any thread may ask. Raises RedisUnreachable where there is none now."""

    @abstractmethod
    def places(self) -> list[Place]:
        """Return where all masters are. Any thread may ask. Raises RedisUnreachable where one is missing now."""

    @abstractmethod
    def hear(self, refusal: RedisRefused) -> None:
        """Learn from a refusal that somebody else was given."""

    @property
    @abstractmethod
    def nodes(self) -> Sequence[RedisNode]:
        """The connections to all masters."""

    @property
    @abstractmethod
    def is_connected(self) -> bool:
        """Whether every server that is needed is connected."""

    @property
    @abstractmethod
    def has_tried(self) -> bool:
        """Whether there is a connection, or there was, or there could not be one."""

    @abstractmethod
    def leave(self, reason: RedisFailure) -> None:
        """End all connections; the next ones are made where the servers are then. Commands that wait fail."""

    @abstractmethod
    def beside(self, key: str, *, timeout_ms: int) -> RedisNode:
        """Return another kept connection to the server of `key`, for commands that block in the server.

        `timeout_ms` is how long the server may be silent: more than such a command waits. The caller closes it.
        """

    @abstractmethod
    async def close(self) -> None:
        """Close all connections. Commands that wait fail. Idempotent."""

    async def call(self, *command: Argument, payload: Sequence[Buffer] = (), key: str = "") -> Reply:
        """Send one command and return its reply. Raises RedisFailure, the server's refusals included."""
        answer: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()
        self.post(command, settling(answer), payload, key=key)
        return raised(await answer)

    def post_call(self, call: Call, done: Answered) -> None:
        """Call a function; `done` is called later. Raises as `post` does.

        A missing library is loaded, and the call is sent again. Until then, a later call may overtake it.
        """
        self._post_call(call, done, may_load=True)

    async def run(self, call: Call) -> Answer:
        """Call a function and return its answer. Raises RedisFailure."""
        answer: asyncio.Future[Answer | RedisFailure] = asyncio.get_running_loop().create_future()
        self.post_call(call, settling(answer))
        found: Answer = raised(await answer)
        return found

    # inner

    def _post_call(self, call: Call, done: Answered, *, may_load: bool) -> None:
        def on_reply(reply: Reply) -> None:
            if isinstance(reply, RedisNoFunction) and may_load:
                self._load().add_done_callback(lambda _: self._again(call, done))
            else:
                done(_parsed(reply))

        self.post(call.command, on_reply, call.buffers, key=call.keys[0])

    def _load(self) -> asyncio.Task[None]:
        """One loading for all calls that wait for it."""
        if self._loading is None or self._loading.done():
            self._loading = asyncio.get_running_loop().create_task(self._loaded())
        return self._loading

    async def _loaded(self) -> None:
        with contextlib.suppress(RedisFailure):  # the call that is sent again fails with the reason
            await self.load_functions()

    def _again(self, call: Call, done: Answered) -> None:
        try:
            self._post_call(call, done, may_load=False)
        except RedisFailure as error:
            done(error)

    def _tell(self) -> None:
        if self.on_change is not None:
            self.on_change()


class RedisNode(Redis):
    """One kept connection. `locate` says where to connect, each time."""

    def __init__(
        self,
        locate: Locate,
        credentials: Credentials,
        random: Random,
        *,
        database: int = 0,
        timeout_ms: int = REDIS_REQUEST_MS_MAX,
        leaves_on: tuple[type[RedisRefused], ...] = (RedisReadOnly,),
        look_ms: int = 0,
    ) -> None:
        """`leaves_on`: refusals behind which the connection ends, because the server is the wrong one now. `look_ms`:
        how often `locate` is asked whether another place has become the right one; 0: never."""
        self.on_refused: Callable[[RedisRefused], object] | None = None
        """Called with each refusal of the server, before the command that was refused ends with it."""
        self.failure: HeadraceError | None = None
        """Why there is no connection; None where there is one, or none was tried yet."""
        self._locate = locate
        self._credentials = credentials
        self._random = random
        self._database = database
        self._timeout_ms = timeout_ms
        self._leaves_on = leaves_on
        self._look_ms = look_ms
        self._connection: Connection | None = None
        self._changed = asyncio.Event()
        self._keeping = asyncio.get_running_loop().create_task(self._keep())

    @property
    def connection(self) -> Connection | None:
        """The connection that serves now, if any."""
        return self._connection if self._connection is not None and self._connection.is_open else None

    @property
    def is_in_cluster(self) -> bool:
        """Whether the server that is connected belongs to a Cluster."""
        return self.connection is not None and self.connection.server.get("mode") == "cluster"

    @property
    def in_flight(self) -> int:
        """Commands that are not answered yet."""
        return 0 if self._connection is None else self._connection.in_flight

    def post(self, command: tuple[Argument, ...], done: Done, payload: Sequence[Buffer] = (), *, key: str = "") -> None:
        if self._connection is None:
            raise self._unreachable()
        self._connection.post(command, done, payload)

    async def ready(self, timeout_ms: int, *, is_patient: bool = True) -> None:
        """See `Redis.ready`. `is_patient`: wait though nobody listens there yet."""
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                while self.connection is None:
                    lasts = UsageError | RedisDenied if is_patient else UsageError | RedisDenied | RedisUnreachable
                    if isinstance(self.failure, lasts):
                        raise self.failure
                    self._changed.clear()
                    await self._changed.wait()
        except TimeoutError:
            raise self.failure or RedisUnreachable(f"No connection to Redis within {timeout_ms} ms.") from None

    async def load_functions(self) -> None:
        try:
            await self.call("FUNCTION", "LOAD", CODE)
        except RedisRefused as error:
            if "already exists" not in error.text:
                raise

    def node_of(self, key: str) -> RedisNode:
        return self

    @property
    def is_connected(self) -> bool:
        return self.connection is not None

    @property
    def has_tried(self) -> bool:
        return self.connection is not None or self.failure is not None

    def place_of(self, key: str) -> Place:
        if isinstance(self._locate, Fixed):
            return self._locate.place
        if (connection := self.connection) is None:
            raise self._unreachable()
        return connection.place

    def places(self) -> list[Place]:
        return [self.place_of("")]

    def hear(self, refusal: RedisRefused) -> None:
        """Nothing: this connection is refused itself, or looks where the master is."""

    @property
    def nodes(self) -> Sequence[RedisNode]:
        return (self,)

    def beside(self, key: str, *, timeout_ms: int) -> RedisNode:
        return RedisNode(
            self._locate,
            self._credentials,
            self._random,
            database=self._database,
            timeout_ms=timeout_ms,
            look_ms=self._look_ms,
        )

    def leave(self, reason: RedisFailure) -> None:
        if self._connection is not None:
            self._connection.abort(reason)

    async def close(self) -> None:
        self._keeping.cancel()
        await asyncio.gather(self._keeping, return_exceptions=True)
        if self._connection is not None:
            await self._connection.close()

    # inner

    def _unreachable(self) -> RedisUnreachable:
        return RedisUnreachable(str(self.failure or "There is no connection to Redis yet."))

    async def _keep(self) -> None:
        pause_ms = REDIS_BACKOFF_MS_MIN
        while True:
            try:
                connection = await self._connected()
            except HeadraceError as error:
                self._lost(error)
            else:
                pause_ms = REDIS_BACKOFF_MS_MIN
                self._lost(await self._until_lost(connection))
            await asyncio.sleep(pause_ms * (0.5 + self._random.random() / 2) / 1000)
            pause_ms = min(2 * pause_ms, REDIS_BACKOFF_MS_MAX)

    async def _connected(self) -> Connection:
        """A connection to a master that serves."""
        place = await self._locate()
        connection = await connect(
            place,
            self._credentials,
            database=self._database,
            timeout_ms=self._timeout_ms,
        )
        server = connection.server  # a replica in a Cluster says by itself where its master is
        if server.get("role", "master") != "master" and server.get("mode") != "cluster":
            connection.abort()
            raise RedisReadOnly(f"READONLY the Redis at {place} is a replica: name its master, or its Sentinels")
        return connection

    async def _until_lost(self, connection: Connection) -> RedisFailure:
        """Serve with this connection until it ends, and return why."""
        lost: asyncio.Future[RedisFailure] = asyncio.get_running_loop().create_future()
        connection.on_lost = settling(lost)
        connection.on_refused = partial(self._refused, connection)
        if connection.lost is not None:  # between its last answer and now
            return connection.lost
        self._connection, self.failure = connection, None
        self._tell()
        looking = asyncio.get_running_loop().create_task(self._look(connection))
        try:
            return await lost
        finally:
            looking.cancel()

    def _refused(self, connection: Connection, refusal: RedisRefused) -> None:
        if self.on_refused is not None:
            self.on_refused(refusal)
        if isinstance(refusal, self._leaves_on):  # behind the answers that came with it
            reason = f"The Redis at {connection.place} is not the right server any more ({refusal.code})."
            asyncio.get_running_loop().call_soon(connection.abort, RedisOutcomeUnknown(reason))

    async def _look(self, connection: Connection) -> None:
        """End a connection to a server that serves on, and is the right one no longer."""
        while self._look_ms and connection.lost is None:
            await asyncio.sleep(self._look_ms / 1000)
            with contextlib.suppress(HeadraceError):
                if str(place := await self._locate()) != str(connection.place):
                    connection.abort(RedisOutcomeUnknown(f"The master is at {place}, no longer at {connection.place}."))

    def _lost(self, failure: HeadraceError) -> None:
        self._connection, self.failure = None, failure
        self._tell()

    def _tell(self) -> None:
        self._changed.set()
        super()._tell()


class Fixed:
    """A `Locate` of a place that never changes."""

    def __init__(self, place: Place) -> None:
        self.place: Final = place

    async def __call__(self) -> Place:
        return self.place


def place_of(address: RedisAddress) -> Place:
    """The place of a server that a URL names by itself. Raises UsageError where its TLS files cannot be read."""
    if address.path:
        return Place(path=address.path)
    host, port = address.hosts[0]
    return Place(host=host, port=port, tls=None if address.tls is None else address.tls.context())


def settling(answer: asyncio.Future[Reply]) -> Callable[[Reply], None]:
    """Return a function that gives a future its first result."""

    def settle(reply: Reply) -> None:
        if not answer.done():
            answer.set_result(reply)

    return settle


def raised(reply: Reply) -> Reply:
    """Raises a reply that is a failure; returns any other."""
    if isinstance(reply, RedisFailure):
        raise reply
    return reply


def _parsed(reply: Reply) -> Answer | RedisFailure:
    if isinstance(reply, RedisFailure):
        return reply
    try:
        return answer_of(reply)
    except RedisGarbled as error:
        return error
