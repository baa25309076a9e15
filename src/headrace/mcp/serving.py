"""Serves the tools: over standard input and output, or over HTTP.

Promises: on standard output there is nothing but the protocol, or the one line that says where it serves. Hosts that
are not named are refused, so that no page elsewhere reaches it by a name of its own.
"""

from __future__ import annotations

import logging
import signal
import socket
import ssl
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from typing import Any, Final

import structlog
import uvicorn
from mcp.server.transport_security import TransportSecuritySettings

from headrace.base.addresses import Address
from headrace.base.errors import UsageError
from headrace.base.limits import LOOK_MS_MAX, MCP_CONNECTIONS_MAX, MCP_REQUEST_BYTES_MAX, MCP_STOP_MS_MAX
from headrace.mcp.desk import Desk
from headrace.mcp.guarding import Guard
from headrace.mcp.server import ToolServer
from headrace.net.client.cluster import Cluster
from headrace.net.client.retry import Backoff
from headrace.operations.reaching import Reach
from headrace.operations.web import Tls, bound, shown

PATH: Final = "/mcp"
LOOPBACK: Final = ("127.0.0.1", "localhost", "[::1]")
PATIENCE: Final = Backoff(attempts_max=2)
"""An agent asks again by itself: a call does not wait for a cluster that is away."""


class _Told(logging.Handler):
    """Sends the log of libraries to where our own lines go."""

    def emit(self, record: logging.LogRecord) -> None:
        log = structlog.get_logger(record.name)
        error = record.exc_info[1] if record.exc_info else None
        log.log(record.levelno, record.getMessage(), **({"exc_info": error} if error is not None else {}))


def _tell_of_libraries() -> None:
    logging.basicConfig(level=logging.WARNING, handlers=[_Told()], force=True)


async def serve_input(reach: Reach, desk_of: Callable[[Cluster], Desk]) -> None:
    """Serve over standard input and output, until standard input ends. Raises HeadraceError."""
    _tell_of_libraries()
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # a thread waits for input: no clean end could wake it
    async with reach(backoff=PATIENCE, request_timeout_ms=LOOK_MS_MAX) as cluster:
        desk = desk_of(cluster)
        try:
            await ToolServer(desk).run_stdio_async()
        finally:
            await desk.close()


async def serve_http(
    reach: Reach,
    desk_of: Callable[[Cluster], Desk],
    listen: Address,
    *,
    hosts: Sequence[str],
    token: str | None,
    tls: Tls | None = None,
) -> None:
    """Serve over HTTP until SIGTERM or SIGINT. Prints one line, "ready URL", once it does. `hosts`: more names by which
    clients reach it; `token`: None: it asks for none. Raises HeadraceError.
    """
    _tell_of_libraries()
    async with AsyncExitStack() as stack:
        sockets = [stack.enter_context(bound(listen, "The tools"))]
        told = Address(shown(listen), sockets[0].getsockname()[1])
        cluster = await stack.enter_async_context(reach(backoff=PATIENCE, request_timeout_ms=LOOK_MS_MAX))
        desk = desk_of(cluster)
        stack.push_async_callback(desk.close)
        app: Any = ToolServer(desk).streamable_http_app(
            streamable_http_path=PATH,
            json_response=True,
            stateless_http=True,
            max_request_body_size=MCP_REQUEST_BYTES_MAX,
            transport_security=_security(listen, hosts),
        )
        if token is not None:
            app = Guard(app, token)
        config = uvicorn.Config(
            app,
            log_config=None,
            access_log=False,
            lifespan="on",
            server_header=False,
            proxy_headers=False,
            limit_concurrency=MCP_CONNECTIONS_MAX,
            timeout_graceful_shutdown=MCP_STOP_MS_MAX // 1000,
            ssl_certfile=None if tls is None else tls.certificate,
            ssl_keyfile=None if tls is None else tls.key,
        )
        try:
            await _Server(config, f"{'http' if tls is None else 'https'}://{told}{PATH}").serve(sockets)
        except ssl.SSLError as error:
            raise UsageError(f"The tools' certificate or key is not usable: {error.reason or error}.") from error


class _Server(uvicorn.Server):
    """Says where it serves."""

    def __init__(self, config: uvicorn.Config, url: str) -> None:
        super().__init__(config)
        self._url = url

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        print(f"ready {self._url}", flush=True)


def _security(listen: Address, hosts: Sequence[str]) -> TransportSecuritySettings:
    names = [*(LOOPBACK if listen.is_loopback or listen.is_wildcard else ()), *hosts]
    if not listen.is_wildcard:
        names.append(f"[{listen.host}]" if ":" in listen.host else listen.host)
    return TransportSecuritySettings(
        enable_dns_rebinding_protection=True,
        allowed_hosts=[form for name in dict.fromkeys(names) for form in (name, f"{name}:*")],
        allowed_origins=[
            form
            for name in dict.fromkeys(names)
            for scheme in ("http", "https")
            for form in (f"{scheme}://{name}", f"{scheme}://{name}:*")
        ],
    )
