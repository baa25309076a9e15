"""Raises the cluster's feature level, and refuses changes and registrations that do not go with it.

Promises:
- The level is raised only once every registered broker knows the new one, fenced or not. One that does not would stop
  at it, and again at each start. The level never falls.
- A voter that has not registered counts as one of the lowest level.
- No event is decided before the cluster is at the event's level.
- No broker registers that would stop at what the image has already, or that cannot run at the cluster's level.
- A broker's level never stands above that of its last registration.

Sources: KIP-584, KIP-778.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace
from typing import TypeVar

from headrace.base.ids import BrokerEpoch, BrokerId
from headrace.controller.decision import Decision, Refusal, decided, stale
from headrace.metadata.events import LevelFinalized
from headrace.metadata.image import MetadataImage, registration_of
from headrace.metadata.levels import METADATA_LEVEL, needed_by, needed_by_image
from headrace.wire.errors import ErrorCode

T = TypeVar("T")


def within_levels(
    decision: Decision[T | Refusal], image: MetadataImage, voters: Collection[BrokerId]
) -> Decision[T | Refusal]:
    """Return the decision, or its refusal where the cluster is not at the level of its events."""
    level, subject = needed_by(decision.events)
    if level <= image.level or any(isinstance(event, LevelFinalized) for event in decision.events):
        return decision
    refusal = unknown_to_some(image, level, subject, voters)
    if refusal is None:
        needed = max(level, LevelFinalized.LEVEL)  # no lower one can be finalized
        message = (
            f"This cluster is at feature level {image.level}, and {subject} need {needed}: raise it first ('headrace "
            "upgrade')."
        )
        refusal = Refusal(ErrorCode.UNSUPPORTED_VERSION, message)
    return Decision((), refusal)


def finalize_level(
    image: MetadataImage, level: int, *, may_fall: bool, voters: Collection[BrokerId], validate_only: bool
) -> Decision[Refusal | None]:
    """Raise the cluster's level. `may_fall`: the request is for a downgrade, which is refused in Kafka's words."""
    if level == image.level:
        return decided([])
    refusal = _impossible(image, level, may_fall=may_fall)
    if refusal is None and (old := unknown_to_some(image, level, f"feature level {level}", voters)) is not None:
        refusal = old.message
    if refusal is not None:
        return decided(Refusal(ErrorCode.INVALID_UPDATE_VERSION, refusal))
    return decided([] if validate_only else [LevelFinalized(level=level)])


def _impossible(image: MetadataImage, level: int, *, may_fall: bool) -> str | None:
    """Return why no broker matters; None where the brokers decide it."""
    if level > image.level and may_fall:
        return "Can't downgrade to a newer version."
    if level < image.level:
        return (
            f"The cluster is at feature level {image.level}, and a level never falls: the metadata may have what "
            "earlier releases do not know."
        )
    if not LevelFinalized.LEVEL <= level <= METADATA_LEVEL:
        return (
            f"The controller's release can raise the feature level to {LevelFinalized.LEVEL} at least and "
            f"{METADATA_LEVEL} at most."
        )
    return None


def unknown_to_some(image: MetadataImage, level: int, subject: str, voters: Collection[BrokerId]) -> Refusal | None:
    """Return the refusal that names brokers, or voters that have not registered, which may not know the level; None
    where all know it."""
    if (refusal := behind(image, image.brokers, level, subject)) is not None:
        return refusal
    if unknown := sorted(set(voters).difference(image.brokers)):
        who, it = _named(unknown, "votes and has", "vote and have")
        message = (
            f"{who} not registered, and may run a release that does not know {subject}: start {it}, or demote {it} "
            "first ('headrace broker demote')."
        )
        return Refusal(ErrorCode.UNSUPPORTED_VERSION, message)
    return None


def behind(image: MetadataImage, brokers: Iterable[BrokerId], level: int, subject: str) -> Refusal | None:
    """Return the refusal that names those of these registered brokers that are below the level; None where none is."""
    old = sorted(broker for broker in brokers if image.brokers[broker].level < level)
    if not old:
        return None
    who, it = _named(old, "runs", "run")
    message = f"{who} a release that does not know {subject}: upgrade or unregister {it} first."
    return Refusal(ErrorCode.UNSUPPORTED_VERSION, message)


def _named(brokers: Sequence[BrokerId], does: str, do: str) -> tuple[str, str]:
    """Return the beginning of a sentence about these brokers, and the pronoun for them."""
    if len(brokers) == 1:
        return f"Broker {brokers[0]} {does}", "it"
    return f"Brokers {', '.join(map(str, brokers))} {do}", "them"


def unfit(image: MetadataImage, broker_id: BrokerId, level_min: int, level: int) -> Refusal | None:
    """Return why a broker that knows these levels cannot register; None where it can."""
    if level_min > image.level:
        message = (
            f"Broker {broker_id} runs a release that knows no feature level below {level_min}, and this cluster is at "
            f"{image.level}: start it with the release that ran before, and run 'headrace upgrade' first."
        )
        return Refusal(ErrorCode.INVALID_REGISTRATION, message)
    needed, subject = needed_by_image(image)
    if level >= needed:
        return None
    message = f"Broker {broker_id} runs a release that does not know {subject}, which this cluster has: upgrade it."
    return Refusal(ErrorCode.INVALID_REGISTRATION, message)


def raise_level(
    image: MetadataImage, *, broker_id: BrokerId, broker_epoch: BrokerEpoch, level: int
) -> Decision[Refusal | None]:
    """Note the level of an incarnation that registered while a controller of an earlier release decided."""
    known = image.brokers.get(broker_id)
    if known is None or known.epoch != broker_epoch:
        return decided(stale(broker_id, broker_epoch))
    return decided([replace(registration_of(known), level=level)] if known.level < level else [])
