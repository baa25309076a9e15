"""The cluster's topics as consumer groups see them: by name, and by regular expression.

Promises:
- It shows the state of one image, never of a later one.
- An expression is matched once against the topics that exist, and after that against new ones only.
- The event loop serves others meanwhile. An expression that costs too much is refused.

Internal topics are topics here too, as with Kafka.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Iterable, Iterator

import immutables

from headrace.base.ids import TopicId
from headrace.base.limits import (
    GROUP_PATTERN_KEPT_MAX,
    GROUP_PATTERN_NAMES_PER_TURN,
    GROUP_PATTERN_WORK_MAX,
    GROUP_PATTERN_WORK_PER_NAME_MAX,
    GROUP_PATTERN_WORK_PER_TURN,
    GROUP_PATTERNS_KEPT_MAX,
)
from headrace.coordinators.groups.consumer.expressions import PatternError
from headrace.coordinators.groups.consumer.model import TopicShape
from headrace.coordinators.groups.consumer.patterns import Pattern
from headrace.metadata.image import MetadataImage


class _Known:
    """The topics that an expression matches, among those seen so far. Raises PatternError where it is no expression."""

    def __init__(self, expression: str) -> None:
        self._pattern = Pattern(expression)
        self._topics: immutables.Map[str, TopicId] = immutables.Map()
        self.matching: frozenset[str] | None = frozenset()
        """None: it costs too much."""
        self.looking = asyncio.Lock()

    def look(self, topics: immutables.Map[str, TopicId]) -> Iterator[None]:
        """Match the expression against `topics`. Yields when others should have their turn."""
        if self._topics is topics or self.matching is None:
            return
        known, pattern = self._topics, self._pattern
        work = turn = pattern.work
        names = [name for name in topics if name not in known]
        may_be = work + GROUP_PATTERN_WORK_MAX + GROUP_PATTERN_WORK_PER_NAME_MAX * len(names)
        found = [name for name in self.matching if name in topics]
        for number, name in enumerate(names, 1):
            if pattern.matches(name):
                found.append(name)
            if pattern.work > may_be:
                self.matching = None
                break
            if number % GROUP_PATTERN_NAMES_PER_TURN == 0 or pattern.work > turn + GROUP_PATTERN_WORK_PER_TURN:
                turn = pattern.work
                yield
        else:
            self._topics, self.matching = topics, frozenset(found)
        if pattern.remembered > GROUP_PATTERN_KEPT_MAX:
            pattern.forget()


class ClusterTopics:
    """See the module. Implements `Topics` of the consumer groups. Loop-only."""

    def __init__(self, image: MetadataImage, known: OrderedDict[str, _Known] | None = None) -> None:
        self.image = image
        self._known: OrderedDict[str, _Known] = OrderedDict() if known is None else known
        """Matches by expression, the one not asked for the longest first."""

    def at(self, image: MetadataImage) -> ClusterTopics:
        """Return the topics of a later image; this object must not be asked any more."""
        return ClusterTopics(image, self._known)

    @property
    def version(self) -> int:
        return self.image.index

    def shape(self, name: str) -> TopicShape | None:
        topic = self.image.topic(name)
        return None if topic is None else TopicShape(topic.id, len(topic.partitions))

    def name(self, topic_id: TopicId) -> str | None:
        topic = self.image.topic_by_id(topic_id)
        return None if topic is None else topic.name

    async def prepare(self, patterns: Iterable[str]) -> None:
        """Match these expressions while others have their turns, so that `matching` need not."""
        for pattern in patterns:
            known = self._find(pattern)
            if known is not None:
                async with known.looking:  # a whole group may come with one expression
                    for _ in known.look(self.image.topic_ids):
                        await asyncio.sleep(0)

    def matching(self, pattern: str) -> frozenset[str] | None:
        known = self._find(pattern)
        if known is None:
            return None
        for _ in known.look(self.image.topic_ids):
            pass  # no time for others: it was not prepared
        return known.matching

    def _find(self, pattern: str) -> _Known | None:
        known = self._known.get(pattern)
        if known is None:
            try:
                known = self._known[pattern] = _Known(pattern)
            except PatternError:
                return None
            if len(self._known) > GROUP_PATTERNS_KEPT_MAX:
                self._known.popitem(last=False)
        self._known.move_to_end(pattern)
        return known
