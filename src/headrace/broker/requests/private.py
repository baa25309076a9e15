"""The rights that Headrace's own APIs need, which other brokers and commands use. A client without them is cut off."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from headrace.base.errors import NotAllowed
from headrace.broker.requests.rights import Rights
from headrace.metadata.access.acls import AclOperation, ResourceType
from headrace.net.server.connection import Answer, Connection, Later, Serve

Private: TypeAlias = Callable[[memoryview, Connection, Rights], Answer | Later | None]
"""Serves one frame of a private API, for a client with these rights. Raises CorruptData, and then the connection is
closed."""


def for_those_who_may(operation: AclOperation, serve: Serve) -> Private:
    """Serve clients that may do this to the cluster."""

    def served(frame: memoryview, connection: Connection, rights: Rights) -> Answer | Later | None:
        check(rights, operation)
        return serve(frame, connection)

    return served


def check(rights: Rights, operation: AclOperation) -> None:
    """Raises NotAllowed where the client may not do this to the cluster."""
    if not rights.may(operation, ResourceType.CLUSTER):
        raise NotAllowed(f"its user needs the right {operation.name} on the cluster: see headrace acl")
