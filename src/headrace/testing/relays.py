"""Relays before the brokers of a test's cluster, so that a test can cut the network between them.

Brokers and clients reach a broker through these alone. A relay knows which broker opens a connection by the process
that owns its other end, as Linux tells. Elsewhere only the broker that is called counts.
"""

from __future__ import annotations

import asyncio
import os
import socket
import threading
from collections.abc import Callable, Coroutine, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, NamedTuple

from headrace.base.addresses import Address

CHUNK_BYTES: Final = 256 * 1024
ANSWER_SECONDS_MAX: Final = 60.0
BACKLOG: Final = 128


class Relay(NamedTuple):
    """The door to one broker."""

    door: Address
    """Where others call it."""
    broker: Address
    """Where it listens."""


class Relays:
    """A door to each broker, in a thread of their own. Its methods block for a moment, and any thread may call them."""

    def __init__(self, relays: Mapping[int, Relay], pid_of: Callable[[int], int | None]) -> None:
        """`pid_of` returns the process of a broker that runs; None: only clients call here."""
        self._relays = relays
        self._pid_of = pid_of
        self._cut: set[int] = set()
        self._doors: dict[int, socket.socket] = {}
        self._links: dict[asyncio.Task[None], tuple[int | None, int]] = {}
        """The callers and the called, by the task that joins them."""
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="headrace-relays", daemon=True)
        self._thread.start()

    def open(self, broker: int) -> None:
        """Let others call it. Idempotent."""
        self._do(self._open(broker))

    def shut(self, broker: int) -> None:
        """Refuse all who call it, as where no process listens."""
        self._do(self._shut(broker))

    def cut(self, *brokers: int) -> None:
        """None of these reaches another broker here, and none is reached. Open connections break."""
        self._do(self._sever(set(brokers)))

    def mend(self, *brokers: int) -> None:
        """End the cut of these; by default all cuts."""
        self._cut -= set(brokers) if brokers else self._cut.copy()

    def close(self) -> None:
        """Close everything. Idempotent."""
        if self._loop.is_closed():
            return
        self._do(self._close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(ANSWER_SECONDS_MAX)
        self._loop.close()

    def _do(self, work: Coroutine[Any, Any, None]) -> None:
        asyncio.run_coroutine_threadsafe(work, self._loop).result(ANSWER_SECONDS_MAX)

    async def _open(self, broker: int) -> None:
        if broker not in self._doors:
            door = self._doors[broker] = socket.create_server(self._relays[broker].door, backlog=BACKLOG)
            door.setblocking(False)
            self._loop.add_reader(door, self._accept, broker, door)

    def _accept(self, broker: int, door: socket.socket) -> None:
        """Accept one. Not by asyncio, which loses a connection that comes as its server is closed."""
        with suppress(OSError):
            accepted, _ = door.accept()
            accepted.setblocking(False)
            task = self._loop.create_task(self._serve(broker, accepted))
            self._links[task] = (self._caller(accepted), broker)
            task.add_done_callback(self._links.pop)

    async def _shut(self, broker: int) -> None:
        if (door := self._doors.pop(broker, None)) is not None:
            self._loop.remove_reader(door)
            door.close()
        await self._end(lambda caller, called: called == broker)

    async def _sever(self, brokers: set[int]) -> None:
        self._cut |= brokers
        await self._end(lambda *ends: not self._cut.isdisjoint(ends))

    async def _close(self) -> None:
        for broker in list(self._doors):
            await self._shut(broker)
        await self._end(lambda caller, called: True)

    async def _end(self, is_ended: Callable[[int | None, int], bool]) -> None:
        await asyncio.sleep(0)  # connections that were just accepted have begun then, and can end
        ended = [task for task, ends in self._links.items() if is_ended(*ends)]
        for task in ended:
            task.cancel()
        await asyncio.gather(*ended, return_exceptions=True)

    async def _serve(self, called: int, accepted: socket.socket) -> None:
        reader, writer = await asyncio.open_connection(sock=accepted, limit=CHUNK_BYTES)
        try:
            task = asyncio.current_task()
            assert task is not None
            if self._cut.isdisjoint(self._links[task]):
                await self._join(self._relays[called].broker, reader, writer)
        except OSError:
            pass  # nobody listens there, or not any more: the connection ends on both sides
        finally:
            await _broken(writer)

    async def _join(self, at: Address, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        far_reader, far_writer = await asyncio.open_connection(*at, limit=CHUNK_BYTES)
        flows = [asyncio.ensure_future(_flow(*ends)) for ends in ((reader, far_writer), (far_reader, writer))]
        try:
            await asyncio.wait(flows, return_when=asyncio.FIRST_COMPLETED)
        finally:
            far_writer.transport.abort()  # before any wait: whoever ends all may cancel this one as it cleans up
            for flow in flows:
                flow.cancel()
            await asyncio.gather(*flows, return_exceptions=True)
            await _broken(far_writer)

    def _caller(self, accepted: socket.socket) -> int | None:
        """Return the broker whose process has the socket of that port; None: it is no broker's, or nobody says."""
        pids = {self._pid_of(broker): broker for broker in self._relays}
        try:
            port = accepted.getpeername()[1]
        except OSError:  # it is gone again
            return None
        return pids.get(owner_of(port, [pid for pid in pids if pid is not None]))


async def _broken(writer: asyncio.StreamWriter) -> None:
    """Break the connection, and return once it is gone."""
    writer.transport.abort()
    with suppress(OSError):
        await writer.wait_closed()


async def _flow(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(CHUNK_BYTES):
        writer.write(data)
        await writer.drain()


def owner_of(port: int, pids: list[int]) -> int | None:
    """Return which of these processes has a TCP socket with this local port. None: none of them, or nobody says."""
    sockets = set()
    with suppress(OSError):
        for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
            fields = line.split()
            if int(fields[1].rpartition(":")[2], 16) == port:
                sockets.add(f"socket:[{fields[9]}]")
    for pid in pids if sockets else ():
        with suppress(OSError):
            for name in os.listdir(f"/proc/{pid}/fd"):
                with suppress(OSError):
                    if os.readlink(f"/proc/{pid}/fd/{name}") in sockets:
                        return pid
    return None
