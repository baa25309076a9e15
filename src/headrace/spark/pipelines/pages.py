"""HTML pages without other files: Jinja fills `templates/`, and pictures are inside the page."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from headrace.spark.pipelines.meter import size_text


def page_of(template: str, **values: Any) -> str:
    """The page that this template makes of the values, which are text and not HTML."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    pages = Environment(
        loader=PackageLoader("headrace.spark.pipelines"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    pages.filters.update(count=count_text, size=size_text, time=time_text)
    return pages.get_template(template).render(values)


def count_text(count: int) -> str:
    return f"{count:,}"


def time_text(time_ms: int) -> str:
    """A readable time in UTC."""
    try:
        return datetime.fromtimestamp(time_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S")
    except (ValueError, OverflowError, OSError):
        return "out of bounds"
