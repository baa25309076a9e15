"""One connection to a Redis server: RESP3, pipelined, answers matched by their order.

Promises: all commands of one turn of the event loop leave in one write, in the order of the calls. Every command ends:
with its reply, with the server's refusal, or with a RedisFailure that tells whether it may have been executed. A server
that is silent for `timeout_ms` ends the connection, because later answers cannot overtake. Never reconnects, never
sends anything twice. Limits bound the commands that wait (REDIS_COMMANDS_IN_FLIGHT_MAX, REDIS_BYTES_IN_FLIGHT_MAX).

Sources: the RESP3 specification (redis.io/docs/reference/protocol-spec); hiredis' Reader parses, and packs commands.
"""

from __future__ import annotations

import asyncio
import ssl
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Final, TypeAlias, cast

import hiredis

from headrace.base.errors import UsageError
from headrace.base.limits import (
    REDIS_BYTES_IN_FLIGHT_MAX,
    REDIS_COMMANDS_IN_FLIGHT_MAX,
    REDIS_CONNECT_MS_MAX,
    REDIS_REQUEST_MS_MAX,
    REDIS_UNSENT_BYTES_HIGH,
)
from headrace.base.ports import Buffer
from headrace.storage.redis.errors import (
    RedisBusy,
    RedisDenied,
    RedisFailure,
    RedisGarbled,
    RedisOutcomeUnknown,
    RedisRefused,
    RedisUnreachable,
    refusal,
)
from headrace.storage.redis.links.address import Credentials

Argument: TypeAlias = bytes | str | int
Reply: TypeAlias = Any
"""bytes, int, float, bool, None, list, dict, or a RedisFailure in place of one."""
Done: TypeAlias = Callable[[Reply], object]
"""Called once with the reply, or with a RedisFailure as a value."""

CLIENT_NAME: Final = "headrace"
VERSION_MIN: Final = (7, 0)
LOOK_AGAIN_S: Final = 0.001
COPIED_BYTES_MAX: Final = 512
"""Arguments below it are copied: to send one more piece would cost more."""
GARBLED: Final = (hiredis.ProtocolError, TypeError, MemoryError)
"""Errors of hiredis for bytes that it cannot read. A map whose key is a list is a TypeError, and an array that is too
large for the memory is a MemoryError."""


class Place:
    """One server's address as a connection needs it: a Unix socket's path, or host and port."""

    __slots__ = ("host", "path", "port", "tls")

    def __init__(self, *, path: str = "", host: str = "", port: int = 0, tls: ssl.SSLContext | None = None) -> None:
        self.path: Final = path
        self.host: Final = host
        self.port: Final = port
        self.tls: Final = tls

    def __str__(self) -> str:
        return self.path or (f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}")


