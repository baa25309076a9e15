"""Failed logins, bounded: of an address with one name, of an address, and of all together.

Promises: a login counts as failed until it has succeeded, so that many at once are bounded as well. Room comes back
over a minute. Names and addresses are forgotten, the oldest first, where there are too many.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable
from typing import Final, TypeAlias

from headrace.base.limits import (
    CONSOLE_FAILED_LOGINS_MAX,
    CONSOLE_FAILED_LOGINS_OF_A_NAME_MAX,
    CONSOLE_FAILED_LOGINS_OF_AN_ADDRESS_MAX,
    CONSOLE_FAILING_ADDRESSES_MAX,
)
from headrace.console.login import NAME_CHARS_MAX

Key: TypeAlias = tuple[str, ...]
RETURN_S: Final = 60.0
"""Time in which all of the room has come back."""


class Attempts:
    """See the module."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._used: OrderedDict[Key, tuple[float, float]] = OrderedDict()
        """Room that is used, and when that was so."""

    def begin(self, address: str, name: str) -> float:
        """Seconds to wait before another login; 0: it may be tried, and counts as failed."""
        kinds = _kinds(address, name)
        waits = [self._wait(key, most) for key, most in kinds]
        if any(waits):
            return max(waits)
        for key, most in kinds:
            self._use(key, most, 1)
        return 0.0

    def succeeded(self, address: str, name: str) -> None:
        """The login that was begun is no failed one."""
        for key, most in _kinds(address, name):
            self._use(key, most, -1)

    def _left(self, key: Key, most: int) -> float:
        used, at = self._used.get(key, (0.0, 0.0))
        return max(0.0, used - (self._clock() - at) * most / RETURN_S)

    def _wait(self, key: Key, most: int) -> float:
        return max(0.0, (self._left(key, most) + 1 - most) * RETURN_S / most)

    def _use(self, key: Key, most: int, count: int) -> None:
        self._used[key] = (max(0.0, self._left(key, most) + count), self._clock())
        self._used.move_to_end(key)
        while len(self._used) > CONSOLE_FAILING_ADDRESSES_MAX:
            self._used.popitem(last=False)


def _kinds(address: str, name: str) -> tuple[tuple[Key, int], ...]:
    name = name[: NAME_CHARS_MAX + 1]  # longer ones are nobody's
    return (
        ((), CONSOLE_FAILED_LOGINS_MAX),
        ((address,), CONSOLE_FAILED_LOGINS_OF_AN_ADDRESS_MAX),
        ((address, name), CONSOLE_FAILED_LOGINS_OF_A_NAME_MAX),
    )
