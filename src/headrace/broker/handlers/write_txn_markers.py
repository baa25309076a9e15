"""WriteTxnMarkers: a transaction coordinator has markers written to partitions that this broker leads (KIP-98).

A marker is answered once it is committed by the acks=all rule. Kafka's tools use it too, to abort a transaction that
hangs. v1 flexible; v2 says whether the transaction is of the new protocol (KIP-1228).
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from functools import partial

from headrace.broker.requests.access import on_cluster
from headrace.broker.requests.context import Handler, RequestContext
from headrace.broker.transactions.marking import Marker
from headrace.coordinators.transactions.model import TransactionVersion
from headrace.coordinators.values import NamedPartition
from headrace.metadata.access.acls import AclOperation
from headrace.wire.apis import ApiKey
from headrace.wire.errors import ErrorCode
from headrace.wire.messages.write_txn_markers import (
    WritableTxnMarker,
    WritableTxnMarkerPartitionResult,
    WritableTxnMarkerResult,
    WritableTxnMarkerTopicResult,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)


async def handle(request: WriteTxnMarkersRequest, context: RequestContext) -> WriteTxnMarkersResponse:
    waiting = [_written(marker, context) for marker in request.markers]
    outcomes = [{named: await outcome for named, outcome in each.items()} for each in waiting]
    return WriteTxnMarkersResponse(
        markers=tuple(_result(marker, each) for marker, each in zip(request.markers, outcomes, strict=True))
    )


def _written(wanted: WritableTxnMarker, context: RequestContext) -> dict[NamedPartition, asyncio.Future[ErrorCode]]:
    marker = Marker(
        wanted.producer_id,
        wanted.producer_epoch,
        wanted.coordinator_epoch,
        is_committed=wanted.transaction_result,
        bumps_epochs=wanted.transaction_version >= TransactionVersion.TV2,
    )
    loop, outcomes = asyncio.get_running_loop(), dict[NamedPartition, asyncio.Future[ErrorCode]]()
    for topic in wanted.topics:
        for index in topic.partition_indexes:
            named = NamedPartition(topic.name, index)
            if named not in outcomes:
                outcome = outcomes[named] = loop.create_future()
                context.services.markers.write(named, marker, partial(_settle, outcome))
    return outcomes


def _settle(outcome: asyncio.Future[ErrorCode], error: ErrorCode) -> None:
    if not outcome.done():
        outcome.set_result(error)


def _result(wanted: WritableTxnMarker, outcomes: Mapping[NamedPartition, ErrorCode]) -> WritableTxnMarkerResult:
    return WritableTxnMarkerResult(
        producer_id=wanted.producer_id,
        topics=tuple(
            WritableTxnMarkerTopicResult(
                topic.name,
                tuple(
                    WritableTxnMarkerPartitionResult(index, outcomes[NamedPartition(topic.name, index)])
                    for index in topic.partition_indexes
                ),
            )
            for topic in wanted.topics
        ),
    )


def _forbidden(request: WriteTxnMarkersRequest, error: ErrorCode) -> WriteTxnMarkersResponse:
    return WriteTxnMarkersResponse(
        markers=tuple(
            _result(
                marker,
                {
                    NamedPartition(topic.name, index): error
                    for topic in marker.topics
                    for index in topic.partition_indexes
                },
            )
            for marker in request.markers
        )
    )


HANDLER = Handler(
    int(ApiKey.WRITE_TXN_MARKERS),
    (1, 2),
    handle,
    on_cluster(_forbidden, AclOperation.CLUSTER_ACTION, AclOperation.ALTER),
    pipelined=True,
)
