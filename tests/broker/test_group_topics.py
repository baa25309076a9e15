"""What regular expressions stand for, as topics come and go."""

from __future__ import annotations

import uuid
from dataclasses import replace

import immutables

from headrace.base.ids import TopicId
from headrace.base.limits import GROUP_PATTERNS_KEPT_MAX
from headrace.broker.group_topics import ClusterTopics
from headrace.metadata.image import EMPTY_IMAGE, MetadataImage


def image(index: int, *names: str) -> MetadataImage:
    ids = {name: TopicId(uuid.uuid5(uuid.NAMESPACE_DNS, name)) for name in names}
    return replace(EMPTY_IMAGE, index=index, topic_ids=immutables.Map(ids))


def test_expressions_follow_the_topics() -> None:
    topics = ClusterTopics(image(1, "a1", "a2", "b"))
    assert topics.matching("a.") == frozenset({"a1", "a2"})
    assert topics.matching("(") is None
    later = topics.at(image(2, "a2", "a3", "b"))
    assert (later.version, later.matching("a.")) == (2, frozenset({"a2", "a3"}))
    assert later.matching("b|c") == frozenset({"b"})
    assert later.at(image(3)).matching("a.") == frozenset()


def test_what_is_remembered_is_bounded() -> None:
    topics = ClusterTopics(image(1, "a1"))
    for number in range(GROUP_PATTERNS_KEPT_MAX + 10):
        assert topics.matching(f"a{number}") == frozenset({"a1"} if number == 1 else ())
    assert len(topics._known) == GROUP_PATTERNS_KEPT_MAX
    assert topics.matching("a1") == frozenset({"a1"})
