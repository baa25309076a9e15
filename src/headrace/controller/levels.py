"""Refuses changes, and registrations, for which some broker runs too old a release.

Promises:
- No event is decided that a registered broker does not know, fenced or not: it would stop at it, and again at each
  start.
- A voter that has not registered counts as one of the lowest level.
- No broker registers that would stop at what the image has already.
- A level never stands above that of the broker's last registration.

Sources: KIP-584, KIP-778.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace
from typing import TypeVar

from headrace.base.ids import BrokerEpoch, BrokerId
from headrace.controller.decision import Decision, Refusal, decided, stale
from headrace.metadata.image import MetadataImage, registration_of
from headrace.metadata.levels import needed_by, needed_by_image
from headrace.wire.errors import ErrorCode

T = TypeVar("T")


def within_levels(
    decision: Decision[T | Refusal], image: MetadataImage, voters: Collection[BrokerId]
) -> Decision[T | Refusal]:
    """Return the decision, or its refusal where a broker does not know its events."""
    level, subject = needed_by(decision.events)
    if level == 0:
        return decision
    if (refusal := behind(image, image.brokers, level, subject)) is not None:
        return Decision((), refusal)
    if unknown := sorted(set(voters).difference(image.brokers)):
        who, it = _named(unknown, "votes and has", "vote and have")
        message = (
            f"{who} not registered, and may run a release that does not know {subject}: start {it}, or demote {it} "
            "first ('headrace broker demote')."
        )
        return Decision((), Refusal(ErrorCode.UNSUPPORTED_VERSION, message))
    return decision


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


def too_old(image: MetadataImage, broker_id: BrokerId, level: int) -> Refusal | None:
    """Return why a broker of that level cannot register; None where it can."""
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
