"""Bytes that brokers receive and send, by their own metrics.

Promises: a broker that serves no metrics, or that this side does not reach, is left out and keeps nobody waiting long.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

from headrace.base.errors import HeadraceError
from headrace.base.limits import CONSOLE_METRICS_BROKERS_MAX
from headrace.net.client.cluster import Cluster
from headrace.operations.metrics import samples_of

RECEIVED: Final = "kafka_network_socketserver_bytesin_total"
SENT: Final = "kafka_network_socketserver_bytesout_total"


class Counted(NamedTuple):
    """Bytes since a broker's start."""

    received: float
    sent: float


class Flow(NamedTuple):
    """Bytes a second, of all brokers that tell."""

    received: float
    sent: float
    brokers: int
    """The number of these brokers."""


async def counted(cluster: Cluster, brokers: Iterable[int]) -> dict[int, Counted]:
    """The counts of each broker that tells."""
    asked = list(brokers)[:CONSOLE_METRICS_BROKERS_MAX]
    found = await asyncio.gather(*(_of(cluster, broker) for broker in asked))
    return {broker: each for broker, each in zip(asked, found, strict=True) if each is not None}


async def _of(cluster: Cluster, broker: int) -> Counted | None:
    try:
        samples = await samples_of(cluster, broker)
    except (HeadraceError, OSError, TimeoutError):
        return None
    values = {name: sum(each.value for each in samples if each.name == name) for name in (RECEIVED, SENT)}
    return Counted(values[RECEIVED], values[SENT])


def flow(before: Mapping[int, Counted], now: Mapping[int, Counted], seconds: float) -> Flow | None:
    """The difference of two looks; None where no broker told both times. A broker that began again counts from 0."""
    both = before.keys() & now.keys()
    if not both or seconds <= 0:
        return None
    received = sum(max(0.0, now[each].received - before[each].received) for each in both)
    sent = sum(max(0.0, now[each].sent - before[each].sent) for each in both)
    return Flow(received / seconds, sent / seconds, len(both))
