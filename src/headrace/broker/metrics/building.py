"""Builds the room of the metrics, where they are asked for."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from headrace.base.values import Value
from headrace.broker.cluster.building import Cluster
from headrace.broker.cluster.membership import Membership
from headrace.broker.core import Core
from headrace.broker.metrics.led_before import LedBefore
from headrace.broker.metrics.requests import RequestCounts
from headrace.broker.partitions.building import Logs
from headrace.broker.partitions.condition import Condition
from headrace.broker.requests.building import Counting, Requests
from headrace.broker.requests.context import Offer

if TYPE_CHECKING:
    from headrace.broker.metrics.endpoint import Endpoint


METRICS: Final = "METRICS"
"""The name by which the certificates of the endpoint may differ from others: `listener.name.metrics.ssl.*`."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class Counts(Value):
    """Numbers that are counted as things happen."""

    requests: RequestCounts
    led_before: LedBefore

    @property
    def counting(self) -> Counting:
        return Counting(
            counted=self.requests.counted, on_response=self.requests.on_response, on_error=self.requests.on_error
        )


def build_counts(core: Core, offers: Collection[Offer]) -> Counts | None:
    """Build the counts; None: no metrics are asked for (`metrics.listen`)."""
    if not core.text("metrics.listen"):
        return None
    served = {offer.key: offer.versions for offer in offers if offer.advertised}
    return Counts(requests=RequestCounts(served), led_before=LedBefore())


class Metrics:
    """The endpoint of metrics."""

    def __init__(
        self,
        core: Core,
        cluster: Cluster,
        membership: Membership,
        logs: Logs,
        requests: Requests,
        condition: Condition,
        counts: Counts,
    ) -> None:
        self._core = core
        self._cluster = cluster
        self._membership = membership
        self._logs = logs
        self._requests = requests
        self._condition = condition
        self._counts = counts
        self.endpoint: Endpoint | None = None
        """None: it is not started yet."""

    async def start(self) -> None:
        """Serve metrics. The modules for that are loaded only here. Raises UsageError."""
        from headrace.broker.metrics.collecting import Collector, Watched
        from headrace.broker.metrics.endpoint import Access, Endpoint
        from headrace.broker.metrics.health import Health
        from headrace.net.server.authentication import AuthenticationCounts

        logins = self._requests.logins
        watched = Watched(
            node=self._core.node,
            partitions=self._logs.partitions,
            flusher=self._logs.flusher,
            metadata=self._cluster.metadata,
            quotas=self._requests.services.quotas,
            gauge=self._requests.listener.gauge,
            authentication=AuthenticationCounts() if logins is None else logins.counts,
            counts=self._counts.requests,
            led_before=self._counts.led_before,
            condition=self._condition,
            room=self._logs.room,
        )
        health = Health(self._membership, self._logs.partitions, self._condition)
        credentials = self._core.config.configs.get("metrics.credentials")
        access = Access(credentials) if credentials else None
        has_tls = self._core.flag("metrics.tls")
        tls = await self._requests.doors.certificates.of_endpoint(METRICS) if has_tls else None
        self.endpoint = Endpoint(Collector(watched).collect, health.reasons, access, tls)
        await self.endpoint.start(self._core.text("metrics.listen"))

    async def stop(self) -> None:
        if self.endpoint is not None:
            await self.endpoint.stop()
