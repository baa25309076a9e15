"""Sockets of worker threads on the simulated network: what `storage.redis.links.blocking` needs of one.

A thread that waits for bytes passes the turn on, as it does at a disk.
"""

from __future__ import annotations

import asyncio
import contextvars
import socket
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any, Final
from unittest.mock import patch

from headrace.base.limits import REDIS_CONNECT_MS_MAX
from headrace.sim.loop import VirtualLoop
from headrace.sim.network import Transport
from headrace.sim.workers import Mutex
from headrace.storage.redis.links import blocking, threads
from headrace.storage.redis.links.connection import Place


class SimSocket:
    """One connection, used by one thread at a time."""

    def __init__(self, loop: VirtualLoop) -> None:
        self._loop = loop
        self._transport: Transport | None = None
        self._received = bytearray()
        self._error: Exception | None = None
        self._is_over = False
        self._timeout: float | None = None
        self._wake: Callable[[], None] | None = None

    def connect(self, host: str, port: int) -> None:
        """Raises OSError."""
        self._wait_for(self._loop.create_connection(lambda: _Inbox(self), host, port))

    def settimeout(self, seconds: float | None) -> None:
        self._timeout = seconds

    def sendall(self, data: bytes) -> None:
        if self._is_over or self._transport is None:
            raise self._error or BrokenPipeError("it was closed")
        self._transport.write(data)

    def recv(self, size: int) -> bytes:
        """Raises OSError."""
        if not self._received and not self._is_over:
            self._wait()
        if self._received:
            data = bytes(self._received[:size])
            del self._received[:size]
            return data
        if self._error is not None:
            raise self._error
        if not self._is_over:
            raise TimeoutError("timed out")
        return b""

    def shutdown(self, how: int) -> None:
        """End it for the thread that waits, too."""
        self.close()

    def close(self) -> None:
        self.over(None)
        if self._transport is not None:
            self._transport.abort()

    @property
    def is_over(self) -> bool:
        """Whether the other side has closed it."""
        return self._is_over

    # called on the loop

    def begun(self, transport: Transport) -> None:
        self._transport = transport

    def arrived(self, data: bytes) -> None:
        self._received += data
        self._woken()

    def over(self, error: Exception | None) -> None:
        if not self._is_over:
            self._is_over, self._error = True, error
            self._woken()

    # inner

    def _woken(self) -> None:
        wake, self._wake = self._wake, None
        if wake is not None:
            wake()

    def _wait(self) -> None:
        def begin(wake: Callable[[], None]) -> None:
            self._wake = wake
            if self._timeout is not None:
                timers.append(self._loop.call_later(self._timeout, wake))

        timers: list[asyncio.TimerHandle] = []
        self._loop.workers.wait(begin)
        for timer in timers:
            timer.cancel()

    def _wait_for(self, work: Coroutine[Any, Any, Any]) -> None:
        """Let the loop do it. Raises OSError."""

        async def limited() -> None:
            async with asyncio.timeout(REDIS_CONNECT_MS_MAX / 1000):
                await work

        _Work(self._loop, limited()).result()


class _Work:
    """A coroutine that the loop runs for a worker thread, as a `concurrent.futures.Future` of it."""

    def __init__(self, loop: VirtualLoop, work: Coroutine[Any, Any, Any]) -> None:
        self._loop = loop
        self._task = loop.create_task(work, context=contextvars.copy_context())

    def result(self) -> Any:
        """Wait for it. Raises what it raised."""
        if not self._task.done():
            self._loop.workers.wait(lambda wake: self._task.add_done_callback(lambda _: wake()))
        return self._task.result()


class _Inbox(asyncio.Protocol):
    def __init__(self, owner: SimSocket) -> None:
        self._owner = owner

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, Transport)
        self._owner.begun(transport)

    def data_received(self, data: bytes) -> None:
        self._owner.arrived(data)

    def connection_lost(self, exc: Exception | None) -> None:
        self._owner.over(exc)


@contextmanager
def simulated_sockets(loop: VirtualLoop) -> Iterator[None]:
    """While it lasts, worker threads reach Redis over the simulated network."""

    def connected(place: Place) -> SimSocket:
        made = SimSocket(loop)
        made.connect(place.host, place.port)
        return made

    kinds: Final = SimpleNamespace(socket=SimSocket, SHUT_RDWR=socket.SHUT_RDWR)
    locks: Final = SimpleNamespace(Lock=Mutex)
    with (
        patch.object(blocking, "_connected", connected),
        patch.object(blocking, "_is_over", lambda idle: idle.is_over),
        patch.object(blocking, "socket", kinds),
        patch.object(blocking, "threading", locks),
        patch.object(threads, "threading", locks),
        patch.object(asyncio, "run_coroutine_threadsafe", lambda work, on: _Work(on, work)),
    ):
        yield
