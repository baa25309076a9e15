"""Heartbeats of classic members whose answers wait a while, so that a member hears of a rebalance when it begins.

A member of a classic group is told to join again with the answer to its next heartbeat: 3 s later by default, for which
the whole group waits. So the answer to a heartbeat that has nothing to tell is kept back for most of the time until the
member's next one; as soon as the group begins to rebalance, or is no longer kept here, all that are kept back are put
to it again (decision 0043). The session was renewed when the heartbeat came.

Promises: none waits longer than HEARTBEAT_HELD_PART of the shortest time that lay between two heartbeats of its member
on its connection, HEARTBEAT_HELD_SESSION_PART of its session, and what the operator allows; none waits while another
frame waits behind it, be it a commit or a LeaveGroup. Loop-only.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from typing import Final, Protocol, TypeAlias

from headrace.base.limits import HEARTBEAT_HELD_PART, HEARTBEAT_HELD_SESSION_PART
from headrace.broker.group_waiters import Told, Waiter
from headrace.coordinators.groups.events import Event, HeartbeatReply
from headrace.coordinators.groups.model import Group, GroupState
from headrace.net.connection import Connection
from headrace.wire.errors import ErrorCode

Build: TypeAlias = Callable[[int], Event]
"""Makes the heartbeat, given its waiter's number."""
_PACE: Final = "heartbeats"
"""Under which a connection keeps a `_Pace`."""


class Holdable(Waiter, Protocol):
    """The answer to one heartbeat."""

    @property
    def told(self) -> Told | None: ...

    def hold(self) -> None:
        """What it was told is not the answer yet."""


class _Pace:
    """How often a member was heard on one connection."""

    __slots__ = ("_at", "_member", "shortest_s")

    def __init__(self, member: tuple[str, str], now: float) -> None:
        self._member = member
        self._at = now
        self.shortest_s = math.inf

    def is_of(self, member: tuple[str, str]) -> bool:
        return self._member == member

    def heard(self, now: float) -> None:
        self.shortest_s = min(self.shortest_s, now - self._at)
        self._at = now


class _Held:
    """One of them."""

    __slots__ = ("answer", "build", "timer", "told")

    def __init__(self, answer: Holdable, build: Build, told: Told) -> None:
        self.answer = answer
        self.build = build
        self.told = told
        self.timer: asyncio.TimerHandle | None = None


class HeldHeartbeats:
    """Of the groups of one partition. `put`: asks a group (`GroupShard.put`)."""

    def __init__(self, put: Callable[[str, Build, Waiter], None], held_ms_max: int) -> None:
        self._put = put
        self._held_s_max = held_ms_max / 1000
        self._loop = asyncio.get_running_loop()
        self._held: dict[str, dict[_Held, None]] = {}

    def __len__(self) -> int:
        return sum(map(len, self._held.values()))

    def keep(self, group: Group, member_id: str, answer: Holdable, build: Build, connection: Connection) -> bool:
        """Whether the answer, which is known, is kept back. `build`: the heartbeat, to be put to the group again."""
        seconds = self._patience_s(group, member_id, answer.told, connection)
        if seconds <= 0 or answer.told is None:
            return False
        held = _Held(answer, build, answer.told)
        answer.hold()
        held.timer = self._loop.call_later(seconds, self._let_go, group.id, held)
        connection.let_go = lambda: self._let_go(group.id, held)
        self._held.setdefault(group.id, {})[held] = None
        return True

    def _patience_s(self, group: Group, member_id: str, told: Told | None, connection: Connection) -> float:
        now, name = self._loop.time(), (group.id, member_id)
        pace: _Pace | None = connection.session.get(_PACE)
        if pace is None or not pace.is_of(name):
            connection.session[_PACE] = _Pace(name, now)
            return 0.0
        pace.heard(now)
        member = group.members.get(member_id)
        nothing_to_tell = isinstance(told, HeartbeatReply) and told.error is ErrorCode.NONE
        if member is None or not nothing_to_tell or group.state is not GroupState.STABLE:
            return 0.0
        session_s = member.session_timeout_ms / 1000
        return min(pace.shortest_s * HEARTBEAT_HELD_PART, session_s * HEARTBEAT_HELD_SESSION_PART, self._held_s_max)

    def look(self, group_id: str, group: Group | None) -> None:
        """The group is in this state now; None where it is gone."""
        if group_id in self._held and (group is None or group.state is not GroupState.STABLE):
            for held in self._taken(group_id):
                self._put(group_id, held.build, held.answer)

    def close(self, told: Told) -> None:
        """Tell all of them."""
        for group_id in list(self._held):
            for held in self._taken(group_id):
                held.answer.set_result(told)

    def _taken(self, group_id: str) -> list[_Held]:
        """Those whose connections are still there."""
        taken = list(self._held.pop(group_id, ()))
        for held in taken:
            if held.timer is not None:
                held.timer.cancel()
        return [held for held in taken if not held.answer.done()]

    def _let_go(self, group_id: str, held: _Held) -> None:
        """It has waited long enough."""
        of_group = self._held.get(group_id)
        if of_group is None or held not in of_group:
            return
        del of_group[held]
        if not of_group:
            del self._held[group_id]
        if held.timer is not None:
            held.timer.cancel()
        if not held.answer.done():
            held.answer.set_result(held.told)
