"""Runs the console until a signal."""

from __future__ import annotations

import asyncio
import os
import socket
import ssl
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from types import FrameType
from typing import TYPE_CHECKING, Final

import uvicorn

from headrace.base.addresses import Address
from headrace.base.errors import UsageError
from headrace.base.limits import CONSOLE_CONNECTIONS_MAX, CONSOLE_IDLE_MS, CONSOLE_STOP_MS_MAX, LOOK_MS_MAX
from headrace.console.application import application
from headrace.console.guarding import LOOPBACK
from headrace.console.login import Login as Login
from headrace.console.sessions import Everybody, Sessions, Viewers
from headrace.console.state import PATIENCE, Console
from headrace.console.state import Settings as Settings
from headrace.net.pem import stores_of
from headrace.operations.reaching import Reach
from headrace.operations.schemas.named import schemas_of as schemas_of
from headrace.operations.web import Tls, bound, shown

if TYPE_CHECKING:
    from headrace.console.charts.prometheus import Prometheus
    from headrace.console.oidc import Provider

INPUT_BYTES: Final = 4096


class _Server(uvicorn.Server):
    """A server that ends the open streams when it is told to stop: they would never end by themselves."""

    def __init__(self, config: uvicorn.Config, viewers: Viewers, told: str) -> None:
        super().__init__(config)
        self._viewers = viewers
        self._told = told

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        print(f"ready {self._told}", flush=True)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        super().handle_exit(sig, frame)
        self._viewers.close_all()

    def on_input(self) -> None:
        """The parent is gone where its end of the pipe is closed."""
        if not os.read(0, INPUT_BYTES):
            asyncio.get_running_loop().remove_reader(0)
            self.should_exit = True
            self._viewers.close_all()


async def serve(
    reach: Reach,
    listen: Address,
    *,
    settings: Settings,
    hosts: Sequence[str] = (),
    login: Login | None = None,
    idle_ms: int = CONSOLE_IDLE_MS,
    tls: Tls | None = None,
    with_parent: bool = False,
) -> None:
    """Serve until SIGTERM or SIGINT. Prints one line, "ready URL", once it does. `hosts`: more names by which browsers
    reach it. `login`: viewers log in there; None: nobody is asked, and `reach` is for all. `with_parent`: until
    standard input ends, too. Raises HeadraceError.
    """
    async with AsyncExitStack() as stack:
        sockets = [stack.enter_context(bound(listen, "The console"))]
        port = sockets[0].getsockname()[1]
        if settings.schemas is not None:
            stack.push_async_callback(settings.schemas.close)
        viewers: Viewers
        if login is not None:
            viewers = Sessions(login, settings, idle_ms=idle_ms)
        else:
            cluster = await stack.enter_async_context(reach(backoff=PATIENCE, request_timeout_ms=LOOK_MS_MAX))
            viewers = Everybody(Console(reach, cluster, settings))
        config = uvicorn.Config(
            application(viewers, _names(listen, hosts)),
            log_level="warning",
            access_log=False,
            lifespan="on",
            server_header=False,
            proxy_headers=False,
            limit_concurrency=CONSOLE_CONNECTIONS_MAX,
            timeout_graceful_shutdown=CONSOLE_STOP_MS_MAX // 1000,
            ssl_certfile=None if tls is None else str(tls.certificate),
            ssl_keyfile=None if tls is None else str(tls.key),
        )
        scheme = "http" if tls is None else "https"
        server = _Server(config, viewers, f"{scheme}://{Address(shown(listen), port)}/")
        if with_parent:
            asyncio.get_running_loop().add_reader(0, server.on_input)
        try:
            await server.serve(sockets)
        except ssl.SSLError as error:
            raise UsageError(f"The console's certificate or key is not usable: {error.reason or error}.") from error


def provider_of(
    issuer: str,
    client_id: str,
    *,
    client_secret: str,
    scopes: Sequence[str],
    passed: str,
    parameters: Mapping[str, str],
    properties: Mapping[str, str],
) -> Provider:
    """An identity provider, as `Registration` says. `properties`: a client's, with trusted certificates and the claim
    that has the user's name. Raises UsageError.
    """
    try:
        from headrace.console.oidc import OPENID, Provider, Registration
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("headrace"):
            raise
        raise UsageError(f"--oidc-issuer needs the package {error.name}: pip install 'headrace[console]'.") from None

    return Provider(
        Registration(
            issuer=issuer,
            client_id=client_id,
            client_secret=client_secret,
            scopes=tuple(dict.fromkeys((OPENID, *scopes))),
            passed=passed,
            parameters=tuple(parameters.items()),
            user_claim=properties.get("sasl.oauthbearer.sub.claim.name", "").strip() or "sub",
            stores=stores_of(properties),
        )
    )


def prometheus_of(url: str, labels: Mapping[str, str], properties: Mapping[str, str]) -> Prometheus:
    """The Prometheus that charts ask. `properties`: a client's, with trusted certificates. Raises UsageError."""
    try:
        from headrace.console.charts.prometheus import Prometheus, Source
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("headrace"):
            raise
        raise UsageError(f"--prometheus needs the package {error.name}: pip install 'headrace[console]'.") from None

    return Prometheus(Source.of(url, labels, stores_of(properties)))


def _names(listen: Address, hosts: Sequence[str]) -> Sequence[str]:
    """The names by which browsers may reach it. A console on all addresses is reached by any, unless some are named."""
    if listen.is_loopback:
        return [*LOOPBACK, listen.host, *hosts]
    if listen.is_wildcard:
        return [*LOOPBACK, *hosts] if hosts else []
    return [listen.host, *hosts]
