"""The effect of retention on a topic that continues at its rate: the size that it settles at, and when its first
records are deleted.

Sizes are as stored, compressed. Retention deletes whole segments, so the true values are a little larger and later.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

DAY_MS: Final = 86_400_000


@dataclass(frozen=True, slots=True)
class Retention:
    """Retention of a topic, as configured. None: no limit."""

    ms: int | None = None
    partition_bytes: int | None = None

    @classmethod
    def of(cls, configs: Mapping[str, str | None]) -> Retention:
        """``retention.ms`` and ``retention.bytes``, where ``cleanup.policy`` deletes."""
        if "delete" not in (configs.get("cleanup.policy") or "delete"):
            return cls()
        return cls(_limit(configs.get("retention.ms")), _limit(configs.get("retention.bytes")))

    def settles_at(self, partitions: int, bytes_per_day: float) -> int | None:
        """Bytes that a topic of that many partitions settles at; None where it grows without end."""
        by_size = None if self.partition_bytes is None else float(self.partition_bytes * partitions)
        by_time = None if self.ms is None else bytes_per_day * self.ms / DAY_MS
        found = _least(by_size, by_time)
        return None if found is None else round(found)

    def deletes_in_days(self, bytes_per_day: float, held: float, oldest_ms: int | None, now_ms: int) -> float | None:
        """Days until the first records of a partition are deleted. It holds `held` bytes, grows at this rate, and its
        oldest record is of `oldest_ms`. 0 where a deletion is due; None where none will be.
        """
        by_size = by_time = None
        if self.partition_bytes is not None and (bytes_per_day > 0 or held > self.partition_bytes):
            by_size = max(0.0, self.partition_bytes - held) / max(bytes_per_day, 1e-9)
        if self.ms is not None and oldest_ms is not None:
            by_time = max(0.0, (oldest_ms + self.ms - now_ms) / DAY_MS)
        return _least(by_size, by_time)


def _limit(value: str | None) -> int | None:
    return None if value is None or int(value) < 0 else int(value)


def _least(*limits: float | None) -> float | None:
    return min((each for each in limits if each is not None), default=None)
