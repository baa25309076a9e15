"""The changes that one committed entry made, and the resulting work for one broker.

Promises: costs what the change costs, not what the cluster holds (where the touched topics are known). Never says how a
log is opened or closed: that is the broker's part.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import zip_longest

from headrace.base.ids import BrokerId, TopicId, TopicPartition
from headrace.base.values import Value
from headrace.metadata.events import ChangesDoubted, MetadataEvent
from headrace.metadata.image import MetadataImage
from headrace.metadata.values import PartitionImage, TopicImage


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class LocalPartition(Value):
    """A partition that one broker holds, with its topic, both as of the new image."""

    topic: TopicImage
    partition: PartitionImage

    @property
    def key(self) -> TopicPartition:
        return TopicPartition(self.topic.id, self.partition.index)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class LocalChanges(Value):
    """Work for one broker, to be carried out in the order of the fields."""

    deleted: tuple[TopicPartition, ...]
    """Held or left before, and no more: the topic is gone, or this broker is no replica of it. Where brokers share
    logs: gone, whoever held them."""
    left: tuple[TopicPartition, ...]
    """Held before: it no longer serves them, but their logs stay. It has sealed them, or the logs are shared."""
    leaders: tuple[LocalPartition, ...]
    """Led by this broker, and new or changed. With an unchanged leader epoch, only the ISR changed."""
    followers: tuple[LocalPartition, ...]
    """Held but not led, and new or changed."""
    reconfigured: tuple[TopicImage, ...]
    """Topics with a partition on this broker whose effective configs may have changed; new topics are excluded."""


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class ImageDelta(Value):
    """Two images, one entry apart (or a snapshot apart)."""

    before: MetadataImage
    after: MetadataImage
    topic_ids: frozenset[TopicId] | None = None
    """The topics that may differ; None: compare all."""

    @classmethod
    def of(cls, before: MetadataImage, events: Iterable[MetadataEvent], *, index: int | None = None) -> ImageDelta:
        """The delta that a committed entry makes."""
        events = tuple(events)
        after = before.replay(events, index=index)
        if any(isinstance(event, ChangesDoubted) for event in events):
            return cls(before, after)
        named = (getattr(event, "topic_id", None) for event in events)
        return cls(before, after, frozenset(name for name in named if name is not None))

    @property
    def may_lack_changes(self) -> bool:
        """Whether the store of the commit log has lost, or may have lost, changes that the earlier image has."""
        return self.after.doubts > self.before.doubts or self.after.index < self.before.index

    def changed_topics(self) -> Iterator[tuple[TopicImage | None, TopicImage | None]]:
        """(before, after) of every topic that differs; None where the topic is absent."""
        topic_ids = self.topic_ids
        if topic_ids is None:
            topic_ids = frozenset(self.before.topics) | frozenset(self.after.topics)
        for topic_id in topic_ids:
            before, after = self.before.topics.get(topic_id), self.after.topics.get(topic_id)
            if before is not after:
                yield before, after

    def deleted_partitions(self) -> list[TopicPartition]:
        """Every partition that existed before and no longer does, in order."""
        return sorted(
            TopicPartition(before.id, partition.index)
            for before, after in self.changed_topics()
            if before is not None
            for partition in before.partitions[len(after.partitions) if after is not None else 0 :]
        )

    def local_changes(self, node: BrokerId) -> LocalChanges:
        """Work for broker `node` that follows from this change, in a deterministic order."""
        shared = self.after.shares_logs
        deleted: list[TopicPartition] = []
        left: list[TopicPartition] = []
        leaders: list[LocalPartition] = []
        followers: list[LocalPartition] = []
        for before, after in self.changed_topics():
            for was, now in zip_longest(_partitions(before), _partitions(after)):
                if was is now:
                    continue  # nearly all partitions of a topic are unchanged
                held = was is not None and _holds(node, was, shared=shared)
                if now is not None and _holds(node, now, shared=shared):
                    if not held or was != now:
                        assert after is not None
                        (leaders if now.leader == node else followers).append(LocalPartition(after, now))
                elif now is not None and (now.left_by == node or shared):
                    assert after is not None
                    if held:
                        left.append(TopicPartition(after.id, now.index))
                elif held or (was is not None and (was.left_by == node or shared)):
                    assert before is not None
                    assert was is not None
                    deleted.append(TopicPartition(before.id, was.index))
        return LocalChanges(
            deleted=tuple(sorted(deleted)),
            left=tuple(sorted(left)),
            leaders=tuple(sorted(leaders, key=lambda local: local.key)),
            followers=tuple(sorted(followers, key=lambda local: local.key)),
            reconfigured=tuple(self._reconfigured(node)),
        )

    def _reconfigured(self, node: BrokerId) -> Iterator[TopicImage]:
        for_all = any(
            self.before.broker_configs.get(name) != self.after.broker_configs.get(name) for name in (node, None)
        )
        if for_all:
            pairs = [(self.before.topics.get(topic.id), topic) for topic in self.after.topics.values()]
        else:
            pairs = [(before, after) for before, after in self.changed_topics() if after is not None]
        for before, after in sorted(pairs, key=lambda pair: pair[1].name):
            changed = before is not None and (for_all or _differ(before, after))
            if changed and any(node in partition.replicas for partition in after.partitions):
                yield after


def _holds(node: BrokerId, partition: PartitionImage, *, shared: bool) -> bool:
    """Whether the broker is to have the log open. Of a shared log, its leader alone has."""
    return partition.leader == node if shared else node in partition.replicas


def _differ(before: TopicImage, after: TopicImage) -> bool:
    """Whether the topics differ in anything that determines their effective configs."""
    if before.configs != after.configs:
        return True
    return _are_replaced(before, after) and before.settled_replicas != after.settled_replicas


def _are_replaced(before: TopicImage, after: TopicImage) -> bool:
    """Whether any partition has other replicas, or another reassignment."""
    pairs = zip(before.partitions, after.partitions, strict=False)
    return len(before.partitions) != len(after.partitions) or any(
        was is not now and (was.replicas, was.adding, was.removing) != (now.replicas, now.adding, now.removing)
        for was, now in pairs
    )


def _partitions(topic: TopicImage | None) -> tuple[PartitionImage, ...]:
    return () if topic is None else topic.partitions
