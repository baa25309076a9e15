"""The client quotas that hold on this broker, and what clients have used of them.

Promises:
- A client without a quota costs no memory.
- Clients that share a quota share one measure of its use.
- At most QUOTA_CLIENTS_MAX clients are measured one by one, however many names are made up and however long they are.
  The others share one measure.
- A client with a quota of its own is always measured alone.

Loop-only. Each broker measures its own clients, as on Kafka. Sources: KIP-13, KIP-55 (which quota holds), KIP-124,
KIP-219.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final, NamedTuple, TypeAlias

from headrace.base.limits import QUOTA_CLIENTS_MAX, QUOTA_NAME_CHARACTERS_MAX, QUOTA_THROTTLE_MS_MAX
from headrace.base.ports import Clock
from headrace.broker.kit.sampled_rate import SampledRate, Window
from headrace.metadata.access.quotas import (
    CLIENT_ID,
    CONSUMER_BYTE_RATE,
    PRODUCER_BYTE_RATE,
    REQUEST_PERCENTAGE,
    USER,
    QuotaEntity,
    quota_entity,
)
from headrace.metadata.delta import ImageDelta
from headrace.metadata.image import MetadataImage

_Who: TypeAlias = tuple[str, str | None, str | None]
"""A quota's key, and the user and client id that it is measured for; None: all of them together."""
_OTHERS: Final = ""
"""Replaces names that are not measured one by one: those beyond the limit, and those longer than any that can have its
own quota. The empty name itself never has one. Only a default quota is measured so."""


class Usage:
    """The use of one quota by all clients that share it."""

    __slots__ = ("_clock", "_lent_until", "_limit", "_rate", "_wait_ms_max", "_window")

    def __init__(self, limit: float, clock: Clock, window: Window, wait_ms_max: int) -> None:
        self._limit = limit
        self._clock = clock
        self._window = window
        self._wait_ms_max = wait_ms_max
        self._rate = SampledRate()
        self._lent_until = 0.0

    @property
    def limit(self) -> float:
        """The limit per second. A new limit forgives what was lent."""
        return self._limit

    @limit.setter
    def limit(self, limit: float) -> None:
        if limit != self._limit:
            self._limit = limit
            self._lent_until = 0.0

    def record(self, amount: float) -> int:
        """Record use, and return for how many milliseconds its client is to be throttled."""
        now = self._clock.monotonic()
        self._rate.record(amount, now, self._window)
        return self._wait_ms(now)

    def lend(self, amount: float) -> int:
        """As `record`, for more than the burst. All of it is waited for, even where that is longer than the window."""
        now = self._clock.monotonic()
        self._rate.record(amount, now, self._window)
        self._lent_until = now + self._rate.wait_ms(self._limit, now, self._window) / 1000
        return self._wait_ms(now)

    @property
    def wait_ms(self) -> int:
        """Milliseconds for which the client is to be throttled if it uses nothing more."""
        return self._wait_ms(self._clock.monotonic())

    def _wait_ms(self, now: float) -> int:
        wait_ms = max(self._rate.wait_ms(self._limit, now, self._window), (self._lent_until - now) * 1000)
        return round(min(wait_ms, self._wait_ms_max))

    def take_back(self, amount: float) -> None:
        """Take an amount back that was not used after all."""
        self._rate.record(-amount, self._clock.monotonic(), self._window)

    @property
    def burst(self) -> float:
        """The most that can be used at a time without exceeding the quota."""
        return self._limit * (self._window.samples - 1) * self._window.seconds

    @property
    def is_idle(self) -> bool:
        now = self._clock.monotonic()
        return now >= self._lent_until and self._rate.is_idle(now, self._window)


class _Holding(NamedTuple):
    """A quota that holds for a client."""

    who: _Who
    limit: float
    others: _Who | None
    """Stands for `who` where it is not measured alone. The quota is a default, and new names make new measures. None:
    the quota is the client's own."""


