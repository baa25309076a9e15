"""The times that a chart may show, and its figures for one of them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from headrace.base.limits import CONSOLE_PAST_POINTS

HOUR_S: Final = 3_600
RATE_S_MIN: Final = 300
"""Shortest time that a rate is taken over: some scrapes have to be in it, and they are often a minute apart."""


class Span(NamedTuple):
    """A time before now."""

    name: str
    told: str
    seconds: int

    @property
    def step_s(self) -> int:
        """Seconds between two points."""
        return self.seconds // CONSOLE_PAST_POINTS

    @property
    def rate_s(self) -> int:
        """Seconds that the rate of one point is taken over."""
        return max(self.step_s, RATE_S_MIN)


HOUR: Final = Span("1h", "the last hour", HOUR_S)
"""It comes from memory."""
SPANS: Final = {
    each.name: each
    for each in (
        Span("6h", "the last 6 hours", 6 * HOUR_S),
        Span("24h", "the last 24 hours", 24 * HOUR_S),
        Span("7d", "the last 7 days", 7 * 24 * HOUR_S),
    )
}
"""They come from Prometheus."""


@dataclass(frozen=True, slots=True)
class Past:
    """The points of a chart, or the reason why there are none."""

    data: list[list[Any]] = field(default_factory=list)
    """Seconds since 1970, and values; None where there was no figure."""
    missing: str = ""
    """It begins a sentence; empty: there are points."""
