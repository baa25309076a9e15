"""Transactions over the wire, request by request: both protocols, retries, refusals, timeouts and restarts."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from headrace.wire.batches import encode_batch
from headrace.wire.errors import ErrorCode
from headrace.wire.messages.add_offsets_to_txn import AddOffsetsToTxnRequest
from headrace.wire.messages.add_partitions_to_txn import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnTopic,
    AddPartitionsToTxnTransaction,
)
from headrace.wire.messages.describe_transactions import DescribeTransactionsRequest
from headrace.wire.messages.end_txn import EndTxnRequest
from headrace.wire.messages.find_coordinator import FindCoordinatorRequest
from headrace.wire.messages.init_producer_id import InitProducerIdRequest
from headrace.wire.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
)
from headrace.wire.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from headrace.wire.messages.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
)
from headrace.wire.messages.write_txn_markers import (
    WritableTxnMarker,
    WritableTxnMarkerTopic,
    WriteTxnMarkersRequest,
)
from headrace.wire.records import Record
from tests.broker.group_broker import RawClient, running

ID = "mine"
LOOK_EVERY_S = 0.01


class Client(NamedTuple):
    """A producer, by its requests."""

    raw: RawClient

    async def init(self, *, version: int = 4, timeout_ms: int = 60_000, **more: Any) -> Any:
        request = InitProducerIdRequest(transactional_id=ID, transaction_timeout_ms=timeout_ms, **more)
        while True:
            answer = await self.raw.ask(version, request)
            if answer.error_code not in BUSY:
                return answer
            await asyncio.sleep(LOOK_EVERY_S)

    async def add(self, producer: Any, *, topic: str = "t", version: int = 3) -> int:
        request = AddPartitionsToTxnRequest(
            v3_and_below_transactional_id=ID,
            v3_and_below_producer_id=producer.producer_id,
            v3_and_below_producer_epoch=producer.producer_epoch,
            v3_and_below_topics=(AddPartitionsToTxnTopic(topic, (0,)),),
        )
        (found,) = (await self.raw.ask(version, request)).results_by_topic_v3_and_below
        return int(found.results_by_partition[0].partition_error_code)

    async def produce(
        self, producer: Any, sequence: int, *, version: int = 10, transactional_id: str | None = ID
    ) -> int:
        records = encode_batch(
            [Record(0, 1_700_000_000_000, None, b"v", ())],
            producer_id=producer.producer_id,
            producer_epoch=producer.producer_epoch,
            base_sequence=sequence,
            transactional=True,
        )
        data = PartitionProduceData(index=0, records=memoryview(records))
        request = ProduceRequest(
            transactional_id=transactional_id,
            acks=-1,
            timeout_ms=120_000,
            topic_data=(TopicProduceData(name="t", partition_data=(data,)),),
        )
        answer = await self.raw.ask(version, request)
        return int(answer.responses[0].partition_responses[0].error_code)

    async def end(self, producer: Any, *, commit: bool, version: int = 3) -> Any:
        request = EndTxnRequest(ID, producer.producer_id, producer.producer_epoch, commit)
        while True:
            answer = await self.raw.ask(version, request)
            if answer.error_code not in BUSY:
                return answer
            await asyncio.sleep(LOOK_EVERY_S)

    async def state(self) -> str:
        (found,) = (await self.raw.ask(0, DescribeTransactionsRequest(transactional_ids=(ID,)))).transaction_states
        return str(found.transaction_state)

    async def until(self, state: str) -> None:
        while await self.state() != state:  # noqa: ASYNC110 - nobody tells of it
            await asyncio.sleep(LOOK_EVERY_S)


BUSY = (
    ErrorCode.CONCURRENT_TRANSACTIONS,
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.NOT_COORDINATOR,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
)


@pytest.fixture
async def client(tmp_path: Path) -> AsyncIterator[Client]:
    async with running(tmp_path) as bootstrap, RawClient(bootstrap) as raw:
        await raw.create_topic("t")
        await raw.ask(1, FindCoordinatorRequest(key=ID, key_type=1))
        yield Client(raw)


async def test_the_old_protocol_from_its_beginning_to_its_end(client: Client) -> None:
    producer = await client.init()
    assert (producer.error_code, producer.producer_epoch) == (0, 0)
    assert await client.add(producer) == 0
    assert await client.produce(producer, 0) == 0
    assert await client.produce(producer, 1) == 0
    for _ in range(2):  # a retry is answered as the first
        ended = await client.end(producer, commit=True)
        assert (ended.error_code, ended.producer_id, ended.producer_epoch) == (0, -1, -1)
    assert (await client.end(producer, commit=False)).error_code == ErrorCode.INVALID_TXN_STATE
    await client.until("CompleteCommit")
    assert await client.add(producer) == 0
    assert await client.produce(producer, 2) == 0
    assert (await client.end(producer, commit=False)).error_code == 0
    again = await client.init()
    assert (again.producer_id, again.producer_epoch) == (producer.producer_id, 1)


async def test_the_new_protocol_adds_partitions_by_itself_and_raises_the_epoch(client: Client) -> None:
    producer = await client.init()
    assert await client.produce(producer, 0, version=12) == 0
    assert await client.state() == "Ongoing"
    ended = await client.end(producer, commit=True, version=5)
    assert (ended.error_code, ended.producer_id, ended.producer_epoch) == (0, producer.producer_id, 1)
    again = await client.end(producer, commit=True, version=5)
    assert (again.error_code, again.producer_epoch) == (0, 1)
    await client.until("CompleteCommit")
    assert await client.produce(producer, 1, version=12) == ErrorCode.INVALID_PRODUCER_EPOCH
    assert await client.produce(ended, 0, version=12) == 0


async def test_a_batch_that_no_transaction_has_is_refused(client: Client) -> None:
    producer = await client.init()
    assert await client.produce(producer, 0, version=10) == ErrorCode.INVALID_TXN_STATE
    assert await client.produce(producer, 0, version=11) == ErrorCode.TRANSACTION_ABORTABLE
    assert await client.produce(producer, 0, transactional_id=None) == ErrorCode.INVALID_TXN_STATE
    assert await client.add(producer, topic="unknown") == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert await client.add(producer) == 0
    assert await client.produce(producer, 0) == 0


async def test_a_late_batch_of_an_ended_transaction_begins_no_other(client: Client) -> None:
    producer = await client.init()
    assert await client.add(producer) == 0
    assert await client.produce(producer, 0) == 0
    assert (await client.end(producer, commit=True)).error_code == 0
    await client.until("CompleteCommit")
    assert await client.produce(producer, 1) == ErrorCode.INVALID_TXN_STATE


async def test_a_new_producer_fences_the_old_and_ends_its_transaction(client: Client) -> None:
    old = await client.init()
    assert await client.add(old) == 0
    assert await client.produce(old, 0) == 0
    new = await client.init()
    assert new.producer_id == old.producer_id
    assert new.producer_epoch > old.producer_epoch
    assert await client.produce(old, 1) == ErrorCode.INVALID_PRODUCER_EPOCH
    assert (await client.end(old, commit=True)).error_code == ErrorCode.PRODUCER_FENCED
    assert (await client.end(old, commit=True, version=1)).error_code == ErrorCode.INVALID_PRODUCER_EPOCH
    assert await client.add(old, version=2) == ErrorCode.PRODUCER_FENCED
    assert await client.add(old, version=1) == ErrorCode.INVALID_PRODUCER_EPOCH


async def test_a_transaction_that_takes_too_long_is_aborted(client: Client) -> None:
    producer = await client.init(timeout_ms=50)
    assert await client.add(producer) == 0
    assert await client.produce(producer, 0) == 0
    await client.until("CompleteAbort")
    assert (await client.end(producer, commit=True)).error_code == ErrorCode.PRODUCER_FENCED


async def test_an_open_transaction_outlives_its_coordinator_and_can_be_committed(tmp_path: Path) -> None:
    async with running(tmp_path) as bootstrap, RawClient(bootstrap) as raw:
        await raw.create_topic("t")
        await raw.ask(1, FindCoordinatorRequest(key=ID, key_type=1))
        client = Client(raw)
        producer = await client.init()
        assert await client.add(producer) == 0
        assert await client.produce(producer, 0) == 0
    async with running(tmp_path) as bootstrap, RawClient(bootstrap) as raw:
        client = Client(raw)
        ended = await client.end(producer, commit=True)
        assert ended.error_code == 0
        await client.until("CompleteCommit")
        assert await client.add(producer) == 0
        assert await client.produce(producer, 0) == 0, "it is known as the first one, which was sent again"


async def offset_of(client: Client, *, stable: bool) -> tuple[int, int]:
    request = OffsetFetchRequest(
        groups=(
            OffsetFetchRequestGroup(group_id="g", topics=(OffsetFetchRequestTopics(name="t", partition_indexes=(0,)),)),
        ),
        require_stable=stable,
    )
    (group,) = (await client.raw.ask(8, request)).groups
    (found,) = group.topics[0].partitions
    return found.error_code, found.committed_offset


@pytest.mark.parametrize("commit", [True, False])
@pytest.mark.parametrize("version", [3, 5])
async def test_offsets_count_with_their_transaction(client: Client, version: int, commit: bool) -> None:
    await client.raw.ask(1, FindCoordinatorRequest(key="g"))
    producer = await client.init()
    about = (ID, producer.producer_id, producer.producer_epoch)
    part = TxnOffsetCommitRequestPartition(partition_index=0, committed_offset=7)
    request = TxnOffsetCommitRequest(
        transactional_id=ID,
        group_id="g",
        producer_id=producer.producer_id,
        producer_epoch=producer.producer_epoch,
        topics=(TxnOffsetCommitRequestTopic("t", (part,)),),
    )

    async def offer() -> int:
        return int((await client.raw.ask(version, request)).topics[0].partitions[0].error_code)

    if version < 5:
        assert await offer() == ErrorCode.INVALID_TXN_STATE
        added = await client.raw.ask(3, AddOffsetsToTxnRequest(*about, group_id="g"))
        assert added.error_code == 0
    assert await offer() == 0
    assert await offset_of(client, stable=True) == (ErrorCode.UNSTABLE_OFFSET_COMMIT, -1)
    assert await offset_of(client, stable=False) == (0, -1)
    assert (await client.end(producer, commit=commit, version=5 if version == 5 else 3)).error_code == 0
    await client.until("CompleteCommit" if commit else "CompleteAbort")
    assert await offset_of(client, stable=True) == (0, 7 if commit else -1)


async def test_markers_of_an_earlier_coordinator_or_epoch_are_refused(client: Client) -> None:
    producer = await client.init()

    async def mark(coordinator_epoch: int, epoch: int) -> int:
        marker = WritableTxnMarker(
            producer.producer_id, epoch, True, (WritableTxnMarkerTopic("t", (0,)),), coordinator_epoch
        )
        (found,) = (await client.raw.ask(1, WriteTxnMarkersRequest((marker,)))).markers
        return int(found.topics[0].partitions[0].error_code)

    assert await mark(5, 3) == 0
    assert await mark(4, 3) == ErrorCode.TRANSACTION_COORDINATOR_FENCED
    assert await mark(5, 2) == ErrorCode.INVALID_PRODUCER_EPOCH
    assert await mark(5, 3) == 0


async def test_a_marker_that_comes_late_does_not_end_the_next_transaction(client: Client) -> None:
    first = await client.init()
    assert await client.produce(first, 0, version=12) == 0
    second = await client.end(first, commit=True, version=5)
    await client.until("CompleteCommit")

    async def mark() -> int:
        """The marker of the first transaction, again. It has the epoch that the second one has."""
        topics = (WritableTxnMarkerTopic("t", (0,)),)
        marker = WritableTxnMarker(second.producer_id, second.producer_epoch, True, topics, transaction_version=2)
        (found,) = (await client.raw.ask(2, WriteTxnMarkersRequest((marker,)))).markers
        return int(found.topics[0].partitions[0].error_code)

    assert await mark() == 0, "it is written once more, and ends nothing"
    assert await client.produce(second, 0, version=12) == 0
    assert await mark() == ErrorCode.INVALID_PRODUCER_EPOCH
    assert await client.produce(second, 1, version=12) == 0


async def test_brokers_ask_about_many_transactions_at_once(client: Client) -> None:
    producer = await client.init()
    assert await client.add(producer) == 0

    def asked(transactional_id: str) -> AddPartitionsToTxnTransaction:
        return AddPartitionsToTxnTransaction(
            transactional_id,
            producer.producer_id,
            producer.producer_epoch,
            True,
            (AddPartitionsToTxnTopic("t", (0, 9)),),
        )

    answer = await client.raw.ask(5, AddPartitionsToTxnRequest(transactions=(asked(ID), asked("other"))))
    codes = {
        result.transactional_id: [each.partition_error_code for each in result.topic_results[0].results_by_partition]
        for result in answer.results_by_transaction
    }
    assert codes[ID] == [0, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
    assert codes["other"][0] == ErrorCode.INVALID_PRODUCER_ID_MAPPING
