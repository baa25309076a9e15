"""The cluster's topics as consumer groups see them: by name, and by regular expression.

Promises:
- It shows the state of one image, never of a later one.
- An expression is matched once against the topics that exist, and after that against new ones only.
- A client is shown those matches that it may describe by the ACLs as they are now.
- The event loop serves others meanwhile. An expression that costs too much is refused.

Internal topics are topics here too, as with Kafka.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Generator, Iterable, Iterator
from typing import NamedTuple

import immutables

from headrace.base.ids import TopicId
from headrace.base.limits import (
    GROUP_PATTERN_KEPT_MAX,
    GROUP_PATTERN_NAMES_PER_TURN,
    GROUP_PATTERN_WORK_MAX,
    GROUP_PATTERN_WORK_PER_NAME_MAX,
    GROUP_PATTERN_WORK_PER_TURN,
    GROUP_PATTERNS_KEPT_MAX,
    GROUP_VIEWS_KEPT_MAX,
)
from headrace.coordinators.groups.consumer.expressions import PatternError
from headrace.coordinators.groups.consumer.model import Sight, TopicShape
from headrace.coordinators.groups.consumer.patterns import Pattern
from headrace.metadata.access.acls import AclOperation, Acls, ResourceType
from headrace.metadata.image import MetadataImage
from headrace.security.authorizer import Action, Authorizer, Client


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


class _Seen(NamedTuple):
    """A client's view of the matches of an expression, and from what it follows."""

    acls: Acls
    matching: frozenset[str]
    names: frozenset[str]


class _Views:
    """The matches that clients may describe, as far as somebody asked."""

    def __init__(self, authorizer: Authorizer) -> None:
        self._authorizer = authorizer
        self._seen: OrderedDict[Sight, _Seen] = OrderedDict()
        """The one not asked for the longest first."""

    def look(self, sight: Sight, matching: frozenset[str]) -> Generator[None, None, frozenset[str]]:
        """Return those of `matching` that the client may describe. Yields when others should have their turn."""
        decide, acls = self._authorizer.decide, self._authorizer.acls
        host = sight.host.removeprefix("/") if self._authorizer.tells_hosts_apart(ResourceType.TOPIC) else ""
        sight = sight._replace(host=host)
        seen = self._seen.get(sight)
        if seen is not None and seen.acls is acls and seen.matching is matching:
            self._seen.move_to_end(sight)
            return seen.names
        assert sight.principal is not None, "it is known"
        client, found = Client(sight.principal, host), list[str]()
        for number, name in enumerate(matching, 1):
            if decide(client, Action(AclOperation.DESCRIBE, ResourceType.TOPIC, name)).is_allowed:
                found.append(name)
            if number % GROUP_PATTERN_NAMES_PER_TURN == 0:
                yield
        names = matching if len(found) == len(matching) else frozenset(found)
        if self._authorizer.acls is acls:  # else some were decided by others
            self._seen[sight] = _Seen(acls, matching, names)
            self._seen.move_to_end(sight)
            if len(self._seen) > GROUP_VIEWS_KEPT_MAX:
                self._seen.popitem(last=False)
        return names


class ClusterTopics:
    """See the module. Implements `Topics` of the consumer groups. Loop-only."""

    def __init__(
        self,
        image: MetadataImage,
        authorizer: Authorizer | None = None,
        known: OrderedDict[str, _Known] | None = None,
        views: _Views | None = None,
    ) -> None:
        """`authorizer`: knows what clients may describe; None: everything."""
        self.image = image
        self._authorizer = authorizer
        self._views = _Views(authorizer) if views is None and authorizer is not None else views
        self._known: OrderedDict[str, _Known] = OrderedDict() if known is None else known
        """Matches by expression, the one not asked for the longest first."""

    def at(self, image: MetadataImage) -> ClusterTopics:
        """Return the topics of a later image; this object must not be asked any more."""
        return ClusterTopics(image, self._authorizer, self._known, self._views)

    @property
    def version(self) -> int:
        return self.image.index

    def shape(self, name: str) -> TopicShape | None:
        topic = self.image.topic(name)
        return None if topic is None else TopicShape(topic.id, len(topic.partitions))

    def name(self, topic_id: TopicId) -> str | None:
        topic = self.image.topic_by_id(topic_id)
        return None if topic is None else topic.name

    async def prepare(self, patterns: Iterable[str], sights: Iterable[Sight] = ()) -> None:
        """Match these expressions while others have their turns, so that `matching` need not; and `visible` with these
        clients."""
        for pattern in patterns:
            known = self._find(pattern)
            if known is not None:
                async with known.looking:  # a whole group may come with one expression
                    for _ in known.look(self.image.topic_ids):
                        await asyncio.sleep(0)
        for sight in sights:
            for _ in self._look(sight):
                await asyncio.sleep(0)

    def matching(self, pattern: str) -> frozenset[str] | None:
        known = self._find(pattern)
        if known is None:
            return None
        for _ in known.look(self.image.topic_ids):
            pass  # no time for others: it was not prepared
        return known.matching

    def visible(self, sight: Sight) -> frozenset[str] | None:
        looking = self._look(sight)
        while True:
            try:
                next(looking)  # no time for others: it was not prepared
            except StopIteration as stop:
                found: frozenset[str] | None = stop.value
                return found

    def _look(self, sight: Sight) -> Generator[None, None, frozenset[str] | None]:
        matching = self.matching(sight.pattern) or frozenset()
        if self._views is None:
            return matching
        if sight.principal is None:
            return None
        return (yield from self._views.look(sight, matching))

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
