"""Threads that tests end: one that does not is told, and not waited for for ever."""

from __future__ import annotations

import threading
from typing import Final

ENDS_S: Final = 60.0


def joined(thread: threading.Thread, limit_s: float = ENDS_S) -> None:
    thread.join(limit_s)
    assert not thread.is_alive(), f"'{thread.name}' goes on {limit_s} s after it was told to end"
