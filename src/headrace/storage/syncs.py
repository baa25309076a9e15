"""File syncs for the event loop: begun on the loop, which is called when they end.

The kernel's asynchronous I/O carries them out, or else a worker thread. A worker thread costs a round of group commit
more than the disk does. It is woken, waits for the interpreter's lock, and wakes the loop. Linux syncs a file without a
thread of ours (io_submit(2), IOCB_CMD_FDSYNC, since 4.18) and reports it through an eventfd. On other systems and some
filesystems, a worker thread syncs.
"""

from __future__ import annotations

import asyncio
import errno
import os
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Final, Protocol

from headrace.base.limits import KERNEL_SYNCS_MAX

try:
    from caio.linux_aio import Context, Operation
except ImportError:  # not Linux
    HAS_KERNEL_SYNCS = False
else:
    HAS_KERNEL_SYNCS = True

Done = Callable[[OSError | None], object]


class Syncable(Protocol):
    """An open file of the operating system."""

    def fileno(self) -> int: ...
    def sync(self) -> None: ...


class Syncs(Protocol):
    """One way to sync files, on one loop."""

    @property
    def loop(self) -> asyncio.AbstractEventLoop: ...

    def begin(self, file: Syncable, done: Done) -> None:
        """Sync the file. `done` is called later, on the loop, with the failure or None."""


class ThreadSyncs:
    """Syncs in the loop's worker threads."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop: Final = loop

    def begin(self, file: Syncable, done: Done) -> None:
        self.loop.run_in_executor(None, file.sync).add_done_callback(partial(_tell, done))


def _tell(done: Done, work: asyncio.Future[None]) -> None:
    if work.cancelled():
        return
    failure = work.exception()
    if failure is None or isinstance(failure, OSError):
        done(failure)
    else:  # the caller must not wait for ever
        done(OSError(errno.EIO, f"the sync could not be carried out: {failure!r}"))


class KernelSyncs:
    """Syncs by the kernel. Changes to worker threads for good where a file's filesystem does not support it."""

    def __init__(self, loop: asyncio.AbstractEventLoop, context: Context) -> None:
        self.loop: Final = loop
        self._context = context
        self._threads = ThreadSyncs(loop)
        self._refused = False
        self._in_flight = 0
        self._ended: list[tuple[Done, int]] = []
        loop.add_reader(context.fileno, self._on_ended)

    def begin(self, file: Syncable, done: Done) -> None:
        if self._refused or self._in_flight == KERNEL_SYNCS_MAX:
            self._threads.begin(file, done)
            return
        operation = Operation.fdsync(file.fileno())
        operation.set_callback(lambda result: self._ended.append((done, result)))
        try:
            self._context.submit(operation)
        except (OSError, ValueError):  # nothing was begun
            self._refused = True
            self._threads.begin(file, done)
        else:
            self._in_flight += 1

    def _on_ended(self) -> None:
        with suppress(BlockingIOError):  # one event may have counted several syncs
            self._context.poll()
        self._look()

    def _look(self) -> None:
        """Report all syncs that have ended. A signal may interrupt `process_events` before it finds any. Those found
        earlier are reported, and the look is repeated, since no other event would announce the rest.
        """
        try:
            while self._context.process_events():
                pass
        except SystemError as error:
            if error.args[:1] != (errno.EINTR,):
                raise
            self.loop.call_soon(self._look)
        finally:
            ended, self._ended = self._ended, []
            for done, result in ended:
                self._in_flight -= 1
                done(_failure(result))


def _failure(result: int) -> OSError | None:
    """A negative result is an error number, which the extension gives as 64 bits without a sign."""
    number = -result % 2**64
    return OSError(number, os.strerror(number)) if number else None


def syncs_on(loop: asyncio.AbstractEventLoop) -> Syncs:
    """The best way that this machine offers."""
    if HAS_KERNEL_SYNCS:
        try:
            return KernelSyncs(loop, Context(KERNEL_SYNCS_MAX))
        except (OSError, RuntimeError, SystemError, ValueError, NotImplementedError):
            pass  # no such system call, none allowed here, or too many contexts on this machine
    return ThreadSyncs(loop)
