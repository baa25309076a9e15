"""Pictures for pages, drawn by matplotlib: PNG images in Base64. Every axis of values begins at zero."""

from __future__ import annotations

import base64
import io
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final, NamedTuple

if TYPE_CHECKING:
    from matplotlib.axes import Axes

BARS_MAX: Final = 400
"""Maximum bars of a chart over time. Beyond it, its bars stand for longer times."""
UNITS: Final = {"h": "hour", "D": "day", "M": "month", "Y": "year"}
"""Units of time as numpy names them."""
DAY_TICKS_MAX: Final = 16
"""Days that have a tick each."""
YEAR_MAX: Final = "9999"
"""The last year of matplotlib's calendar."""
BLUE: Final = "#3182bd"
RED: Final = "#cf222e"


class OverTime(NamedTuple):
    """Sums by time."""

    unit: str
    """Each covers an hour, a day, a month or a year."""
    starts: Any
    """Their beginnings, ascending, as numpy's times."""
    sums: Any
    left_out: int
    """The sum of those that no calendar has."""

    @property
    def rows(self) -> list[tuple[str, str]]:
        """For a table."""
        return [(str(start), f"{total:,}") for start, total in zip(self.starts, self.sums, strict=True)]


def over_time(values: Mapping[int, int], unit: str) -> OverTime:
    """Sums of values by their time, which is a number of `unit` since 1970 ("h" or "D"). The bars stand for the
    shortest times of which BARS_MAX are enough.
    """
    import numpy as np

    last = int(np.array(YEAR_MAX, f"datetime64[{unit}]").astype(np.int64))
    known = {at: values[at] for at in sorted(values) if 0 <= at <= last}
    times = np.array([*known], np.int64).astype(f"datetime64[{unit}]")
    for longer in [*UNITS][[*UNITS].index(unit) :]:
        starts, which = np.unique(times.astype(f"datetime64[{longer}]"), return_inverse=True)
        if not len(starts) or int((starts[-1] - starts[0]).astype(np.int64)) < BARS_MAX:
            break
    sums = np.zeros(len(starts), np.int64)
    np.add.at(sums, which, np.array([*known.values()], np.int64))
    return OverTime(UNITS[longer], starts, sums, sum(values.values()) - sum(known.values()))


def drawn(title: str, draw: Callable[[Axes], object]) -> str:
    """The image that `draw` makes on matplotlib's axes."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6, 3), dpi=100, layout="constrained")
    axes = figure.subplots()
    axes.spines[["top", "right"]].set_visible(False)
    draw(axes)
    axes.set_title(title)
    image = io.BytesIO()
    figure.savefig(image)
    return base64.b64encode(image.getvalue()).decode()


def draw_over_time(axes: Axes, values: OverTime) -> None:
    """Bars over a calendar. Days are ticks of their own where there are few."""
    from matplotlib.dates import AutoDateLocator, ConciseDateFormatter, DateFormatter, DayLocator

    if not len(values.starts):
        return
    starts = values.starts.astype("datetime64[s]")
    widths = (values.starts + 1).astype("datetime64[s]") - starts
    axes.bar(starts, values.sums, width=widths * 0.9, align="edge" if values.unit == "hour" else "center", color=BLUE)
    days = int((starts[-1] - starts[0]).astype(int)) / 86_400
    if values.unit in ("hour", "day") and (values.unit == "day" or days > 2) and days <= DAY_TICKS_MAX:
        axes.xaxis.set_major_locator(DayLocator())
        axes.xaxis.set_major_formatter(DateFormatter("%-d %b" if days < DAY_TICKS_MAX / 2 else "%-d"))
    else:
        locator = AutoDateLocator()
        axes.xaxis.set_major_locator(locator)
        axes.xaxis.set_major_formatter(ConciseDateFormatter(locator))


def count_axis(axis: Any) -> None:
    """Whole numbers with separators, from zero."""
    from matplotlib.ticker import MaxNLocator, StrMethodFormatter

    axis.set_major_locator(MaxNLocator("auto", integer=True, steps=[1, 2, 5, 10]))
    axis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))
    _from_zero(axis)


def size_axis(axis: Any) -> None:
    """Bytes, kB, MB and so on, from zero."""
    from matplotlib.ticker import EngFormatter

    axis.set_major_formatter(EngFormatter(unit="B"))
    _from_zero(axis)


def _from_zero(axis: Any) -> None:
    getattr(axis.axes, f"set_{axis.axis_name}lim")(0)
