"""Figures of the last hour, for charts. In memory, bounded, and gone with the console."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import Any, Final

from headrace.base.limits import CONSOLE_CHART_GROUPS_MAX, CONSOLE_CHART_POINTS_MAX

HOUR_MS: Final = 3_600_000
SPARK_POINTS: Final = 60


class Series:
    """One figure over time."""

    def __init__(self) -> None:
        self._points: deque[tuple[int, float]] = deque(maxlen=CONSOLE_CHART_POINTS_MAX)

    def add(self, at_ms: int, value: float) -> None:
        self._points.append((at_ms, value))
        while self._points[0][0] < at_ms - HOUR_MS:
            self._points.popleft()

    def columns(self, since_s: float = 0.0) -> list[list[float]]:
        """Seconds since 1970, and values; those after a time."""
        points = [(at, value) for at, value in self._points if at > since_s * 1000]
        return [[at / 1000 for at, _ in points], [round(value, 3) for _, value in points]]

    def spark(self) -> list[tuple[float, float]]:
        """The newest points as x from 0 to 1, and y from 0 to 1 of the highest."""
        points = list(self._points)[-SPARK_POINTS:]
        if len(points) < 2:
            return []
        first, last = points[0][0], points[-1][0]
        top = max(value for _, value in points) or 1.0
        return [((at - first) / max(1, last - first), value / top) for at, value in points]


class Charts:
    """All series."""

    def __init__(self) -> None:
        self.written = Series()
        """Records that were written, a second."""
        self.committed = Series()
        """Records that groups have committed, a second."""
        self.lags: dict[str, Series] = {}
        """By group."""

    def add(self, at_ms: int, written: float, committed: float, lags: Mapping[str, int]) -> None:
        self.written.add(at_ms, written)
        self.committed.add(at_ms, committed)
        for name in [*self.lags]:
            if name not in lags:
                del self.lags[name]
        for name, lag in lags.items():
            if name not in self.lags and len(self.lags) >= CONSOLE_CHART_GROUPS_MAX:
                continue
            self.lags.setdefault(name, Series()).add(at_ms, lag)

    def throughput(self, since_s: float) -> dict[str, Any]:
        """The points of the overview's chart after a time."""
        times, written = self.written.columns(since_s)
        committed = self.committed.columns(since_s)[1]
        return {"names": ["written", "committed by groups"], "data": [times, written, committed]}

    def lag(self, group: str, since_s: float) -> dict[str, Any]:
        """The points of a group's chart after a time; none where it is not known."""
        series = self.lags.get(group)
        return {"names": ["lag"], "data": [[], []] if series is None else series.columns(since_s)}
