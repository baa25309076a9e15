"""Client quotas: their entities and keys, by Kafka's names. Sources: KIP-13, 124, 257, 546, 612.

Promises: an entity has one form, with its parts sorted by kind, so that equal entities compare equal.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, TypeAlias

USER: Final = "user"
CLIENT_ID: Final = "client-id"
IP: Final = "ip"
KINDS: Final = (CLIENT_ID, IP, USER)

PRODUCER_BYTE_RATE: Final = "producer_byte_rate"
"""Bytes of Produce requests in a second."""
CONSUMER_BYTE_RATE: Final = "consumer_byte_rate"
"""Bytes of Fetch responses in a second."""
REQUEST_PERCENTAGE: Final = "request_percentage"
"""Share of the broker's single event loop: 100 is all of it."""
CONTROLLER_MUTATION_RATE: Final = "controller_mutation_rate"
"""Partitions that are created or deleted in a second (KIP-599)."""
CONNECTION_CREATION_RATE: Final = "connection_creation_rate"
"""Connections of an address that are accepted in a second (KIP-612)."""
CLIENT_KEYS: Final = (PRODUCER_BYTE_RATE, CONSUMER_BYTE_RATE, REQUEST_PERCENTAGE, CONTROLLER_MUTATION_RATE)
IP_KEYS: Final = (CONNECTION_CREATION_RATE,)
WHOLE_KEYS: Final = (PRODUCER_BYTE_RATE, CONSUMER_BYTE_RATE, CONNECTION_CREATION_RATE)
"""The keys whose values are whole numbers."""

QUOTA_DOCS: Final[Mapping[str, str]] = {
    PRODUCER_BYTE_RATE: "Bytes of produce requests in a second.",
    CONSUMER_BYTE_RATE: "Bytes of fetch answers in a second.",
    REQUEST_PERCENTAGE: "Share of a broker's event loop: 100 is all of it.",
    CONTROLLER_MUTATION_RATE: "Partitions that are created or deleted in a second.",
    CONNECTION_CREATION_RATE: "Connections of an address that are accepted in a second.",
}
"""The meaning of each key, for users."""

QuotaEntity: TypeAlias = tuple[tuple[str, str | None], ...]
"""(kind, name) of each part, by kind. A name None stands for all of this kind that have no quota of their own."""


def quota_entity(parts: Mapping[str, str | None]) -> QuotaEntity:
    """The entity of these parts, in its one form."""
    return tuple(sorted(parts.items()))


def keys_of(kind: str) -> tuple[str, ...]:
    """The keys of quotas of a user, a client-id or an ip."""
    return IP_KEYS if kind == IP else CLIENT_KEYS
