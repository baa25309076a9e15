"""Keeps the real world out of a simulated process. It may not read a real clock, draw real randomness, open a real file
or start a real thread: these raise. Its locks and thread pools are the simulator's. Its logs go where the run says, and
nowhere otherwise: a program's own logging reads the clock.

The simulator itself, the tests and the interpreter's own imports are left alone: only code that runs as a `Process` is
refused.
"""

from __future__ import annotations

import builtins
import io
import os
import random
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from types import SimpleNamespace
from typing import Any, Final
from unittest.mock import patch

import structlog

from headrace.broker.boot import load_ahead
from headrace.broker.kit import store_threads
from headrace.sim.process import CURRENT
from headrace.sim.workers import Mutex, Pool
from headrace.storage import objects
from headrace.storage.log.compaction import planning as compaction

DOORS: Final = (
    (time, ("time", "time_ns", "monotonic", "monotonic_ns", "perf_counter", "perf_counter_ns", "sleep")),
    (os, ("urandom", "open", "fsync", "fdatasync")),
    (random, ("random", "randrange", "randint", "choice", "shuffle", "getrandbits", "uniform")),
    (threading.Thread, ("start",)),
    (socket.socket, ("bind", "connect")),
    (builtins, ("open",)),
    (io, ("open",)),
)


LOCKING: Final = (compaction, objects)
"""Modules whose functions, in worker threads, hold locks while they wait for a disk."""


class RealWorldUsed(AssertionError):  # noqa: N818 - an accusation
    """A simulated process reached past its ports."""


@contextmanager
def guarded() -> Iterator[None]:
    """While it lasts, simulated processes cannot reach the real world. All is loaded before, so that no run differs
    from the next by what is imported in it."""
    load_ahead()
    with ExitStack() as stack:
        for place, names in DOORS:
            for name in names:
                stack.enter_context(
                    patch.object(place, name, _locked(f"{place.__name__}.{name}", getattr(place, name)))
                )
        for module in LOCKING:
            stack.enter_context(patch.object(module, "threading", SimpleNamespace(Lock=Mutex)))
        stack.enter_context(patch.object(store_threads, "DaemonThreads", Pool))
        stack.enter_context(logs_to(_nowhere))
        yield


@contextmanager
def logs_to(processor: structlog.typing.Processor) -> Iterator[None]:
    """While it lasts, this process's logs go to `processor` alone; it raises `structlog.DropEvent`. Afterwards all
    is as the process had set it up, or had not."""
    before = structlog.get_config() if structlog.is_configured() else None
    structlog.reset_defaults()
    structlog.configure(processors=[processor], cache_logger_on_first_use=False)
    try:
        yield
    finally:
        structlog.reset_defaults()
        if before is not None:
            structlog.configure(**before)


def _nowhere(_: object, __: str, ___: structlog.typing.EventDict) -> structlog.typing.EventDict:
    raise structlog.DropEvent


def _locked(name: str, door: Callable[..., Any]) -> Callable[..., Any]:
    def check(*args: Any, **options: Any) -> Any:
        if CURRENT.get() is not None:
            raise RealWorldUsed(f"the broker used {name}: take the port from headrace.base.ports instead")
        return door(*args, **options)

    return check
