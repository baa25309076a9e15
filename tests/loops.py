"""Event loops for tests: as the broker's, with the limit of the test."""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any, TypeVar

from headrace.net import loops
from tests.guard import limited

T = TypeVar("T")


def run(main: Coroutine[Any, Any, T]) -> T:
    """As `headrace.net.loops.run`. Raises TimeoutError where the test has no time left."""
    return loops.run(limited(main))
