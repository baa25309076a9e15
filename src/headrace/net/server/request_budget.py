"""Bounds the bytes that all connections hold together, and closes connections where it is too much.

A frame counts whole as soon as its length is known, as in Kafka's memory pool (KIP-72). So an admitted frame can always
be finished, and half frames can never block each other. Unfinished frames may take only half of the bound; requests
that come in one piece have the rest. A client that announces a frame and then sends slowly, or does not read its
answers, loses its place to those that wait.

Answers that are not sent yet have a bound of their own, for all connections together. The fuller it is, the smaller
fetches' answers become. From half of it on, a reader that takes nothing for SLOW_READER_MS_MAX is closed. At the bound,
the reader that has taken nothing for longest is closed at once. A slow reader that takes its bytes is left alone. Never
does: touch a socket (the connection does).
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
from headrace.base.values import Value


class Holder(Protocol):
    """A connection, as far as the budget sees it."""

    @property
    def held_bytes(self) -> int:
        """Bytes that ending the connection would release."""

    @property
    def waiting_bytes(self) -> int:
        """Received bytes of a frame that is not admitted. The connection with the most is admitted first."""

    @property
    def unsent_bytes(self) -> int:
        """Bytes of its answers that it has not taken."""

    def proceed(self) -> None:
        """There may be room again: proceed."""

    def is_in_the_way(self, now: float) -> bool:
        """Whether it holds bytes and makes no progress towards releasing them."""

    def end(self, reason: str) -> None:
        """Close it at once, with one log line."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class Bounds(Value):
    """Limits of a listener. Times are in milliseconds."""

    queued_bytes_max: int = QUEUED_REQUEST_BYTES_MAX
    """Bytes received and not yet answered, over all connections (Kafka's queued.max.request.bytes)."""
    waiting_bytes_max: int = WAITING_REQUEST_BYTES_MAX
    """Bytes that may arrive beyond that before reading stops: at most one read of each connection."""
    unsent_bytes_max: int = UNSENT_ANSWER_BYTES_MAX
    """Bytes of answers that are not sent yet, over all connections."""
    slow_reader_ms_max: int = SLOW_READER_MS_MAX
    """A reader is closed after this time without taking a byte, if answers fill half of their room."""
    idle_ms_max: int = CONNECTION_IDLE_MS_MAX
    """A connection is closed after this silence (Kafka's connections.max.idle.ms); -1: never."""
    frame_ms_max: int = FRAME_MS_MAX
    """Time within which a frame, once begun, has to be whole. Larger frames get more, see `frame_seconds`."""
    patience_ms: int = CONNECTION_PATIENCE_MS
    """How long connections wait for room before others are closed to make it."""

    def frame_seconds(self, size: int) -> float:
        """Seconds that the sending of a frame of this size may take."""
        return self.frame_ms_max / 1000 + size / FRAME_BYTES_PER_SECOND_MIN

    @property
    def sweep_seconds(self) -> float:
        """Seconds between two sweeps: often enough for the shortest of the bounds."""
        shortest_ms = min(
            self.idle_ms_max if self.idle_ms_max > 0 else FRAME_MS_MAX,
            self.frame_ms_max,
            self.patience_ms,
            self.slow_reader_ms_max,
        )
        return max(shortest_ms / 2_000, 0.01)


@dataclass(slots=True)
class Gauge:
    """The amounts held at this moment, over all connections."""

    connections: int = 0
    queued_bytes: int = 0
    """Bytes of frames received and not yet answered, and of frames admitted and not yet whole."""
    reserved_bytes: int = 0
    """The part of `queued_bytes` that belongs to frames which are not yet whole."""
    waiting_bytes: int = 0
    """First bytes of frames that are not yet admitted: at most one read of each connection."""
    unsent_bytes: int = 0
    """Known bytes of answers that are not sent yet. They are noted at once for a connection with more than
    RESPONSE_QUEUE_BYTES_MAX of them, else at the next sweep.
    """


class _Unread(NamedTuple):
    """Answers that one connection has not read."""

    size: int
    since: float
    """When it was last seen to take something, or began not to."""


