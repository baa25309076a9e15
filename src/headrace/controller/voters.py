"""Decides which learners become voters: those that replace lost voters.

Promises:
- No learner is promoted while there are `wanted` voters or more.
- No broker is promoted that is fenced, has another directory than the member, or is behind the committed log.
- No broker is promoted whose vote an operator has taken.
- No voter is demoted without a request, so a voter that comes and goes changes nothing. A dead voter counts until it is
  removed.

The consensus core has the last word on who has caught up. Sources: DESIGN "Birth, identity, membership"; KIP-853.
"""

from __future__ import annotations

from headrace.base.ids import BrokerId
from headrace.controller.asks.brokers import QuorumReplica, QuorumView
from headrace.controller.decision import Decision
from headrace.metadata.events import VoteWithheld
from headrace.metadata.image import MetadataImage


def promotable(image: MetadataImage, view: QuorumView, wanted: int) -> list[QuorumReplica]:
    """Return learners of which one is to be promoted now, the first that can be; empty where there are enough
    voters."""
    if _missing(view, wanted) <= 0:
        return []
    return [learner for learner in _waiting(image, view) if learner.log_end_offset >= view.high_watermark]


def withhold_vote(image: MetadataImage, *, broker_id: BrokerId, withheld: bool) -> Decision[None]:
    """Remember, or forget, that an operator has taken the broker's vote."""
    if (broker_id in image.withheld) == withheld:
        return Decision((), None)
    return Decision((VoteWithheld(broker_id=broker_id, withheld=withheld),), None)


def wrongly_withheld(image: MetadataImage, view: QuorumView) -> list[BrokerId]:
    """Return voters that are noted as demoted: their demotion was refused, or they were promoted since."""
    return [replica.broker_id for replica in view.replicas if replica.voter and replica.broker_id in image.withheld]


def outlook(image: MetadataImage, view: QuorumView, wanted: int) -> str:
    """Return what becomes of the learners, as a sentence; empty where there are `wanted` voters."""
    missing = _missing(view, wanted)
    if missing <= 0:
        return ""
    waiting = _waiting(image, view)
    said = [f"broker {learner.broker_id} will be promoted once caught up" for learner in waiting[:missing]]
    learners = [replica for replica in view.replicas if not replica.voter and replica not in waiting]
    for learner in learners:
        if learner.broker_id in image.withheld:
            command = f"headrace broker promote {learner.broker_id}"
            said.append(f"broker {learner.broker_id} was demoted, and only '{command}' gives it a vote again")
        elif len(waiting) < missing:
            said.append(f"broker {learner.broker_id} is down, and will be promoted once it is back and has caught up")
    if len(waiting) < missing and not learners:
        said.append(f"another broker that joins will be promoted, up to {wanted} voters (controller.voters)")
    return "; ".join(said)


def _missing(view: QuorumView, wanted: int) -> int:
    return wanted - sum(replica.voter for replica in view.replicas)


def _waiting(image: MetadataImage, view: QuorumView) -> list[QuorumReplica]:
    """Return live learners that may be promoted once they have caught up, by id."""
    live = {broker.id: broker.directory_id for broker in image.live_brokers()}
    return [
        replica
        for replica in sorted(view.replicas, key=lambda replica: replica.broker_id)
        if not replica.voter
        and live.get(replica.broker_id) == replica.directory_id
        and replica.broker_id not in image.withheld
    ]
