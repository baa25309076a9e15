"""The garbage collector of a process whose objects mostly stay."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

GARBAGE_OBJECTS: Final = 10_000
"""New objects after which the young ones are searched for cycles (Python's default: 700). A search takes some 2 ms."""


def spare_the_collector() -> None:
    """Let it look seldom: with Python's own numbers it takes a sixth of the seconds in which a command is imported."""
    gc.set_threshold(GARBAGE_OBJECTS, 40, 20)


@contextmanager
def without_collector() -> Iterator[None]:
    """Search for no cycles while the block imports much. Modules stay anyway."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()
