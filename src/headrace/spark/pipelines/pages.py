"""HTML pages without other files: text, tables, and pictures inside the page."""

from __future__ import annotations

import base64
import html
import io
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Any, Final, NamedTuple

STYLE: Final = (
    "body{font-family:sans-serif;margin:2em;max-width:70em}table{border-collapse:collapse}"
    "td,th{padding:.25em .8em;text-align:right;border-bottom:1px solid #ddd}td:first-child,th:first-child"
    "{text-align:left}.good{color:#1a7f37}.bad{color:#cf222e}"
)


class Picture(NamedTuple):
    """A PNG image."""

    title: str
    data: str
    """In Base64."""


def picture(title: str, draw: Callable[[Any], object]) -> Picture:
    """The picture that `draw` makes on matplotlib's axes."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(figsize=(9, 3), dpi=100)
    draw(axes)
    axes.set_title(title)
    figure.tight_layout()
    image = io.BytesIO()
    figure.savefig(image)
    plt.close(figure)
    return Picture(title, base64.b64encode(image.getvalue()).decode())


def table_of(headings: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    heads = "".join(f"<th>{html.escape(each)}</th>" for each in headings)
    body = "".join("<tr>" + "".join(f"<td>{html.escape(str(cell))}</td>" for cell in row) + "</tr>" for row in rows)
    return f"<table><tr>{heads}</tr>{body}</table>"


def whole_page(title: str, body: str, pictures: Sequence[Picture]) -> str:
    """`body` is HTML already; the other arguments are text."""
    name = html.escape(title)
    shown = "".join(
        f'<p><img alt="{html.escape(each.title)}" src="data:image/png;base64,{each.data}"></p>' for each in pictures
    )
    return (
        f"<!doctype html><meta charset='utf-8'><title>{name}</title><style>{STYLE}</style><h1>{name}</h1>{body}{shown}"
    )


def time_text(time_ms: int) -> str:
    """A readable time in UTC."""
    try:
        return datetime.fromtimestamp(time_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S")
    except (ValueError, OverflowError, OSError):
        return "out of bounds"
