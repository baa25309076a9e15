"""The topics that a consumer group reads, and the target assignment of its members (KIP-848).

Promises: pure. The group's epoch rises with every change that calls for another assignment. Targets are computed for
the group's present epoch and the present topics.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable

import immutables

from headrace.base.ids import TopicId
from headrace.base.values import replaced
from headrace.coordinators.groups.consumer.assignors import ASSIGNORS, Subscriber
from headrace.coordinators.groups.consumer.model import (
    NO_NAMES,
    NO_PARTITIONS,
    ConsumerGroup,
    Sight,
    Topics,
    TopicShape,
)


def look_at_topics(group: ConsumerGroup, topics: Topics, *, bump: bool) -> ConsumerGroup:
    """Resolve the subscriptions. The epoch rises where the topics changed, or what a member may describe of them, or
    with `bump`."""
    group, has_changed = _resolved(group, topics)
    bump = bump or has_changed
    metadata_hash = _hash_of(group.subscribed_topics(), topics)
    if metadata_hash != group.metadata_hash or bump:
        group = replaced(group, epoch=group.epoch + 1, metadata_hash=metadata_hash)
    return replaced(group, topics_version=topics.version)


def _resolved(group: ConsumerGroup, topics: Topics) -> tuple[ConsumerGroup, bool]:
    """The group with its patterns resolved for each member that has one, and whether that changed for any."""
    sights = {sight for member in group.members.values() if (sight := member.sight) is not None}
    if not sights and not group.patterns:
        return group, False
    views = {sight: _view(group, topics, sight) for sight in sights}
    resolved: dict[str, frozenset[str]] = {}
    for sight, names in views.items():
        before = resolved.get(sight.pattern)
        resolved[sight.pattern] = names if before is None or before is names else before | names
    changed = any(group.view(sight) != names for sight, names in views.items())
    if dict(group.patterns) != resolved:
        changed = True
        patterns = group.patterns
        for pattern in set(patterns) - set(resolved):
            patterns = patterns.delete(pattern)
        group = replaced(group, patterns=patterns.update(resolved))
    return replaced(group, views=immutables.Map(views)), changed


def _view(group: ConsumerGroup, topics: Topics, sight: Sight) -> frozenset[str]:
    visible = topics.visible(sight)
    if visible is None:
        return group.patterns.get(sight.pattern, NO_NAMES) & (topics.matching(sight.pattern) or NO_NAMES)
    return visible


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
    wanted: dict[tuple[tuple[str, ...], frozenset[str]], frozenset[TopicId]] = {}
    subscribers = []
    for member in group.members.values():
        subscription = member.topics, group.view(member.sight)
        ids = wanted.get(subscription)
        if ids is None:  # most members want the same topics
            ids = frozenset(shapes[name].id for names in subscription for name in names if name in shapes)
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
