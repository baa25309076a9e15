"""Metadata levels: which events the release of a broker knows.

A broker that is given an unknown event stops. So brokers register the level of their release, as Kafka's brokers do
with `metadata.version` (KIP-584, KIP-778). No level is finalized: an event is decided once all brokers know it.

| Level | Known from that level on |
|---|---|
| 0 | All events of 0.1.0. Brokers of 0.1.0 register no level. |
| 1 | ACLs, SCRAM credentials and the cluster's secret. |
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from headrace.metadata.events import AclCreated, MetadataEvent, ScramCredentialChanged, SecretMade
from headrace.metadata.image import MetadataImage

METADATA_LEVEL: Final = 1
"""The level of this release. It rises with an event, or a version of one, that the last release does not know."""


def needed_by(events: Iterable[MetadataEvent]) -> tuple[int, str]:
    """The lowest level that knows all of these events, and what they are about; the latter is empty for level 0."""
    newest = max(events, key=lambda event: getattr(event, "LEVEL", 0), default=None)
    return getattr(newest, "LEVEL", 0), getattr(newest, "SUBJECT", "")


def needed_by_image(image: MetadataImage) -> tuple[int, str]:
    """As `needed_by`, for the events of a snapshot."""
    kinds = ((image.acls, AclCreated), (image.scram, ScramCredentialChanged), (image.secret, SecretMade))
    return max(((kind.LEVEL, kind.SUBJECT) for there, kind in kinds if there), default=(0, ""))
