"""What a worker does once, so that each of its tasks costs less.

Memory is kept for the next batch, instead of given back to the kernel and fetched anew: a reader makes and drops arrays
of megabytes some hundred times a second, the C library's defaults map and unmap each of them, and the kernel clears
every page at its first touch, which was a fifth of what a worker did. And what is imported is left out by the garbage
collector, which PySpark has look through all there is after each task: some 30 ms, half of what reading 16 MiB takes.
"""

from __future__ import annotations

import ctypes
import gc
import sys
from contextlib import suppress
from functools import cache
from typing import Final

MAPPED_FROM_BYTES: Final = 32 * 1024 * 1024
"""Smaller blocks come from the heap; it is glibc's largest bound."""
KEPT_BYTES: Final = 128 * 1024 * 1024
"""At most so much that is free stays with the process."""
ADVICE: Final = {-1: KEPT_BYTES, -3: MAPPED_FROM_BYTES}
"""M_TRIM_THRESHOLD and M_MMAP_THRESHOLD of `mallopt(3)`."""


@cache
def settle() -> None:
    """Once for a process."""
    with suppress(ImportError):
        import headrace.spark.read.native  # noqa: F401 - so that numba is among what is there
    keep_pages()
    leave_out()


@cache
def settle_first() -> None:
    """Once, after a first task: what its work has made, as compiled functions that were loaded, is left out as well."""
    leave_out()


def leave_out() -> None:
    """All there is that is no garbage."""
    gc.collect()
    gc.freeze()


def keep_pages() -> bool:
    """False where the C library is another one than glibc: it goes on as it is."""
    if sys.platform != "linux":
        return False
    advise = getattr(ctypes.CDLL(None), "mallopt", None)
    return advise is not None and all(advise(name, value) == 1 for name, value in ADVICE.items())
