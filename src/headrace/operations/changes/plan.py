"""A plan: the effect that a change would have now."""

from __future__ import annotations

import hashlib
import shlex
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, NamedTuple


class Plan(NamedTuple):
    """The effect that a change would have now."""

    words: Sequence[str]
    """The command that does the same, without `headrace` and without the options that say which cluster."""
    rows: Sequence[Any]
    """The things that would change: named tuples or dataclasses. The plan is another one when they are."""
    carry_out: Callable[[], Awaitable[object]]
    obstacle: str = ""
    """Why it cannot be carried out; empty: it can."""
    known: Any = None
    """More about the rows, which may differ without that the plan is another one."""
    loses: str = ""
    """The name of what is gone with its data afterwards: whoever carries it out types it. Empty: nothing is."""
    ground: Sequence[Any] | None = None
    """In place of rows that change by themselves: all that has to stay as it is for the plan to be the same one."""
    input: str = ""
    """The line that the command reads; empty: it reads none."""

    def fed(self, command: str, shown: Callable[[str], str] = str) -> str:
        """The command, with the line that it reads as `shown` makes it fit to look at."""
        return f"printf '%s\\n' {shlex.quote(shown(self.input))} | {command}" if self.input else command

    @property
    def digest(self) -> str:
        ground = self.rows if self.ground is None else self.ground
        return hashlib.sha256(repr((list(self.words), list(ground))).encode()).hexdigest()[:32]