class Connection(asyncio.Protocol):
    """A connection to one server. Make it with `connect`."""

    def __init__(self, place: Place, timeout_ms: int) -> None:
        self.place: Final = place
        self.server: dict[str, Any] = {}
        """The server's own words about itself, from HELLO: `server`, `version`, `mode`, `role`."""
        self.on_lost: Callable[[RedisFailure], object] | None = None
        """Called once, on the loop, after every command that waited has ended."""
        self.on_refused: Callable[[RedisRefused], object] | None = None
        """Called with each refusal, before the command that was refused ends with it."""
        self.lost: RedisFailure | None = None
        """Why the connection has ended; None while it is open, or before it is."""
        self._loop = asyncio.get_running_loop()
        self._timeout_s = timeout_ms / 1000
        self._heard = self._loop.time()
        """When the server last sent or took bytes."""
        self._untaken = 0
        """Bytes that the server had not taken when commands were written, or when that was looked at."""
        self._is_overdue = False
        self._reader = hiredis.Reader(replyError=self._refusal, notEnoughData=_MORE)
        self._transport: asyncio.Transport | None = None
        self._unsent: list[Buffer] = []
        self._unsent_done: list[tuple[Done, int, float]] = []
        self._waiting: deque[tuple[Done, int, float]] = deque()
        self._bytes = 0
        self._flush_is_due = False
        self._paused = False
        self._watch: asyncio.TimerHandle | None = None
        self._closed = self._loop.create_future()

    # called by the event loop

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop's transports have its methods, not its type
        self._transport.set_write_buffer_limits(REDIS_UNSENT_BYTES_HIGH)

    def data_received(self, data: bytes) -> None:
        reader, waiting = self._reader, self._waiting
        self._heard = self._loop.time()
        reader.feed(data)
        while True:
            try:
                reply = reader.gets()
            except GARBLED as error:
                self._fail(RedisGarbled(f"{self.place} sent bytes that are not Redis's protocol: {error}."))
                return
            if reply is _MORE:
                return
            if type(reply) is hiredis.PushNotification:
                continue
            if not waiting:
                self._fail(RedisGarbled(f"{self.place} sent an answer to no command."))
                return
            done, size, _ = waiting.popleft()
            self._bytes -= size
            done(reply)

    def pause_writing(self) -> None:
        self._paused = True

    def resume_writing(self) -> None:
        self._paused = False
        self._heard = self._loop.time()
        self._flush()

    def eof_received(self) -> bool:
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        reason = f"broke ({exc})" if exc is not None else "was closed by the server"
        self._fail(RedisOutcomeUnknown(f"The connection to Redis at {self.place} {reason}."))
        if not self._closed.done():
            self._closed.set_result(None)

    # called by the owner

    @property
    def is_open(self) -> bool:
        return self.lost is None and self._transport is not None

    @property
    def in_flight(self) -> int:
        """Commands that are not answered yet."""
        return len(self._waiting) + len(self._unsent_done)

    def post(self, command: tuple[Argument, ...], done: Done, payload: Sequence[Buffer] = ()) -> None:
        """Send one command with this turn's others; `done` is called later, never within this call.

        `payload` are its last arguments, which are large: they are not copied, and must not change. Raises
        RedisUnreachable or RedisBusy, and then nothing was sent and `done` is never called.
        """
        if self.lost is not None:
            raise RedisUnreachable(str(self.lost))
        size = sum(map(len, payload))
        too_large = size and self._bytes and self._bytes + size > REDIS_BYTES_IN_FLIGHT_MAX  # one alone may be
        if self.in_flight >= REDIS_COMMANDS_IN_FLIGHT_MAX or too_large:
            raise RedisBusy(f"Too many commands to Redis at {self.place} wait for their answers; try again.")
        if payload:
            self._bytes += size
            self._unsent.extend(packed(command, payload))
        else:
            self._unsent.append(_pack(command))
        self._unsent_done.append((done, size, self._loop.time()))
        if not self._flush_is_due:
            self._flush_is_due = True
            self._loop.call_soon(self._flush)

    async def call(self, *command: Argument, payload: Sequence[Buffer] = ()) -> Reply:
        """Send one command and return its reply. Raises RedisFailure, the server's refusals included."""
        answer: asyncio.Future[Reply] = self._loop.create_future()

        def on_reply(reply: Reply) -> None:
            if not answer.done():
                answer.set_result(reply)

        self.post(command, on_reply, payload)
        reply = await answer
        if isinstance(reply, RedisFailure):
            raise reply
        return reply

    async def close(self) -> None:
        """Close the connection and wait until it is closed. Waiting commands fail. Idempotent."""
        self.abort()
        if self._transport is not None:
            await asyncio.shield(self._closed)

    def abort(self, reason: RedisFailure | None = None) -> None:
        """End the connection at once. Waiting commands fail."""
        closed = f"The connection to Redis at {self.place} was closed by this side."
        self._fail(reason or RedisOutcomeUnknown(closed))

    # inner

    def _refusal(self, text: str) -> RedisRefused:
        found = refusal(text)
        if self.on_refused is not None:
            self.on_refused(found)
        return found

    def _flush(self) -> None:
        self._flush_is_due = False
        if self._paused or not self._unsent or self._transport is None:
            return
        chunks, self._unsent = self._unsent, []
        self._waiting.extend(self._unsent_done)
        self._unsent_done.clear()
        self._transport.writelines(chunks)
        self._untaken = max(self._untaken, self._transport.get_write_buffer_size())
        if self._watch is None and self.lost is None:
            self._watch = self._loop.call_later(self._timeout_s, self._look)

    def _look(self) -> None:
        """End the connection where commands wait and the server was silent for too long. Else look again in time."""
        self._watch = None
        oldest = self._waiting[0] if self._waiting else self._unsent_done[0] if self._unsent_done else None
        if oldest is None:
            self._is_overdue = False
            return
        untaken = 0 if self._transport is None else self._transport.get_write_buffer_size()
        if untaken < self._untaken:  # a slow server, or a long way to it
            self._heard = self._loop.time()
        self._untaken = untaken
        left = max(oldest[2], self._heard) + self._timeout_s - self._loop.time()
        if left > 0 or not self._is_overdue:
            self._is_overdue = left <= 0
            # Where the process stood still, answers may be there unread: the loop reads once more before it counts.
            self._watch = self._loop.call_later(max(left, LOOK_AGAIN_S), self._look)
        else:
            ms = round(self._timeout_s * 1000)
            self._fail(RedisOutcomeUnknown(f"Redis at {self.place} did not answer within {ms} ms."))

    def _fail(self, error: RedisFailure) -> None:
        """End the connection. The first reason stands. Commands that were not written certainly did nothing."""
        if self.lost is not None:
            return
        self.lost = error
        if self._watch is not None:
            self._watch.cancel()
        if self._transport is not None:
            self._transport.abort()
        sent, unsent = list(self._waiting), list(self._unsent_done)
        self._waiting.clear()
        self._unsent_done.clear()
        self._unsent.clear()
        self._bytes = 0
        for done, _, _ in sent:
            done(RedisOutcomeUnknown(str(error)))
        for done, _, _ in unsent:
            done(RedisUnreachable(str(error)))
        if self.on_lost is not None:
            self.on_lost(error)


