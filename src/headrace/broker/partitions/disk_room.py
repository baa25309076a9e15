"""How much room the logs' disk has, and who waits for some.

Promises: what clients write is refused before the disk is full, as soon as fewer than `log.disk.min.free.bytes` are
left, and taken again once they are free; what brokers write for groups goes on down to half of that. The rest is for
the quorum's log, checkpoints and the journal. Whoever found the disk full is told when there is room again. The disk is
asked in a worker thread, every DISK_LOOK_MS; in between what is appended is counted. Loop-only.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Final, Protocol

import structlog

from headrace.base.limits import (
    DISK_LOOK_MS,
    DISK_RESERVE_BYTES_MAX,
    DISK_RESERVE_FRACTION,
    LOGS_TAKEN_UP_PER_TURN_MAX,
)
from headrace.base.ports import Space
from headrace.broker.kit.tasks import OnBug, in_thread, started

log = structlog.get_logger(__name__)

UNKNOWN: Final = 2**63
"""Bytes left, as long as nobody has asked the disk."""


class Share:
    """Bytes that may still be appended by clients, or by brokers for groups, as far as is known. Below 0: none."""

    __slots__ = ("left",)

    def __init__(self) -> None:
        self.left = UNKNOWN


class Waiting(Protocol):
    """A partition that could not take something, or be opened, for want of room."""

    @property
    def has_stepped_down(self) -> bool:
        """It waits no more."""

    def go_on(self) -> bool:
        """There is room: write what waits. False: there was none after all."""


class DiskRoom:
    """One per broker. `min_free`: `log.disk.min.free.bytes` as it is now."""

    def __init__(self, space: Callable[[], Space], min_free: Callable[[], int], on_bug: OnBug) -> None:
        self._space = space
        self._min_free = min_free
        self._on_bug = on_bug
        self._clients, self._groups = Share(), Share()
        self._waiting: dict[Waiting, None] = {}
        self._looking: asyncio.Task[None] | None = None
        self._found_none = False
        """Since the last look a write found the disk full, whatever that says of itself."""
        self._was_short = False
        """As it was told last."""
        self._is_silent = False
        """It does not say how much room it has, of which it was told."""
        self.is_read_only = False
        """Its volume is mounted so."""
        self.usable = -1
        """Bytes, when it was last looked; -1: it was not yet, or does not say."""
        self.reserve = 0
        """Bytes that are to stay free."""
        self.on_waiting: Callable[[Sequence[Waiting]], object] = lambda _: None
        """Told, at each look that finds no room, of all that wait for it."""

    @property
    def is_short(self) -> bool:
        """Clients' appends are refused, as far as is known."""
        return self._found_none or self._clients.left < 0

    def share(self, *, internal: bool) -> Share:
        """Of a partition."""
        return self._groups if internal else self._clients

    def start(self) -> None:
        self._looking = started(self._look_on(), "looks at the disk's room", self._on_bug)

    def stop(self) -> None:
        if self._looking is not None:
            self._looking.cancel()

    def lack(self, partition: Waiting, *, is_full: bool = False) -> None:
        """It waits for room. `is_full`: a write has found none, so that nobody else need try before the next look."""
        self._waiting[partition] = None
        if is_full:
            self._found_none = True
            self._clients.left = self._groups.left = -1

    async def _look_on(self) -> None:
        while True:
            await self.look()
            await asyncio.sleep(DISK_LOOK_MS / 1000)

    async def look(self) -> None:
        """Now."""
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
        """As if there were no end to it, where the disk does not say."""
        try:
            space = await in_thread(self._space)
        except OSError as error:
            if not self._is_silent:
                log.warning("the logs' disk does not say how much room it has", reason=str(error))
            self._is_silent = True
            return Space(0, UNKNOWN)
        self._is_silent = False
        return space

    async def _let_on(self) -> None:
        """Those for whom there is room, each once; the first that finds the disk full ends it."""
        self._waiting = {each: None for each in self._waiting if not each.has_stepped_down}
        for number, each in enumerate(list(self._waiting), 1):
            if self._found_none or self._groups.left < 0:
                break
            if each.go_on():
                self._waiting.pop(each, None)
            if number % LOGS_TAKEN_UP_PER_TURN_MAX == 0:
                await asyncio.sleep(0)
        if self._waiting:
            self.on_waiting(list(self._waiting))

    def _tell(self, *, is_short: bool) -> None:
        """That it is over, once a look has passed in which nobody found it full: a quota says nothing of itself."""
        was_short, self._was_short = self._was_short, is_short
        if is_short and not was_short:
            log.error(
                "the disk is full, or nearly: what clients write is refused, and all is read as before; free space "
                "(delete topics, shorten retention) or make the volume larger, and writes go on by themselves",
                free_bytes=self.usable,
                min_free_bytes=self.reserve,
            )
        elif was_short and not is_short:
            log.info("the disk has room again: writes go on", free_bytes=self.usable, min_free_bytes=self.reserve)


def reserve_of(space: Space, min_free: int) -> int:
    """Bytes that are to stay free; `min_free` of -1 leaves it to the size of the volume."""
    if min_free >= 0:
        return min_free
    return min(DISK_RESERVE_BYTES_MAX, space.total // DISK_RESERVE_FRACTION)
