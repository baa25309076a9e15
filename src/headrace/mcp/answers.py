"""The form of all answers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from pydantic import BaseModel, ConfigDict, Field

from headrace.base.limits import MCP_NAME_CHARS_MAX, MCP_ROWS_MAX

T = TypeVar("T")


class Part(BaseModel):
    """A piece of an answer."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class Answer(Part):
    """The result of a tool."""

    next: list[str] = Field(description="What may be asked next: calls of tools, or what a person should do.")


def some(
    rows: Sequence[T], name: Callable[[T], str], *, query: str, after: str, limit: int
) -> tuple[list[T], int, str | None]:
    """The rows with this in their names, behind the name `after`: at most `limit` of them by name. Then the number of
    all that match, and the name to go on behind. None: there are no more.
    """
    wanted = query.lower()
    found = sorted((row for row in rows if wanted in name(row).lower()), key=name)
    behind = [row for row in found if name(row) > after] if after else found
    most = bounded(limit, MCP_ROWS_MAX)
    shown = behind[:most]
    return shown, len(found), name(shown[-1]) if len(behind) > most else None


def bounded(limit: int, most: int) -> int:
    """The number of rows that is asked for, as far as it may be."""
    return max(1, min(limit, most))


def call(tool: str, **arguments: object) -> str:
    """A call of a tool, as an answer names it."""
    told = ", ".join(f"{name}={_shown(value)}" for name, value in arguments.items() if value is not None)
    return f"{tool}({told})"


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= MCP_NAME_CHARS_MAX else f"{text[:MCP_NAME_CHARS_MAX]} …"
