"""Answers to requests of groups' members. Where nothing has to be awaited first, as in nearly all, they need no
task."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, ClassVar, NamedTuple, TypeAlias

from headrace.broker.groups.answers import Told
from headrace.broker.groups.service import GroupService
from headrace.broker.groups.shard import GroupShard
from headrace.broker.kit.deferred import Deferred
from headrace.coordinators.groups.consumer.model import Sight
from headrace.coordinators.groups.events import Event
from headrace.net.server.connection import Answer
from headrace.wire.errors import ErrorCode

Respond: TypeAlias = Callable[[Told], Any]
"""Makes the response from the group's answer."""
Build: TypeAlias = Callable[[int], Event]
"""Makes the event of a request, given its waiter's number."""


class Caller(NamedTuple):
    """The client of a request, and the groups that it asks."""

    version: int
    """The version of the request."""
    client_id: str
    client_host: str
    groups: GroupService


class GroupAnswer(Deferred):
    """A shard's waiter; the result is the response."""

    __slots__ = ("_respond",)

    def __init__(self, respond: Respond) -> None:
        super().__init__(None)
        self._respond = respond

    def set_result(self, reply: Told) -> None:
        super().set_result(self._respond(reply))


class PlainAnswer:
    """A `Later`, and a shard's waiter, for shortcuts. `say` makes the frame from the group's answer."""

    __slots__ = ("_callback", "_cancelled", "_say", "_told")
    pipelined: ClassVar[bool] = False

    def __init__(self, say: Callable[[Told], Answer]) -> None:
        self._say = say
        self._told: Told | None = None
        self._cancelled = False
        self._callback: Callable[[Any], object] | None = None

    def done(self) -> bool:
        return self._cancelled or self._told is not None

    def set_result(self, reply: Told, /) -> None:
        """`Waiter`."""
        self._told = reply
        if self._callback is not None:
            self._callback(self)

    def cancel(self) -> None:
        """Drop the answer. The request is carried out all the same."""
        self._cancelled = True
        self._callback = None

    def add_done_callback(self, callback: Callable[[Any], object], /) -> None:
        self._callback = callback

    def answer(self) -> Answer:
        assert self._told is not None
        return self._say(self._told)


def answered(groups: GroupService, group_id: str, build: Build, respond: Respond) -> Any | Awaitable[Any] | Deferred:
    """As `GroupService.ask`: return the response, or a `Deferred` or awaitable of it."""
    return _put(groups.shard(group_id), group_id, build, respond)


def answered_as_member(
    groups: GroupService,
    group_id: str,
    build: Build,
    respond: Respond,
    *,
    sight: Sight | None = None,
    surely: bool = False,
) -> Any | Awaitable[Any] | Deferred:
    """As `GroupService.ask_as_member`. `surely`: also where it is no consumer group yet."""
    shard = groups.ready_for_member(group_id, None if sight is None else sight.pattern, surely=surely)
    if shard is None:
        return _awaited(groups, group_id, build, respond, sight, surely=surely)
    return _put(shard, group_id, build, respond)


def _put(shard: GroupShard | ErrorCode, group_id: str, build: Build, respond: Respond) -> Any | Deferred:
    if isinstance(shard, ErrorCode):
        return respond(shard)
    answer = GroupAnswer(respond)
    shard.put(group_id, build, answer)
    return answer.result() if answer.done() else answer


async def _awaited(
    groups: GroupService,
    group_id: str,
    build: Build,
    respond: Respond,
    sight: Sight | None,
    *,
    surely: bool,
) -> Any:
    return respond(await groups.ask_as_member(group_id, build, sight=sight, surely=surely))
