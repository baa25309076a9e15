"""The limits of replication on this broker, as a leader and as a follower, at the rates that are configured now.
Loop-only. Source: KIP-73."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from headrace.base.ids import BrokerId
from headrace.base.ports import Clock
from headrace.metadata.configs import broker_value
from headrace.metadata.delta import ImageDelta
from headrace.metadata.image import MetadataImage
from headrace.replica.throttle import Throttle

LEADER_RATE: Final = "leader.replication.throttled.rate"
FOLLOWER_RATE: Final = "follower.replication.throttled.rate"


class BrokerThrottle:
    """One of the two limits, by the broker's clock."""

    def __init__(self, clock: Clock, rate: float) -> None:
        self._clock = clock
        self._throttle = Throttle(rate)

    def room(self) -> int:
        """Return the bytes that may be taken now."""
        return self._throttle.room(self._clock.monotonic())

    def wait_s(self) -> float:
        """Return the seconds until there is room; 0: there is room."""
        return self._throttle.wait_s(self._clock.monotonic())

    def take(self, size: int) -> None:
        self._throttle = self._throttle.taken(size, self._clock.monotonic())

    def set_rate(self, rate: float) -> None:
        if rate != self._throttle.rate:
            self._throttle = self._throttle.at_rate(rate, self._clock.monotonic())


class Throttles:
    """The limits of both sides."""

    def __init__(self, *, node: BrokerId, configs: Mapping[str, str], image: MetadataImage, clock: Clock) -> None:
        self._node = node
        self._configs = configs
        self.leader = BrokerThrottle(clock, self._rate(LEADER_RATE, image))
        self.follower = BrokerThrottle(clock, self._rate(FOLLOWER_RATE, image))

    def on_delta(self, delta: ImageDelta) -> None:
        """Adopt changed rates."""
        if delta.before.broker_configs is not delta.after.broker_configs:
            self.leader.set_rate(self._rate(LEADER_RATE, delta.after))
            self.follower.set_rate(self._rate(FOLLOWER_RATE, delta.after))

    def _rate(self, key: str, image: MetadataImage) -> float:
        return broker_value(image, self._configs, key, node=self._node).number()
