"""ACLs are created once and deleted by filters, each of a request for itself."""

from __future__ import annotations

from dataclasses import replace

import pytest

from headrace.base import limits
from headrace.controller.access import acls as deciding
from headrace.controller.access.acls import AclsDeleted, create_acls, delete_acls
from headrace.metadata.access.acls import (
    Acl,
    AclFilter,
    AclOperation,
    AclPermission,
    AclRule,
    PatternType,
    ResourcePattern,
    ResourceType,
    found,
)
from headrace.metadata.image import EMPTY_IMAGE, MetadataImage
from headrace.wire.errors import ErrorCode

READS = Acl(
    ResourcePattern(ResourceType.TOPIC, PatternType.LITERAL, "a"),
    AclRule("User:alice", "*", AclOperation.READ, AclPermission.ALLOW),
)
WRITES = replace(READS, rule=replace(READS.rule, operation=AclOperation.WRITE))
PREFIXED = replace(READS, pattern=ResourcePattern(ResourceType.TOPIC, PatternType.PREFIXED, "a"))


def holding(*acls: Acl) -> MetadataImage:
    decision = create_acls(EMPTY_IMAGE, acls)
    assert set(decision.result) <= {None}
    return EMPTY_IMAGE.replay(decision.events)


def test_an_acl_is_created_once() -> None:
    image = holding(READS, READS, WRITES)
    assert list(found(image.acls, AclFilter())) == [READS, WRITES]
    again = create_acls(image, [WRITES])
    assert again.events == ()
    assert again.result == [None]
    assert image.replay(create_acls(EMPTY_IMAGE, [READS]).events).acls is image.acls


def test_a_filter_deletes_what_it_matches() -> None:
    image = holding(READS, WRITES, PREFIXED)
    literal = AclFilter(pattern_type=PatternType.LITERAL)
    decision = delete_acls(image, [literal, AclFilter(operation=AclOperation.WRITE), AclFilter(name="b")])
    assert decision.result == [AclsDeleted((READS, WRITES)), AclsDeleted((WRITES,)), AclsDeleted()]
    after = image.replay(decision.events)
    assert list(found(after.acls, AclFilter())) == [PREFIXED]
    assert after.replay(decision.events).acls is after.acls


def test_a_filter_that_names_a_pattern_finds_what_one_that_looks_through_all_does() -> None:
    kinds, forms = (ResourceType.TOPIC, ResourceType.GROUP), (PatternType.LITERAL, PatternType.PREFIXED)
    patterns = [ResourcePattern(kind, form, name) for kind in kinds for form in forms for name in ("a", "ab", "*")]
    acls = holding(*(replace(READS, pattern=pattern) for pattern in patterns)).acls
    for kind in ResourceType:
        for form in PatternType:
            for name in ("a", "ab", "*", "none", None):
                wanted = AclFilter(resource_type=kind, pattern_type=form, name=name)
                looked = [acl for acl in found(acls, AclFilter()) if wanted.matches(acl.pattern, acl.rule)]
                assert list(found(acls, wanted)) == looked
                assert (wanted.patterns is None) == (name is None or form is PatternType.MATCH)


def test_filters_of_one_request_look_through_so_many_patterns_at_most(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deciding, "ACLS_LOOKED_THROUGH_MAX", 3)
    image = holding(READS, PREFIXED)
    named, unnamed = AclFilter(name="b"), AclFilter(principal="User:bob")
    told = delete_acls(image, [named, unnamed, named, unnamed, named]).result
    assert [each.refusal is None for each in told] == [True, True, True, False, True]


def test_a_filter_of_an_unknown_kind_deletes_nothing() -> None:
    decision = delete_acls(holding(READS), [AclFilter(operation=AclOperation.UNKNOWN)])
    assert decision.events == ()
    (answer,) = decision.result
    assert answer.refusal is not None
    assert answer.refusal.code == ErrorCode.INVALID_REQUEST


@pytest.mark.parametrize(
    ("bad", "words"),
    [
        (replace(READS, pattern=replace(READS.pattern, resource_type=ResourceType.ANY)), "one type of resource"),
        (replace(READS, pattern=replace(READS.pattern, pattern_type=PatternType.MATCH)), "literal or prefixed"),
        (replace(READS, pattern=replace(READS.pattern, name="")), "has a name"),
        (replace(READS, rule=replace(READS.rule, operation=AclOperation.ANY)), "one operation"),
        (replace(READS, rule=replace(READS.rule, permission=AclPermission.UNKNOWN)), "allows or denies"),
        (replace(READS, rule=replace(READS.rule, principal="alice")), "'alice'"),
        (replace(READS, rule=replace(READS.rule, principal=":alice")), "':alice'"),
        (replace(READS, rule=replace(READS.rule, host="")), "has a host"),
        (replace(READS, rule=replace(READS.rule, host="1" * 1025)), "1024"),
        (replace(READS, rule=replace(READS.rule, host="10.0.0.0/33")), "10.0.0.0/33"),
    ],
)
def test_a_bad_acl_is_refused_alone(bad: Acl, words: str) -> None:
    decision = create_acls(EMPTY_IMAGE, [bad, READS])
    refusal, none = decision.result
    assert refusal is not None
    assert words in refusal.message
    assert none is None
    assert len(decision.events) == 1


def test_their_number_has_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deciding, "ACLS_MAX", 2)
    assert limits.ACLS_MAX > 2
    image = holding(READS)
    decision = create_acls(image, [WRITES, PREFIXED, READS])
    done, refused, there = decision.result
    assert done is None
    assert there is None
    assert refused is not None
    assert refused.code == ErrorCode.POLICY_VIOLATION
