"""What a group's members subscribe to: the one thing that the coordinator reads of what they tell each other.

As with Kafka a group of consumers whose subscriptions cannot be read counts as subscribed to every topic.
"""

from __future__ import annotations

from typing import Final

from headrace.coordinators.groups.model import Group
from headrace.wire.codec import DecodeError
from headrace.wire.data import CONSUMER_SUBSCRIPTION

CONSUMER: Final = "consumer"
"""The protocol type of consumers."""


def subscribed_topics(group: Group) -> frozenset[str] | None:
    """The topics that its members named for the protocol in force; None where nobody can say."""
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
