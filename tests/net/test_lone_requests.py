"""A request that comes alone is served by a shorter path, without visible difference.

Two twins, one of which lacks that path, get equal requests and do the same.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any
from unittest.mock import patch

from hypothesis import example, given, settings
from hypothesis import strategies as st

from headrace.base.limits import ANSWER_BYTES_PER_TURN_MAX
from headrace.net.server.connection import Connection
from headrace.net.server.listener import Listener
from headrace.net.server.loglimit import LogLimit
from headrace.net.server.request_budget import Bounds
from tests.loops import run
from tests.net.test_listener import Deferred, Prompt, Script, framed, turns
from tests.tiers import examples

QUEUED_BYTES_MAX = 200
KINDS = ("now", "later", "mute", "prompt", "none", "throttle", "bad", "done", "ended", "large")


class Wire(asyncio.Transport):
    """Records the written data, and whether reading is paused."""

    def __init__(self, connection: Connection) -> None:
        super().__init__()
        self.written = b""
        self.reading = True
        self.aborted = False
        self._connection = connection

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        return

    def get_write_buffer_size(self) -> int:
        return 0

    def writelines(self, list_of_data: Any) -> None:
        assert not self.aborted, "written to where nobody is"
        self.written += b"".join(list_of_data)

    def pause_reading(self) -> None:
        assert self.reading
        self.reading = False

    def resume_reading(self) -> None:
        assert not self.reading
        self.reading = True

    def abort(self) -> None:
        if not self.aborted:
            self.aborted = True
            asyncio.get_running_loop().call_soon(self._connection.connection_lost, None)


class Lines(LogLimit):
    """Records the logged lines."""

    def __init__(self) -> None:
        super().__init__(lambda: 0.0)
        self.lines: list[tuple[str, object]] = []

    def warning(self, event: str, **facts: Any) -> None:
        self.lines.append((event, facts.get("reason")))


class Asked(Script):
    """`done:x` is answered later, and is so at once; `ended:x` ends the connection, and is answered all the same;
    `large:x` is answered at once with as much as a connection is answered in one turn of the loop."""

    def serve(self, frame: memoryview, connection: Connection) -> Any:
        kind, _, _ = bytes(frame).partition(b":")
        if kind == b"done":
            self.served.append(bytes(frame))
            future = asyncio.get_running_loop().create_future()
            future.set_result(None)
            return Deferred(bytes(frame), True, future)
        if kind == b"large":
            self.served.append(bytes(frame))
            return [framed(bytes(frame) + bytes(ANSWER_BYTES_PER_TURN_MAX))]
        if kind == b"ended":
            self.served.append(bytes(frame))
            connection.end("the script ends it")
            return [framed(bytes(frame))]
        return super().serve(frame, connection)


class Twin:
    """One of the two."""

    def __init__(self) -> None:
        self.script = Asked()
        self.listener = Listener(self.script.serve, Bounds(queued_bytes_max=QUEUED_BYTES_MAX))
        self.lines = self.listener.log = Lines()
        with patch.object(Listener, "admit", lambda *_: True):
            self.connection = Connection(self.listener)
            self.wire = Wire(self.connection)
            self.connection.connection_made(self.wire)

    def do(self, what: str, data: bytes) -> None:
        connection, room = self.connection, self.listener.room
        if what in ("read", "read on") and not self.wire.aborted:
            connection.data_received(data)
        elif what == "pause" and not connection._unwritable:
            connection.pause_writing()
        elif what == "resume" and connection._unwritable:
            connection.resume_writing()
        elif what == "unthrottle" and connection._throttle is not None:
            connection._end_throttle()
        elif what == "fill":
            room.gauge.queued_bytes += QUEUED_BYTES_MAX
        elif what == "empty" and room.gauge.queued_bytes >= QUEUED_BYTES_MAX:
            room.release(QUEUED_BYTES_MAX)
        elif what == "settle":
            self._settle()

    def _settle(self) -> None:
        """Settle the waiter that came last."""
        everybody: list[Deferred | Prompt] = [*self.script.deferred.values(), *self.script.prompt]
        last = next((each for each in reversed(everybody) if not each.done()), None)
        if isinstance(last, Prompt):
            last.settle()
        elif last is not None:
            last.future.set_result(None)

    def seen(self) -> tuple[object, ...]:
        connection, gauge = self.connection, self.listener.room.gauge
        held = (connection.held_bytes, connection.waiting_bytes, connection._muted, connection._begun_at is None)
        counts = (gauge.queued_bytes, gauge.reserved_bytes, gauge.waiting_bytes)
        wire = (self.wire.written, self.wire.reading, self.wire.aborted)
        return (self.script.served[:], wire, held, counts, connection.is_open, self.lines.lines[:])


SHORT, LONG = framed(b"now:1"), framed(b"later:22")
Step = tuple[str, bytes]


@st.composite
def stories(draw: st.DrawFn) -> list[Step]:
    """Reads of one stream of requests, nearly all of which end where a request does, and what happens between. After
    `read on` the loop has no turn."""
    kinds = draw(st.lists(st.sampled_from(KINDS[:4] * 2 + KINDS), min_size=1, max_size=8))
    rest = b"".join(framed(b"%s:%d" % (kind.encode(), at)) for at, kind in enumerate(kinds))
    ends = set(_ends(rest))
    steps: list[Step] = []
    at = 0
    while at < len(rest):
        between = st.sampled_from(("settle", "pause", "resume", "unthrottle", "fill", "empty"))
        steps += [(what, b"") for what in draw(st.lists(between, max_size=2))]
        whole = [end for end in sorted(ends) if end > at]
        end = whole[0] if draw(st.integers(0, 3)) else draw(st.integers(at + 1, len(rest)))
        steps.append((draw(st.sampled_from(("read", "read", "read on"))), rest[at:end]))
        at = end
    after = [("resume", b""), ("empty", b""), ("unthrottle", b"")]
    return [*steps, *after, *[("settle", b"")] * len(kinds)]


def _ends(stream: bytes) -> Iterator[int]:
    at = 0
    while at < len(stream):
        at += 4 + int.from_bytes(stream[at : at + 4], "big")
        yield at


async def tell(steps: list[Step]) -> None:
    lone = Twin()
    with patch.object(Connection, "_is_at_rest", False):
        twin = Twin()
    for step in steps:
        lone.do(*step)
        with patch.object(Connection, "_is_at_rest", False):
            twin.do(*step)
        assert lone.seen() == twin.seen(), step
        if step[0] != "read on":
            await turns(4)
            assert lone.seen() == twin.seen(), step
    for each in (lone, twin):
        each.connection.abort()
    await turns(2)


@settings(max_examples=examples(400))
@given(stories())
@example([("read", framed(b"later:1")), ("read", framed(b"now:2")), ("settle", b"")])
@example([("read", framed(b"mute:1")), ("read", framed(b"now:2")), ("settle", b"")])
@example([("read", framed(b"throttle:1")), ("read", framed(b"now:2")), ("unthrottle", b"")])
@example([("pause", b""), ("read", framed(b"now:1")), ("resume", b"")])
@example([("fill", b""), ("read", framed(b"now:1")), ("empty", b"")])
@example([("read", framed(b"now:1") + framed(b"now:2")[:3]), ("read", framed(b"now:2")[3:])])
@example([("read", framed(b"now:1") + framed(b"now:2")[:6]), ("read", framed(b"now:2")[6:])])
@example([("read", SHORT[:6]), ("read", SHORT[6:] + LONG[:6]), ("read", LONG[6:]), ("settle", b"")])
@example([("read on", framed(b"large:1") + framed(b"now:2")), ("read on", framed(b"now:3")), ("settle", b"")])
@example([("read", framed(b"done:1")), ("read", framed(b"now:2"))])
@example([("read", framed(b"bad:1"))])
@example([("read", framed(b"ended:1"))])
def test_a_request_that_comes_alone_is_served_as_any_other(steps: list[Step]) -> None:
    run(tell(steps))
