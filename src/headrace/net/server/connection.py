"""One client's connection: frames in, answers out in the order of the requests, within limits.

Promises:
- Answers leave in request order under any pipelining.
- A connection is not read while it does not read its answers, asks for too much at a time or finds no room.
- A connection that is malformed, idle, too slow or in the way of others is closed with one log line.

Never does: know the meaning of a frame (`serve` does).
"""

from __future__ import annotations

import asyncio
import socket
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeAlias, cast

from headrace.base.errors import CorruptData, NotAllowed
from headrace.base.limits import (
    ANSWER_BYTES_PER_TURN_MAX,
    CONTESTED_FRAME_BYTES_PER_SECOND_MIN,
    REQUEST_BYTES_MAX,
    REQUESTS_IN_FLIGHT_PER_CONNECTION_MAX,
    RESPONSE_QUEUE_BYTES_MAX,
)
from headrace.base.ports import Buffer
from headrace.base.values import Value
from headrace.net.server.hangup import has_hung_up
from headrace.net.server.loglimit import LogLimit
from headrace.net.server.request_budget import RequestBudget
from headrace.security.authorizer import ANONYMOUS
from headrace.wire.frames import LENGTH_BYTES, FrameSplitter

if TYPE_CHECKING:
    from headrace.net.server.tls import Tls

Answer: TypeAlias = list[Buffer]
"""A whole response frame, length prefix included, as buffers to write one after the other."""


class Later(Protocol):
    """An answer that is not ready yet."""

    @property
    def pipelined(self) -> bool:
        """Whether further frames of the connection are served while this answer is awaited."""

    def done(self) -> bool: ...

    def cancel(self) -> object:
        """Called when the answer is no longer wanted."""

    def add_done_callback(self, callback: Callable[[Any], object], /) -> object:
        """Call the callback, once, when the answer is ready."""

    def answer(self) -> Answer | None:
        """Called once the answer is ready: the frame to write, or None for no answer at all."""


Serve: TypeAlias = Callable[[memoryview, "Connection"], Answer | Later | None]
"""Serves one frame (without its length). Returns the answer, a promise of one, or None for none. Raises CorruptData
where the protocol cannot answer the frame; the connection is then closed.
"""


class Guard(Protocol):
    """Watches a connection whose client is not known yet."""

    def hold(self, size: int) -> bool:
        """An unfinished frame of this size is to be held. Returns whether there is room."""

    def release(self) -> None:
        """That frame is whole, or dropped."""

    def leave(self) -> None:
        """Called when the connection is gone."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class Door(Value):
    """A named listener, by which clients come in."""

    name: str = "PLAINTEXT"
    tls: Tls | None = None
    """None: nothing is encrypted."""
    greet: Callable[[Connection], None] | None = None
    """Called once a connection is admitted. It may set the connection's `principal`, and its `serve`."""


PLAIN_DOOR: Final = Door()


class Owner(Protocol):
    """The listener, as its connections see it."""

    serve: Serve
    room: RequestBudget
    log: LogLimit

    def admit(self, connection: Connection) -> bool:
        """Admit the connection, unless there are too many. Returns whether it was admitted."""

    def forget(self, connection: Connection) -> None:
        """Called when the connection is gone."""


