"""How much all connections together may hold, and which of them has to go where that is too much.

A frame counts whole as soon as its length is known, as in Kafka's memory pool (KIP-72): one that is admitted can always
be finished, so that no set of half frames can block each other. Unfinished frames may take half of the bound only;
requests that come in one piece have the rest. Who announces a frame and then sends slowly, or does not read its
answers, gives up its place to those who wait.

Answers that are not sent yet have a bound of their own, for all connections together. The fuller it is, the smaller
fetches' answers become. From half of it on, a reader that takes nothing for SLOW_READER_MS_MAX is closed; at the bound,
the one that has taken nothing for longest, at once. A slow reader that takes its bytes is left alone. Never does: touch
a socket (that is the connection's).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, NamedTuple, Protocol

from headrace.base.limits import (
    CONNECTION_IDLE_MS_MAX,
    CONNECTION_PATIENCE_MS,
    FRAME_BYTES_PER_SECOND_MIN,
    FRAME_MS_MAX,
    QUEUED_REQUEST_BYTES_MAX,
    REQUEST_BYTES_MAX,
    SLOW_READER_MS_MAX,
    UNSENT_ANSWER_BYTES_MAX,
    UNSENT_SHARE_OF_ROOM,
    WAITING_REQUEST_BYTES_MAX,
)


class Holder(Protocol):
    """A connection, as far as it takes room."""

    @property
    def held_bytes(self) -> int:
        """What ending it would give back."""

    @property
    def waiting_bytes(self) -> int:
        """What it has sent of a frame that is not admitted: who has sent more is admitted first."""

    @property
    def unsent_bytes(self) -> int:
        """What it has not taken of its answers."""

    def proceed(self) -> None:
        """There may be room again."""

    def is_in_the_way(self, now: float) -> bool:
        """Whether it holds bytes and does nothing towards giving them back."""

    def end(self, reason: str) -> None:
        """Close it at once, with one log line."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """What a listener allows. Times in milliseconds."""

    queued_bytes_max: int = QUEUED_REQUEST_BYTES_MAX
    """Bytes received and not yet answered, over all connections (Kafka's queued.max.request.bytes)."""
    waiting_bytes_max: int = WAITING_REQUEST_BYTES_MAX
    """What may come beyond that before the reading stops: at most one read of each connection."""
    unsent_bytes_max: int = UNSENT_ANSWER_BYTES_MAX
    """Answers that are not sent yet, over all connections."""
    slow_reader_ms_max: int = SLOW_READER_MS_MAX
    """Time without a byte taken after which a reader is closed where answers take half of their room."""
    idle_ms_max: int = CONNECTION_IDLE_MS_MAX
    """Silence after which a connection is closed (Kafka's connections.max.idle.ms); -1: never."""
    frame_ms_max: int = FRAME_MS_MAX
    """Time in which a frame, once begun, has to be whole; larger ones get more, see `frame_seconds`."""
    patience_ms: int = CONNECTION_PATIENCE_MS
    """How long some wait for room before others are closed to make it."""

    def frame_seconds(self, size: int) -> float:
        """How long the sending of a frame of this size may take."""
        return self.frame_ms_max / 1000 + size / FRAME_BYTES_PER_SECOND_MIN

    @property
    def sweep_seconds(self) -> float:
        """Time between two looks for connections that have to go: often enough for the shortest of the bounds."""
        shortest_ms = min(
            self.idle_ms_max if self.idle_ms_max > 0 else FRAME_MS_MAX,
            self.frame_ms_max,
            self.patience_ms,
            self.slow_reader_ms_max,
        )
        return max(shortest_ms / 2_000, 0.01)


@dataclass(slots=True)
class Gauge:
    """What is held at this moment, over all connections."""

    connections: int = 0
    queued_bytes: int = 0
    """Bytes of frames received and not yet answered, and of frames that are admitted and not yet whole."""
    reserved_bytes: int = 0
    """Those of `queued_bytes` that belong to frames which are not yet whole."""
    waiting_bytes: int = 0
    """First bytes of frames that are not yet admitted: at most one read of each connection."""
    unsent_bytes: int = 0
    """Answers that are not sent yet, as far as they are noted: at once where a connection has more of them than
    RESPONSE_QUEUE_BYTES_MAX, else at the next sweep."""


class _Unread(NamedTuple):
    """What one connection has not read."""

    size: int
    since: float
    """When it was last seen to have taken something, or began not to."""


class RequestBudget:
    """The accounts. `now` is the time of the last sweep, by the event loop's clock: exact enough for every bound."""

    def __init__(self, bounds: Bounds) -> None:
        self.bounds: Final = bounds
        self.gauge: Final = Gauge()
        self.now = 0.0
        self._starved: dict[Holder, float] = {}
        """Those that read no further until something is answered, and since when."""
        self._unadmitted: dict[Holder, float] = {}
        """Those whose frame waits for its reservation, and since when."""
        self._unread: dict[Holder, _Unread] = {}
        """Connections that have answers to read; first the one that has taken nothing for longest."""
        self._waking = False

    # requests

    @property
    def is_full(self) -> bool:
        """Whether nobody reads further until something is answered. Unfinished frames take at most half of it."""
        gauge, bound = self.gauge, self.bounds.queued_bytes_max
        if gauge.queued_bytes < bound:
            return False
        return gauge.queued_bytes - gauge.reserved_bytes + min(gauge.reserved_bytes, bound // 2) >= bound

    @property
    def may_reserve(self) -> bool:
        """Whether a further unfinished frame is admitted; the last one may go over the bound, whatever its size."""
        return not self.is_full and 2 * self.gauge.reserved_bytes < self.bounds.queued_bytes_max

    @property
    def is_overrun(self) -> bool:
        """Whether so much came before the reading could stop that whoever sends more is closed."""
        gauge, more = self.gauge, self.bounds.waiting_bytes_max
        return (
            gauge.waiting_bytes > more or gauge.queued_bytes > self.bounds.queued_bytes_max + REQUEST_BYTES_MAX + more
        )

    def release(self, size: int) -> None:
        """Frames were answered or dropped: those that waited for room go on."""
        self.gauge.queued_bytes -= size
        if self._starved or self._unadmitted:
            self._wake()

    def reserve(self, holder: Holder, size: int) -> bool:
        """Admit a frame of `size` bytes that is not yet whole; False: `holder` waits until it is woken."""
        if not self.may_reserve:
            self._unadmitted.setdefault(holder, self.now)
            return False
        self.gauge.queued_bytes += size
        self.gauge.reserved_bytes += size
        return True

    def starve(self, holder: Holder) -> None:
        """Remember to wake it once there is room again."""
        self._starved.setdefault(holder, self.now)

    def forget(self, holder: Holder) -> None:
        """It is gone."""
        self._starved.pop(holder, None)
        self._unadmitted.pop(holder, None)
        self._has_gone(holder)

    def _wake(self) -> None:
        if self._waking:
            return
        self._waking = True
        try:
            while True:  # whoever goes on may make room for either kind, or take it
                if self._starved and not self.is_full:
                    holder = next(iter(self._starved))
                    del self._starved[holder]
                elif self._unadmitted and self.may_reserve:
                    holder = max(self._unadmitted, key=lambda each: each.waiting_bytes)
                    del self._unadmitted[holder]
                else:
                    return
                holder.proceed()
        finally:
            self._waking = False

    def relieve(self, holders: Iterable[Holder]) -> None:
        """Where some have waited for longer than is right, end those that hold more than their
        share and are in the way, the largest first."""
        since = min((at for waiting in (self._starved, self._unadmitted) for at in waiting.values()), default=self.now)
        if (self.now - since) * 1000 < self.bounds.patience_ms:
            return
        share = self.bounds.queued_bytes_max // 2 // max(self.gauge.connections, 1)
        held = [(holder.held_bytes, holder) for holder in holders if holder.is_in_the_way(self.now)]
        for size, holder in sorted(held, key=lambda each: each[0], reverse=True):
            if size < share:
                return
            if self.may_reserve or not self.is_pressed:
                return
            holder.end("it holds up others, who wait for room")

    @property
    def is_pressed(self) -> bool:
        """Whether anybody waits for room."""
        return bool(self._starved or self._unadmitted)

    # answers

    @property
    def answer_bytes_max(self) -> int:
        """How large a fetch's answer may be now, but for its first batch: so that many at once stay within the bound.
        At least 1."""
        return max((self.bounds.unsent_bytes_max - self.gauge.unsent_bytes) // UNSENT_SHARE_OF_ROOM, 1)

    def note_unsent(self, holder: Holder) -> bool:
        """Note what it has to read, and return whether it has taken something since that was noted last. At the bound
        whoever has taken nothing for longest is ended."""
        has_taken = self._note(holder)
        if self.gauge.unsent_bytes > self.bounds.unsent_bytes_max:
            for each in list(self._unread):
                self._note(each)
            self._end_slowest(self.bounds.unsent_bytes_max, patience_ms=0)
        return has_taken

    def has_to_read(self, holder: Holder) -> bool:
        """Whether it is noted as having something to read."""
        return holder in self._unread

    def relieve_of_unsent(self) -> None:
        """Where the answers take half of their room, end those who have taken nothing for longer than is right."""
        if self.gauge.unsent_bytes > self.bounds.unsent_bytes_max // 2:
            self._end_slowest(self.bounds.unsent_bytes_max // 2, patience_ms=self.bounds.slow_reader_ms_max)

    def _note(self, holder: Holder) -> bool:
        size, before = holder.unsent_bytes, self._unread.get(holder)
        if before is None:
            if size:
                self._unread[holder] = _Unread(size, self.now)
                self.gauge.unsent_bytes += size
            return False
        has_taken = size < before.size
        if has_taken:
            del self._unread[holder]  # to stand last
        if size:
            self._unread[holder] = _Unread(size, self.now if has_taken else before.since)
        self.gauge.unsent_bytes += size - before.size
        return has_taken

    def _end_slowest(self, bytes_max: int, *, patience_ms: int) -> None:
        """Until no more than so much is left, or nobody has been waited for that long."""
        while self.gauge.unsent_bytes > bytes_max:
            slowest, unread = next(iter(self._unread.items()))
            if (self.now - unread.since) * 1000 < patience_ms:
                return
            self._has_gone(slowest)
            slowest.end("it does not read its answers, and others have to")

    def _has_gone(self, holder: Holder) -> None:
        unread = self._unread.pop(holder, None)
        if unread is not None:
            self.gauge.unsent_bytes -= unread.size
