"""A connection to Redis for worker threads: one command at a time, and the caller waits.

Promises: a lost connection is made again for the next command. Nothing is sent twice by itself. Closing waits for
nobody: it ends the command that waits for an answer.
"""

from __future__ import annotations

import select
import socket
import threading
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, Final

import hiredis

from headrace.base.limits import REDIS_CONNECT_MS_MAX, REDIS_REQUEST_MS_MAX
from headrace.base.ports import Buffer
from headrace.storage.redis.errors import (
    RedisFailure,
    RedisGarbled,
    RedisNoFunction,
    RedisOutcomeUnknown,
    RedisRefused,
    RedisUnreachable,
    refusal,
)
from headrace.storage.redis.links.address import Credentials
from headrace.storage.redis.links.connection import (
    CLIENT_NAME,
    GARBLED,
    Argument,
    Place,
    Reply,
    greeting_refused,
    packed,
    server_of,
    unreachable,
)
from headrace.storage.redis.server_side.functions import CODE, Answer, Call, answer_of

_RECEIVED_BYTES: Final = 256 * 1024
_MORE: Final = object()


class BlockingConnection:
    """Any thread may call it."""

    def __init__(self, place: Place, credentials: Credentials, *, database: int = 0) -> None:
        self.server: dict[str, Any] = {}
        """As `Connection.server`, once there was a connection."""
        self._place: Final = place
        self._credentials = credentials
        self._database = database
        self._lock = threading.Lock()
        self._socket: socket.socket | None = None
        self._is_closed = False
        self._reader = hiredis.Reader()

    def call(self, *command: Argument, payload: Sequence[Buffer] = (), is_asking: bool = False) -> Reply:
        """Send one command, behind ASKING where that is said, and return its reply. Raises RedisFailure, and UsageError
        where the server is too old."""
        with self._lock:
            try:
                if self._socket is not None and _is_over(self._socket):
                    self._drop()
                if self._socket is None:
                    self._connect()
                if is_asking:
                    self._exchange(("ASKING",), ())
                reply = self._exchange(command, payload)
            finally:
                if self._is_closed:
                    self._drop()
        if isinstance(reply, RedisFailure):
            raise reply
        return reply

    def run(self, call: Call) -> Answer:
        """Call a function; a missing library is loaded first. Raises RedisFailure."""
        try:
            reply = self.call(*call.command, payload=call.buffers)
        except RedisNoFunction:
            self.load_functions()
            reply = self.call(*call.command, payload=call.buffers)
        return answer_of(reply)

    def load_functions(self) -> None:
        """Load the library where it is missing. Raises RedisFailure."""
        try:
            self.call("FUNCTION", "LOAD", CODE)
        except RedisRefused as error:
            if "already exists" not in error.text:
                raise

    def close(self) -> None:
        """Idempotent. A command that waits for its answer ends; later ones are refused."""
        self._is_closed = True
        if (used := self._socket) is not None:
            with suppress(OSError):
                socket.socket.shutdown(used, socket.SHUT_RDWR)  # that of TLS is not for two threads
        if self._lock.acquire(blocking=False):  # otherwise the command that goes on does this
            try:
                self._drop()
            finally:
                self._lock.release()

    def _connect(self) -> None:
        place = self._place
        if self._is_closed:
            raise RedisUnreachable(f"The connection to Redis at {place} was closed by this side.")
        try:
            made = _connected(place)
        except (OSError, ValueError, OverflowError) as error:
            raise RedisUnreachable(unreachable(place, error)) from None
        made.settimeout(REDIS_REQUEST_MS_MAX / 1000)
        self._socket, self._reader = made, hiredis.Reader(replyError=refusal, notEnoughData=_MORE)
        try:
            self._greet()
        except BaseException:
            self._drop()
            raise

    def _greet(self) -> None:
        said = self._exchange(("HELLO", 3, *self._credentials.hello, "SETNAME", CLIENT_NAME), ())
        if isinstance(said, RedisRefused):
            raise greeting_refused(said, self._place, self._credentials)
        self.server = server_of(said, self._place)
        if self._database:
            chosen = self._exchange(("SELECT", self._database), ())
            if isinstance(chosen, RedisFailure):
                raise chosen

    def _exchange(self, command: tuple[Argument, ...], payload: Sequence[Buffer]) -> Reply:
        assert self._socket is not None
        try:
            self._socket.sendall(b"".join(packed(command, payload)))
            while (reply := self._reader.gets()) is _MORE or type(reply) is hiredis.PushNotification:
                if reply is not _MORE:
                    continue
                received = self._socket.recv(_RECEIVED_BYTES)
                if not received:
                    raise ConnectionResetError("it was closed by the server")
                self._reader.feed(received)
        except OSError as error:
            self._drop()
            raise RedisOutcomeUnknown(f"The connection to Redis at {self._place} broke: {error}.") from None
        except GARBLED as error:
            self._drop()
            raise RedisGarbled(f"{self._place} sent bytes that are not Redis's protocol: {error}.") from None
        return reply

    def _drop(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None


def _connected(place: Place) -> socket.socket:
    """Raises OSError, and then nothing is left open."""
    if not place.path:
        made = socket.create_connection((place.host, place.port), REDIS_CONNECT_MS_MAX / 1000)
        made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return made if place.tls is None else place.tls.wrap_socket(made, server_hostname=place.host)
    made = socket.socket(socket.AF_UNIX)
    try:
        made.settimeout(REDIS_CONNECT_MS_MAX / 1000)
        made.connect(place.path)
    except OSError:
        made.close()
        raise
    return made


def _is_over(idle: socket.socket) -> bool:
    """Whether the server has closed it since its last use: nothing else comes without a command."""
    poll = select.poll()
    poll.register(idle, select.POLLIN)
    return bool(poll.poll(0))
