"""Event loops for tests: as the broker's, with the limit of the test.

Under warnings as errors, uvloop does not close a handle that it finds open at the loop's end, since its warning raises
in the middle. It then waits for that handle for ever. Here a loop closes all of them, and then raises the warning.
"""

from __future__ import annotations

import asyncio
import warnings
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from headrace.net.loops import loop_factory
from tests.guard import limited

T = TypeVar("T")


def run(main: Coroutine[Any, Any, T]) -> T:
    """As `headrace.net.loops.run`. Raises TimeoutError where the test has no time left."""
    with asyncio.Runner(loop_factory=brokers_loop()) as runner:
        return runner.run(limited(main))


def brokers_loop() -> Callable[[], asyncio.AbstractEventLoop]:
    """Return the factory of the loops that brokers run on."""
    if loop_factory() is None:
        return asyncio.new_event_loop
    import uvloop

    class Loop(uvloop.Loop):
        def close(self) -> None:
            with warnings.catch_warnings(record=True) as met:
                warnings.simplefilter("always")
                super().close()
            for each in met:
                warnings.warn_explicit(each.message, each.category, each.filename, each.lineno)

    return Loop
