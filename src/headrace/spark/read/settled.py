"""Work that a worker does once, so that each of its tasks costs less.

Memory is kept for the next batch, instead of returned to the kernel and fetched again. A reader makes and drops arrays
of megabytes some hundred times a second. By default the C library maps and unmaps each of them, and the kernel clears
every page at its first touch. That was a fifth of a worker's time.

Imported objects are hidden from the garbage collector, which PySpark runs over all objects after each task. That took
some 30 ms, half of the time for reading 16 MiB.
"""

from __future__ import annotations

import ctypes
import gc
import sys
from contextlib import suppress
from functools import cache
from typing import Final

MAPPED_FROM_BYTES: Final = 32 * 1024 * 1024
"""Smaller blocks come from the heap. It is glibc's largest bound."""
KEPT_BYTES: Final = 128 * 1024 * 1024
"""Maximum of free bytes that stay with the process."""
ADVICE: Final = {-1: KEPT_BYTES, -3: MAPPED_FROM_BYTES}
"""M_TRIM_THRESHOLD and M_MMAP_THRESHOLD of `mallopt(3)`."""


@cache
def settle() -> None:
    """Called once for a process."""
    with suppress(ImportError):
        import headrace.spark.read.native  # noqa: F401 - so that numba is imported
    keep_pages()
    leave_out()


@cache
def settle_first() -> None:
    """Called once, after a first task: the objects that it made, such as loaded compiled functions, are hidden too."""
    leave_out()


def leave_out() -> None:
    """Hide all objects that are no garbage from the collector."""
    gc.collect()
    gc.freeze()


def keep_pages() -> bool:
    """Keep free pages. Returns False, with nothing changed, where the C library is not glibc."""
    if sys.platform != "linux":
        return False
    advise = getattr(ctypes.CDLL(None), "mallopt", None)
    return advise is not None and all(advise(name, value) == 1 for name, value in ADVICE.items())
