"""Feeds: what is asked of the cluster again and again, once for all viewers together.

Promises:
- A feed asks while a page that shows it is open, and otherwise seldom, or not at all. One of the latter kind asks for
  the first time when somebody views it.
- It pauses CONSOLE_LOOK_SHARE times as long as it asked, at most CONSOLE_PAUSE_MS_MAX.
- While nobody answers it keeps the last value, the time of that, and the reason. So it does after a bug.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, Final, Generic, TypeVar

from headrace.base.errors import HeadraceError
from headrace.base.limits import CONSOLE_FORGET_MS, CONSOLE_LOOK_SHARE, CONSOLE_PAUSE_MS_MAX
from headrace.logs import get_logger

T = TypeVar("T")
_LOG: Final = get_logger(__name__)


class ForbiddenError(HeadraceError):
    """The viewer's user may not see this."""


class Feed(Generic[T]):
    """The newest value of one thing."""

    def __init__(
        self,
        ask: Callable[[], Awaitable[T]],
        *,
        every_ms: int,
        idle_ms: int | None = None,
        on_value: Callable[[T], object] = lambda _: None,
        on_forgotten: Callable[[], object] = lambda: None,
        forget_ms: int = CONSOLE_FORGET_MS,
    ) -> None:
        """`idle_ms`: how often it is asked for while nobody views it; None: not at all, and then its value is forgotten
        after `forget_ms`.
        """
        self._ask = ask
        self._every_s = every_ms / 1000
        self._idle_s = None if idle_ms is None else idle_ms / 1000
        self._on_value = on_value
        self._on_forgotten = on_forgotten
        self._forget_s = forget_ms / 1000
        self._viewers = 0
        self._wanted = asyncio.Event()
        self._urgent = asyncio.Event()
        self._is_looking = False
        self._changed = asyncio.Event()
        self._closed = False
        self.rests = asyncio.Event()
        """Set while it waits for somebody who wants it, and asks for nothing by itself."""
        self.value: T | None = None
        self.at_ms = 0
        """When the value came, in milliseconds since 1970."""
        self.trouble = ""
        """Why there is no newer value; empty: there is."""
        self.error: Exception | None = None
        """The failure behind the trouble."""
        self.on_trouble: Callable[[Exception], object] = lambda _: None
        self.version = 0
        """Rises with each value and each trouble."""

    async def run(self) -> None:
        """Ask until it is closed. A cancellation may be lost in the middle of an answer (asyncio.wait_for)."""
        if self._idle_s is None:
            await self._wanted.wait()
        while not self._closed:
            begun = time.monotonic()
            await self._look()
            is_first = self.version == 1  # it opens connections, and loads code
            took = 0.0 if is_first else time.monotonic() - begun
            await self._pause(min(took * CONSOLE_LOOK_SHARE, CONSOLE_PAUSE_MS_MAX / 1000))

    async def _look(self) -> None:
        self._urgent.clear()
        self._is_looking = True
        try:
            self.value = await self._ask()
            self.trouble, self.error = "", None
            self.at_ms = time.time_ns() // 1_000_000
            self._on_value(self.value)
        except (HeadraceError, OSError, TimeoutError) as error:
            self.trouble = str(error) or "The brokers did not answer in time."
            self.error = error
            self.on_trouble(error)
        except Exception as error:  # its pages say so, and it asks again
            _LOG.error("a feed of the console has failed", exc_info=error)
            kind = type(error).__name__
            self.trouble = f"This is a bug in Headrace ({kind}); the console's log shows where, please report it."
            self.error = error
        finally:
            self._is_looking = False
        self.version += 1
        self._tell()

    async def _pause(self, at_least_s: float) -> None:
        self._wanted.clear()
        if self._closed:
            return
        with suppress(TimeoutError):
            async with asyncio.timeout(at_least_s):
                await self._urgent.wait()
                return
        seconds = self._every_s if self._viewers else self._idle_s
        if seconds is None:
            await self._wanted_or_forgotten()
            return
        with suppress(TimeoutError):
            async with asyncio.timeout(max(0.0, seconds - at_least_s)):
                await self._wanted.wait()

    async def _wanted_or_forgotten(self) -> None:
        """Wait until somebody wants it. Its value, which may be large, goes after a while."""
        self.rests.set()
        try:
            async with asyncio.timeout(self._forget_s):
                await self._wanted.wait()
        except TimeoutError:
            self.value, self.at_ms = None, 0
            self._on_forgotten()
            await self._wanted.wait()
        finally:
            self.rests.clear()

    def want(self) -> None:
        """Ask soon, without the rest of the pause."""
        self._wanted.set()

    async def renewed(self, within_ms: int) -> None:
        """Ask at once, and wait for an answer that is not from before, or until the time is over."""
        wanted = self.version + (2 if self._is_looking else 1)
        self._urgent.set()
        self.want()
        with suppress(TimeoutError):
            async with asyncio.timeout(within_ms / 1000):
                while self.version < wanted and not self._closed:
                    await self._changed.wait()

    @contextmanager
    def viewed(self) -> Iterator[None]:
        """Somebody views it within the block."""
        self._viewers += 1
        if self._viewers == 1 and (self.rests.is_set() or self._is_old()):
            self.want()
        try:
            yield
        finally:
            self._viewers -= 1

    def _is_old(self) -> bool:
        return bool(self.trouble) or time.time_ns() // 1_000_000 - self.at_ms > 2 * self._every_s * 1000

    async def settled(self, within_ms: int) -> None:
        """Wait until it is known, or is not to be known now, or the time is over."""
        if self._is_old():
            self.want()
        with suppress(TimeoutError):
            async with asyncio.timeout(within_ms / 1000):
                while self.value is None and not self.trouble and not self._closed:
                    await self._changed.wait()

    def close(self) -> None:
        """Wake all that wait, for good."""
        self._closed = True
        self._changed.set()
        self._wanted.set()

    def _tell(self) -> None:
        if not self._closed:
            self._changed.set()
            self._changed = asyncio.Event()

    def changed(self) -> asyncio.Event:
        """Set with the next value or trouble."""
        return self._changed


async def any_changed(feeds: Iterable[Feed[Any]], within_s: float) -> bool:
    """Wait until one of them has something new. Returns False where the time was over before."""
    waiting = [asyncio.ensure_future(feed.changed().wait()) for feed in feeds]
    try:
        done, _ = await asyncio.wait(waiting, timeout=within_s, return_when=asyncio.FIRST_COMPLETED)
        return bool(done)
    finally:
        for each in waiting:
            each.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)
