"""The form of what is asked of a client before it is served, and of the record of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, TypeAlias

from headrace.net.server.connection import Connection

Greet: TypeAlias = Callable[[Connection], None]


class Witness(Protocol):
    """Hears of each client that has proven who it is, or has not."""

    def authenticated(self, principal: str, host: str, listener: str, mechanism: str, problem: str | None) -> None:
        """`problem`: None: it has. Else the principal is the one that it claims to be."""
