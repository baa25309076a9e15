"""Whether a peer has gone, asked of a socket that is not being read: its end may lie behind data that nobody takes.

Not seen: an end that is still on the other side, behind more than the receive buffer takes. Source: poll(2),
POLLRDHUP, which is Linux's; elsewhere only an error of the connection is seen.
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
    """A socket, or what an event loop gives in its place."""

    def fileno(self) -> int: ...


def has_hung_up(own: HasDescriptor | None) -> bool:
    """Whether the other side has closed it, or it failed. One call of the system, which does not wait. None: a
    transport without a socket, of which nothing is known."""
    if own is None or own.fileno() < 0:
        return False
    asked = select.poll()
    asked.register(own.fileno(), GONE)
    return bool(asked.poll(0))