_Holdings: TypeAlias = tuple[_Holding | None, _Holding | None, _Holding | None]
_NONE_HOLDS: Final[_Holdings] = (None, None, None)


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
        """Limits by quota key."""
        self._holdings: dict[tuple[str, str], _Holdings] = {}
        """The quotas that hold, by principal and client id. Cleared where it is full, and where quotas change."""
        self._usages: dict[_Who, Usage] = {}
        self._pruned_at = -window.whole
        self.are_set = False
        """Whether there is any quota. Without one, requests look at nothing else here."""
        self._adopt(image)

    def on_delta(self, delta: ImageDelta) -> None:
        """Adopt the quotas of a new image, where they have changed."""
        if delta.after.quotas is not self._quotas:
            self._adopt(delta.after)

    def _adopt(self, image: MetadataImage) -> None:
        self._quotas = image.quotas
        self._limits = {}
        self._holdings.clear()
        for entity, quotas in image.quotas.items():
            for key, limit in quotas.items():
                self._limits.setdefault(key, {})[entity] = limit
        self.are_set = bool(self._limits)
        if not self.are_set:
            self._usages.clear()
        elif len(self._usages) >= QUOTA_CLIENTS_MAX:
            self._prune()

    def usage(self, principal: str, client_id: str) -> ClientUsage | None:
        """Return the usage of this client; None: no quota holds for it."""
        holdings = self._holdings.get((principal, client_id))
        if holdings is None:
            holdings = self._look_up(principal, client_id)
        if holdings == _NONE_HOLDS:
            return None
        produce, fetch, request = holdings
        return ClientUsage(
            None if produce is None else self._usage(produce),
            None if fetch is None else self._usage(fetch),
            None if request is None else self._usage(request),
        )

    def _look_up(self, principal: str, client_id: str) -> _Holdings:
        user = principal.partition(":")[2]
        holdings = (
            self._find(PRODUCER_BYTE_RATE, user, client_id),
            self._find(CONSUMER_BYTE_RATE, user, client_id),
            self._find(REQUEST_PERCENTAGE, user, client_id),
        )
        if len(user) + len(client_id) <= QUOTA_NAME_CHARACTERS_MAX:
            if len(self._holdings) >= QUOTA_CLIENTS_MAX:
                self._holdings.clear()
            self._holdings[principal, client_id] = holdings
        return holdings

    def _find(self, key: str, user: str, client_id: str) -> _Holding | None:
        limits = self._limits.get(key)
        if limits is None:
            return None
        for entity in nearest_first(user, client_id):
            if (limit := limits.get(entity)) is not None:
                kinds = dict(entity)
                who = (key, user if USER in kinds else None, client_id if CLIENT_ID in kinds else None)
                return _Holding(who, limit, _others(key, entity))
        return None

    def _is_measured_alone(self, who: _Who) -> bool:
        """Whether there is room to measure a client of a default quota alone."""
        if len(who[1] or "") + len(who[2] or "") > QUOTA_NAME_CHARACTERS_MAX:
            return False
        if who in self._usages or len(self._usages) < QUOTA_CLIENTS_MAX:
            return True
        self._prune()
        return len(self._usages) < QUOTA_CLIENTS_MAX

    def _usage(self, holding: _Holding) -> Usage:
        who = holding.who
        if holding.others is not None and not self._is_measured_alone(who):
            who = holding.others
        usage = self._usages.get(who)
        if usage is None:
            seconds = self._window.seconds if who[0] == REQUEST_PERCENTAGE else self._window.whole
            wait_ms_max = min(round(seconds * 1000), QUOTA_THROTTLE_MS_MAX)
            usage = self._usages[who] = Usage(holding.limit, self._clock, self._window, wait_ms_max)
        usage.limit = holding.limit
        return usage

    def _prune(self) -> None:
        """Remove idle usages, of which nothing counts any more. Does so at most once in the length of a sample."""
        now = self._clock.monotonic()
        if now - self._pruned_at < self._window.seconds:
            return
        self._pruned_at = now
        self._usages = {who: usage for who, usage in self._usages.items() if not usage.is_idle}

    def __len__(self) -> int:
        """The number of usages in memory."""
        return len(self._usages)


def _others(key: str, entity: QuotaEntity) -> _Who | None:
    """Return who is measured together under a default quota; None: the quota is of one client alone."""
    parts = {kind: _OTHERS if name is None else name for kind, name in entity}
    return (key, parts.get(USER), parts.get(CLIENT_ID)) if _OTHERS in parts.values() else None


def nearest_first(user: str, client_id: str) -> Iterator[QuotaEntity]:
    """Iterate over the entities whose quota may hold for a client, in Kafka's order. The first that has one counts."""
    for name in (user, None):
        yield quota_entity({USER: name, CLIENT_ID: client_id})
        yield quota_entity({USER: name, CLIENT_ID: None})
        yield quota_entity({USER: name})
    yield quota_entity({CLIENT_ID: client_id})
    yield quota_entity({CLIENT_ID: None})
