"""A client needs the right to a transactional id for batches of a transaction, also where it names none."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace.metadata.access.acls import AclOperation, ResourceType
from headrace.wire.batches import encode_batch
from headrace.wire.errors import ErrorCode
from headrace.wire.messages.create_acls import AclCreation, CreateAclsRequest
from headrace.wire.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from headrace.wire.records import Record
from tests.broker.group_broker import RawClient
from tests.broker.guarded import ROOT, TOPIC, guarded

WRITER = "127.0.0.9"


def request(*, transactional: bool) -> ProduceRequest:
    record = Record(0, 1_700_000_000_000, None, b"v", ())
    records = encode_batch([record], producer_id=77, producer_epoch=0, base_sequence=0, transactional=transactional)
    data = TopicProduceData(name=TOPIC, partition_data=(PartitionProduceData(0, memoryview(records)),))
    return ProduceRequest(acks=-1, timeout_ms=10_000, topic_data=(data,))


@pytest.mark.parametrize("version", [8, 9])
async def test_a_batch_of_a_transaction_without_a_transactional_id_is_refused(tmp_path: Path, version: int) -> None:
    acl = AclCreation(ResourceType.TOPIC, TOPIC, 3, f"User:{WRITER}", "*", AclOperation.WRITE, 3)
    async with (
        guarded(tmp_path / "data") as found,
        RawClient(found.address, host=ROOT) as root,
        RawClient(found.address, host=WRITER) as writer,
    ):
        assert not (await root.ask(3, CreateAclsRequest(creations=(acl,)))).results[0].error_code
        answers = [await writer.ask(version, request(transactional=each)) for each in (True, False)]
    errors = [answer.responses[0].partition_responses[0].error_code for answer in answers]
    assert errors == [ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, ErrorCode.NONE]
