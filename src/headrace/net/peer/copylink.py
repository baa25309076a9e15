"""A follower's connection to one leader: frames of `wire.replica_fetch`, one way and the other. Loop-only.

Promises: `on_frame` is called with each answer, in order; `on_lost` is called once, whatever ends the connection, with
a sentence. Silence for longer than REPLICA_SILENCE_MS_MAX while an answer is awaited ends it. Never reconnects: where
its session has an end (KIP-368), its owner opens another before that.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from functools import partial
from typing import cast

from headrace.base.addresses import Address
from headrace.base.errors import CorruptData
from headrace.base.limits import REPLICA_ANSWER_BYTES_MAX, REPLICA_SILENCE_MS_MAX, REQUEST_BYTES_MAX
from headrace.net.client.security.dialing import dial
from headrace.net.client.security.settings import PLAIN, ClientSecurity
from headrace.wire.frames import FrameSplitter

FRAME_BYTES_MAX = REQUEST_BYTES_MAX + REPLICA_ANSWER_BYTES_MAX


class CopyLink(asyncio.Protocol):
    """See the module. `open_link` makes it."""

    def __init__(self, on_frame: Callable[[memoryview], None], on_lost: Callable[[str], None]) -> None:
        self._on_frame = on_frame
        self._on_lost = on_lost
        self._loop = asyncio.get_running_loop()
        self._splitter = FrameSplitter(FRAME_BYTES_MAX)
        self._transport: asyncio.Transport | None = None
        self._awaited = 0
        self._heard_at = 0.0
        self._watch: asyncio.TimerHandle | None = None
        self._is_over = False
        self.lasts_s = 0.0
        """Seconds from its opening after which another had best take its place; 0: its session has no end."""

    @property
    def is_over(self) -> bool:
        """Whether it has ended, or was closed."""
        return self._is_over

    @property
    def awaited(self) -> int:
        """Number of answers that are still awaited."""
        return self._awaited

    def send(self, frame: bytes, *, answered: bool) -> None:
        """Send one frame. `answered`: it expects an answer."""
        if self._transport is None or self._is_over:
            return
        if answered:
            if not self._awaited:
                self._heard_at = self._loop.time()
                self._look_after()
            self._awaited += 1
        self._transport.write(frame)

    def _look_after(self) -> None:
        if self._watch is None and not self._is_over:
            self._watch = self._loop.call_later(REPLICA_SILENCE_MS_MAX / 1000, self._look)

    def _look(self) -> None:
        self._watch = None
        if self._awaited and self._loop.time() - self._heard_at >= REPLICA_SILENCE_MS_MAX / 1000:
            self._end(f"it was silent for {REPLICA_SILENCE_MS_MAX} ms")
        elif self._awaited:
            self._look_after()

    # asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop's transports have its methods, not its type
        own: socket.socket | None = transport.get_extra_info("socket")
        if own is not None:  # a machine that lost power never closes
            own.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)

    def data_received(self, data: bytes) -> None:
        self._heard_at = self._loop.time()
        try:
            for frame in self._splitter.feed(data):
                if self._is_over:
                    return
                if not self._awaited:
                    raise CorruptData("an answer that nobody asked for")
                self._awaited -= 1
                self._on_frame(memoryview(frame))
        except CorruptData as error:
            self._end(str(error))

    def eof_received(self) -> bool:
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        self._end("the connection broke" if exc is not None else "it closed the connection")

    def _end(self, reason: str) -> None:
        if self._is_over:
            return
        self.close()
        self._on_lost(reason)

    def close(self) -> None:
        """End the connection. `on_lost` is not called any more."""
        self._is_over = True
        if self._watch is not None:
            self._watch.cancel()
            self._watch = None
        if self._transport is not None:
            self._transport.abort()


async def open_link(
    address: Address,
    on_frame: Callable[[memoryview], None],
    on_lost: Callable[[str], None],
    *,
    timeout_ms: int,
    security: ClientSecurity = PLAIN,
) -> CopyLink:
    """Connect to a leader. Raises OSError, TimeoutError; with security also ClientError."""
    made = partial(CopyLink, on_frame, on_lost)
    link, lasts_s = await dial(address, made, security=security, timeout_ms=timeout_ms)
    link.lasts_s = lasts_s
    return link
