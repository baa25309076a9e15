"""Requests between brokers, as JSON: they are read as written, and nothing else is."""

from __future__ import annotations

import json
import uuid
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.base.errors import CorruptData
from headrace.base.ids import (
    BrokerEpoch,
    BrokerId,
    ClusterId,
    DirectoryId,
    IncarnationId,
    LeaderEpoch,
    Offset,
    PartitionEpoch,
    PartitionIndex,
    ProducerId,
    TopicId,
)
from headrace.controller.access.acls import AclsDeleted
from headrace.controller.access.quotas import QuotaAlteration, QuotaOp
from headrace.controller.access.scram import ScramAlteration
from headrace.controller.asks.access import AlterQuotas, AlterScram, CreateAcls, DeleteAcls
from headrace.controller.asks.asking import Ask
from headrace.controller.asks.brokers import (
    AllocateProducerIds,
    ChangeVoter,
    FinalizeLevel,
    Heartbeat,
    QuorumReplica,
    QuorumView,
    ReadQuorum,
    RegisterBroker,
    RemoveBroker,
)
from headrace.controller.asks.carried import ASKS, Answer, decode_answer, decode_ask, encode_answer, encode_ask
from headrace.controller.asks.configs import AlterConfigs
from headrace.controller.asks.history import DeleteHistory, PublishSegment, RecoverPartitions, ReplaceSegments
from headrace.controller.asks.moves import (
    FailTarget,
    FinishMove,
    GiveUpMove,
    MovePartitions,
    ProveMove,
    ReassignPartitions,
    SealMove,
)
from headrace.controller.asks.replicas import AlterIsr, ElectLeaders, LeaveIsr, RenewCopies
from headrace.controller.asks.topics import CreatePartitions, CreateTopics, DeleteTopics, TopicAnswer
from headrace.controller.configs import Alteration, ResourceAlteration
from headrace.controller.decision import Refusal
from headrace.controller.isr import IsrMember, IsrProposal
from headrace.controller.leaders import Election, ElectionOutcome, PartitionRef
from headrace.controller.moves import Seal
from headrace.controller.moving import MoveOutcome, MoveWish
from headrace.controller.reassignments import Reassignment
from headrace.controller.recovery import Recovery, RecoveryOutcome, RecoveryWish
from headrace.controller.renewals import CopyRenewal
from headrace.controller.topic_changes import NewPartitions, TopicRef
from headrace.controller.topics import NewTopic
from headrace.metadata.access.acls import (
    Acl,
    AclFilter,
    AclOperation,
    AclPermission,
    AclRule,
    PatternType,
    ResourcePattern,
    ResourceType,
)
from headrace.metadata.access.scram import ScramCredential, ScramMechanism
from headrace.metadata.values import Endpoint, Engine
from headrace.wire.errors import ErrorCode
from tests.metadata.histories import descriptor, sealed

CLUSTER = ClusterId("c")
ONE = BrokerId(1)
EPOCH = BrokerEpoch(7)
TOPIC = TopicId(uuid.UUID(int=3))
DIRECTORY = DirectoryId(uuid.UUID(int=4))
ACL = Acl(
    ResourcePattern(ResourceType.TOPIC, PatternType.PREFIXED, "ö"),
    AclRule("User:a", "*", AclOperation.READ, AclPermission.DENY),
)
REFUSAL = Refusal(ErrorCode.NOT_CONTROLLER, "no: ünd")
ENDPOINT = Endpoint(listener="PLAINTEXT", host="::1", port=9)

