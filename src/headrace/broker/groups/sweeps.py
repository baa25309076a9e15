"""The event for a group some of whose topics are gone."""

from __future__ import annotations

from collections.abc import Callable

from headrace.base.ids import TopicId
from headrace.coordinators.groups.events import Event, ForgetTopics
from headrace.coordinators.groups.model import Group


def forgetting(group: Group, exist: Callable[[TopicId], bool]) -> Event | None:
    """Return the event that topics are gone for which the group has committed; None where all of them exist."""
    ids = {commit.topic_id for commit in group.offsets.values()}
    gone = frozenset(topic_id for topic_id in ids if topic_id.int and not exist(topic_id))
    return ForgetTopics(topic_ids=gone) if gone else None
