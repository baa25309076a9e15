"""Quotas of what comes in single pieces: changes by the controller (KIP-599), and connections of an address (KIP-612).

Promises:
- Without such a quota, a request or a connection costs nothing more.
- At most QUOTA_CLIENTS_MAX clients and addresses are counted one by one. The others share one count.

Each broker counts what comes to it: a client that asks all of them has as many times its quota. Kafka's controller
counts changes for the whole cluster.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Final, NamedTuple, TypeVar

from headrace.base.limits import QUOTA_CLIENTS_MAX, QUOTA_THROTTLE_MS_MAX
from headrace.base.ports import Clock
from headrace.broker.kit.token_bucket import TokenBucket
from headrace.broker.requests.quotas import nearest_first
from headrace.metadata.access.quotas import (
    CONNECTION_CREATION_RATE,
    CONTROLLER_MUTATION_RATE,
    IP,
    QuotaEntity,
    quota_entity,
)
from headrace.metadata.delta import ImageDelta
from headrace.metadata.image import MetadataImage
from headrace.wire.errors import ErrorCode

T = TypeVar("T")
EXCEEDED: Final = ErrorCode.THROTTLING_QUOTA_EXCEEDED
DEFAULTS: Final = quota_entity({IP: None})


class _Who(NamedTuple):
    """The holders of one bucket; empty: all who are not counted one by one."""

    quota: QuotaEntity
    principal: str = ""
    client_id: str = ""


class Mutations:
    """The changes that one request may make."""

    def __init__(self, bucket: TokenBucket | None, now: float, *, is_strict: bool) -> None:
        """`bucket`: None: no quota holds. `is_strict`: what exceeds the quota is refused; else it is done, and the
        client is told to wait."""
        self._bucket, self._now, self._is_strict = bucket, now, is_strict

    def may_make(self, number: int) -> bool:
        """Whether so many more may be made. Then they are counted."""
        if self._bucket is None:
            return True
        if self._is_strict and self._bucket.is_overdrawn(self._now):
            return False
        self._bucket.use(number, self._now)
        return True

    def part(self, items: Iterable[T], size: Callable[[T], int]) -> tuple[tuple[T, ...], tuple[T, ...]]:
        """Return the items whose changes may be made, and the others. `size`: the number of changes of an item."""
        made: list[T] = []
        refused: list[T] = []
        for item in items:
            (made if self.may_make(size(item)) else refused).append(item)
        return tuple(made), tuple(refused)

    @property
    def wait_ms(self) -> int:
        """How long the client is told to wait."""
        return 0 if self._bucket is None else min(self._bucket.wait_ms(self._now), QUOTA_THROTTLE_MS_MAX)


class BucketQuotas:
    """See the module. Loop-only."""

    def __init__(self, image: MetadataImage, clock: Clock, burst_s: float) -> None:
        """`burst_s`: so many seconds' worth may come at a time."""
        self._clock = clock
        self._burst_s = burst_s
        self._limits: dict[str, dict[QuotaEntity, float]] = {}
        self._buckets: dict[_Who, TokenBucket] = {}
        self._quotas: Mapping[QuotaEntity, Mapping[str, float]] = {}
        self._adopt(image)

    def on_delta(self, delta: ImageDelta) -> None:
        """Adopt the quotas of a new image, where they have changed."""
        if delta.after.quotas is not self._quotas:
            self._adopt(delta.after)

    def _adopt(self, image: MetadataImage) -> None:
        self._quotas = image.quotas
        self._limits = {
            key: limits
            for key in (CONTROLLER_MUTATION_RATE, CONNECTION_CREATION_RATE)
            if (limits := {entity: rates[key] for entity, rates in image.quotas.items() if key in rates})
        }
        if not self._limits:
            self._buckets.clear()

    def mutations(self, principal: str, client_id: str, *, is_strict: bool) -> Mutations:
        """Return what the client may have the controller change."""
        now, bucket = self._clock.monotonic(), None
        if (limits := self._limits.get(CONTROLLER_MUTATION_RATE)) is not None:
            for entity in nearest_first(principal.partition(":")[2], client_id):
                if (rate := limits.get(entity)) is not None:
                    kinds = dict(entity)
                    user, client = principal if "user" in kinds else "", client_id if "client-id" in kinds else ""
                    bucket = self._bucket(_Who(entity, user, client), rate, now)
                    break
        return Mutations(bucket, now, is_strict=is_strict)

    def newcomer_waits_ms(self, host: str) -> int:
        """Count a connection of this address. Returns 0 where it may stay; else how long until another may."""
        limits = self._limits.get(CONNECTION_CREATION_RATE)
        if limits is None:
            return 0
        entity = quota_entity({IP: host})
        rate = limits.get(entity, limits.get(DEFAULTS))
        if rate is None:
            return 0
        now = self._clock.monotonic()
        bucket = self._bucket(_Who(entity if entity in limits else DEFAULTS, host), rate, now)
        if bucket.is_overdrawn(now):
            return max(1, min(bucket.wait_ms(now), QUOTA_THROTTLE_MS_MAX))
        bucket.use(1, now)
        return 0

    def _bucket(self, who: _Who, rate: float, now: float) -> TokenBucket:
        bucket = self._buckets.get(who)
        if bucket is None:
            if len(self._buckets) >= QUOTA_CLIENTS_MAX:
                self._buckets = {each: one for each, one in self._buckets.items() if not one.is_full(now)}
            if len(self._buckets) >= QUOTA_CLIENTS_MAX:
                who = _Who(who.quota)
            bucket = self._buckets.setdefault(who, TokenBucket(rate, rate * self._burst_s, now))
        bucket.rate, bucket.burst = rate, rate * self._burst_s
        return bucket

    def __len__(self) -> int:
        """The number of buckets in memory."""
        return len(self._buckets)