class RequestBudget:
    """The accounts of all connections. `now` is the time of the last sweep, by the event loop's clock: exact enough for
    every bound.
    """

    def __init__(self, bounds: Bounds) -> None:
        self.bounds: Final = bounds
        self.gauge: Final = Gauge()
        self.now = 0.0
        self._starved: dict[Holder, float] = {}
        """Connections that are not read until something is answered, and since when."""
        self._unadmitted: dict[Holder, float] = {}
        """Connections whose frame waits for its reservation, and since when."""
        self._unread: dict[Holder, _Unread] = {}
        """Connections with answers to read, first the one that has taken nothing for longest."""
        self._waking = False

    # requests

    @property
    def is_full(self) -> bool:
        """Whether no connection is read until something is answered. Unfinished frames fill at most half of the
        bound.
        """
        gauge, bound = self.gauge, self.bounds.queued_bytes_max
        if gauge.queued_bytes < bound:
            return False
        return gauge.queued_bytes - gauge.reserved_bytes + min(gauge.reserved_bytes, bound // 2) >= bound

    @property
    def may_reserve(self) -> bool:
        """Whether another unfinished frame is admitted. The last one may exceed the bound, whatever its size."""
        return not self.is_full and 2 * self.gauge.reserved_bytes < self.bounds.queued_bytes_max

    @property
    def is_overrun(self) -> bool:
        """Whether so much arrived before reading could stop that any connection that sends more is closed."""
        gauge, more = self.gauge, self.bounds.waiting_bytes_max
        return (
            gauge.waiting_bytes > more or gauge.queued_bytes > self.bounds.queued_bytes_max + REQUEST_BYTES_MAX + more
        )

    def release(self, size: int) -> None:
        """Frames were answered or dropped: connections that waited for room proceed."""
        self.gauge.queued_bytes -= size
        if self._starved or self._unadmitted:
            self._wake()

    def reserve(self, holder: Holder, size: int) -> bool:
        """Admit a frame of `size` bytes that is not yet whole. Returns False where `holder` has to wait until it is
        woken.
        """
        if not self.may_reserve:
            self._unadmitted.setdefault(holder, self.now)
            return False
        self.gauge.queued_bytes += size
        self.gauge.reserved_bytes += size
        return True

    def starve(self, holder: Holder) -> None:
        """Remember to wake the connection once there is room again."""
        self._starved.setdefault(holder, self.now)

    def forget(self, holder: Holder) -> None:
        """Forget a connection that is gone."""
        self._starved.pop(holder, None)
        self._unadmitted.pop(holder, None)
        self._has_gone(holder)

    def _wake(self) -> None:
        if self._waking:
            return
        self._waking = True
        try:
            while True:  # each woken connection may make room for either kind, or take it
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
        """Where connections have waited for longer than `patience_ms`, close those that hold more than their share and
        are in the way, the largest first.
        """
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
        """Whether any connection waits for room."""
        return bool(self._starved or self._unadmitted)

    # answers

    @property
    def answer_bytes_max(self) -> int:
        """The maximum size of a fetch's answer now, in bytes, except for its first batch. It keeps many at once within
        the bound. At least 1.
        """
        return max((self.bounds.unsent_bytes_max - self.gauge.unsent_bytes) // UNSENT_SHARE_OF_ROOM, 1)

    def note_unsent(self, holder: Holder) -> bool:
        """Note the unsent answers of a connection. Returns whether it has taken something since the last note. At the
        bound, the connection that has taken nothing for longest is closed.
        """
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
        """Where answers fill half of their room, close connections that have taken nothing for too long."""
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
            del self._unread[holder]  # to be last in order
        if size:
            self._unread[holder] = _Unread(size, self.now if has_taken else before.since)
        self.gauge.unsent_bytes += size - before.size
        return has_taken

    def _end_slowest(self, bytes_max: int, *, patience_ms: int) -> None:
        """Close the slowest readers until at most `bytes_max` are unsent, or none has taken nothing for
        `patience_ms`.
        """
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
