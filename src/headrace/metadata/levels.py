"""Feature levels: which events, and forms on disk, a release knows, and from when on a cluster may have them.

A broker that is given an unknown event stops. So each broker registers the levels that its release knows, and the
cluster has one level, `MetadataImage.level`, as Kafka has `metadata.version` (KIP-584, KIP-778). An operator raises it
(`headrace upgrade`, UpdateFeatures) once all brokers know the next one. Code that writes something new asks
`image.level` before, so that no earlier release meets it. A new cluster begins at the level of its first broker.

| Level | Known from that level on |
|---|---|
| 0 | All events of 0.1.0. Brokers of 0.1.0 register no level. |
| 1 | ACLs, SCRAM credentials and the cluster's secret. No release ends here: it is finalized with level 2. |
| 2 | The finalized level itself. |
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from headrace.metadata.events import AclCreated, LevelFinalized, MetadataEvent, ScramCredentialChanged, SecretMade
from headrace.metadata.image import MetadataImage

METADATA_LEVEL: Final = 2
"""The highest level of this release. It rises with an event, or a version of one, that the last release lacks."""
METADATA_LEVEL_MIN: Final = 0
"""The lowest level of a cluster in which this release can run."""


def needed_by(events: Iterable[MetadataEvent]) -> tuple[int, str]:
    """The lowest level that knows all of these events, and what they are about; the latter is empty for level 0."""
    newest = max(events, key=lambda event: getattr(event, "LEVEL", 0), default=None)
    return getattr(newest, "LEVEL", 0), getattr(newest, "SUBJECT", "")


def needed_by_image(image: MetadataImage) -> tuple[int, str]:
    """As `needed_by`, for the events of a snapshot."""
    if image.finalized_level:
        level = max(image.finalized_level, LevelFinalized.LEVEL)
        return level, f"feature level {level}"
    kinds = ((image.acls, AclCreated), (image.scram, ScramCredentialChanged), (image.secret, SecretMade))
    return max(((kind.LEVEL, kind.SUBJECT) for there, kind in kinds if there), default=(0, ""))


def born_at(level: int) -> tuple[LevelFinalized, ...]:
    """The events that give a new cluster its level, where its first broker knows this one."""
    highest = min(level, METADATA_LEVEL)
    return (LevelFinalized(level=highest),) if highest >= LevelFinalized.LEVEL else ()
