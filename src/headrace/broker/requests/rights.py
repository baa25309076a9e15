"""The rights of a request's client, and the record of what it was allowed and denied.

Promises: where no authorizer is set, every client may do everything, and nothing is asked.
"""

from __future__ import annotations

from typing import ClassVar, Final, NamedTuple, Protocol
from uuid import UUID

from headrace.base.ids import TopicId
from headrace.base.limits import ACL_TEXT_CHARACTERS_MAX, AUDITED_CLIENTS_MAX, AUTHORIZATIONS_KEPT_MAX
from headrace.metadata.access.acls import CLUSTER_NAME, AclOperation, ResourceType
from headrace.metadata.image import MetadataImage
from headrace.net.server.connection import Connection
from headrace.net.server.greeting import Witness
from headrace.security.authorizer import Action, Authorizer, Client, Verdict
from headrace.wire.errors import ErrorCode

Op = AclOperation
SUPPORTED: Final = {
    ResourceType.TOPIC: (
        Op.READ,
        Op.WRITE,
        Op.CREATE,
        Op.DELETE,
        Op.ALTER,
        Op.DESCRIBE,
        Op.DESCRIBE_CONFIGS,
        Op.ALTER_CONFIGS,
    ),
    ResourceType.GROUP: (Op.READ, Op.DELETE, Op.DESCRIBE, Op.DESCRIBE_CONFIGS, Op.ALTER_CONFIGS),
    ResourceType.CLUSTER: (
        Op.CREATE,
        Op.ALTER,
        Op.DESCRIBE,
        Op.CLUSTER_ACTION,
        Op.DESCRIBE_CONFIGS,
        Op.ALTER_CONFIGS,
        Op.IDEMPOTENT_WRITE,
    ),
}
"""Operations that an answer tells a client of, as its authorized operations (KIP-430)."""
OPERATIONS_NOT_ASKED_FOR: Final = -(2**31)
DENIED: Final = {
    ResourceType.TOPIC: ErrorCode.TOPIC_AUTHORIZATION_FAILED,
    ResourceType.GROUP: ErrorCode.GROUP_AUTHORIZATION_FAILED,
    ResourceType.CLUSTER: ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
    ResourceType.TRANSACTIONAL_ID: ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
}
"""The error for a client that may not do something to such a resource."""


class Decided(NamedTuple):
    """A verdict on a client's request, for the audit."""

    client: Client
    listener: str
    api: int
    action: Action
    verdict: Verdict


class Audit(Witness, Protocol):
    """The record of what clients were allowed and denied."""

    @property
    def hears_of_grants(self) -> bool:
        """Whether it wants to hear of what was allowed."""

    def decided(self, decided: Decided) -> None:
        """An authorizer has decided."""

    def start(self) -> None:
        """Begin to write. Raises OSError."""

    def stop(self) -> None:
        """Write what is left. Idempotent."""


class Rights(Protocol):
    """Of one client, for one request."""

    @property
    def are_bounded(self) -> bool:
        """Whether there is anything that the client may not do."""

    def may(self, operation: AclOperation, kind: ResourceType, name: str = CLUSTER_NAME) -> bool:
        """Whether the client may do this. The audit hears of it."""

    def sees(self, kind: ResourceType, name: str) -> bool:
        """Whether it may describe the resource, where it has not named it. The audit hears nothing."""

    def may_for_some(self, operation: AclOperation, kind: ResourceType) -> bool:
        """Whether it may do this to at least one resource of the type."""

    def operations(self, kind: ResourceType, name: str = CLUSTER_NAME) -> int:
        """All that it may do to the resource: a bit for each operation."""


class Everything:
    """The rights of every client where there is no authorizer."""

    are_bounded: ClassVar[bool] = False

    def may(self, _: AclOperation, __: ResourceType, ___: str = CLUSTER_NAME) -> bool:
        return True

    def sees(self, _: ResourceType, __: str) -> bool:
        return True

    def may_for_some(self, _: AclOperation, __: ResourceType) -> bool:
        return True

    def operations(self, kind: ResourceType, _: str = CLUSTER_NAME) -> int:
        return _ALL[kind]


_ALL: Final = {kind: sum(1 << each for each in operations) for kind, operations in SUPPORTED.items()}
EVERYTHING: Final = Everything()