CASES: list[tuple[Ask[Any], Any]] = [
    (
        CreateTopics(
            topics=(NewTopic(topic_id=TOPIC, name="t", assignments=((0, (ONE,)),), configs={"a": None, "b": "c"}),)
        ),
        (
            TopicAnswer(name="t", topic_id=TOPIC, partitions=1, replication_factor=1, configs={"b": "c"}),
            TopicAnswer(name="u", refusal=REFUSAL),
        ),
    ),
    (
        DeleteTopics(topics=(TopicRef(name="t"), TopicRef(topic_id=TOPIC))),
        (TopicAnswer(name=None, topic_id=TOPIC),),
    ),
    (CreatePartitions(topics=(NewPartitions(name="t", count=2, assignments=((ONE,),)),), validate_only=True), ()),
    (AlterConfigs(resources=(ResourceAlteration(2, "t", (Alteration("k", 0, None),)),)), (None, REFUSAL)),
    (
        AlterQuotas(
            alterations=(
                QuotaAlteration((("user", None), ("client-id", "a")), (QuotaOp("k", 1.5), QuotaOp("l", None))),
            )
        ),
        (None, REFUSAL),
    ),
    (FinalizeLevel(level=2, may_fall=True, validate_only=True), None),
    (CreateAcls(acls=(ACL,)), (None, REFUSAL)),
    (
        AlterScram(
            alterations=(
                ScramAlteration("ü", ScramMechanism.SCRAM_SHA_256, ScramCredential(b"\x00s", b"k", b"\xffv", 4096)),
                ScramAlteration("ü", ScramMechanism.SCRAM_SHA_512),
            )
        ),
        (None, REFUSAL),
    ),
    (
        DeleteAcls(filters=(AclFilter(name="t"), AclFilter(operation=AclOperation.UNKNOWN))),
        (AclsDeleted((ACL,)), AclsDeleted(refusal=REFUSAL)),
    ),
    (
        ElectLeaders(election=Election.UNCLEAN, partitions=(PartitionRef("t", PartitionIndex(0)),)),
        (ElectionOutcome(topic="t", partition=PartitionIndex(0), refusal=REFUSAL),),
    ),
    (
        ReassignPartitions(
            partitions=(
                Reassignment(topic="t", partition=PartitionIndex(0), replicas=(ONE,)),
                Reassignment(topic="t", partition=PartitionIndex(1), replicas=None),
            ),
            factor_may_change=False,
        ),
        (None, REFUSAL),
    ),
    (AllocateProducerIds(broker_id=ONE, broker_epoch=EPOCH), (ProducerId(5), 10)),
    (
        PublishSegment(
            topic_id=TOPIC,
            partition=PartitionIndex(0),
            leader_epoch=LeaderEpoch(2),
            descriptor=descriptor(0, 2, 2),
            previous_hash="h",
        ),
        None,
    ),
    (
        ReplaceSegments(
            topic_id=TOPIC,
            partition=PartitionIndex(0),
            leader_epoch=LeaderEpoch(2),
            descriptor=descriptor(0, 2, 2),
            removed=("0" * 64, "1" * 64),
        ),
        None,
    ),
    (
        DeleteHistory(
            topic_id=TOPIC, partition=PartitionIndex(0), leader_epoch=LeaderEpoch(2), log_start_offset=Offset(7)
        ),
        None,
    ),
    (
        MovePartitions(wish=MoveWish(topic="t", partitions=(PartitionIndex(1),), to=ONE), validate_only=True),
        (MoveOutcome(topic="t", partition=PartitionIndex(1), source=BrokerId(2), target=ONE, is_handed_over=True),),
    ),
    (
        RecoverPartitions(wish=RecoveryWish(topic="t", partitions=(PartitionIndex(1),), to=ONE), validate_only=True),
        Recovery(
            outcomes=(
                RecoveryOutcome(
                    topic="t", partition=PartitionIndex(1), replicas=(BrokerId(2),), target=ONE, end_offset=Offset(21)
                ),
                RecoveryOutcome(topic="t", partition=PartitionIndex(2), refusal=REFUSAL),
            ),
            led=3,
        ),
    ),
    (
        ProveMove(topic_id=TOPIC, partition=PartitionIndex(0), broker_id=ONE, broker_epoch=EPOCH),
        None,
    ),
    (
        SealMove(
            seal=Seal(
                topic_id=TOPIC,
                partition=PartitionIndex(0),
                broker_epoch=EPOCH,
                target=BrokerId(2),
                state=sealed(1, 2, 0, 21),
            )
        ),
        None,
    ),
    *(
        (
            kind(
                topic_id=TOPIC,
                partition=PartitionIndex(0),
                leader_epoch=LeaderEpoch(2),
                broker_id=ONE,
                broker_epoch=EPOCH,
            ),
            None,
        )
        for kind in (FinishMove, FailTarget, GiveUpMove)
    ),
    (
        RenewCopies(
            broker_id=ONE,
            broker_epoch=EPOCH,
            copies=(
                CopyRenewal(
                    topic_id=TOPIC, partition=PartitionIndex(0), leader_epoch=LeaderEpoch(3), successor=BrokerId(2)
                ),
            ),
        ),
        (ErrorCode.NONE, ErrorCode.NOT_ENOUGH_REPLICAS),
    ),
    (LeaveIsr(broker_id=ONE, broker_epoch=EPOCH, partitions=((TOPIC, PartitionIndex(0)),)), None),
    (
        AlterIsr(
            broker_id=ONE,
            broker_epoch=EPOCH,
            proposals=(
                IsrProposal(
                    topic_id=TOPIC,
                    partition=PartitionIndex(0),
                    leader_epoch=LeaderEpoch(2),
                    partition_epoch=PartitionEpoch(3),
                    isr=(IsrMember(broker_id=ONE, broker_epoch=EPOCH),),
                ),
            ),
        ),
        (ErrorCode.NONE, ErrorCode.INVALID_UPDATE_VERSION),
    ),
    (
        RegisterBroker(
            cluster_id=CLUSTER,
            broker_id=ONE,
            directory_id=DIRECTORY,
            incarnation=IncarnationId(uuid.UUID(int=9)),
            endpoints=(ENDPOINT,),
            rack="r",
            engine=Engine.REDIS,
        ),
        EPOCH,
    ),
    (Heartbeat(broker_id=ONE, broker_epoch=EPOCH, ready=True), False),
    (RemoveBroker(broker_id=ONE), None),
    (ChangeVoter(broker_id=ONE, directory_id=None, voter=True), None),
    (
        ReadQuorum(),
        QuorumView(
            leader=ONE,
            epoch=2,
            high_watermark=3,
            replicas=(QuorumReplica(broker_id=ONE, directory_id=DIRECTORY, voter=True, log_end_offset=3),),
        ),
    ),
]


