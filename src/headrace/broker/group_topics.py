"""The cluster's topics, as consumer groups look at them: by name, and by regular expression.

Promises: one image's state, never a later one's. What an expression stands for is worked out once for the topics that
there are, and after that for new ones only. Internal topics are topics here too, as with Kafka.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field

import immutables

from headrace.base.ids import TopicId
from headrace.base.limits import GROUP_PATTERNS_KEPT_MAX
from headrace.coordinators.groups.consumer.model import TopicShape
from headrace.coordinators.groups.consumer.patterns import Pattern, PatternError
from headrace.metadata.image import MetadataImage


@dataclass(slots=True)
class _Known:
    """What an expression stands for, among these topics."""

    pattern: Pattern
    topics: immutables.Map[str, TopicId] = field(default_factory=immutables.Map)
    matching: frozenset[str] = frozenset()


class ClusterTopics:
    """See the module. Implements `Topics` of the consumer groups. Loop-only."""

    def __init__(self, image: MetadataImage, known: OrderedDict[str, _Known] | None = None) -> None:
        self.image = image
        self._known: OrderedDict[str, _Known] = OrderedDict() if known is None else known
        """By expression, the one not asked for the longest first."""

    def at(self, image: MetadataImage) -> ClusterTopics:
        """The same for a later image; this one is not to be asked any more."""
        return ClusterTopics(image, self._known)

    @property
    def version(self) -> int:
        return self.image.index

    def shape(self, name: str) -> TopicShape | None:
        topic = self.image.topic(name)
        return None if topic is None else TopicShape(topic.id, len(topic.partitions))

    def matching(self, pattern: str) -> frozenset[str] | None:
        known = self._known.get(pattern)
        if known is None:
            try:
                known = self._known[pattern] = _Known(Pattern(pattern))
            except PatternError:
                return None
            if len(self._known) > GROUP_PATTERNS_KEPT_MAX:
                self._known.popitem(last=False)
        self._known.move_to_end(pattern)
        topics = self.image.topic_ids
        if known.topics is not topics:
            still = (name for name in known.matching if name in topics)
            new = (name for name in topics if name not in known.topics and known.pattern.matches(name))
            known.matching, known.topics = frozenset((*still, *new)), topics
        return known.matching
