"""Values that all coordinators use."""

from __future__ import annotations

from typing import NamedTuple


class Moment(NamedTuple):
    """One instant on both clocks."""

    monotonic_ms: int
    """For deadlines. Never decreases."""
    wall_ms: int
    """For records: milliseconds since 1970-01-01T00:00Z."""


class NamedPartition(NamedTuple):
    """A partition by its topic's name, as the records of coordinators have it."""

    topic: str
    partition: int
