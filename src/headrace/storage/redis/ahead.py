"""Appends that leave while a flush round is under way, so that Redis has the next ones when it has answered.

Promises: a log's calls leave in the order of its batches, behind those of the round. Nothing counts before a later
round has judged the answers. Once a round has to send something again, nothing leaves ahead until it is over. The next
round then repeats all calls that have left ahead, and these answer as they did. Their number is bounded, so that a
round has room for them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from headrace.base.limits import REDIS_IN_FLIGHT_AHEAD_MAX
from headrace.storage.redis.errors import RedisFailure
from headrace.storage.redis.links.connection import Reply
from headrace.storage.redis.server_side.functions import Call

if TYPE_CHECKING:
    from headrace.storage.redis.links.client import Redis
    from headrace.storage.redis.log import RedisLog


class SentAhead:
    """An append that has left, and its answer."""

    __slots__ = ("_then", "batches", "call", "is_answered", "reply", "turn")

    def __init__(self, call: Call, batches: int, turn: int) -> None:
        self.call: Final = call
        self.batches: Final = batches
        """How many it appends."""
        self.turn: Final = turn
        """See `Ahead.turn`."""
        self.is_answered = False
        self.reply: Reply = None
        self._then: Callable[[Reply], object] | None = None

    def on_reply(self, reply: Reply) -> None:
        """Called by the connection, once."""
        self.is_answered, self.reply = True, reply
        if self._then is not None:
            self._then(reply)

    def then(self, on_reply: Callable[[Reply], object]) -> None:
        """Have the answer told: when it comes, or soon where it is there. Never within this call."""
        if self.is_answered:
            asyncio.get_running_loop().call_soon(on_reply, self.reply)
        else:
            self._then = on_reply


class Ahead:
    """Sends appends ahead, for all logs of an engine. Loop-only."""

    def __init__(self, link: Redis) -> None:
        self._link: Final = link
        self._loop: Final = asyncio.get_running_loop()
        self._noted: dict[RedisLog, None] = {}
        self.is_on = False
        """Whether a round is under way of which nothing had to be sent again."""
        self.turn = 0
        """Rises when a round has to send something again: what left before does not count then."""

    def begin(self) -> None:
        """A round is under way."""
        self.is_on = True

    def doubt(self) -> None:
        """The round sends something again."""
        self.is_on = False
        self.turn += 1

    def end(self) -> None:
        """The round is over."""
        self.is_on = False

    def note(self, log: RedisLog) -> None:
        """The log has a batch more. It leaves with all others of this turn of the loop."""
        if not self._noted:
            self._loop.call_soon(self._send)
        self._noted[log] = None

    def _send(self) -> None:
        noted, self._noted = self._noted, {}
        for log in noted:
            if not self.is_on:
                return
            for call, batches in log.unsent():
                sent = SentAhead(call, batches, self.turn)
                try:
                    node = self._link.node_of(log.keys.stream)
                    if node.in_flight >= REDIS_IN_FLIGHT_AHEAD_MAX:
                        break
                    node.post(call.command, sent.on_reply, call.buffers)
                except RedisFailure:  # the next round sends it
                    break
                log.on_sent_ahead(sent)
