"""The authorizer decides as a reader of the ACLs would, one by one; tests/interop compares it with Kafka's."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from headrace.metadata.access.acls import (
    NO_ACLS,
    Acl,
    AclOperation,
    AclPermission,
    Acls,
    PatternType,
    ResourcePattern,
    ResourceType,
    with_acl,
    without_acl,
)
from headrace.metadata.access.acls import AclRule as Rule
from headrace.security.authorizer import Action, Authorizer, Client

ALICE = Client("User:alice", "10.0.0.1")
READ_A = Action(AclOperation.READ, ResourceType.TOPIC, "a")


def acl(
    name: str,
    rule: Rule,
    *,
    pattern: PatternType = PatternType.LITERAL,
    resource: ResourceType = ResourceType.TOPIC,
) -> Acl:
    return Acl(ResourcePattern(resource, pattern, name), rule)


def allows(principal: str = "User:alice", *, host: str = "*", operation: AclOperation = AclOperation.READ) -> Rule:
    return Rule(principal, host, operation, AclPermission.ALLOW)


def denies(principal: str = "User:alice", *, host: str = "*", operation: AclOperation = AclOperation.READ) -> Rule:
    return Rule(principal, host, operation, AclPermission.DENY)


def using(*acls: Acl, authorizer: Authorizer | None = None) -> Authorizer:
    authorizer = authorizer or Authorizer()
    together: Acls = NO_ACLS
    for each in acls:
        together = with_acl(together, each)
    authorizer.use(together)
    return authorizer


OPERATIONS = (AclOperation.ALL, AclOperation.READ, AclOperation.DESCRIBE, AclOperation.ALTER_CONFIGS)
NAMES = st.text("ab*", min_size=1, max_size=3)
some_acls = st.lists(
    st.builds(
        Acl,
        st.builds(
            ResourcePattern,
            st.sampled_from((ResourceType.TOPIC, ResourceType.GROUP)),
            st.sampled_from((PatternType.LITERAL, PatternType.PREFIXED)),
            NAMES,
        ),
        st.builds(
            Rule,
            st.sampled_from(("User:alice", "User:bob", "User:*")),
            st.sampled_from(("*", "10.0.0.1", "10.0.0.2", "10.0.0.0/24")),
            st.sampled_from(OPERATIONS),
            st.sampled_from((AclPermission.ALLOW, AclPermission.DENY)),
        ),
    ),
    max_size=8,
)
actions = st.builds(
    Action,
    st.sampled_from((AclOperation.READ, AclOperation.DESCRIBE, AclOperation.DESCRIBE_CONFIGS)),
    st.just(ResourceType.TOPIC),
    NAMES,
)


def read_one_by_one(acls: list[Acl], client: Client, action: Action, *, default: bool) -> bool:
    """The rules as a page of documentation would say them."""
    about = []
    for each in acls:
        pattern = each.pattern
        if pattern.resource_type is action.resource_type and (
            action.name.startswith(pattern.name)
            if pattern.pattern_type is PatternType.PREFIXED
            else pattern.name in ("*", action.name)
        ):
            about.append(each.rule)
    if not about:
        return default
    mine = [
        rule
        for rule in about
        if rule.principal in (client.principal, "User:*") and rule.host in ("*", client.host, "10.0.0.0/24")
    ]
    denied = {rule.operation for rule in mine if rule.permission is AclPermission.DENY}
    allowed = {rule.operation for rule in mine if rule.permission is AclPermission.ALLOW}
    if denied & {action.operation, AclOperation.ALL}:
        return False
    if AclOperation.READ in allowed:
        allowed.add(AclOperation.DESCRIBE)
    if AclOperation.ALTER_CONFIGS in allowed:
        allowed.add(AclOperation.DESCRIBE_CONFIGS)
    return bool(allowed & {action.operation, AclOperation.ALL})


@given(some_acls, st.lists(actions, min_size=1, max_size=4), st.booleans())
def test_it_decides_as_one_who_reads_each(acls: list[Acl], asked: list[Action], default: bool) -> None:
    authorizer = using(*acls, authorizer=Authorizer(allows_where_no_acl=default))
    for action in (*asked, *asked):  # again, from memory
        assert authorizer.decide(ALICE, action).is_allowed is read_one_by_one(acls, ALICE, action, default=default)


@given(some_acls, actions)
def test_a_verdict_names_the_acl_that_it_follows_from(acls: list[Acl], action: Action) -> None:
    verdict = using(*acls).decide(ALICE, action)
    if verdict.acl is not None:
        assert verdict.acl in acls
        assert (verdict.acl.rule.permission is AclPermission.ALLOW) is verdict.is_allowed
        assert using(verdict.acl).decide(ALICE, action).is_allowed is verdict.is_allowed
    else:
        assert not verdict.is_allowed


@given(some_acls)
def test_whoever_may_read_some_topic_finds_one(acls: list[Acl]) -> None:
    authorizer = using(*acls)
    names = {each.pattern.name + more for each in acls for more in ("", "z")} | {"hardcode"}
    may = [authorizer.decide(ALICE, Action(AclOperation.READ, ResourceType.TOPIC, name)).is_allowed for name in names]
    if authorizer.decide_by_type(ALICE, AclOperation.READ, ResourceType.TOPIC).is_allowed:
        assert any(may)


def test_a_decision_ends_with_the_acls_that_it_followed_from() -> None:
    allowed = acl("a", allows())
    authorizer = using(allowed)
    assert authorizer.decide(ALICE, READ_A).is_allowed
    authorizer.use(without_acl(with_acl(NO_ACLS, allowed), allowed))
    assert not authorizer.decide(ALICE, READ_A).is_allowed


def test_a_super_user_may_do_what_is_denied_to_all() -> None:
    authorizer = using(acl("a", denies("User:*")), authorizer=Authorizer(["User:alice"]))
    assert authorizer.decide(ALICE, READ_A).is_allowed
    assert not authorizer.decide(Client("User:bob", "10.0.0.1"), READ_A).is_allowed


def test_a_host_may_be_a_network() -> None:
    authorizer = using(acl("a", allows(host="10.0.0.0/8")), acl("b", allows(host="fd00::/8")))
    assert authorizer.decide(ALICE, READ_A).is_allowed
    assert not authorizer.decide(Client("User:alice", "11.0.0.1"), READ_A).is_allowed
    assert authorizer.decide(Client("User:alice", "fd00::7"), READ_A._replace(name="b")).is_allowed
    assert not authorizer.decide(Client("User:alice", "10.0.0.1"), READ_A._replace(name="b")).is_allowed


def test_an_address_is_the_same_in_another_spelling() -> None:
    authorizer = using(acl("a", allows()), acl("a", denies(host="2001:DB8::1")))
    assert not authorizer.decide(Client("User:alice", "2001:db8::1"), READ_A).is_allowed
    assert authorizer.decide(Client("User:alice", "2001:db8::2"), READ_A).is_allowed


def test_a_network_that_is_none_is_about_nobody() -> None:
    assert not using(acl("a", allows(host="10.0.0.0/99"))).decide(ALICE, READ_A).is_allowed


def test_a_denial_for_every_group_holds_for_a_name_that_begins_with_a_star() -> None:
    """Kafka 4.4 overlooks it: it takes `*` for a literal name that is shorter than `*a`."""
    authorizer = using(
        acl("*", denies(), resource=ResourceType.GROUP),
        acl("*a", allows(), resource=ResourceType.GROUP),
    )
    assert not authorizer.decide(ALICE, Action(AclOperation.READ, ResourceType.GROUP, "*a")).is_allowed


def test_a_decision_about_a_name_as_long_as_a_request_is_not_kept() -> None:
    authorizer = using(acl("a", allows(), pattern=PatternType.PREFIXED))
    for length in (1, 1_000, 1_000_000):
        assert authorizer.decide(ALICE, Action(AclOperation.READ, ResourceType.TOPIC, "a" * length)).is_allowed
    assert sorted(len(name) for _, _, name in authorizer._decided) == [1, 1_000]
