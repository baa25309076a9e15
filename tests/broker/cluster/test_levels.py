"""A cluster whose brokers are upgraded one after the other decides nothing that those of before would stop at, until
its level is raised."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from headrace.base.errors import CorruptData, UsageError
from headrace.base.ids import BrokerEpoch, BrokerId
from headrace.broker.cluster import controller_service
from headrace.controller import brokers
from headrace.controller.asks import carried
from headrace.controller.asks.access import CreateAcls
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
from headrace.metadata.features import HEADRACE, UPDATE_FAILED
from headrace.metadata.image import MetadataImage
from headrace.metadata.levels import METADATA_LEVEL
from headrace.wire.errors import ErrorCode
from headrace.wire.messages import alter_user_scram_credentials as alter
from headrace.wire.messages import update_features
from headrace.wire.messages.api_versions import ApiVersionsRequest
from tests.broker.clusters import Cluster
from tests.broker.group_broker import RawClient
from tests.broker.older import of_0_1_0, upgrade

READS = Acl(
    ResourcePattern(ResourceType.TOPIC, PatternType.LITERAL, "a"),
    AclRule("User:alice", "*", AclOperation.READ, AclPermission.ALLOW),
)


RAISE_FIRST = "This cluster is at feature level 0, and {} need 2: raise it first ('headrace upgrade')."


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


async def raised(cluster: Cluster, broker: int, level: int = METADATA_LEVEL, **more: Any) -> tuple[int, str | None]:
    """The answer of that broker to a client that raises the level: the error and its message."""
    update = update_features.FeatureUpdateKey(feature=HEADRACE, max_version_level=level)
    async with RawClient(str(cluster.address(broker))) as raw:
        request = update_features.UpdateFeaturesRequest(feature_updates=(update,), **more)
        answer = await raw.ask(2, request)
    return answer.error_code, answer.error_message and answer.error_message.removeprefix(UPDATE_FAILED)


async def features(cluster: Cluster, broker: int, version: int = 4) -> tuple[tuple[int, int] | None, int | None]:
    """The levels that a broker tells clients: the lowest and highest that it supports, and the finalized one."""
    async with RawClient(str(cluster.address(broker))) as raw:
        answer = await raw.ask(version, ApiVersionsRequest("a", "1"))
    supported = {each.name: (each.min_version, each.max_version) for each in answer.supported_features}
    finalized = {each.name: each.max_version_level for each in answer.finalized_features}
    return supported.get(HEADRACE), finalized.get(HEADRACE)


def refused(sentence: str) -> list[str]:
    return [sentence.format("SCRAM credentials"), sentence.format("ACLs")]


async def test_rights_and_passwords_come_once_the_level_is_raised(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path)
    cluster.give_birth(3)
    try:
        with of_0_1_0():
            await cluster.start(1, 2)
        await upgrade(cluster, 1, 2)
        votes = (
            "Broker 3 votes and has not registered, and may run a release that does not know {}: start it, or demote "
            "it first ('headrace broker demote')."
        )
        assert await told(cluster, 1) == refused(votes)
        assert await raised(cluster, 2) == (ErrorCode.INVALID_UPDATE_VERSION, votes.format("feature level 2"))
        with of_0_1_0():
            await cluster.start(3)
        old = "Broker 3 runs a release that does not know {}: upgrade or unregister it first."
        assert [await told(cluster, broker) for broker in (1, 2, 3)] == [refused(old)] * 3
        for broker in (1, 2, 3):
            assert await raised(cluster, broker) == (ErrorCode.INVALID_UPDATE_VERSION, old.format("feature level 2"))
        assert [await features(cluster, broker) for broker in (1, 3)] == [((0, METADATA_LEVEL), None), (None, None)]
        await cluster.stop(3)
        assert await told(cluster, 2) == refused(old), "it may come back as it was"
        assert (await raised(cluster, 2, validate_only=True))[1] == old.format("feature level 2")
        with of_0_1_0():
            await cluster.start(3)  # it can still go back
        await upgrade(cluster, 3)
        assert [await told(cluster, broker) for broker in (1, 3)] == [refused(RAISE_FIRST)] * 2
        assert await raised(cluster, 1, validate_only=True) == (0, None)
        assert (await cluster.agree()).level == 0
        assert await raised(cluster, 3) == (0, None)
        image = await cluster.agree()
        assert (image.level, {broker.level for broker in image.brokers.values()}) == (METADATA_LEVEL, {METADATA_LEVEL})
        assert [await told(cluster, broker) for broker in (1, 3)] == [[None, None]] * 2
        assert (await cluster.agree()).secret
        assert [await features(cluster, broker) for broker in (1, 3)] == [((0, METADATA_LEVEL), METADATA_LEVEL)] * 2
        assert await features(cluster, 1, version=3) == (None, METADATA_LEVEL), "Java 3.x would not read it"
        with (
            of_0_1_0(),
            pytest.raises(UsageError, match=r"Broker 4 runs a release .* feature level 2, .* has: upgrade it"),
        ):
            await cluster.start(4, join=(cluster.address(1),))
    finally:
        await cluster.stop(*cluster.brokers)


async def test_a_level_never_falls(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path)
    cluster.give_birth(1)
    try:
        await cluster.start(1)
        assert cluster.image(1).level == METADATA_LEVEL, "a new cluster is at the level of its first broker"
        for level in (0, METADATA_LEVEL - 1):
            code, message = await raised(cluster, 1, level)
            assert (code, "a level never falls" in (message or "")) == (ErrorCode.INVALID_UPDATE_VERSION, True)
        assert await raised(cluster, 1) == (0, None), "it has that level"
        await upgrade(cluster, 1)
        assert cluster.image(1).level == METADATA_LEVEL, "it is in the log"
    finally:
        await cluster.stop(*cluster.brokers)


async def test_a_broker_does_not_start_over_a_level_above_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = Cluster(tmp_path)
    cluster.give_birth(1)
    await cluster.start(1)
    monkeypatch.setattr("headrace.metadata.codec.METADATA_LEVEL", METADATA_LEVEL - 1)  # as the release of before
    await cluster.stop(1)
    with pytest.raises(
        CorruptData, match=f"This cluster is at feature level {METADATA_LEVEL}, and this release .* start"
    ):
        await cluster.start(1)


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
        assert await told(cluster, 2) == refused(RAISE_FIRST)
        assert await raised(cluster, 2) == (0, None)
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
        for unknown in ("AlterScram", "CreateAcls", "FinalizeLevel"):
            monkeypatch.delitem(carried.ASKS, unknown)
        old = "Broker 1 runs a release that does not know {}: upgrade or unregister it first."
        assert await told(cluster, 2) == refused(old)
        assert await raised(cluster, 2) == (ErrorCode.UNSUPPORTED_VERSION, old.format("feature levels"))
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
        assert await told(cluster, 1) == refused(RAISE_FIRST)
        assert await raised(cluster, 1) == (0, None)
        assert await told(cluster, 1) == [None, None]
    finally:
        await cluster.stop(*cluster.brokers)
