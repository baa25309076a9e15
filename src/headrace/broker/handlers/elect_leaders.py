"""ElectLeaders: lets the first replica lead again, or, where nobody leads, a replica outside the ISR.

- Partitions null: all of the cluster. Only those without their proper leader are in the answer.
- Preferred (0): the first replica leads, where it is live and in sync; else PREFERRED_LEADER_NOT_AVAILABLE.
- Unclean (1): where nobody leads, a live replica does, and records that it lacks are lost.
  ELIGIBLE_LEADERS_NOT_AVAILABLE where none is live.
- A partition that needs no election is ELECTION_NOT_NEEDED.

v0 preferred only; v1 election types (KIP-460); v2 flexible.
"""

from __future__ import annotations

import asyncio
from itertools import groupby

from headrace.base.ids import PartitionIndex
from headrace.base.limits import NAMES_PER_TURN_MAX
from headrace.broker.requests.access import on_cluster
from headrace.broker.requests.admin import error_of, submitted
from headrace.broker.requests.context import Handler, RequestContext
from headrace.controller.asks.replicas import ElectLeaders
from headrace.controller.decision import Refusal
from headrace.controller.leaders import Election, ElectionOutcome, PartitionRef
from headrace.metadata.access.acls import AclOperation
from headrace.wire.apis import ApiKey
from headrace.wire.errors import ErrorCode
from headrace.wire.messages.elect_leaders import (
    ElectLeadersRequest,
    ElectLeadersResponse,
    PartitionResult,
    ReplicaElectionResult,
)


async def handle(request: ElectLeadersRequest, context: RequestContext) -> ElectLeadersResponse:
    """Return one result for each partition, in the order of the request. An error of the whole request is repeated for
    each."""
    partitions = _partitions(request)
    if request.election_type not in tuple(Election):
        message = f"Election type {request.election_type} is unknown: 0 is preferred, 1 unclean."
        outcomes: tuple[ElectionOutcome, ...] | Refusal = Refusal(ErrorCode.INVALID_REQUEST, message)
    else:
        ask = ElectLeaders(election=Election(request.election_type), partitions=partitions)
        outcomes = await submitted(context, ask, request.timeout_ms)
    if isinstance(outcomes, Refusal):
        return _all_refused(partitions, outcomes)
    if len(outcomes) > NAMES_PER_TURN_MAX:
        await asyncio.sleep(0)  # to decide took one turn of the event loop
    return _answer(ErrorCode.NONE, outcomes)


def _all_refused(partitions: tuple[PartitionRef, ...] | None, why: Refusal) -> ElectLeadersResponse:
    refused = (ElectionOutcome(topic=ref.topic, partition=ref.partition, refusal=why) for ref in partitions or ())
    return _answer(why.code, tuple(refused))


def _answer(error: ErrorCode, outcomes: tuple[ElectionOutcome, ...]) -> ElectLeadersResponse:
    by_topic = groupby(outcomes, key=lambda outcome: outcome.topic)
    return ElectLeadersResponse(
        error_code=error,
        replica_election_results=tuple(
            ReplicaElectionResult(topic=topic, partition_result=tuple(map(_result, found))) for topic, found in by_topic
        ),
    )


def _partitions(request: ElectLeadersRequest) -> tuple[PartitionRef, ...] | None:
    if request.topic_partitions is None:
        return None
    return tuple(
        PartitionRef(named.topic, PartitionIndex(index))
        for named in request.topic_partitions
        for index in named.partitions
    )


def _result(outcome: ElectionOutcome) -> PartitionResult:
    code, message = error_of(outcome.refusal)
    return PartitionResult(partition_id=outcome.partition, error_code=code, error_message=message)


def _forbidden(request: ElectLeadersRequest, error: ErrorCode) -> ElectLeadersResponse:
    return _all_refused(_partitions(request), Refusal(error, error.message))


HANDLER = Handler(int(ApiKey.ELECT_LEADERS), (0, 2), handle, on_cluster(_forbidden, AclOperation.ALTER))
