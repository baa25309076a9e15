"""Who may have a quota, and which: the entities and keys of client quotas, by Kafka's names. Sources: KIP-13, 124, 257,
546, 612.

Promises: an entity has one form, its parts sorted by kind, so that two that are equal compare equal.
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
"""Share of the broker's event loop, of which there is one: 100 is all of it."""
CLIENT_KEYS: Final = (PRODUCER_BYTE_RATE, CONSUMER_BYTE_RATE, REQUEST_PERCENTAGE)
WHOLE_KEYS: Final = (PRODUCER_BYTE_RATE, CONSUMER_BYTE_RATE)
"""Those that are whole numbers."""

QuotaEntity: TypeAlias = tuple[tuple[str, str | None], ...]
"""(kind, name) of each part, by kind; the name None: whoever of this kind has no quota of their own."""


def quota_entity(parts: Mapping[str, str | None]) -> QuotaEntity:
    """In its one form."""
    return tuple(sorted(parts.items()))
