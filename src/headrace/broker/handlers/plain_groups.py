"""JoinGroup, SyncGroup and Heartbeat by a shortcut, for a group that this broker keeps and can ask at once.

It puts to the group the same event as the general handler, and answers the same. Where the group cannot be asked here
and now, it does nothing and leaves the request to that handler.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, NamedTuple

from headrace.base.ports import Buffer
from headrace.broker.groups.answers import Told
from headrace.broker.groups.shard import GroupShard
from headrace.broker.handlers.group_answers import Build, Caller, PlainAnswer, Respond
from headrace.broker.requests.context import Services, Shortcut
from headrace.metadata.access.acls import AclOperation, ResourceType
from headrace.net.server.listener import Answer, Connection
from headrace.wire.apis import ApiKey
from headrace.wire.plain_groups import PlainHeader, PlainRequest


class Way(NamedTuple):
    """The functions of one API."""

    key: ApiKey
    read: Callable[[memoryview], PlainRequest | None]
    asked: Callable[[Any, Caller], tuple[Build, Respond]]
    """Returns the event of a request, and its response: the general handler's."""
    write: Callable[[PlainHeader, Any], Buffer]
    at_once: Callable[[Any, GroupShard], Any] | None = None
    """Returns the response where it is known before the group hears of the request; None: ask the group."""


def shortcuts(services: Services, way: Way, versions: Iterable[int]) -> dict[int, Shortcut]:
    """Return the shortcuts by version."""
    return dict.fromkeys(versions, _Road(services, way).serve)


class _Road:
    def __init__(self, services: Services, way: Way) -> None:
        self._groups = services.groups
        self._key, self._read, self._asked, self._write, self._at_once = way
        self._rights = services.authority.rights
        self._on_error = services.on_error

    def serve(self, frame: memoryview, connection: Connection) -> Answer | PlainAnswer | None:
        """`Shortcut`."""
        wanted = self._read(frame)
        if wanted is None:
            return None
        header, request = wanted
        rights = self._rights(connection, self._key)
        if not rights.may(AclOperation.READ, ResourceType.GROUP, request.group_id):
            return None
        shard = self._groups.ready_for_member(request.group_id, None, surely=False)
        if not isinstance(shard, GroupShard):
            return None
        if self._at_once is not None:
            response = self._at_once(request, shard)
            if response is not None:
                return self._said(header, response)
        caller = Caller(header.version, header.client_id, connection.peer_host, self._groups)
        build, respond = self._asked(request, caller)
        answer = PlainAnswer(partial(self._say, header, respond))
        shard.put(request.group_id, build, answer)
        return answer.answer() if answer.done() else answer

    def _say(self, header: PlainHeader, respond: Respond, reply: Told) -> Answer:
        return self._said(header, respond(reply))

    def _said(self, header: PlainHeader, response: Any) -> Answer:
        if response.error_code:
            self._on_error(self._key, response.error_code)
        return [self._write(header, response)]