def test_every_ask_has_a_case() -> None:
    assert {type(ask).__name__ for ask, _ in CASES} == set(ASKS)


@pytest.mark.parametrize(("ask", "result"), CASES, ids=[type(ask).__name__ for ask, _ in CASES])
def test_what_is_asked_and_answered_is_read_as_it_was_written(ask: Ask[Any], result: Any) -> None:
    assert decode_ask(encode_ask(CLUSTER, ask)) == (CLUSTER, ask)
    for answer in (Answer(index=3, result=result), Answer(index=0, result=REFUSAL)):
        assert decode_answer(ask, encode_answer(ask, answer)) == answer


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)


@given(st.sampled_from(CASES), st.data())
def test_anything_else_is_corrupt(case: tuple[Ask[Any], Any], data: st.DataObject) -> None:
    """One field of a real one replaced; any bytes."""
    ask, _ = case
    fields = json.loads(encode_ask(CLUSTER, ask))
    fields[data.draw(st.sampled_from(sorted(fields)))] = data.draw(json_values)
    mutated = json.dumps(fields).encode()
    for raw in (mutated, mutated[:-1], data.draw(st.binary(max_size=20))):
        try:
            decode_ask(raw)
        except CorruptData:
            continue
        assert raw == mutated


@given(st.binary(max_size=40) | json_values.map(lambda value: json.dumps(value).encode()))
def test_an_answer_that_is_none_is_corrupt(raw: bytes) -> None:
    for ask, _ in CASES:
        try:
            answer = decode_answer(ask, raw)
        except CorruptData:
            continue
        assert isinstance(answer.index, int)
