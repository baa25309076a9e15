"""Topics that are refused cost a step each, however many of them a request names."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, Final, cast

from headrace.broker.handlers.offset_fetch import HANDLER
from headrace.broker.requests.context import Admitted
from headrace.metadata.access.acls import ResourceType
from headrace.wire.messages.offset_fetch import OffsetFetchRequest, OffsetFetchRequestGroup, OffsetFetchRequestTopics

TOPICS: Final = 300


class Name(str):
    """Counts its comparisons."""

    __slots__ = ()
    compared = 0

    def __eq__(self, other: object) -> bool:
        Name.compared += 1
        return super().__eq__(other)

    __hash__ = str.__hash__


class GroupsAlone:
    """The rights of a client that may do everything to groups, and nothing else."""

    def may(self, _: Any, kind: ResourceType, __: str) -> bool:
        return kind is ResourceType.GROUP


def test_the_cost_of_refused_topics_grows_with_their_number() -> None:
    topics = tuple(OffsetFetchRequestTopics(name=Name(number), partition_indexes=(0,)) for number in range(TOPICS))
    request = OffsetFetchRequest(groups=(OffsetFetchRequestGroup(group_id="g", topics=topics),))
    found = HANDLER.access(request, cast("Any", SimpleNamespace(version=8, rights=GroupsAlone())))
    assert isinstance(found, Admitted)
    assert found.request.groups[0].topics == ()
    assert Name.compared < 10 * TOPICS
