"""Runs the console until a signal."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Sequence
from types import FrameType
from typing import Final

import uvicorn

from headrace.base.addresses import Address
from headrace.base.errors import HeadraceError
from headrace.base.limits import CONSOLE_CONNECTIONS_MAX, CONSOLE_STOP_MS_MAX, LOOK_MS_MAX
from headrace.console.application import application
from headrace.console.guarding import LOOPBACK
from headrace.console.state import PATIENCE, Console
from headrace.operations.reaching import Reach

INPUT_BYTES: Final = 4096


class _Server(uvicorn.Server):
    """A server that ends the open streams when it is told to stop: they would never end by themselves."""

    def __init__(self, config: uvicorn.Config, console: Console, told: Address) -> None:
        super().__init__(config)
        self._console = console
        self._told = told

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        print(f"ready http://{self._told}/", flush=True)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        super().handle_exit(sig, frame)
        self._console.close()

    def on_input(self) -> None:
        """The parent is gone where its end of the pipe is closed."""
        if not os.read(0, INPUT_BYTES):
            asyncio.get_running_loop().remove_reader(0)
            self.should_exit = True
            self._console.close()


async def serve(
    reach: Reach,
    listen: Address,
    *,
    hosts: Sequence[str],
    words: Sequence[str],
    allows_changes: bool,
    with_parent: bool = False,
) -> None:
    """Serve until SIGTERM or SIGINT. Prints one line, "ready URL", once it does. `hosts`: more names by which browsers
    reach it; `words`: options with which a command reaches the same cluster. `with_parent`: until standard input ends,
    too. Raises HeadraceError.
    """
    sockets = [_bound(listen)]
    port = sockets[0].getsockname()[1]
    async with reach(backoff=PATIENCE, request_timeout_ms=LOOK_MS_MAX) as cluster:
        console = Console(reach, cluster, words=words, allows_changes=allows_changes)
        names = _names(listen, hosts)
        config = uvicorn.Config(
            application(console, names),
            log_level="warning",
            access_log=False,
            lifespan="on",
            server_header=False,
            proxy_headers=False,
            limit_concurrency=CONSOLE_CONNECTIONS_MAX,
            timeout_graceful_shutdown=CONSOLE_STOP_MS_MAX // 1000,
        )
        server = _Server(config, console, Address(_shown(listen), port))
        if with_parent:
            asyncio.get_running_loop().add_reader(0, server.on_input)
        await server.serve(sockets)


def _names(listen: Address, hosts: Sequence[str]) -> Sequence[str]:
    """The names by which browsers may reach it. A console on all addresses is reached by any, unless some are named."""
    if listen.is_loopback:
        return [*LOOPBACK, listen.host, *hosts]
    if listen.is_wildcard:
        return [*LOOPBACK, *hosts] if hosts else []
    return [listen.host, *hosts]


def _shown(listen: Address) -> str:
    return "127.0.0.1" if listen.is_wildcard else listen.host


def _bound(listen: Address) -> socket.socket:
    host = {"": "0.0.0.0", "*": "0.0.0.0"}.get(listen.host, listen.host)
    try:
        family, kind, proto, _, address = socket.getaddrinfo(host, listen.port, type=socket.SOCK_STREAM)[0]
        made = socket.socket(family, kind, proto)
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        made.bind(address)
        made.set_inheritable(True)
    except OSError as error:
        raise HeadraceError(f"The console cannot listen on {listen}: {error.strerror or error}.") from error
    return made
