"""The form and the plan of a change that need no template of their own: fields, and a table of what would change."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

UNKNOWN: Final = "–"


class Field(NamedTuple):
    """One field of a form."""

    name: str
    label: str
    kind: str = "text"
    """text, number, hidden, long (several lines) or select."""
    placeholder: str = ""
    options: Sequence[tuple[str, str]] = ()
    """Values of a select, with their words."""
    is_required: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Sheet:
    """See the module."""

    crumb: tuple[str, str]
    """The page above it: path and name."""
    heading: Callable[[Any], str]
    """Of what is asked for."""
    about: str
    """A sentence on what it is for."""
    fields: Sequence[Field]
    columns: Sequence[str]
    cells: Callable[[Any], Sequence[Any]]
    """The cells of a row of the plan."""
    verb: Callable[[Any], str]
    """The words of the button that applies what is asked for."""
    more: Callable[[Any, Any], Sequence[Any]] = field(default=lambda *_: ())
    """More cells of a row, from all of the plan: plan and row."""
    note: Callable[[Any], str] = field(default=lambda _: "")
    """A sentence on a plan; empty: there is none."""
    nothing: str = "Nothing would change."
    """The plan without rows."""
    is_posted: bool = False
    """Whether the wish itself is no part of an address."""


def told(value: Any) -> str:
    """A cell as people read it."""
    if value is None:
        return UNKNOWN
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return f"{value:,}" if isinstance(value, (int, float)) and not isinstance(value, bool) else str(value)
