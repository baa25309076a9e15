"""The metrics of one broker, read from where it serves them for Prometheus.

Promises: the answer is bounded in bytes and in time. Credentials are in no error.
"""

from __future__ import annotations

import asyncio
from base64 import b64encode
from typing import TYPE_CHECKING, Final

from headrace.base.addresses import Address, parse_address
from headrace.base.errors import HeadraceError
from headrace.base.limits import MCP_METRICS_BYTES_MAX, MCP_METRICS_MS_MAX
from headrace.net.client.admin import Admin
from headrace.net.client.cluster import Cluster
from headrace.net.client.members import BrokerView, Members

if TYPE_CHECKING:
    from prometheus_client.samples import Sample

LISTEN: Final = "metrics.listen"
TLS: Final = "metrics.tls"


async def samples_of(cluster: Cluster, broker: int, credentials: str = "") -> list[Sample]:
    """All figures of a broker. `credentials`: USER:PASSWORD, or `Bearer TOKEN`; empty: none. Raises HeadraceError where
    it serves no figures, or does not answer.
    """
    view = await Members(cluster).broker(broker)
    configs = {config.name: config.value for config in await Admin(cluster).broker_configs(broker)}
    listen = configs.get(LISTEN) or ""
    if not listen:
        raise HeadraceError(f"Broker {broker} serves no metrics: start it with --config metrics.listen=HOST:PORT.")
    if configs.get(TLS) == "true":
        raise HeadraceError(f"Broker {broker} serves its metrics by TLS: ask https://{listen}/metrics for them.")
    address = _reached(view, parse_address(listen))
    try:
        async with asyncio.timeout(MCP_METRICS_MS_MAX / 1000):
            text = await _asked(address, credentials)
    except (OSError, TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError) as error:
        reason = str(error) or "no answer in time"
        raise HeadraceError(
            f"Broker {broker} does not answer at {address} ({reason}): ask from a machine that reaches metrics.listen."
        ) from error
    return await asyncio.to_thread(_parsed, text)


def _reached(broker: BrokerView, listen: Address) -> Address:
    """The address as others see it: a broker that listens everywhere, or on loopback, is where its clients reach it."""
    return Address(broker.host if listen.is_wildcard or listen.is_loopback else listen.host, listen.port)


async def _asked(address: Address, credentials: str) -> str:
    reader, writer = await asyncio.open_connection(address.host, address.port, limit=MCP_METRICS_BYTES_MAX)
    try:
        login = _login(credentials)
        writer.write(f"GET /metrics HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n{login}\r\n".encode())
        await writer.drain()
        head = await reader.readuntil(b"\r\n\r\n")
        status = head.split(b" ", 2)[1:2]
        if status == [b"401"]:
            raise HeadraceError(f"{address} asks who wants its metrics: give this side its metrics.credentials.")
        if status != [b"200"]:
            raise HeadraceError(f"{address} does not answer with metrics: is it a broker's metrics.listen?")
        body = await reader.read(MCP_METRICS_BYTES_MAX)
        while len(body) < MCP_METRICS_BYTES_MAX and (more := await reader.read(MCP_METRICS_BYTES_MAX - len(body))):
            body += more
        return body[: body.rfind(b"\n") + 1].decode(errors="replace")
    finally:
        writer.close()


def _login(given: str) -> str:
    if not given or not given.isprintable():
        return ""
    scheme = given if given.lower().startswith("bearer ") else f"Basic {b64encode(given.encode()).decode()}"
    return f"Authorization: {scheme}\r\n"


def _parsed(text: str) -> list[Sample]:
    """Raises HeadraceError."""
    from prometheus_client.parser import text_string_to_metric_families

    try:
        return [sample for family in text_string_to_metric_families(text) for sample in family.samples]
    except ValueError as error:
        raise HeadraceError("The broker's metrics cannot be read: is it of another version?") from error
