"""The form of a decision: events to commit, and an answer for the client."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, TypeAlias, TypeVar

from headrace.base.ids import BrokerEpoch, BrokerId
from headrace.base.values import Value
from headrace.metadata.events import MetadataEvent
from headrace.wire.errors import ErrorCode

T_co = TypeVar("T_co", covariant=True)


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Refusal(Value):
    """An expected refusal: an error code of the protocol and one sentence for people."""

    code: ErrorCode
    message: str


Verdict: TypeAlias = list[MetadataEvent] | Refusal
"""The verdict on one wish of a request: the events that carry it out, or a refusal."""


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Decision(Value, Generic[T_co]):
    """The decision on a whole request. The events are committed as one entry, all or none; `result` is returned after
    that."""

    events: tuple[MetadataEvent, ...]
    result: T_co


def decided(verdict: Verdict) -> Decision[Refusal | None]:
    """Return the decision on a request for one thing; its result is the refusal, or None."""
    if isinstance(verdict, Refusal):
        return Decision((), verdict)
    return Decision(tuple(verdict), None)


def stale(broker_id: BrokerId, broker_epoch: BrokerEpoch) -> Refusal:
    """Return the refusal for an incarnation that is not the broker's last."""
    return Refusal(
        ErrorCode.STALE_BROKER_EPOCH,
        f"Broker {broker_id} with epoch {broker_epoch} is not registered: it was restarted, removed or never there.",
    )
