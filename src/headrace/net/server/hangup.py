"""Detects a peer's hang-up on a socket that is not being read, where the end may lie behind unread data.

An end is not seen while it is still on the other side, behind more than the receive buffer takes. Source: poll(2),
POLLRDHUP, which exists on Linux only; elsewhere only an error of the connection is seen.
"""

from __future__ import annotations

import select
import sys
from typing import Final, Protocol

if sys.platform == "linux":
    GONE: Final = select.POLLRDHUP | select.POLLHUP | select.POLLERR
else:
    GONE: Final = select.POLLHUP | select.POLLERR


class HasDescriptor(Protocol):
    """A socket, or an event loop's substitute for one."""

    def fileno(self) -> int: ...


def has_hung_up(own: HasDescriptor | None) -> bool:
    """Whether the other side has closed the connection, or it failed. Makes one system call, which does not wait. None
    stands for a transport without a socket, of which nothing is known.
    """
    if own is None or own.fileno() < 0:
        return False
    asked = select.poll()
    asked.register(own.fileno(), GONE)
    return bool(asked.poll(0))
