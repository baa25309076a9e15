"""Decides which ACLs are created and deleted, as Kafka's AclControlManager does. Source: KIP-140.

Promises: each ACL of a request is decided on its own. To create one that is there is no error, and neither is a filter
that matches none. The image never has more than ACLS_MAX.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from headrace.base.limits import ACL_TEXT_CHARACTERS_MAX, ACLS_LOOKED_THROUGH_MAX, ACLS_MAX, ACLS_PER_REQUEST_MAX
from headrace.controller.decision import Decision, Refusal
from headrace.metadata.access.acls import (
    Acl,
    AclFilter,
    AclOperation,
    AclPermission,
    PatternType,
    ResourceType,
    found,
    is_network,
    number_of,
    with_acl,
)
from headrace.metadata.events import AclCreated, AclDeleted, MetadataEvent
from headrace.metadata.image import MetadataImage
from headrace.wire.errors import ErrorCode


@dataclass(frozen=True, slots=True)
class AclsDeleted:
    """The ACLs that one filter has deleted, or the refusal of the filter."""

    acls: tuple[Acl, ...] = ()
    refusal: Refusal | None = None


def create_acls(image: MetadataImage, acls: Sequence[Acl]) -> Decision[list[Refusal | None]]:
    """Return one answer for each, in order; None: it is in force."""
    now, room = image.acls, ACLS_MAX - number_of(image.acls)
    events: list[MetadataEvent] = []
    answers: list[Refusal | None] = []
    for acl in acls:
        refusal = _problem(acl)
        if refusal is None and (after := with_acl(now, acl)) is not now:
            if room <= len(events):
                refusal = Refusal(ErrorCode.POLICY_VIOLATION, f"There are {ACLS_MAX} ACLs already: delete some.")
            elif len(events) >= ACLS_PER_REQUEST_MAX:
                refusal = _too_many("creates")
            else:
                now = after
                events.append(AclCreated(acl=acl))
        answers.append(refusal)
    return Decision(tuple(events), answers)


def delete_acls(image: MetadataImage, filters: Sequence[AclFilter]) -> Decision[list[AclsDeleted]]:
    """Return one answer for each filter, in order. An ACL that two filters match is in both answers."""
    gone: dict[Acl, None] = {}
    answers, looked = [], 0
    for wanted in filters:
        if wanted.is_unknown:
            answers.append(AclsDeleted(refusal=_bad("The filter has a type or an operation that is unknown here.")))
            continue
        if wanted.patterns is None:
            if looked and looked + len(image.acls) > ACLS_LOOKED_THROUGH_MAX:
                answers.append(AclsDeleted(refusal=_bad("Too many filters name no pattern: ask with fewer at a time.")))
                continue
            looked += len(image.acls)
        matched = tuple(found(image.acls, wanted))
        if len(gone) + sum(acl not in gone for acl in matched) > ACLS_PER_REQUEST_MAX:
            answers.append(AclsDeleted(refusal=_too_many("deletes")))
            continue
        gone.update(dict.fromkeys(matched))
        answers.append(AclsDeleted(matched))
    return Decision(tuple(AclDeleted(acl=acl) for acl in gone), answers)


def _problem(acl: Acl) -> Refusal | None:
    pattern, rule = acl.pattern, acl.rule
    if pattern.resource_type in (ResourceType.UNKNOWN, ResourceType.ANY):
        return _bad("An ACL is about one type of resource: name it.")
    if pattern.pattern_type not in (PatternType.LITERAL, PatternType.PREFIXED):
        return _bad("An ACL's pattern is literal or prefixed.")
    if rule.operation in (AclOperation.UNKNOWN, AclOperation.ANY):
        return _bad("An ACL is about one operation, or ALL: name it.")
    if rule.permission not in (AclPermission.DENY, AclPermission.ALLOW):
        return _bad("An ACL allows or denies.")
    if not pattern.name:
        return _bad("An ACL's resource has a name: give it, or * for all.")
    kind, separator, name = rule.principal.partition(":")
    if not (kind and separator and name):
        return _bad(f"A principal has a type and a name, as in User:alice, not {rule.principal[:60]!r}.")
    if not rule.host:
        return _bad("An ACL has a host: give an address, or * for all.")
    if "/" in rule.host and not is_network(rule.host):
        return _bad(f"An ACL's host is an address or a network, as in 10.0.0.0/8, not {rule.host[:60]!r}.")
    if max(map(len, (pattern.name, rule.principal, rule.host))) > ACL_TEXT_CHARACTERS_MAX:
        return _bad(f"A name, principal or host in an ACL has at most {ACL_TEXT_CHARACTERS_MAX} characters.")
    return None


def _too_many(does: str) -> Refusal:
    return Refusal(ErrorCode.POLICY_VIOLATION, f"A request {does} {ACLS_PER_REQUEST_MAX} ACLs at most: ask for fewer.")


def _bad(message: str) -> Refusal:
    return Refusal(ErrorCode.INVALID_REQUEST, message)
