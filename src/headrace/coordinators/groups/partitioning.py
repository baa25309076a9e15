"""The partition of the offsets topic that keeps a group: Kafka's choice, so that its tools agree."""

from __future__ import annotations

from functools import lru_cache

from headrace.base.limits import GROUP_PLACE_CHARS_MAX, GROUP_PLACES_KEPT_MAX


def partition_for(group_id: str, partitions: int) -> int:
    """Java's `String.hashCode` (over UTF-16 units, 32 bits, wrapping), made positive, modulo the partition count.
    Cached unless the name is long, because a group is looked up repeatedly."""
    return _remembered(group_id, partitions) if len(group_id) <= GROUP_PLACE_CHARS_MAX else _place(group_id, partitions)


def _place(group_id: str, partitions: int) -> int:
    value = 0
    encoded = group_id.encode("utf-16-be", "surrogatepass")
    for at in range(0, len(encoded), 2):
        value = (31 * value + (encoded[at] << 8 | encoded[at + 1])) & 0xFFFFFFFF
    if value >= 1 << 31:
        value = (1 << 32) - value
    return 0 if value == 1 << 31 else value % partitions


_remembered = lru_cache(maxsize=GROUP_PLACES_KEPT_MAX)(_place)