class Connection(asyncio.Protocol):
    """One client's connection. Runs on the event loop alone."""

    def __init__(self, owner: Owner, door: Door = PLAIN_DOOR) -> None:
        self._owner = owner
        self._door = door
        self._room = owner.room
        self._splitter = FrameSplitter(REQUEST_BYTES_MAX)
        self._frames: deque[memoryview] = deque()
        self._slots: deque[tuple[int, Answer | Later | None]] = deque()
        """One entry for each request that is served and not answered, in order: its size, and its answer, if any, or
        the promise of one.
        """
        self._transport: asyncio.Transport | None = None
        self._reserved = 0
        """Size of the frame that is admitted and not yet whole."""
        self.waiting_bytes = 0
        """Received bytes of a frame that is not yet admitted."""
        self._begun_at: float | None = None
        """When the frame that is not yet whole began."""
        self._active_at = self._progress_at = self._room.now
        """The first: when the client last sent or took anything. The second: when it last sent a whole frame or was
        answered.
        """
        self._answered_bytes = 0
        """Bytes of answers that were ready at once and wait for their turn to be written."""
        self._muted = False
        """Nothing more is served until the present request is answered, or the throttle is over."""
        self._throttle: asyncio.TimerHandle | None = None
        """Ends the throttle, during which the connection is not read."""
        self._unwritable = False
        self._reading = True
        self._working = False
        self._due = False
        """The connection proceeds in the next turn of the loop, because a request was answered."""
        self._open = False
        """False before the connection is made, and once it is being closed. Nothing behind a malformed frame is carried
        out.
        """
        self._draining: asyncio.Future[None] | None = None
        self._gone: asyncio.Future[None] | None = None
        self.peer_host = ""
        self.serve: Serve = owner.serve
        """Serves the next frame. A listener may put another before it, for as long as it does not know the client."""
        self.guard: Guard | None = None
        """Bounds the unfinished frames, for as long as the listener does not know the client."""
        self.session: dict[str, Any] = {}
        """Facts that live as long as the connection."""
        self.principal = ANONYMOUS
        """The client, as `User:name`."""
        self.listener_name: Final = door.name
        self.is_encrypted: Final = door.tls is not None

    # asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        transport = cast("asyncio.Transport", transport)  # uvloop's transports have its methods, not its type
        self._transport = transport
        self._open = True
        transport.set_write_buffer_limits(high=RESPONSE_QUEUE_BYTES_MAX)
        peer = transport.get_extra_info("peername")
        self.peer_host = str(peer[0]).removeprefix("::ffff:") if peer else ""  # an IPv4 client on a dual-stack socket
        if (own := transport.get_extra_info("socket")) is not None:  # a peer that lost power never closes
            own.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        if not self._owner.admit(self):
            self.abort()
        elif self._door.greet is not None:
            self._door.greet(self)

    def eof_received(self) -> None:
        self._open = False  # the transport closes itself

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._open = False
        self._owner.forget(self)
        self._drop()
        if self.guard is not None:
            self.guard.leave()
        self._finish_draining()
        if self._gone is not None and not self._gone.done():
            self._gone.set_result(None)

    def _drop(self) -> None:
        """Release everything that is held. Requests that are being answered are cancelled."""
        held = self.held_bytes
        if self._throttle is not None:
            self._throttle.cancel()
        for _, answer in self._slots:
            if not (answer is None or isinstance(answer, list)):
                answer.cancel()
        self._frames.clear()
        self._slots.clear()
        self._answered_bytes = 0
        gauge = self._room.gauge
        gauge.reserved_bytes -= self._reserved
        gauge.waiting_bytes -= self.waiting_bytes
        self._reserved = self.waiting_bytes = 0
        self._begun_at = None
        if self.guard is not None:
            self.guard.release()
        self._room.release(held)

    def pause_writing(self) -> None:
        self._unwritable = True
        self._room.note_unsent(self)

    def resume_writing(self) -> None:
        self._unwritable = False
        self._active_at = self._progress_at = self._room.now
        self._room.note_unsent(self)
        self.proceed()

    def data_received(self, data: bytes) -> None:
        if not self._open:
            return
        self._active_at = self._room.now
        try:
            frames = self._splitter.feed(data)
        except CorruptData as error:
            self._refuse(error)
            return
        if len(frames) == 1 and len(data) == LENGTH_BYTES + len(frames[0]) and self._is_at_rest:
            self._serve_alone(frames[0])
            return
        if frames:
            self._take(frames)
        unfinished = self._splitter.pending_bytes
        if unfinished and not self._reserved:
            self._begin_frame(unfinished)
        if frames:
            self.proceed()
        elif unfinished and not self._reserved:
            self._pace_reading()

    def _take(self, frames: list[memoryview]) -> None:
        """Queue whole frames. The first may be the frame that was admitted before."""
        room = self._room
        size = len(frames[0]) if len(frames) == 1 else sum(map(len, frames))
        if self._begun_at is not None:
            room.gauge.reserved_bytes -= self._reserved
            room.gauge.waiting_bytes -= self.waiting_bytes
            size -= self._reserved
            self._reserved = self.waiting_bytes = 0
            self._begun_at = None
            if self.guard is not None:
                self.guard.release()
        room.gauge.queued_bytes += size
        self._progress_at = room.now
        self._frames.extend(frames)

    def _begin_frame(self, received: int) -> None:
        """The beginning of a frame has arrived: have all of it admitted as soon as its length is known."""
        if self._begun_at is None:
            self._begun_at = self._progress_at = self._room.now
        self._room.gauge.waiting_bytes += received - self.waiting_bytes
        self.waiting_bytes = received
        self._reserve()

    def _reserve(self) -> None:
        size = self._splitter.unfinished_bytes
        if size and self._room.reserve(self, size):
            self._room.gauge.waiting_bytes -= self.waiting_bytes
            self.waiting_bytes = 0
            self._reserved = size
            if self.guard is not None and not self.guard.hold(size):
                self.end("clients that are not authenticated hold too much")

    # serving

    def proceed(self) -> None:
        """Serve waiting frames, as far as limits and order allow, then write the answers that are ready."""
        if self._working:
            return
        self._working = True
        try:
            if self._muted and len(self._slots) > 1:
                self._take_answer_behind()
            turn_ends_at = self._answered_bytes + ANSWER_BYTES_PER_TURN_MAX
            while self._frames and self._may_serve() and self._answered_bytes < turn_ends_at:
                self._serve_one(self._frames.popleft())
            self._write_ready()
        finally:
            self._working = False
        if self._answered_bytes >= RESPONSE_QUEUE_BYTES_MAX:
            self._room.note_unsent(self)
        self._pace_reading()

    @property
    def _is_at_rest(self) -> bool:
        """Whether the connection holds nothing, and nothing prevents serving it."""
        return not (self._slots or self._frames or self._begun_at is not None or self._muted or self._unwritable)

    def _serve_alone(self, frame: memoryview) -> None:
        """As `_take` of one frame, and `proceed`. Nearly every request comes like this, and nearly all of them are
        answered at once, or the connection waits for them.
        """
        room = self._room
        self._progress_at = room.now
        self._working = True
        try:
            answer = self.serve(frame, self)
            if isinstance(answer, list):
                if self._transport is not None and self._open:
                    self._transport.writelines(answer)
            elif answer is not None:
                self._await(frame, answer)
        except CorruptData as error:
            self._refuse(error)
            return
        finally:
            self._working = False
        if self._throttle is not None or not self._reading or room.gauge.queued_bytes >= room.bounds.queued_bytes_max:
            self._pace_reading()

    def _await(self, frame: memoryview, answer: Later) -> None:
        size = len(frame)
        self._room.gauge.queued_bytes += size
        self._slots.append((size, answer))
        self._muted = not answer.pipelined
        answer.add_done_callback(self._answered)
        if answer.done():
            self._write_answers()

    def _may_serve(self) -> bool:
        return (
            self._open
            and not self._muted
            and not self._unwritable
            and len(self._slots) < REQUESTS_IN_FLIGHT_PER_CONNECTION_MAX
            and self._answered_bytes < RESPONSE_QUEUE_BYTES_MAX
        )

    def _serve_one(self, frame: memoryview) -> None:
        try:
            answer = self.serve(frame, self)
        except CorruptData as error:
            self._slots.append((len(frame), None))
            self._refuse(error)
            return
        self._slots.append((len(frame), answer))
        if isinstance(answer, list):
            self._answered_bytes += sum(map(len, answer))
        elif answer is not None:
            self._muted = not answer.pipelined
            answer.add_done_callback(self._answered)

    def _take_answer_behind(self) -> None:
        """The answer that muted the connection is ready before earlier ones: count it, and serve later frames."""
        size, last = self._slots[-1]
        if self._throttle is None and not (last is None or isinstance(last, list) or last.pipelined) and last.done():
            self._muted = False
            answer = last.answer()
            self._slots[-1] = (size, answer)
            self._answered_bytes += sum(map(len, answer or ()))

    def throttle(self, wait_ms: int) -> None:
        """Serve and read nothing more for `wait_ms`. Finished answers are written (KIP-219). Does nothing while a
        throttle runs.
        """
        if self._throttle is None and self._open and self._draining is None:
            self._muted = True
            self._throttle = asyncio.get_running_loop().call_later(wait_ms / 1000, self._throttle_is_over)

    def _throttle_is_over(self) -> None:
        """End the throttle. Waiting requests of a peer that has meanwhile gone are not carried out: it may have sent
        them again to another broker.
        """
        if self._transport is not None and has_hung_up(self._transport.get_extra_info("socket")):
            self.end("it was closed while it was throttled")
        else:
            self._end_throttle()

    def _end_throttle(self) -> None:
        if self._throttle is not None:
            self._throttle.cancel()
            self._throttle = None
            self._muted = False
            self.proceed()

    def _answered(self, _: object) -> None:
        """Proceed in the next turn of the loop, with everything answered by then; at once where nothing else can be
        answered.
        """
        alone = len(self._slots) == 1 and (self._muted or not self._frames)
        if alone and self._open and not self._working:
            self._proceed_when_due()
        elif not self._due:
            self._due = True
            asyncio.get_running_loop().call_soon(self._proceed_when_due)

    def _proceed_when_due(self) -> None:
        self._due = False
        if self._transport is not None:
            self.proceed()

    def _write_ready(self) -> None:
        """Write the finished answers, up to the first that is not finished."""
        first = self._slots[0][1] if self._slots else None
        if first is None or isinstance(first, list) or first.done():
            self._write_answers()
        elif self._frames and self._may_serve():
            asyncio.get_running_loop().call_soon(self.proceed)

    def _write_answers(self) -> None:
        buffers: list[Buffer] = []
        released = unsent = 0
        while self._slots and not self._unwritable and unsent < RESPONSE_QUEUE_BYTES_MAX:
            size, answer = self._slots[0]
            if isinstance(answer, list):
                self._answered_bytes -= sum(map(len, answer))
            elif answer is not None:
                if not answer.done():
                    break
                if not answer.pipelined:
                    self._muted = False
                answer = answer.answer()
            self._slots.popleft()
            released += size
            if answer is not None:
                buffers += answer
                if len(answer) > 1:
                    unsent += sum(map(len, answer))
        if buffers and self._transport is not None and self._open:
            self._transport.writelines(buffers)
            self._active_at = self._progress_at = self._room.now
        if released:
            self._room.release(released)
        if not self._slots and not self._frames:
            self._finish_draining()
        elif unsent >= RESPONSE_QUEUE_BYTES_MAX or (self._frames and self._may_serve()):
            asyncio.get_running_loop().call_soon(self.proceed)

    def _pace_reading(self) -> None:
        """Read on only while received frames are being served and there is room for more. An admitted frame has
        room.
        """
        if self._transport is None or not self._open:
            return
        if self.waiting_bytes:
            self._reserve()
            if not self.is_open:
                return
        wanted = not self._frames and self._draining is None and self._throttle is None
        room = self._room
        if not self._reserved and (room.is_full or self._splitter.unfinished_bytes):
            wanted = False
            if room.is_overrun:
                self.end("requests come faster than they are answered, and there is no room for more")
                return
            if room.is_full:
                room.starve(self)
        if wanted == self._reading:
            return
        self._reading = wanted
        if wanted:
            self._transport.resume_reading()
            self._restart_clocks()
        else:
            self._transport.pause_reading()

    def _restart_clocks(self) -> None:
        """The connection was not read for a while, which is not the client's fault."""
        self._active_at = self._progress_at = self._room.now
        if self._begun_at is not None:
            self._begun_at = self._room.now

    def certificate(self) -> bytes | None:
        """Return the client's certificate, in DER; None where it has shown none. It is verified."""
        session = None if self._transport is None else self._transport.get_extra_info("ssl_object")
        return None if session is None else cast("bytes | None", session.getpeercert(binary_form=True))

    # ending

    @property
    def is_open(self) -> bool:
        return self._open

    @property
    def held_bytes(self) -> int:
        """Bytes of requests that the connection holds, or that are reserved for it."""
        return self._reserved + sum(map(len, self._frames)) + sum(size for size, _ in self._slots)

    @property
    def unsent_bytes(self) -> int:
        """Bytes of answers that the client has not taken, including those that wait behind other answers."""
        transport = self._transport
        return self._answered_bytes + (0 if transport is None else transport.get_write_buffer_size())

    def is_in_the_way(self, now: float) -> bool:
        """Whether the connection holds bytes and makes no progress towards releasing them."""
        idle = now - self._progress_at - self._room.bounds.patience_ms / 1000
        return idle > 0 and self._splitter.pending_bytes < idle * CONTESTED_FRAME_BYTES_PER_SECOND_MIN

    def check_pace(self) -> None:
        """Close the connection where it has been silent, or at one frame, for too long. It may wait while it is being
        answered.
        """
        bounds, now = self._room.bounds, self._room.now
        if (self.unsent_bytes or self._room.has_to_read(self)) and self._room.note_unsent(self):
            self._active_at = now  # it is slow, but takes bytes
        if self._begun_at is not None and self._reading:
            size = self._splitter.unfinished_bytes
            if now - self._begun_at > bounds.frame_seconds(size):
                self.end(f"a frame of {size} bytes was not whole in {bounds.frame_seconds(size):.0f} seconds")
                return
        if not self._unwritable and (self._slots or not (self._reading or self._throttle)):
            return  # it waits for the broker
        if bounds.idle_ms_max >= 0 and (now - self._active_at) * 1000 > bounds.idle_ms_max:
            what = "it does not read its answers" if self._unwritable else "idle"
            self.end(f"{what} for {bounds.idle_ms_max} ms")

    def end(self, reason: str, event: str = "connection closed") -> None:
        """Close the connection at once, with one log line. Everything that it held is released."""
        if not self._open:
            return
        self._owner.log.warning(event, peer=self.peer_host, reason=reason)
        self.abort()
        self._drop()

    def _refuse(self, error: CorruptData) -> None:
        why = "not allowed" if isinstance(error, NotAllowed) else "malformed request"
        self.end(str(error), f"connection closed: {why}")

    def limit_frames(self, bytes_max: int) -> None:
        """Refuse larger frames from the next one on."""
        self._splitter.max_bytes = bytes_max

    def dismiss(self, farewell: Answer, wait_ms: int) -> None:
        """Serve and read nothing more, and release everything that is held. After `wait_ms` write what was answered
        and the farewell, and close. To be called by `serve`, which then returns None.
        """
        if not self._open or self._transport is None:
            return
        answers = [answer for _, answer in self._slots]
        last: Answer = []
        for answer in (*answers, farewell):
            if not (answer is None or isinstance(answer, list)):
                break  # nothing may overtake it, and it is dropped
            last += answer or ()
        self._drop()
        self._open = self._reading = False
        self._transport.pause_reading()
        self._throttle = asyncio.get_running_loop().call_later(wait_ms / 1000, self._part, last)

    def _part(self, last: Answer) -> None:
        if self._transport is not None:
            self._transport.writelines(last)
            self._transport.close()

    def abort(self) -> None:
        """Close at once. Unwritten answers are dropped."""
        self._open = False
        if self._transport is not None:
            self._transport.abort()

    async def drain(self) -> None:
        """Stop reading, wait until everything received is answered and written, and close."""
        if self._transport is None:
            return
        self._draining = asyncio.get_running_loop().create_future()
        self._end_throttle()
        self._pace_reading()
        if not self._slots and not self._frames:
            self._finish_draining()
        await self._draining
        if self._transport is not None:
            self._gone = asyncio.get_running_loop().create_future()
            self._open = False
            self._transport.close()  # it first sends what it holds
            await self._gone

    def _finish_draining(self) -> None:
        if self._draining is not None and not self._draining.done():
            self._draining.set_result(None)
