"""The client quotas that hold on this broker, and what clients have used of them.

Promises: who has no quota costs nothing to remember; who shares a quota shares what is used of it; however many client
ids are made up, no more than QUOTA_CLIENTS_MAX are measured one by one, and those beyond share one measure. Loop-only.
Each broker measures its own clients, as on Kafka. Sources: KIP-13, KIP-55 (which quota holds), KIP-124, KIP-219.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final, NamedTuple, TypeAlias

from headrace.base.limits import QUOTA_CLIENTS_MAX, QUOTA_THROTTLE_MS_MAX
from headrace.base.ports import Clock
from headrace.broker.sampled_rate import SampledRate, Window
from headrace.metadata.delta import ImageDelta
from headrace.metadata.image import MetadataImage
from headrace.metadata.quotas import (
    CLIENT_ID,
    CONSUMER_BYTE_RATE,
    PRODUCER_BYTE_RATE,
    REQUEST_PERCENTAGE,
    USER,
    QuotaEntity,
    quota_entity,
)

ANONYMOUS: Final = "ANONYMOUS"
"""Every client's user, as Kafka calls it where nobody is authenticated."""

_Who: TypeAlias = tuple[str, str | None, str | None]
"""A quota's key, and the user and client id that it is measured of; None: of all of them together."""
_OTHERS: Final = ""
"""In place of client ids beyond those that are measured one by one; no quota is given to the empty id."""


class Usage:
    """What is used of one quota by those who share it."""

    __slots__ = ("_clock", "_rate", "_wait_ms_max", "_window", "limit")

    def __init__(self, limit: float, clock: Clock, window: Window, wait_ms_max: int) -> None:
        self.limit = limit
        """In a second."""
        self._clock = clock
        self._window = window
        self._wait_ms_max = wait_ms_max
        self._rate = SampledRate()

    def record(self, amount: float) -> int:
        """So much was used; for how many milliseconds its user is to be throttled."""
        now = self._clock.monotonic()
        self._rate.record(amount, now, self._window)
        return min(self._rate.wait_ms(self.limit, now, self._window), self._wait_ms_max)

    def take_back(self, amount: float) -> None:
        """It was not used after all."""
        self._rate.record(-amount, self._clock.monotonic(), self._window)

    @property
    def burst(self) -> float:
        """The most that can be used at a time without going beyond."""
        return self.limit * (self._window.samples - 1) * self._window.seconds

    @property
    def is_idle(self) -> bool:
        return self._rate.is_idle(self._clock.monotonic(), self._window)


class ClientUsage(NamedTuple):
    """The quotas that hold for one client; None: no limit."""

    produce: Usage | None
    fetch: Usage | None
    request: Usage | None


class ClientQuotas:
    """See the module."""

    def __init__(self, image: MetadataImage, clock: Clock, window: Window) -> None:
        self._clock = clock
        self._window = window
        self._quotas: Mapping[QuotaEntity, Mapping[str, float]] = {}
        self._limits: dict[str, dict[QuotaEntity, float]] = {}
        """By key."""
        self._usages: dict[_Who, Usage] = {}
        self._pruned_at = -window.whole
        self.are_set = False
        """Whether there is any quota at all: all that a request asks, as long as there is none."""
        self._adopt(image)

    def on_delta(self, delta: ImageDelta) -> None:
        """Quotas may have changed."""
        if delta.after.quotas is not self._quotas:
            self._adopt(delta.after)

    def _adopt(self, image: MetadataImage) -> None:
        self._quotas = image.quotas
        self._limits = {}
        for entity, quotas in image.quotas.items():
            for key, limit in quotas.items():
                self._limits.setdefault(key, {})[entity] = limit
        self.are_set = bool(self._limits)
        if not self.are_set:
            self._usages.clear()

    def usage(self, client_id: str) -> ClientUsage | None:
        """Of the client that calls itself so; None: no quota holds for it."""
        found = (
            self._find(PRODUCER_BYTE_RATE, client_id),
            self._find(CONSUMER_BYTE_RATE, client_id),
            self._find(REQUEST_PERCENTAGE, client_id),
        )
        return None if found == (None, None, None) else ClientUsage(*found)

    def _find(self, key: str, client_id: str) -> Usage | None:
        limits = self._limits.get(key)
        if limits is None:
            return None
        for entity in _nearest_first(client_id):
            if (limit := limits.get(entity)) is not None:
                kinds = dict(entity)
                who = (key, ANONYMOUS if USER in kinds else None, client_id if CLIENT_ID in kinds else None)
                usage = self._usage(who, limit)
                usage.limit = limit
                return usage
        return None

    def _usage(self, who: _Who, limit: float) -> Usage:
        known = self._usages.get(who)
        if known is not None:
            return known
        if len(self._usages) >= QUOTA_CLIENTS_MAX and who[2] not in (None, _OTHERS):
            self._prune()
            if len(self._usages) >= QUOTA_CLIENTS_MAX:
                return self._usage((who[0], who[1], _OTHERS), limit)
        whole_ms = round(self._window.seconds * 1000)
        wait_ms_max = whole_ms if who[0] == REQUEST_PERCENTAGE else QUOTA_THROTTLE_MS_MAX
        usage = self._usages[who] = Usage(limit, self._clock, self._window, wait_ms_max)
        return usage

    def _prune(self) -> None:
        """Let the idle ones go, of which nothing counts any more; not more often than one can become so."""
        now = self._clock.monotonic()
        if now - self._pruned_at < self._window.seconds:
            return
        self._pruned_at = now
        self._usages = {who: usage for who, usage in self._usages.items() if not usage.is_idle}

    def __len__(self) -> int:
        """Usages that are remembered."""
        return len(self._usages)


def _nearest_first(client_id: str) -> Iterator[QuotaEntity]:
    """Whose quota holds for a client, in Kafka's order: the first that has one."""
    for user in (ANONYMOUS, None):
        yield quota_entity({USER: user, CLIENT_ID: client_id})
        yield quota_entity({USER: user, CLIENT_ID: None})
        yield quota_entity({USER: user})
    yield quota_entity({CLIENT_ID: client_id})
    yield quota_entity({CLIENT_ID: None})