class ClientRights:
    """Rights by the ACLs of the moment."""

    __slots__ = ("_api", "_audit", "_authorizer", "_client", "_listener")
    are_bounded: ClassVar[bool] = True

    def __init__(self, authorizer: Authorizer, client: Client, audit: Audit, listener: str, api: int) -> None:
        self._authorizer = authorizer
        self._client = client
        self._audit = audit
        self._listener = listener
        self._api = api

    def may(self, operation: AclOperation, kind: ResourceType, name: str = CLUSTER_NAME) -> bool:
        action = Action(operation, kind, name)
        verdict = self._authorizer.decide(self._client, action)
        if verdict.is_allowed and not self._audit.hears_of_grants:
            return True
        self._audit.decided(Decided(self._client, self._listener, self._api, action, verdict))
        return verdict.is_allowed

    def sees(self, kind: ResourceType, name: str) -> bool:
        return self._authorizer.decide(self._client, Action(Op.DESCRIBE, kind, name)).is_allowed

    def may_for_some(self, operation: AclOperation, kind: ResourceType) -> bool:
        return self._authorizer.decide_by_type(self._client, operation, kind).is_allowed

    def operations(self, kind: ResourceType, name: str = CLUSTER_NAME) -> int:
        decide, client = self._authorizer.decide, self._client
        allowed = (each for each in SUPPORTED[kind] if decide(client, Action(each, kind, name)).is_allowed)
        return sum(1 << each for each in allowed)


class Grants:
    """Remembers what the clients of a shortcut were granted, by the words of their requests, until ACLs change."""

    __slots__ = ("_granted", "_is_kept")

    def __init__(self, *, is_kept: bool) -> None:
        """`is_kept`: False, where somebody wants to hear of each grant."""
        self._is_kept = is_kept
        self._granted: set[tuple[Rights, bytes | str]] = set()

    def has(self, rights: Rights, name: bytes | str) -> bool:
        """Whether this was granted."""
        return (rights, name) in self._granted

    def add(self, rights: Rights, name: bytes | str) -> None:
        """Remember that this was granted."""
        if not self._is_kept or len(name) > ACL_TEXT_CHARACTERS_MAX:
            return
        if len(self._granted) >= AUTHORIZATIONS_KEPT_MAX:
            self._granted.clear()
        self._granted.add((rights, name))

    def clear(self) -> None:
        """Forget all."""
        self._granted.clear()


class Authority:
    """Tells the rights of clients. `authorizer`: None: they may do everything."""

    def __init__(self, authorizer: Authorizer | None, audit: Audit | None) -> None:
        """`audit`: None, where there is no authorizer."""
        self._authorizer = authorizer
        self._audit = audit
        self._known: dict[tuple[str, str, str, int], ClientRights] = {}
        """By principal, address, listener and API: to look them up takes less time than to make them."""

    def start(self) -> None:
        """Begin to keep the record. Raises OSError."""
        if self._audit is not None:
            self._audit.start()

    def stop(self) -> None:
        """Write the rest of the record. Idempotent."""
        if self._audit is not None:
            self._audit.stop()

    @property
    def audit(self) -> Audit | None:
        """The record; None, where there is no authorizer."""
        return self._audit

    @property
    def is_asked(self) -> bool:
        """Whether there is an authorizer."""
        return self._authorizer is not None

    def grants(self) -> Grants:
        """Return a new memory, for one shortcut."""
        grants = Grants(is_kept=self._audit is not None and not self._audit.hears_of_grants)
        if self._authorizer is not None:
            self._authorizer.remember_in(grants)
        return grants

    def rights(self, connection: Connection, api: int) -> Rights:
        """The rights of the connection's client for a request of this API."""
        if self._authorizer is None or self._audit is None:
            return EVERYTHING
        who = (connection.principal, connection.peer_host, connection.listener_name, api)
        rights = self._known.get(who)
        if rights is None:
            if len(self._known) >= AUDITED_CLIENTS_MAX:
                self._known.clear()
            client = Client(connection.principal, connection.peer_host)
            rights = ClientRights(self._authorizer, client, self._audit, connection.listener_name, api)
            self._known[who] = rights
        return rights


def named(topic: bytes, image: MetadataImage, *, by_id: bool) -> str | None:
    """The name of a topic as a request has it: its name in UTF-8, or the 16 bytes of its id. None: no topic has it."""
    if not by_id:
        return topic.decode(errors="replace")
    found = image.topic_by_id(TopicId(UUID(bytes=topic)))
    return None if found is None else found.name
