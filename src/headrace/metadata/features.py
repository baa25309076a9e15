"""The features of the cluster and the level of each, by Kafka's names (KIP-584).

Each of Kafka's own has one level: nothing that this version of Headrace does can be turned off, and nothing more can be
turned on. So nothing is stored. HEADRACE is the feature level of `levels`, which is in the image and can be raised.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

FEATURES: Final[Mapping[str, int]] = {
    "group.version": 1,  # consumer groups of the new protocol (KIP-848).
    "transaction.version": 2,  # A producer's epoch rises with each transaction (KIP-890).
    "metadata.version": 27,  # It is 4.1-IV1, in Kafka's numbering: the release whose APIs and tools are served
}
HEADRACE: Final = "headrace.version"
UPGRADE: Final = 1
UPGRADE_TYPES: Final = (UPGRADE, 2, 3)
"""Upgrade, safe downgrade, unsafe downgrade, as UpdateFeatures numbers them."""

UPDATE_FAILED: Final = "The update failed for all features since the following feature had an error: "
"""A refusal begins so, as Kafka's."""


def update_problem(name: str, level: int, upgrade_type: int) -> str | None:
    """Why a feature cannot be brought to a level, as a sentence; None where it has that level already, or where the
    controller decides (HEADRACE)."""
    wrong = f"Invalid update version {level} for feature {name}"
    if name not in (*FEATURES, HEADRACE):
        return f"{wrong}: this cluster does not support the feature, only {', '.join(FEATURES)} and {HEADRACE}."
    if upgrade_type not in UPGRADE_TYPES:
        return f"{wrong}: {upgrade_type} is not a type of upgrade, only 1 to 3 are."
    if name == HEADRACE:
        return None
    if level != FEATURES[name]:
        return f"{wrong}: this cluster only supports level {FEATURES[name]}, which it has."
    return None
