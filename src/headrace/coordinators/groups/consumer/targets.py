"""The topics that a consumer group reads, and the target assignment of its members (KIP-848).

Promises: pure. The group's epoch rises with every change that calls for another assignment. Targets are computed for
the group's present epoch and the present topics.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable

from headrace.base.ids import TopicId
from headrace.base.values import replaced
from headrace.coordinators.groups.consumer.assignors import ASSIGNORS, Subscriber
from headrace.coordinators.groups.consumer.model import NO_PARTITIONS, ConsumerGroup, Topics, TopicShape


def look_at_topics(group: ConsumerGroup, topics: Topics, *, bump: bool) -> ConsumerGroup:
    """Resolve the subscriptions. The epoch rises where the topics changed, or with `bump`."""
    patterns = {member.pattern for member in group.members.values() if member.pattern}
    resolved = {pattern: topics.matching(pattern) or frozenset() for pattern in patterns}
    if dict(group.patterns) != resolved:
        bump = True
        changed = group.patterns
        for pattern in set(group.patterns) - patterns:
            changed = changed.delete(pattern)
        group = replaced(group, patterns=changed.update(resolved))
    metadata_hash = _hash_of(group.subscribed_topics(), topics)
    if metadata_hash != group.metadata_hash or bump:
        group = replaced(group, epoch=group.epoch + 1, metadata_hash=metadata_hash)
    return replaced(group, topics_version=topics.version)


def _hash_of(names: Iterable[str], topics: Topics) -> int:
    """A hash of those of these topics that exist, equal after a restart and on every broker. 0: there are none."""
    shapes = _shapes(names, topics)
    if not shapes:
        return 0
    text = "\n".join(f"{name} {shape.id} {shape.partitions}" for name, shape in sorted(shapes.items()))
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), signed=True)


def _shapes(names: Iterable[str], topics: Topics) -> dict[str, TopicShape]:
    found = ((name, topics.shape(name)) for name in names)
    return {name: shape for name, shape in found if shape is not None}


def retargeted(group: ConsumerGroup, topics: Topics, offered: tuple[str, ...]) -> ConsumerGroup:
    """Compute the targets again, for the group's epoch."""
    shapes = _shapes(group.subscribed_topics(), topics)
    wanted: dict[tuple[tuple[str, ...], str | None], frozenset[TopicId]] = {}
    subscribers = []
    for member in group.members.values():
        subscription = member.topics, member.pattern
        ids = wanted.get(subscription)
        if ids is None:  # most members want the same topics
            ids = frozenset(shapes[name].id for name in group.names_of(*subscription) if name in shapes)
            wanted[subscription] = ids
        before = group.targets.get(member.id, NO_PARTITIONS)
        subscribers.append(Subscriber(id=member.id, instance_id=member.instance_id, topics=ids, before=before))
    sizes: dict[TopicId, int] = {shape.id: shape.partitions for shape in shapes.values()}
    shares = ASSIGNORS[preferred_assignor(group, offered)](subscribers, sizes)
    changed = {member_id: share for member_id, share in shares.items() if group.targets.get(member_id) != share}
    return replaced(group, targets=group.targets.update(changed), target_epoch=group.epoch)


def preferred_assignor(group: ConsumerGroup, offered: tuple[str, ...]) -> str:
    """The assignor that most members ask for; otherwise the first that the broker has."""
    wishes = Counter(member.assignor for member in group.members.values() if member.assignor in offered)
    return min(offered, key=lambda name: (-wishes[name], offered.index(name)))
