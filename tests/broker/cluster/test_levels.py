"""A cluster whose brokers are upgraded one after the other decides nothing that those of before would stop at."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from headrace.base.errors import UsageError
from headrace.base.ids import BrokerEpoch, BrokerId
from headrace.broker.cluster import controller_service, membership
from headrace.controller import asks, brokers
from headrace.controller.asks import CreateAcls
from headrace.controller.decision import Decision, Refusal
from headrace.metadata.access.acls import (
    Acl,
    AclOperation,
    AclPermission,
    AclRule,
    PatternType,
    ResourcePattern,
    ResourceType,
)
from headrace.metadata.image import MetadataImage
from headrace.metadata.levels import METADATA_LEVEL
from headrace.wire.errors import ErrorCode
from headrace.wire.messages import alter_user_scram_credentials as alter
from tests.broker.clusters import Cluster
from tests.broker.group_broker import RawClient

READS = Acl(
    ResourcePattern(ResourceType.TOPIC, PatternType.LITERAL, "a"),
    AclRule("User:alice", "*", AclOperation.READ, AclPermission.ALLOW),
)


@contextmanager
def of_0_1_0() -> Iterator[None]:
    """Brokers that start in this block say the level of that release."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(membership, "METADATA_LEVEL", 0)
        yield


async def told(cluster: Cluster, broker: int) -> list[str | None]:
    """The messages to clients of that broker that set a password and an ACL."""
    user = alter.ScramCredentialUpsertion("alice", 1, 4096, b"salt", bytes(32))
    async with RawClient(str(cluster.address(broker))) as raw:
        request = alter.AlterUserScramCredentialsRequest(deletions=(), upsertions=(user,))
        (result,) = (await raw.ask(0, request)).results
    answer = await cluster.brokers[broker].parts.control.submit(CreateAcls(acls=(READS,)))
    if not isinstance(answer, Refusal):
        assert (result.error_code, answer) == (0, (None,))
        return [result.error_message, None]
    assert {result.error_code, answer.code} == {ErrorCode.UNSUPPORTED_VERSION}
    return [result.error_message, answer.message]


def refused(sentence: str) -> list[str]:
    return [sentence.format("SCRAM credentials"), sentence.format("ACLs")]


async def test_rights_and_passwords_come_once_the_last_broker_is_upgraded(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path)
    cluster.give_birth(3)
    try:
        await cluster.start(1, 2)
        votes = (
            "Broker 3 votes and has not registered, and may run a release that does not know {}: start it, or demote "
            "it first ('headrace broker demote')."
        )
        assert await told(cluster, 1) == refused(votes)
        with of_0_1_0():
            await cluster.start(3)
        old = "Broker 3 runs a release that does not know {}: upgrade or unregister it first."
        assert [await told(cluster, broker) for broker in (1, 2, 3)] == [refused(old)] * 3
        await cluster.stop(3)
        assert await told(cluster, 2) == refused(old), "it may come back as it was"
        await cluster.start(3)
        assert [await told(cluster, broker) for broker in (1, 3)] == [[None, None]] * 2
        image = await cluster.agree()
        assert image.secret
        assert {broker.level for broker in image.brokers.values()} == {METADATA_LEVEL}
        with (
            of_0_1_0(),
            pytest.raises(UsageError, match=r"Broker 4 runs a release .* which this cluster has"),
        ):
            await cluster.start(4, join=(cluster.address(1),))
    finally:
        await cluster.stop(*cluster.brokers)


async def test_a_broker_that_registered_at_an_older_controller_tells_its_level_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = Cluster(tmp_path)
    cluster.give_birth(2)
    decide = brokers.register_broker

    def older(image: MetadataImage, **wanted: Any) -> Decision[BrokerEpoch | Refusal]:
        return decide(image, **{**wanted, "level": 0})

    monkeypatch.setattr(controller_service, "register_broker", older)
    try:
        await cluster.start(1, 2)
        for broker in (1, 2):
            await cluster.until(broker, lambda image: {one.level for one in image.brokers.values()} == {METADATA_LEVEL})
        assert await told(cluster, 2) == [None, None]
    finally:
        await cluster.stop(*cluster.brokers)


async def test_a_controller_of_an_older_release_is_not_asked_for_what_it_does_not_know(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = Cluster(tmp_path)
    cluster.give_birth(1)
    try:
        with of_0_1_0():
            await cluster.start(1)
        await cluster.start(2, join=(cluster.address(1),))
        await cluster.agree()
        for unknown in ("AlterScram", "CreateAcls"):
            monkeypatch.delitem(asks.ASKS, unknown)
        old = "Broker 1 runs a release that does not know {}: upgrade or unregister it first."
        assert await told(cluster, 2) == refused(old)
    finally:
        await cluster.stop(*cluster.brokers)


async def test_a_broker_that_is_alone_is_upgraded(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path)
    cluster.give_birth(1)
    with of_0_1_0():
        await cluster.start(1)
    assert cluster.image(1).brokers[BrokerId(1)].level == 0
    await cluster.stop(1)
    try:
        await cluster.start(1)
        assert await told(cluster, 1) == [None, None]
    finally:
        await cluster.stop(*cluster.brokers)