def packed(command: tuple[Argument, ...], payload: Sequence[Buffer]) -> list[Buffer]:
    """A command with large last arguments in RESP, as pieces: the large ones are the callers' own buffers."""
    start = _pack(command)
    head = b"*%d" % (len(command) + len(payload)) + start[start.index(b"\r") :]
    chunks: list[Buffer] = []
    for piece in payload:
        if len(piece) < COPIED_BYTES_MAX:
            head += b"$%d\r\n" % len(piece) + bytes(piece) + b"\r\n"
        else:
            chunks += (head + b"$%d\r\n" % len(piece), piece)
            head = b"\r\n"
    chunks.append(head)
    return chunks


_MORE: Final = object()
_pack: Final = cast("Callable[[tuple[Argument, ...]], bytes]", hiredis.pack_command)  # its stub says less than it takes


async def connect(
    place: Place,
    credentials: Credentials,
    *,
    database: int = 0,
    timeout_ms: int = REDIS_REQUEST_MS_MAX,
    connect_timeout_ms: int = REDIS_CONNECT_MS_MAX,
) -> Connection:
    """Open a connection, log in, choose the database, and see that the server serves.

    Raises RedisUnreachable, RedisRefused (RedisDenied, RedisLoading ...), or UsageError where the server is too old.
    """
    loop = asyncio.get_running_loop()
    connection = Connection(place, timeout_ms)
    try:
        async with asyncio.timeout(connect_timeout_ms / 1000):
            if place.path:
                await loop.create_unix_connection(lambda: connection, place.path)
            else:
                await loop.create_connection(lambda: connection, place.host, place.port, ssl=place.tls)
            await _begin(connection, credentials, database)
    except TimeoutError:
        connection.abort()
        raise RedisUnreachable(f"No answer from Redis at {place} within {connect_timeout_ms} ms.") from None
    except (OSError, ValueError, OverflowError) as error:  # a name that is none, or a port that is none
        connection.abort()
        raise RedisUnreachable(unreachable(place, error)) from None
    except (RedisOutcomeUnknown, RedisGarbled) as error:
        connection.abort()
        raise RedisUnreachable(str(error)) from None
    except BaseException:
        connection.abort()  # a loop may never tell of the end of a connection that was cancelled half-way
        raise
    return connection


async def _begin(connection: Connection, credentials: Credentials, database: int) -> None:
    try:
        said = await connection.call("HELLO", 3, *credentials.hello, "SETNAME", CLIENT_NAME)
    except RedisRefused as error:
        raise greeting_refused(error, connection.place, credentials) from None
    connection.server = server_of(said, connection.place)
    if database:
        await connection.call("SELECT", database)
    await connection.call("PING")  # LOADING, for example, which HELLO does not say


def unreachable(place: Place, error: Exception) -> str:
    """Why there is no connection, in one sentence."""
    return f"Cannot connect to Redis at {place}: {getattr(error, 'strerror', '') or error}."


def greeting_refused(error: RedisRefused, place: Place, credentials: Credentials) -> Exception:
    """The failure of a HELLO, in one sentence, without the password that some servers and proxies repeat."""
    if "unknown command" in error.text.lower():
        return UsageError(too_old(place, "older than 6"))
    if isinstance(error, RedisDenied):
        return RedisDenied(f"{error.code} at {place}: set a right user and password for Redis.")
    if credentials.password and credentials.password in error.text:
        return RedisRefused(error.text.replace(credentials.password, "***"))
    return error


def server_of(said: Reply, place: Place) -> dict[str, Any]:
    """HELLO's answer as text. Raises UsageError where the server is older than VERSION_MIN."""
    if not isinstance(said, dict):
        raise RedisGarbled(f"{place} does not speak RESP3.")
    server = {_text(key): _text(value) for key, value in said.items()}
    version = str(server.get("version", ""))
    numbers = tuple(int(part) for part in version.split(".")[:2] if part.isdecimal())
    if numbers < VERSION_MIN:
        raise UsageError(too_old(place, version or "of no known version"))
    return server


def too_old(place: Place, version: str) -> str:
    return f"The Redis at {place} is {version}, and Headrace needs 7.0 or newer for its functions: upgrade the server."


def _text(value: object) -> Any:
    return value.decode(errors="replace") if isinstance(value, bytes) else value
