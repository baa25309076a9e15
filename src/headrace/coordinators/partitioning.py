"""The partition of an internal topic that keeps a group or a transactional id: Kafka's choice, as its tools expect."""

from __future__ import annotations

from functools import lru_cache

from headrace.base.limits import GROUP_PLACE_CHARS_MAX, GROUP_PLACES_KEPT_MAX


def partition_for(name: str, partitions: int) -> int:
    """Java's `String.hashCode` (over UTF-16 units, 32 bits, wrapping), made positive, modulo the partition count.
    Cached unless the name is long, because names are looked up repeatedly."""
    return _remembered(name, partitions) if len(name) <= GROUP_PLACE_CHARS_MAX else _place(name, partitions)


def _place(name: str, partitions: int) -> int:
    value = 0
    encoded = name.encode("utf-16-be", "surrogatepass")
    for at in range(0, len(encoded), 2):
        value = (31 * value + (encoded[at] << 8 | encoded[at + 1])) & 0xFFFFFFFF
    if value >= 1 << 31:
        value = (1 << 32) - value
    return 0 if value == 1 << 31 else value % partitions


_remembered = lru_cache(maxsize=GROUP_PLACES_KEPT_MAX)(_place)
