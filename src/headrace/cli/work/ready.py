"""The work that is done once brokers serve, before they say so."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import TypeAlias

from headrace.base.addresses import Address

OnceReady: TypeAlias = Callable[[Sequence[Address]], Awaitable[None]]
"""Called with the brokers' addresses."""
