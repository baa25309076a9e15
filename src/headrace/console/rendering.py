"""Pages from templates: everything is escaped, and nothing runs in a page that is not a file of this package."""

from __future__ import annotations

import hashlib
import re
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from functools import cache
from importlib.resources import files
from typing import Any, Final

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from headrace.console.sheets import told
from headrace.operations.changes import costs

STATIC: Final = files("headrace.console") / "static"
_COMMAND: Final = re.compile(r"'(headrace [^']+)'")
_UNITS: Final = ("B", "KB", "MB", "GB", "TB", "PB")


@cache
def environment() -> Environment:
    """The templates, with the filters that they use."""
    made = Environment(
        loader=PackageLoader("headrace.console"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters |= {
        "number": number,
        "size": size,
        "rate": rate,
        "when": when,
        "lasted": lasted,
        "parts": parts,
        "share": share,
        "told": told,
        "cost": cost,
        "way": costs.way_of,
    }
    made.globals |= {"static": static, "spark": spark}
    return made


def rendered(template: str, values: dict[str, Any]) -> str:
    """A page, or a part of one."""
    return environment().get_template(template).render(values)


@cache
def static(name: str) -> str:
    """The path of a file that comes with the console. It changes with the file, so that browsers may keep it."""
    return f"/static/{hashlib.sha256(STATIC.joinpath(name).read_bytes()).hexdigest()[:12]}/{name}"


def number(value: float | None) -> str:
    """`12,345`; a dash where it is not known."""
    return "–" if value is None else f"{value:,.0f}"


def size(value: int | None) -> str:
    """`1.2 GB`; a dash where it is not known."""
    if value is None:
        return "–"
    left = float(value)
    for unit in _UNITS:
        if left < 999.5 or unit == _UNITS[-1]:
            return f"{left:.0f} {unit}" if unit == "B" or left >= 99.5 else f"{left:.1f} {unit}"
        left /= 1000
    raise AssertionError("the last unit takes all")


def cost(known: object) -> list[str]:
    """The cost of a plan in sentences; none where it has none."""
    return costs.told(known, size) if isinstance(known, costs.Cost) else []


def rate(value: float | None) -> str:
    """`1,234`, or `0.4` where it is little; a dash where it is not known."""
    if value is None:
        return "–"
    return f"{value:.1f}" if 0 < value < 9.95 else f"{value:,.0f}"


def when(value_ms: int) -> Markup:
    """A time. A script shows it in the viewer's zone."""
    if value_ms < 0:
        return Markup("–")
    try:
        moment = datetime.fromtimestamp(value_ms / 1000, UTC)
    except (OverflowError, ValueError, OSError):
        return Markup("{}").format(value_ms)
    stamp = moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")
    return Markup('<time datetime="{}">{} UTC</time>').format(stamp, moment.strftime("%Y-%m-%d %H:%M:%S"))


def lasted(since_ms: int) -> str:
    """How long ago that was: `12 s`, `3 min`, `2 h`, `5 d`."""
    seconds = max(0.0, time.time() - since_ms / 1000)
    for limit, divisor, unit in ((120, 1, "s"), (7_200, 60, "min"), (172_800, 3_600, "h")):
        if seconds < limit:
            return f"{seconds / divisor:.0f} {unit}"
    return f"{seconds / 86_400:.0f} d"


def parts(text: str) -> Iterator[tuple[bool, str]]:
    """A sentence in pieces; True with those that are commands."""
    at = 0
    for match in _COMMAND.finditer(text):
        if match.start() > at:
            yield False, text[at : match.start()]
        yield True, match[1]
        at = match.end()
    if at < len(text):
        yield False, text[at:]


def share(part: float, whole: float) -> float:
    """A percentage for a bar."""
    return round(max(0.0, min(100.0, 100 * part / whole)), 2) if whole > 0 else 0.0


def spark(points: list[tuple[float, float]], label: str) -> Markup:
    """A line of the newest figures."""
    if not points:
        return Markup("")
    path = " ".join(f"{100 * x:.1f},{23 - 20 * y:.1f}" for x, y in points)
    return Markup(
        '<svg class="spark" viewBox="0 0 100 24" preserveAspectRatio="none" role="img" aria-label="{}">'
        '<polygon points="0,24 {} 100,24"/><polyline points="{}"/></svg>'
    ).format(label, path, path)
