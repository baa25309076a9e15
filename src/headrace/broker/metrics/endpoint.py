"""Serves `GET /metrics` over HTTP, and the answers of `health`; nothing else.

Promises:
- One scrape is made at a time, and each shows its own moment.
- A client that sends slowly, too much or anything else gets an error, or its connection is closed.
- Where credentials are set, nothing is told without them.
- At most METRICS_CONNECTIONS_MAX connections are served.

The text is put together in a worker thread. A connection is never kept.
"""

from __future__ import annotations

import asyncio
import base64
import hmac
import ssl
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from typing import Final

from prometheus_client import GC_COLLECTOR, PLATFORM_COLLECTOR, PROCESS_COLLECTOR, CollectorRegistry
from prometheus_client.core import Metric
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector as Source

from headrace.base.addresses import Address, parse_address
from headrace.base.errors import UsageError
from headrace.base.limits import METRICS_CONNECTIONS_MAX, METRICS_REQUEST_BYTES_MAX, METRICS_REQUEST_MS_MAX
from headrace.logs import get_logger
from headrace.net.server.tls import Tls

log = get_logger(__name__)

Collect = Callable[[], Awaitable[Callable[[], list[Metric]]]]
"""Reads the values on the loop; the function that it returns puts them together in a worker thread."""
Reasons = Callable[[str], Sequence[str] | None]
"""As `Health.reasons`."""
END: Final = b"\r\n\r\n"
BEARER: Final = "Bearer "


class Access:
    """The right to see the metrics, of those who send the password or the token. Compares in constant time."""

    def __init__(self, credentials: str) -> None:
        """`credentials`: `USER:PASSWORD`, or `Bearer TOKEN`."""
        if credentials.startswith(BEARER):
            self.asks, secret = "Bearer", credentials
        else:
            self.asks, secret = 'Basic realm="metrics"', "Basic " + base64.b64encode(credentials.encode()).decode()
        self._secret = secret.encode()

    def allows(self, authorization: str) -> bool:
        scheme, _, rest = authorization.partition(" ")
        return hmac.compare_digest(f"{scheme.capitalize()} {rest.strip()}".encode(), self._secret)


class Endpoint:
    """One per broker whose metrics are asked for."""

    def __init__(
        self, collect: Collect, reasons: Reasons, access: Access | None = None, tls: Tls | None = None
    ) -> None:
        """`access`: None: everybody may see the metrics. `tls`: None: they are served over plain HTTP."""
        self._collect = collect
        self._reasons = reasons
        self._access = access
        self._tls = tls
        self._server: asyncio.AbstractServer | None = None
        self._busy = asyncio.Lock()
        self._answering: set[asyncio.Task[None]] = set()
        self.port = 0
        """The bound port, once started."""

    async def start(self, listen: str) -> None:
        """Listen at the address. Raises UsageError where it cannot."""
        address = parse_address(listen)
        try:
            self._server = await asyncio.start_server(
                self._on_connection,
                address.host,
                address.port,
                limit=METRICS_REQUEST_BYTES_MAX,
                ssl=None if self._tls is None else _newest(self._tls),
                ssl_handshake_timeout=None if self._tls is None else METRICS_REQUEST_MS_MAX / 1000,
            )
        except OSError as error:
            raise UsageError(
                f"Cannot serve metrics on {listen} ({error.strerror or error}): choose another metrics.listen."
            ) from error
        self.port = int(self._server.sockets[0].getsockname()[1])
        scheme = "http" if self._tls is None else "https"
        log.info("metrics", url=f"{scheme}://{Address(address.host, self.port)}/metrics")

    async def stop(self) -> None:
        if self._server is not None:
            self._server.close()
        for task in self._answering:
            task.cancel()
        await asyncio.gather(*self._answering, return_exceptions=True)

    async def _on_connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None, "a server's callback is a task"
        if len(self._answering) >= METRICS_CONNECTIONS_MAX:
            writer.transport.abort()
            return
        self._answering.add(task)
        try:
            async with asyncio.timeout(METRICS_REQUEST_MS_MAX / 1000):
                head = await reader.readuntil(END)
                writer.write(await self._answer(head))
                await writer.drain()
        except (OSError, TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            writer.transport.abort()
        finally:
            self._answering.discard(task)
            writer.close()

    async def _answer(self, head: bytes) -> bytes:
        lines = head.decode("latin-1").split("\r\n")
        method, target = (*lines[0].split(" "), "", "")[:2]
        if method not in ("GET", "HEAD"):
            return _response("405 Method Not Allowed", b"Only GET is.\n")
        if self._access is not None and not self._access.allows(_header(lines, "authorization")):
            return _response(
                "401 Unauthorized", b"Say who you are.\n", more=f"WWW-Authenticate: {self._access.asks}\r\n"
            )
        path, with_body = target.partition("?")[0], method == "GET"
        if (reasons := self._reasons(path)) is not None:
            text = "".join(f"{reason}\n" for reason in reasons) or "ok\n"
            return _response("503 Service Unavailable" if reasons else "200 OK", text.encode(), with_body=with_body)
        if path != "/metrics":
            return _response("404 Not Found", b"There are /metrics, /livez, /readyz and /healthz.\n")
        accept = _header(lines, "accept")
        async with self._busy:
            put_together = await self._collect()
            encode, kind = choose_encoder(accept)
            loop = asyncio.get_running_loop()
            body = await loop.run_in_executor(None, lambda: encode(_registry(put_together())))
        return _response("200 OK", body, kind, with_body=with_body)


class _Collected(Source):
    """The collected metrics, as the Prometheus library wants them."""

    def __init__(self, families: Iterable[Metric]) -> None:
        self._families = families

    def collect(self) -> Iterator[Metric]:
        yield from self._families


def _registry(families: Iterable[Metric]) -> CollectorRegistry:
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Collected(families))
    for source in (PROCESS_COLLECTOR, PLATFORM_COLLECTOR, GC_COLLECTOR):
        registry.register(source)
    return registry


def _header(lines: Sequence[str], name: str) -> str:
    """The value of a header; empty: it is not there."""
    pairs = (line.partition(":") for line in lines[1:])
    return next((value.strip() for key, _, value in pairs if key.strip().lower() == name), "")


def _newest(tls: Tls) -> ssl.SSLContext:
    """A context that gives each client the certificate of its moment."""
    front = tls.context

    def on_hello(session: ssl.SSLObject, _: str | None, __: ssl.SSLContext) -> None:
        session.context = tls.context

    front.sni_callback = on_hello
    return front


def _response(
    status: str, body: bytes, kind: str = "text/plain; charset=utf-8", *, more: str = "", with_body: bool = True
) -> bytes:
    head = (
        f"HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\n{more}Connection: close\r\n\r\n"
    )
    return head.encode() + (body if with_body else b"")
