"""The topics that regular expressions match, as topics come and go."""

from __future__ import annotations

import asyncio
import uuid
from dataclasses import replace

import immutables
import pytest

from headrace.base.ids import TopicId
from headrace.base.limits import GROUP_PATTERN_NAMES_PER_TURN, GROUP_PATTERNS_KEPT_MAX
from headrace.broker.groups.topics import ClusterTopics
from headrace.coordinators.groups.consumer.patterns import Pattern
from headrace.metadata.image import EMPTY_IMAGE, MetadataImage
from tests import loops

GREEDY = "(?:[ab]{0,20}a){20}x"
"""Looks at some hundred states for each character."""


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


def names(count: int) -> list[str]:
    return [f"{number:016b}".replace("0", "a").replace("1", "b") for number in range(count)]


def test_an_expression_that_costs_too_much_is_refused_and_stays_so() -> None:
    topics = ClusterTopics(image(1, *names(2000)))
    assert topics.matching(GREEDY) is None
    assert topics.at(image(2, "ax")).matching(GREEDY) is None
    assert ClusterTopics(image(1, "a" * 20 + "x", "a")).matching(GREEDY) == frozenset({"a" * 20 + "x"}), "among few"
    assert len(topics.matching("a.*|b.*") or ()) == 2000


def test_others_have_their_turns_while_an_expression_is_looked_up_once(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    matches = Pattern.matches

    def noted(pattern: Pattern, name: str) -> bool:
        asked.append(name)
        return matches(pattern, name)

    monkeypatch.setattr(Pattern, "matches", noted)

    async def work() -> None:
        count = 4 * GROUP_PATTERN_NAMES_PER_TURN
        topics = ClusterTopics(image(1, *names(count)))
        turns, done = 0, False

        async def counted() -> None:
            nonlocal turns
            while not done:
                turns += 1
                await asyncio.sleep(0)

        other = asyncio.ensure_future(counted())
        await asyncio.gather(*(topics.prepare(["a.*", "("]) for _ in range(10)))
        done = True
        await other
        assert turns >= 4
        assert topics.matching("a.*") == frozenset(names(count))
        assert sorted(asked) == sorted(names(count))

    loops.run(work())
