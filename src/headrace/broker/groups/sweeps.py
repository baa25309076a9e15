"""Gives every group of a shard an event, a slice of them at a time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final, Protocol

from headrace.base.ids import TopicId
from headrace.coordinators.groups.events import Event, ForgetTopics
from headrace.coordinators.groups.model import Group

GROUPS_PER_SLICE: Final = 100
"""Groups that a sweep looks at before others get their turn."""


class Keeper(Protocol):
    """The part of a shard that a sweep needs."""

    groups: dict[str, Group]

    def send(self, group_id: str, event: Event) -> None: ...


async def sweep(keeper: Keeper, build: Callable[[Group], Event | None]) -> None:
    """Give every group the event that `build` makes for it, if any."""
    for at, group_id in enumerate(list(keeper.groups), 1):
        group = keeper.groups.get(group_id)
        event = None if group is None else build(group)
        if event is not None:
            keeper.send(group_id, event)
        if at % GROUPS_PER_SLICE == 0:
            await asyncio.sleep(0)


def forgetting(group: Group, exist: Callable[[TopicId], bool]) -> Event | None:
    """Return the event that topics are gone for which the group has committed; None where all of them exist."""
    ids = {commit.topic_id for commit in group.offsets.values()}
    gone = frozenset(topic_id for topic_id in ids if topic_id.int and not exist(topic_id))
    return ForgetTopics(topic_ids=gone) if gone else None
