"""The replicas of a topic that a replication throttle is for: the value of `*.replication.throttled.replicas`
(KIP-73)."""

from __future__ import annotations

from typing import Final, NamedTuple

PATTERN: Final = r"\*|([0-9]{1,9}:[0-9]{1,9}(,[0-9]{1,9}:[0-9]{1,9})*)?"
FORM: Final = "* (all), or partition:broker, separated by commas"
ALL: Final = "*"


class ThrottledReplicas(NamedTuple):
    """All replicas, or some by partition and broker."""

    all: bool = False
    some: frozenset[tuple[int, int]] = frozenset()

    def holds(self, partition: int, broker: int) -> bool:
        """Whether that replica is one of them."""
        return self.all or (partition, broker) in self.some


NONE_THROTTLED: Final = ThrottledReplicas()


def throttled_replicas(text: str) -> ThrottledReplicas:
    """Parse `text`, which has a form that the config table accepts."""
    text = text.strip()
    if not text:
        return NONE_THROTTLED
    if text == ALL:
        return ThrottledReplicas(all=True)
    pairs = (item.strip().split(":") for item in text.split(","))
    return ThrottledReplicas(some=frozenset((int(partition), int(broker)) for partition, broker in pairs))
