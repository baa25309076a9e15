"""Incremental fetch sessions (KIP-227): what a reader asked for is remembered, so that it names only changes.

Promises: a session's epoch is checked at every step. A lost or repeated request is noticed, and never answered from the
wrong state. The numbers of sessions and of their partitions, and the length of topic names, are bounded. It never reads
data.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from headrace.base.ids import Offset, PartitionIndex, TopicId
from headrace.base.limits import FETCH_SESSION_PARTITIONS_MAX, FETCH_SESSIONS_MAX, TOPIC_NAME_CHARS_MAX
from headrace.base.ports import Clock, Random
from headrace.wire.errors import ErrorCode

NO_SESSION: Final = 0
INITIAL_EPOCH: Final = 0
FINAL_EPOCH: Final = -1
EVICTABLE_AFTER_MS: Final = 120_000
EPOCH_MAX: Final = 2**31 - 1


class PartitionKey(NamedTuple):
    """A partition as the request named it: by topic name up to version 12, by topic id from 13 on."""

    topic: str | TopicId
    partition: PartitionIndex


class Wanted(NamedTuple):
    """The request of a reader for one partition."""

    offset: Offset
    bytes_max: int
    leader_epoch: int
    """The epoch that the reader believes in, or -1."""


@dataclass(slots=True)
class Shown:
    """The last answer to the reader about a partition: later answers leave it out while nothing of it changes."""

    high_watermark: int = -1
    log_start_offset: int = -1


@dataclass(slots=True)
class FetchSession:
    """One reader's session. `wanted` is in the order of service: a partition that sent data goes to the back
    (fairness)."""

    session_id: int
    next_epoch: int
    by_id: bool
    wanted: OrderedDict[PartitionKey, Wanted] = field(default_factory=OrderedDict)
    shown: dict[PartitionKey, Shown] = field(default_factory=dict)
    used_at_ms: int = 0

    def served(self, key: PartitionKey) -> None:
        """Move this partition behind the others, as data of it went out."""
        if key in self.wanted:
            self.wanted.move_to_end(key)

    def is_news(self, key: PartitionKey, high_watermark: int, log_start_offset: int) -> bool:
        """Whether these differ from what the reader knows. Remembers them."""
        if key not in self.wanted:  # forgotten while the fetch was parked
            return True
        shown = self.shown.setdefault(key, Shown())
        if (shown.high_watermark, shown.log_start_offset) == (high_watermark, log_start_offset):
            return False
        shown.high_watermark, shown.log_start_offset = high_watermark, log_start_offset
        return True


class FetchPlan(NamedTuple):
    """The plan for one request: the partitions to read, in order, and the session to answer under."""

    wanted: list[tuple[PartitionKey, Wanted]]
    session: FetchSession | None
    """None: sessionless, everything is answered in full."""
    incremental: bool
    """True: partitions without news are left out of the answer."""


class FetchSessions:
    """The broker's sessions, least recently used first."""

    def __init__(self, clock: Clock, random: Random) -> None:
        self._clock = clock
        self._random = random
        self._sessions: OrderedDict[int, FetchSession] = OrderedDict()
        self._partitions = 0
        """Partitions in all sessions together."""

    def __len__(self) -> int:
        return len(self._sessions)

    def plan(
        self,
        *,
        session_id: int,
        epoch: int,
        by_id: bool,
        wanted: Iterable[tuple[PartitionKey, Wanted]],
        forgotten: Iterable[PartitionKey],
    ) -> FetchPlan | ErrorCode:
        """Plan one request. A refusal is FETCH_SESSION_ID_NOT_FOUND, INVALID_FETCH_SESSION_EPOCH or
        FETCH_SESSION_TOPIC_ID_ERROR, on which the reader begins a new session."""
        if epoch in (INITIAL_EPOCH, FINAL_EPOCH):
            self.end(session_id)
            items = list(wanted)
            session = self._open(by_id, items) if epoch == INITIAL_EPOCH else None
            return FetchPlan(items, session, incremental=False)
        session = self._sessions.get(session_id)
        if session is None:
            return ErrorCode.FETCH_SESSION_ID_NOT_FOUND
        if epoch != session.next_epoch:
            return ErrorCode.INVALID_FETCH_SESSION_EPOCH
        if by_id != session.by_id:
            return ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR
        more = list(wanted)
        self._update(session, more, forgotten)
        if self._partitions > FETCH_SESSION_PARTITIONS_MAX or _names_too_long(key for key, _ in more):
            self.end(session_id)
            return ErrorCode.FETCH_SESSION_ID_NOT_FOUND
        return FetchPlan(list(session.wanted.items()), session, incremental=True)

    def _update(
        self,
        session: FetchSession,
        wanted: Iterable[tuple[PartitionKey, Wanted]],
        forgotten: Iterable[PartitionKey],
    ) -> None:
        before = len(session.wanted)
        for key in forgotten:
            session.wanted.pop(key, None)
            session.shown.pop(key, None)
        session.wanted.update(wanted)
        self._partitions += len(session.wanted) - before
        session.next_epoch = 1 if session.next_epoch == EPOCH_MAX else session.next_epoch + 1
        session.used_at_ms = self._now_ms()
        self._sessions.move_to_end(session.session_id)

    def _now_ms(self) -> int:
        """The monotonic time: with a wall clock that jumps back, idle sessions would be kept for as long."""
        return int(self._clock.monotonic() * 1000)

    def forget_shown(self, session_id: int, keys: Iterable[PartitionKey]) -> None:
        """Note that the reader did not hear of these after all, so that they are news when it asks next."""
        session = self._sessions.get(session_id)
        if session is not None:
            for key in keys:
                session.shown.pop(key, None)

    def end(self, session_id: int) -> None:
        """End a session and free its place; does nothing where there is no such session."""
        session = self._sessions.pop(session_id, None)
        if session is not None:
            self._partitions -= len(session.wanted)

    def _open(self, by_id: bool, items: Iterable[tuple[PartitionKey, Wanted]]) -> FetchSession | None:
        """Return a new session, or None where sessions in use take all places."""
        now_ms = self._now_ms()
        if len(self._sessions) >= FETCH_SESSIONS_MAX:
            oldest = next(iter(self._sessions.values()))
            if now_ms - oldest.used_at_ms < EVICTABLE_AFTER_MS:
                return None
            self.end(oldest.session_id)
        session_id = self._random.randrange(1, 2**31)
        while session_id in self._sessions:
            session_id = self._random.randrange(1, 2**31)
        session = FetchSession(session_id, next_epoch=1, by_id=by_id, used_at_ms=now_ms)
        session.wanted.update(items)
        if self._partitions + len(session.wanted) > FETCH_SESSION_PARTITIONS_MAX or _names_too_long(session.wanted):
            return None
        self._partitions += len(session.wanted)
        self._sessions[session_id] = session
        return session


def _names_too_long(keys: Iterable[PartitionKey]) -> bool:
    """Whether a key names a topic too long to exist, which may be as long as a request. None is remembered."""
    return any(isinstance(key.topic, str) and len(key.topic) > TOPIC_NAME_CHARS_MAX for key in keys)
