"""A simulated process, the unit that is killed.

A callback, task or worker thread belongs to the process in whose context it was made. Once a process is dead nothing of
it runs again. Parts of it that are still unwinding can neither touch a disk nor send a byte.
"""

from __future__ import annotations

import asyncio
import contextvars
import weakref
from collections.abc import Callable
from contextvars import ContextVar
from typing import Any, Final

LOOPBACK: Final = "127.0.0.1"
"""The host of code outside any process, and of a process without another host."""


class ProcessDied(BaseException):
    """Raised inside a process at the instant of its death, to unwind it. No handler for `Exception` sees it."""


class Process:
    """One incarnation of a program on the simulated machine.

    Invariant: `alive` only ever goes from True to False.
    """

    def __init__(self, name: str, host: str = LOOPBACK) -> None:
        self.name = name
        self.host = host
        self.alive = True
        self.held: list[tuple[float, asyncio.Handle]] | None = None
        """While it is paused (as by SIGSTOP): the handles that would have run, with their times."""
        self.tasks: weakref.WeakSet[asyncio.Task[Any]] = weakref.WeakSet()
        self.at_death: list[Callable[[], None]] = []
        """Called once, in order, at the instant of death. They are the machine's side of it, never the process's own
        code."""

    def __repr__(self) -> str:
        return f"Process({self.name}, {'alive' if self.alive else 'dead'})"

    def check_alive(self) -> None:
        """Raises ProcessDied in the remains of a dead process."""
        if not self.alive:
            raise ProcessDied(self.name)

    def context(self) -> contextvars.Context:
        """A context in which everything that is started belongs to this process."""
        context = contextvars.copy_context()
        context.run(CURRENT.set, self)
        return context


CURRENT: Final[ContextVar[Process | None]] = ContextVar("headrace_sim_process", default=None)
"""The process that is running now; None is the simulator itself and its clients."""


def owner(context: contextvars.Context | None) -> Process | None:
    """The process to which a callback with this context belongs (None: the current context)."""
    return CURRENT.get() if context is None else context.get(CURRENT)
