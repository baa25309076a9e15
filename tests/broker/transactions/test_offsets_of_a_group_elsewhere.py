"""A client whose group has another coordinator by now is told so, and takes the offsets of its transaction there."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from headrace.wire.errors import ErrorCode
from headrace.wire.messages.find_coordinator import FindCoordinatorRequest
from headrace.wire.messages.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
)
from tests.broker.clusters import DEADLINE_S, running
from tests.broker.group_broker import RawClient
from tests.broker.transactions.test_wire import ID, Client

BROKERS = (1, 2)


@pytest.mark.parametrize("version", [3, 5])
async def test_a_broker_that_does_not_coordinate_the_group_says_so(tmp_path: Path, version: int) -> None:
    async with asyncio.timeout(DEADLINE_S), running(tmp_path, len(BROKERS)) as cluster:
        async with RawClient(str(cluster.address(1))) as raw:
            await raw.create_topic("t")
            group = await raw.ask(1, FindCoordinatorRequest(key="g"))
            own = await raw.ask(1, FindCoordinatorRequest(key=ID, key_type=1))
        await cluster.agree()
        async with RawClient(str(cluster.address(own.node_id))) as raw:
            producer = await Client(raw).init()
        (elsewhere,) = (broker for broker in BROKERS if broker != group.node_id)
        part = TxnOffsetCommitRequestPartition(partition_index=0, committed_offset=7)
        request = TxnOffsetCommitRequest(
            transactional_id=ID,
            group_id="g",
            producer_id=producer.producer_id,
            producer_epoch=producer.producer_epoch,
            topics=(TxnOffsetCommitRequestTopic("t", (part,)),),
        )
        async with RawClient(str(cluster.address(elsewhere))) as raw:
            (told,) = (await raw.ask(version, request)).topics
        assert told.partitions[0].error_code == ErrorCode.NOT_COORDINATOR
