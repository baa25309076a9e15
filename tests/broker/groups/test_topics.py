"""The topics that regular expressions match, as topics come and go."""

from __future__ import annotations

import asyncio
import uuid
from dataclasses import replace

import immutables
import pytest

from headrace.base.ids import TopicId
from headrace.base.limits import GROUP_PATTERN_NAMES_PER_TURN, GROUP_PATTERNS_KEPT_MAX, GROUP_VIEWS_KEPT_MAX
from headrace.broker.groups.topics import ClusterTopics
from headrace.coordinators.groups.consumer.model import Sight
from headrace.coordinators.groups.consumer.patterns import Pattern
from headrace.metadata.access.acls import (
    AclOperation,
    AclPermission,
    AclRule,
    Acls,
    PatternType,
    ResourcePattern,
    ResourceType,
)
from headrace.metadata.image import EMPTY_IMAGE, MetadataImage
from headrace.security.authorizer import Authorizer
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


# rights

PREFIXED = ResourcePattern(ResourceType.TOPIC, PatternType.PREFIXED, "a")


def rule(principal: str, host: str = "*") -> AclRule:
    return AclRule(principal, host, AclOperation.READ, AclPermission.ALLOW)


def acls(*rules: AclRule) -> Acls:
    return immutables.Map({PREFIXED: frozenset(rules)})


def alice(pattern: str = ".*", host: str = "/10.0.0.1") -> Sight:
    return Sight(pattern, "User:alice", host)


def test_a_client_sees_those_matches_that_it_may_describe_now() -> None:
    authorizer = Authorizer()
    topics = ClusterTopics(image(1, "a1", "a2", "b"), authorizer)
    assert topics.visible(alice()) == frozenset()
    authorizer.use(acls(rule("User:alice")))
    assert topics.visible(alice()) == frozenset({"a1", "a2"})
    assert topics.visible(alice("b|a1")) == frozenset({"a1"})
    assert topics.at(image(2, "a2", "a3")).visible(alice()) == frozenset({"a2", "a3"})
    assert topics.visible(Sight(".*", "User:bob", "/10.0.0.1")) == frozenset()
    assert topics.visible(alice("(")) == frozenset()
    assert topics.visible(Sight(".*", None, "/10.0.0.1")) is None, "it has to be known"
    authorizer.use(acls())
    assert topics.visible(alice()) == frozenset()


def test_hosts_are_told_apart_where_an_acl_does() -> None:
    authorizer = Authorizer()
    topics = ClusterTopics(image(1, "a1"), authorizer)
    authorizer.use(acls(rule("User:alice", "10.0.0.0/8")))
    assert topics.visible(alice()) == frozenset({"a1"})
    assert topics.visible(alice(host="/11.0.0.1")) == frozenset()


def test_views_that_are_remembered_are_bounded_and_shared() -> None:
    authorizer = Authorizer()
    authorizer.use(acls(rule("User:*")))
    topics = ClusterTopics(image(1, "a1", "a2"), authorizer)
    seen = {id(topics.visible(Sight("a.", f"User:{user}", f"/10.0.0.{user}"))) for user in range(10)}
    assert seen == {id(topics.matching("a."))}, "all of them are one object"
    for user in range(GROUP_VIEWS_KEPT_MAX + 10):
        topics.visible(Sight("a.", f"User:{user}", ""))
    assert topics._views is not None
    assert len(topics._views._seen) == GROUP_VIEWS_KEPT_MAX


def test_others_have_their_turns_while_rights_are_looked_up() -> None:
    count = 4 * GROUP_PATTERN_NAMES_PER_TURN
    authorizer = Authorizer({"User:alice"})
    topics = ClusterTopics(image(1, *names(count)), authorizer)
    topics.matching(".*")
    turns = sum(1 for _ in topics._look(alice()))
    assert turns == count / GROUP_PATTERN_NAMES_PER_TURN
    assert topics.visible(alice()) == frozenset(names(count))
    assert sum(1 for _ in topics._look(alice())) == 0, "it is remembered"
