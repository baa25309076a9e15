"""The subscriptions of a group's members: the only part that the coordinator reads of what members send each other.

As in Kafka, a group of consumers with unreadable subscriptions counts as subscribed to every topic.
"""

from __future__ import annotations

from typing import Final

from headrace.coordinators.groups.model import Group
from headrace.wire.codec import DecodeError
from headrace.wire.data import CONSUMER_SUBSCRIPTION

CONSUMER: Final = "consumer"
"""The protocol type of consumers."""


def subscribed_topics(group: Group) -> frozenset[str] | None:
    """The topics that its members named for the current protocol; None where they are unknown."""
    if group.consumer is not None:
        return group.consumer.subscribed_topics()
    if not group.members:
        return frozenset()
    if group.protocol_type != CONSUMER:
        return None
    topics: set[str] = set()
    try:
        for member in group.members.values():
            _, subscription = CONSUMER_SUBSCRIPTION.decode(member.metadata(group.protocol))
            topics.update(subscription.topics)
    except DecodeError:
        return None
    return frozenset(topics)
