"""The room on the logs' disk, and the partitions that wait for some.

Promises:
- Clients' writes are refused before the disk is full, as soon as fewer than `log.disk.min.free.bytes` are left. They
  are accepted again once these are free.
- Brokers' writes for groups go on down to half of that. The rest is for the quorum's log, checkpoints and the journal.
- A partition that found the disk full goes on when there is room again.

The disk is asked in a worker thread, every DISK_LOOK_MS; appends are counted in between. Loop-only.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Final, Protocol

from headrace.base.limits import (
    DISK_LOOK_MS,
    DISK_RESERVE_BYTES_MAX,
    DISK_RESERVE_FRACTION,
    LOGS_TAKEN_UP_PER_TURN_MAX,
)
from headrace.base.ports import Space
from headrace.broker.kit.tasks import OnBug, in_thread, started
from headrace.logs import get_logger
from headrace.storage.engine.medium import DISK, Medium

log = get_logger(__name__)

UNKNOWN: Final = 2**62
"""Bytes left, as long as nobody has asked the disk."""


class Share:
    """Bytes that may still be appended by clients, or by brokers for groups, as far as is known. Below 0: none."""

    __slots__ = ("left",)

    def __init__(self) -> None:
        self.left = UNKNOWN


class Waiting(Protocol):
    """A partition that could not append, or be opened, for want of room."""

    @property
    def has_stepped_down(self) -> bool:
        """Whether it waits no more."""

    def go_on(self) -> bool:
        """Write what waits, as there is room. False: there was none after all."""


class DiskRoom:
    """One per broker. `min_free`: `log.disk.min.free.bytes` as it is now."""

    def __init__(
        self,
        space: Callable[[], Space],
        min_free: Callable[[], int],
        on_bug: OnBug,
        on_waiting: Callable[[Sequence[Waiting]], object],
        medium: Medium = DISK,
    ) -> None:
        """`on_waiting` is called, at each look that finds no room, with everything that waits for it."""
        self.medium: Final = medium
        self._space = space
        self._min_free = min_free
        self._on_bug = on_bug
        self._on_waiting = on_waiting
        self._clients, self._groups = Share(), Share()
        self._waiting: dict[Waiting, None] = {}
        self._looking: asyncio.Task[None] | None = None
        self._found_none = False
        """A write found the disk full since the last look, whatever the disk itself says."""
        self._was_short = False
        """Whether the shortage was logged last."""
        self._is_silent = False
        """The disk does not say how much room it has, as was logged."""
        self.is_read_only = False
        """The volume is mounted read-only."""
        self.usable = -1
        """Usable bytes at the last look; -1: there was none yet, or the disk does not say."""
        self.reserve = 0
        """Bytes that are to stay free."""

    @property
    def is_short(self) -> bool:
        """Whether clients' appends are refused, as far as is known."""
        return self._found_none or self._clients.left < 0

    def share(self, *, internal: bool) -> Share:
        """Return the share of a partition."""
        return self._groups if internal else self._clients

    def start(self) -> None:
        self._looking = started(self._look_on(), "looks at the disk's room", self._on_bug)

    def stop(self) -> None:
        if self._looking is not None:
            self._looking.cancel()

    def lack(self, partition: Waiting, *, is_full: bool = False) -> None:
        """Let a partition wait for room. `is_full`: a write has found none, so no other need try before the next
        look."""
        self._waiting[partition] = None
        if is_full:
            self._found_none = True
            self._clients.left = self._groups.left = -1

    async def _look_on(self) -> None:
        while True:
            await self.look()
            await asyncio.sleep(DISK_LOOK_MS / 1000)

    async def look(self) -> None:
        """Look now."""
        was_full, self._found_none = self._found_none, False
        space = await self._ask()
        self.reserve = reserve_of(space, self._min_free())
        self.usable, self.is_read_only = -1 if self._is_silent else space.usable, space.is_read_only
        if not self._found_none:
            self._clients.left = space.usable - self.reserve
            self._groups.left = space.usable - self.reserve // 2
        await self._let_on()
        self._tell(is_short=was_full or self.is_short)

    async def _ask(self) -> Space:
        """Return the disk's space; an endless one, where the disk does not say."""
        try:
            space = await in_thread(self._space)
        except OSError as error:
            if not self._is_silent:
                log.warning(self.medium.has_room, reason=str(error))
            self._is_silent = True
            return Space(0, UNKNOWN)
        self._is_silent = False
        return space

    async def _let_on(self) -> None:
        """Let those go on for which there is room, each once; the first that finds the disk full ends it."""
        self._waiting = {each: None for each in self._waiting if not each.has_stepped_down}
        for number, each in enumerate(list(self._waiting), 1):
            if self._found_none or self._groups.left < 0:
                break
            if each.go_on():
                self._waiting.pop(each, None)
            if number % LOGS_TAKEN_UP_PER_TURN_MAX == 0:
                await asyncio.sleep(0)
        if self._waiting:
            self._on_waiting(list(self._waiting))

    def _tell(self, *, is_short: bool) -> None:
        """Log that the disk is full, or has room again. It has room once a look has passed in which no write found it
        full: a quota does not show in the disk's own numbers."""
        was_short, self._was_short = self._was_short, is_short
        if is_short and not was_short:
            log.error(
                f"{self.medium.name} is full, or nearly: what clients write is refused, and all is read as before; "
                f"free space (delete topics, shorten retention) or {self.medium.larger}, and writes go on by "
                "themselves",
                free_bytes=self.usable,
                min_free_bytes=self.reserve,
            )
        elif was_short and not is_short:
            log.info(
                f"{self.medium.name} has room again: writes go on", free_bytes=self.usable, min_free_bytes=self.reserve
            )


def reserve_of(space: Space, min_free: int) -> int:
    """Return the bytes that are to stay free; with `min_free` of -1 the size of the volume decides."""
    if min_free >= 0:
        return min_free
    return min(DISK_RESERVE_BYTES_MAX, space.total // DISK_RESERVE_FRACTION)
