"""Accepts connections with TLS, and bounds their handshakes. An asyncio server bounds only how long one takes.

Promises:
- At most TLS_HANDSHAKES_MAX handshakes are under way. One more ends the oldest: a handshake takes milliseconds, so the
  slow ones hold up nobody.
- A handshake that takes longer than TLS_HANDSHAKE_MS_MAX is ended.
- Each uses the newest certificates.
- A client that would be refused anyway, as its address has too many connections, costs no handshake.
- A client whose handshake fails is told why, by TLS's own alert. `on_refused` hears of one that TLS refuses, and not of
  one that goes or is too slow.
- There is no `Connection` that a client could use before its handshake is over.
"""

from __future__ import annotations

import asyncio
import errno
import socket
import ssl
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from headrace.base.limits import (
    ACCEPT_PAUSE_MS,
    ACCEPTED_PER_TURN_MAX,
    TLS_GOODBYE_MS_MAX,
    TLS_HANDSHAKE_MS_MAX,
    TLS_HANDSHAKES_MAX,
)
from headrace.net.server.loglimit import LogLimit

if TYPE_CHECKING:
    from headrace.net.server.tls import Tls

BACKLOG: Final = 1024
EXHAUSTED: Final = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)


class Handshakes:
    """Handshakes that are under way, the oldest first."""

    def __init__(self, log: LogLimit) -> None:
        self.log = log
        self.on_refused: Callable[[str, str, str], None] | None = None
        """Called with the address, the listener and the reason."""
        self._under_way: dict[asyncio.Task[None], str] = {}

    def __len__(self) -> int:
        return len(self._under_way)

    def begin(self, own: socket.socket, peer: str, tls: Tls, connect: Callable[[], asyncio.Protocol]) -> None:
        """Begin one on an accepted socket. End the oldest where there are too many. `connect` makes the protocol that
        the connection has from the end of the handshake on.
        """
        if len(self._under_way) >= TLS_HANDSHAKES_MAX:
            oldest = next(iter(self._under_way))
            self.log.warning("TLS handshake ended: too many are under way", peer=self._under_way.pop(oldest))
            oldest.cancel()
        task = asyncio.get_running_loop().create_task(self._shake(own, peer, tls, connect))
        self._under_way[task] = peer
        task.add_done_callback(lambda done: self._under_way.pop(done, None))

    async def _shake(self, own: socket.socket, peer: str, tls: Tls, connect: Callable[[], asyncio.Protocol]) -> None:
        with own.dup() as kept:
            try:
                await asyncio.get_running_loop().connect_accepted_socket(
                    connect,
                    own,
                    ssl=tls.context,
                    ssl_handshake_timeout=TLS_HANDSHAKE_MS_MAX / 1000,
                    ssl_shutdown_timeout=TLS_GOODBYE_MS_MAX / 1000,
                )
            except OSError as error:  # among them ssl.SSLError and TimeoutError
                reason = _reason(error)
                self.log.warning("TLS handshake failed", peer=peer, reason=reason)
                if self.on_refused is not None and isinstance(error, ssl.SSLError):
                    self.on_refused(peer, tls.listener, reason)
                from headrace.net.server.tls import alert_of

                with suppress(OSError):
                    kept.send(alert_of(error))

    async def stop(self) -> None:
        """End all."""
        tasks = list(self._under_way)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


class TlsServer:
    """The sockets of one listener: as an asyncio server, as far as a `Listener` needs it."""

    def __init__(
        self,
        sockets: Sequence[socket.socket],
        tls: Tls,
        handshakes: Handshakes,
        connect: Callable[[], asyncio.Protocol],
        *,
        welcomes: Callable[[str], bool],
    ) -> None:
        """`connect`: see `Handshakes.begin`. `welcomes`: whether a client at an address may come in at all."""
        self.sockets = sockets
        self._tls = tls
        self._handshakes = handshakes
        self._connect = connect
        self._welcomes = welcomes
        self._pauses: dict[socket.socket, asyncio.TimerHandle] = {}

    async def start_serving(self) -> None:
        """Begin to accept connections."""
        for each in self.sockets:
            each.setblocking(False)
            each.listen(BACKLOG)
            self._watch(each)

    def _watch(self, bound: socket.socket) -> None:
        self._pauses.pop(bound, None)
        asyncio.get_running_loop().add_reader(bound, self._accept, bound)

    def _accept(self, bound: socket.socket) -> None:
        """Accept connections that wait; a few, for others have to have their turn of the loop."""
        for _ in range(ACCEPTED_PER_TURN_MAX):
            try:
                own, peer = bound.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                if error.errno not in EXHAUSTED:
                    raise
                self._pause(bound, error)
                return
            host = str(peer[0]).removeprefix("::ffff:")
            if not self._welcomes(host):
                own.close()
                continue
            own.setblocking(False)
            self._handshakes.begin(own, host, self._tls, self._connect)

    def _pause(self, bound: socket.socket, error: OSError) -> None:
        """Accept nothing for a while: the process has no file descriptors left."""
        loop = asyncio.get_running_loop()
        loop.remove_reader(bound)
        self._pauses[bound] = loop.call_later(ACCEPT_PAUSE_MS / 1000, self._watch, bound)
        self._handshakes.log.warning("connections cannot be accepted for now", reason=error.strerror or str(error))

    def close(self) -> None:
        """Accept no more."""
        for pause in self._pauses.values():
            pause.cancel()
        for each in self.sockets:
            asyncio.get_running_loop().remove_reader(each)
            each.close()


async def bound_sockets(host: str, port: int) -> list[socket.socket]:
    """Bind every address of the host, without listening yet. Port 0 is a free one, the same for all. Raises
    OSError.
    """
    loop = asyncio.get_running_loop()
    found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    made: list[socket.socket] = []
    try:
        for family, kind, protocol, _, address in dict.fromkeys(found):
            own = socket.socket(family, kind, protocol)
            made.append(own)
            own.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                with suppress(OSError):
                    own.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            own.bind((address[0], made[0].getsockname()[1] if len(made) > 1 else port, *address[2:]))
    except BaseException:
        for each in made:
            each.close()
        raise
    return made


def _reason(error: OSError) -> str:
    if isinstance(error, ssl.SSLError) and error.reason:
        detail = getattr(error, "verify_message", None)
        reason = error.reason.lower().replace("_", " ")
        return f"{reason}: {detail}" if detail else reason
    return str(error) or type(error).__name__
