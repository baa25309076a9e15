"""Viewers' sessions: each has its own client of the cluster, so that it sees and does what its user may.

Promises:
- A session is known by a token of chance, of which only the hash is kept here.
- It ends when its viewer leaves, asks for nothing for a while, has been there for hours, or is let in no more. It
  ends with its viewer's token, too. Its streams end with it, and so do its client and its password or token.
- Nothing of one session is shown in another.
"""

from __future__ import annotations

import asyncio
import math
import secrets
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from hashlib import sha256
from typing import Final, Protocol

from headrace.base.errors import HeadraceError
from headrace.base.limits import (
    CONSOLE_IDLE_MS,
    CONSOLE_SESSION_MS_MAX,
    CONSOLE_SESSIONS_MAX,
    CONSOLE_SESSIONS_OF_A_USER_MAX,
    CONSOLE_SWEEP_MS,
    LOOK_MS_MAX,
)
from headrace.console.login import Admission, Login
from headrace.console.renderings import Renderings
from headrace.console.state import PATIENCE, Console, Settings
from headrace.logs import get_logger

TOKEN_BYTES: Final = 32
TOO_OLD: Final = "it was not used, or is too old, or its token has expired"
_LOG: Final = get_logger("headrace.audit")


@dataclass(slots=True, eq=False)
class Session:
    """One viewer's stay."""

    console: Console
    renderings: Renderings = field(default_factory=Renderings)
    begun_s: float = 0.0
    used_s: float = 0.0
    ends_s: float = math.inf
    """When the viewer's token expires."""

    @property
    def user(self) -> str:
        """Empty: nobody logs in."""
        return self.console.user


class Viewers(Protocol):
    """The viewers of a console."""

    settings: Settings
    login: Login | None
    """None: nobody logs in."""

    def clock(self) -> float:
        """Seconds on the clock by which viewers' idle time, and failed logins, count."""

    def of(self, token: str, *, uses: bool) -> Session | None:
        """The session of this token; None: there is none. `uses`: a person asks."""

    def open(self, admission: Admission) -> str:
        """A new session's token. Raises HeadraceError."""

    def close(self, token: str) -> None:
        """End this session, if there is one."""

    def close_all(self) -> None:
        """End all of them."""

    def alive(self) -> AbstractAsyncContextManager[None]:
        """Sessions live within the block."""


class Everybody:
    """All who reach the console, as one viewer: nobody is asked who it is."""

    login: Login | None = None

    def __init__(self, console: Console) -> None:
        self._session = Session(console)
        self.settings = console.settings

    def clock(self) -> float:
        return time.monotonic()

    def of(self, token: str, *, uses: bool) -> Session | None:
        return self._session

    def open(self, admission: Admission) -> str:
        raise HeadraceError("This console asks nobody to log in.")

    def close(self, token: str) -> None:
        """Nobody leaves."""

    def close_all(self) -> None:
        self._session.console.close()

    def alive(self) -> AbstractAsyncContextManager[None]:
        return self._session.console.alive()


class Sessions:
    """Viewers who have logged in."""

    def __init__(
        self,
        login: Login,
        settings: Settings,
        *,
        idle_ms: int = CONSOLE_IDLE_MS,
        clock: Callable[[], float] = time.monotonic,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        self.login: Login | None = login
        self.settings = settings
        self._wall_clock = wall_clock
        self._idle_s = idle_ms / 1000
        self.clock = clock
        self._sessions: dict[str, Session] = {}
        """By the hash of the token."""
        self._living: set[asyncio.Task[None]] = set()

    def of(self, token: str, *, uses: bool) -> Session | None:
        session = self._sessions.get(_hash(token))
        if session is None or session.console.closing.is_set():
            return None
        if self._is_over(session):
            self._end(_hash(token), TOO_OLD)
            return None
        if uses:
            session.used_s = self.clock()
        return session

    def _is_over(self, session: Session) -> bool:
        now = self.clock()
        is_old = now - session.begun_s > CONSOLE_SESSION_MS_MAX / 1000
        return now >= session.ends_s or now - session.used_s > self._idle_s or is_old

    def open(self, admission: Admission) -> str:
        user, reach, expires_at_s = admission
        self.sweep()
        own = sorted((each.used_s, key) for key, each in self._sessions.items() if each.user == user)
        if len(own) >= CONSOLE_SESSIONS_OF_A_USER_MAX:
            self._end(own[0][1], "its user has too many others")
        if len(self._sessions) >= CONSOLE_SESSIONS_MAX:
            raise HeadraceError(f"{CONSOLE_SESSIONS_MAX} viewers are logged in, and no more may be: try again later.")
        token = secrets.token_urlsafe(TOKEN_BYTES)
        key, now = _hash(token), self.clock()
        console = Console(
            reach,
            reach(backoff=PATIENCE, request_timeout_ms=LOOK_MS_MAX),
            self.settings,
            user,
            on_refused=partial(self._end, key, "the cluster lets its user in no more"),
            looks_alone=False,
        )
        ends_s = math.inf if expires_at_s is None else now + expires_at_s - self._wall_clock()
        self._sessions[key] = Session(console, begun_s=now, used_s=now, ends_s=ends_s)
        task = asyncio.create_task(self._live(console))
        self._living.add(task)
        task.add_done_callback(self._living.discard)
        return token

    async def _live(self, console: Console) -> None:
        async with console.cluster, console.alive():
            await console.closing.wait()

    def close(self, token: str) -> None:
        self._end(_hash(token), "its viewer has left")

    def _end(self, key: str, reason: str) -> None:
        if (session := self._sessions.pop(key, None)) is not None:
            session.console.close()
            _LOG.info("a session of the console is over", user=session.user, reason=reason)

    def sweep(self) -> None:
        """End those that are over."""
        for key, session in list(self._sessions.items()):
            if self._is_over(session):
                self._end(key, TOO_OLD)

    def close_all(self) -> None:
        for key in list(self._sessions):
            self._end(key, "the console stops")

    @asynccontextmanager
    async def alive(self) -> AsyncIterator[None]:
        sweeping = asyncio.create_task(self._sweep_often())
        try:
            yield
        finally:
            self.close_all()
            sweeping.cancel()
            await asyncio.gather(sweeping, *self._living, return_exceptions=True)

    async def _sweep_often(self) -> None:
        while True:
            await asyncio.sleep(CONSOLE_SWEEP_MS / 1000)
            self.sweep()


def _hash(token: str) -> str:
    return sha256(token.encode(errors="replace")).hexdigest()
