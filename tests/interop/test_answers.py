"""Answers to special values, and to requests for absent things.

Each states the answer of Apache Kafka 4.1: run with HEADRACE_TEST_BOOTSTRAP at one, these tests prove themselves.
"""

from __future__ import annotations

import asyncio
import struct
import time
from collections.abc import AsyncIterator
from typing import Any
from uuid import uuid4

import pytest

from headrace.wire.apis import ApiKey
from headrace.wire.batches import encode_batch
from headrace.wire.errors import ErrorCode
from headrace.wire.messages import alter_configs as legacy
from headrace.wire.messages import alter_user_scram_credentials as alter_scram
from headrace.wire.messages import api_versions as versions
from headrace.wire.messages import (
    create_acls,
    delete_acls,
    describe_acls,
    fetch,
    init_producer_id,
    list_offsets,
    list_transactions,
    metadata,
    sasl_authenticate,
    sasl_handshake,
    sync_group,
    update_features,
)
from headrace.wire.messages import create_delegation_token as create_token
from headrace.wire.messages import delete_groups as groups
from headrace.wire.messages import delete_records as deletion
from headrace.wire.messages import describe_configs as describe
from headrace.wire.messages import describe_delegation_token as tokens
from headrace.wire.messages import describe_producers as producers
from headrace.wire.messages import describe_transactions as transactions
from headrace.wire.messages import describe_user_scram_credentials as scram
from headrace.wire.messages import expire_delegation_token as expire_token
from headrace.wire.messages import find_coordinator as coordinator
from headrace.wire.messages import incremental_alter_configs as alter
from headrace.wire.messages import list_config_resources as resources
from headrace.wire.messages import offset_commit as commit
from headrace.wire.messages import offset_fetch as committed
from headrace.wire.messages import produce as produce_
from headrace.wire.messages import renew_delegation_token as renew_token
from headrace.wire.records import Record
from tests.broker.group_broker import RawClient

FOR_A_MOMENT = (3, 5, 6, 14, 15, 16)
"""Errors of what nobody leads or coordinates yet."""


@pytest.fixture
async def client(bootstrap: str) -> AsyncIterator[RawClient]:
    async with RawClient(bootstrap) as client, asyncio.timeout(150):
        yield client


@pytest.fixture
async def topic(client: RawClient) -> str:
    """With six records, of which the first three are in a batch."""
    name = f"answers-{uuid4().hex}"
    await client.create_topic(name)
    for later_ms in (0, 1):  # the second batch is the newer one, even where both come in one millisecond
        assert await produced(client, name, later_ms=later_ms) in (0, 3)
    return name


async def produced(client: RawClient, name: str, *, timeout_ms: int = 60_000, later_ms: int = 0) -> int:
    """The offset of three records."""
    now_ms = time.time_ns() // 1_000_000 + later_ms
    batch = memoryview(encode_batch([Record(at, now_ms, b"k", b"v") for at in range(3)]))
    data = produce_.TopicProduceData(name=name, partition_data=(produce_.PartitionProduceData(index=0, records=batch),))
    request = produce_.ProduceRequest(acks=-1, timeout_ms=timeout_ms, topic_data=(data,))
    (answer,) = (await retried(client, 9, request, lambda found: found.responses[0].partition_responses[0])).responses
    assert answer.partition_responses[0].error_code == 0
    return int(answer.partition_responses[0].base_offset)


async def retried(client: RawClient, version: int, request: Any, where: Any) -> Any:
    """The answer, once it is none of those that a new topic or group has for a moment."""
    while True:
        answer = await client.ask(version, request)
        if where(answer).error_code not in FOR_A_MOMENT:
            return answer
        await asyncio.sleep(0.05)


async def commits(client: RawClient, group: str, topic: str, offset: int) -> None:
    await client.ask(3, coordinator.FindCoordinatorRequest(key=group))
    partition = commit.OffsetCommitRequestPartition(0, offset, -1, "m")
    request = commit.OffsetCommitRequest(
        group_id=group,
        generation_id_or_member_epoch=-1,
        topics=(commit.OffsetCommitRequestTopic(name=topic, partitions=(partition,)),),
    )
    answer = await retried(client, 8, request, lambda found: found.topics[0].partitions[0])
    assert answer.topics[0].partitions[0].error_code == 0


async def fetched(client: RawClient, group: str, topic: str, version: int) -> list[tuple[int, str | None]]:
    """Offset and metadata, as they are told to who names the partition, and to who names none."""
    found = []
    for names in ((topic,), None):
        answer: Any
        if version >= 8:
            topics = names and (committed.OffsetFetchRequestTopics(name=topic, partition_indexes=(0,)),)
            asked = committed.OffsetFetchRequestGroup(group_id=group, member_id=None, topics=topics)
            answer = (await client.ask(version, committed.OffsetFetchRequest(groups=(asked,)))).groups[0]
        else:
            older = names and (committed.OffsetFetchRequestTopic(name=topic, partition_indexes=(0,)),)
            answer = await client.ask(version, committed.OffsetFetchRequest(group_id=group, topics=older))
        assert answer.error_code == 0
        found += [(part.committed_offset, part.metadata) for each in answer.topics for part in each.partitions]
    return found


@pytest.mark.parametrize("version", [5, 9])
@pytest.mark.parametrize("offset", [-(2**63), -3, -2, -1, 0, 4, 2**63 - 1])
async def test_what_was_committed_comes_back(client: RawClient, topic: str, offset: int, version: int) -> None:
    group = uuid4().hex
    await commits(client, group, topic, offset)
    assert await fetched(client, group, topic, version) == [(offset, "m")] * 2
    assert await fetched(client, uuid4().hex, topic, version) == [(-1, "")], "where nothing was"


async def test_the_group_without_a_name_can_be_deleted(client: RawClient, topic: str) -> None:
    await commits(client, "", topic, 1)
    answer = await client.ask(2, groups.DeleteGroupsRequest(groups_names=("",)))
    assert [(one.group_id, one.error_code) for one in answer.results] == [("", 0)]
    answer = await client.ask(2, groups.DeleteGroupsRequest(groups_names=("",)))
    assert answer.results[0].error_code == ErrorCode.GROUP_ID_NOT_FOUND


@pytest.mark.parametrize("protocol", [(None, "range"), ("consumer", None), (None, None)])
async def test_who_syncs_says_by_which_protocol(client: RawClient, protocol: tuple[str | None, str | None]) -> None:
    kind, name = protocol
    request = sync_group.SyncGroupRequest(
        group_id="g", generation_id=1, member_id="m", protocol_type=kind, protocol_name=name
    )
    assert (await client.ask(5, request)).error_code == ErrorCode.INCONSISTENT_GROUP_PROTOCOL


@pytest.mark.parametrize("timeout_ms", [0, 1, -1, -(2**31), 2**31 - 1])
async def test_what_is_done_whatever_the_timeout_is_told_as_done(
    client: RawClient, topic: str, timeout_ms: int
) -> None:
    assert await produced(client, topic, timeout_ms=timeout_ms) == 6
    for offset in (2, 5, -1):
        partition = deletion.DeleteRecordsPartition(0, offset)
        request = deletion.DeleteRecordsRequest(
            topics=(deletion.DeleteRecordsTopic(name=topic, partitions=(partition,)),), timeout_ms=timeout_ms
        )
        (told,) = (await client.ask(2, request)).topics[0].partitions
        assert (told.error_code, told.low_watermark) == (0, 9 if offset == -1 else offset)


@pytest.mark.parametrize(
    ("version", "mark", "found"),
    [
        *((version, -2, (0, 0)) for version in (1, 10)),
        *((version, -1, (0, 6)) for version in (1, 10)),
        *((6, -3, (35, -1)), (7, -3, (0, 3)), (7, -4, (35, -1)), (8, -4, (0, 0)), (8, -5, (35, -1)), (9, -5, (0, -1))),
        *((10, -6, (35, -1)), (10, -7, (35, -1)), (10, -(2**63), (35, -1)), (1, -(2**63), (35, -1))),
        *((10, 0, (0, 0)), (10, 2**63 - 1, (0, -1)), (1, 2**63 - 1, (0, -1))),
    ],
)
async def test_a_time_that_is_none(
    client: RawClient, topic: str, version: int, mark: int, found: tuple[int, int]
) -> None:
    request = list_offsets.ListOffsetsRequest(
        replica_id=-1,
        topics=(
            list_offsets.ListOffsetsTopic(
                name=topic, partitions=(list_offsets.ListOffsetsPartition(0, timestamp=mark),)
            ),
        ),
    )
    (told,) = (await client.ask(version, request)).topics[0].partitions
    assert (told.error_code, told.offset if mark != -3 else min(told.offset, 3)) == found


@pytest.mark.parametrize("epoch", [-1, -2, -(2**31)])
async def test_who_fetches_with_a_negative_epoch_names_none(client: RawClient, topic: str, epoch: int) -> None:
    partition = fetch.FetchPartition(
        partition=0, current_leader_epoch=epoch, fetch_offset=6, partition_max_bytes=1 << 20
    )
    request = fetch.FetchRequest(
        max_wait_ms=0, min_bytes=0, max_bytes=1 << 20, topics=(fetch.FetchTopic(topic=topic, partitions=(partition,)),)
    )
    (told,) = (await client.ask(12, request)).responses[0].partitions
    assert (told.error_code, told.high_watermark) == (0, 6)


@pytest.mark.parametrize("version", [4, 11, 12])
@pytest.mark.parametrize(("level", "offset", "aborted"), [(0, 0, None), (1, 0, ()), (0, 99, None), (1, 99, None)])
async def test_aborted_transactions_are_none_or_null(
    client: RawClient, topic: str, version: int, level: int, offset: int, aborted: tuple[()] | None
) -> None:
    """Null is for who reads what is not committed, and where there is an error."""
    partition = fetch.FetchPartition(partition=0, fetch_offset=offset, partition_max_bytes=1 << 20)
    request = fetch.FetchRequest(
        max_wait_ms=0,
        min_bytes=0,
        max_bytes=1 << 20,
        isolation_level=level,
        topics=(fetch.FetchTopic(topic=topic, partitions=(partition,)),),
    )
    (told,) = (await client.ask(version, request)).responses[0].partitions
    assert told.error_code == (ErrorCode.OFFSET_OUT_OF_RANGE if offset else 0)
    assert told.aborted_transactions == aborted


@pytest.mark.parametrize("name", [None, "", "named"])
async def test_a_topic_id_that_nobody_has(client: RawClient, name: str | None) -> None:
    wanted = metadata.MetadataRequestTopic(topic_id=uuid4(), name=name)
    request = metadata.MetadataRequest(
        topics=(wanted,), allow_auto_topic_creation=False, include_topic_authorized_operations=True
    )
    (told,) = (await client.ask(12, request)).topics
    assert (told.error_code, told.name, told.topic_id) == (ErrorCode.UNKNOWN_TOPIC_ID, None, wanted.topic_id)
    assert told.topic_authorized_operations == -(2**31)


@pytest.mark.parametrize(
    ("given", "error"),
    [
        *(((None, -1, -1), 0), ((None, 5, -1), 42), ((None, -1, 0), 42), ((None, -2, 0), 0)),
        *((("", -1, -1), 42), (("", 5, 3), 42)),
    ],
)
async def test_an_id_for_a_producer(client: RawClient, given: tuple[str | None, int, int], error: int) -> None:
    name, producer_id, epoch = given
    request = init_producer_id.InitProducerIdRequest(name, 60_000, producer_id, epoch)
    told = await retried(client, 4, request, lambda found: found)
    assert told.error_code == error
    assert (told.producer_id, told.producer_epoch) == (-1, -1) if error else told.producer_id >= 0


@pytest.mark.parametrize("name", ["", " ", "a/b", "."])
async def test_producers_of_what_is_no_topic_s_name(client: RawClient, name: str) -> None:
    request = producers.DescribeProducersRequest(topics=(producers.TopicRequest(name=name, partition_indexes=(0,)),))
    assert (await client.ask(0, request)).topics[0].partitions[0].error_code == ErrorCode.INVALID_TOPIC_EXCEPTION


# ApiVersions


@pytest.mark.parametrize("version", [3, 4])
@pytest.mark.parametrize("software", ["", " ", "-a", "a-", "a b", "ä", "a_b", "a\n"])
async def test_a_client_s_software_has_a_name_of_kafka_s_form(client: RawClient, version: int, software: str) -> None:
    for name, number in ((software, "1"), ("a", software)):
        answer = await client.ask(version, versions.ApiVersionsRequest(name, number))
        assert (answer.error_code, answer.api_keys) == (ErrorCode.INVALID_REQUEST, ())
    answer = await client.ask(version, versions.ApiVersionsRequest("a-b.C", "1.0-rc.2"))
    assert answer.error_code == 0


async def test_a_version_that_nobody_knows_is_answered_with_those_of_api_versions_alone(bootstrap: str) -> None:
    host, _, port = bootstrap.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    request = struct.pack(">hhihb", ApiKey.API_VERSIONS, 2**15 - 1, 7, -1, 0)
    writer.write(struct.pack(">i", len(request)) + request)
    answer = await reader.readexactly(int.from_bytes(await reader.readexactly(4), "big"))
    writer.close()
    assert answer == struct.pack(">ihihhh", 7, ErrorCode.UNSUPPORTED_VERSION, 1, ApiKey.API_VERSIONS, 0, 4)


async def test_the_features_of_the_cluster(client: RawClient) -> None:
    answer = await client.ask(4, versions.ApiVersionsRequest("a", "1"))
    levels = {each.name: (each.min_version_level, each.max_version_level) for each in answer.finalized_features}
    assert (levels["group.version"], levels["metadata.version"]) == ((1, 1), (27, 27))
    ranges = {each.name: each.max_version for each in answer.supported_features}
    assert (ranges["group.version"], ranges["metadata.version"]) == (1, 27)
    assert answer.finalized_features_epoch >= 0


@pytest.mark.parametrize("version", [0, 1, 2])
@pytest.mark.parametrize(
    ("levels", "error"),
    [
        *(([("group.version", 1)], 0), ([("metadata.version", 27)], 0), ([], 0), ([("group.version", 1)] * 2, 0)),
        *(([("group.version", 2)], 95), ([("group.version", 0)], 95), ([("metadata.version", 0)], 95)),
        *(([("nope", 1)], 95), ([("", 1)], 95), ([("group.version", 1), ("nope", 1)], 95)),
    ],
)
async def test_a_feature_is_brought_to_the_level_that_it_has(
    client: RawClient, levels: list[tuple[str, int]], error: int, version: int
) -> None:
    updates = tuple(update_features.FeatureUpdateKey(feature=name, max_version_level=level) for name, level in levels)
    for timeout_ms in (0, 1, -1, 60_000):
        request = update_features.UpdateFeaturesRequest(timeout_ms=timeout_ms, feature_updates=updates)
        answer = await client.ask(version, request)
        assert answer.error_code == error
        told = [(each.feature, each.error_code) for each in answer.results]
        assert told == ([(name, 0) for name, _ in levels] if version < 2 and not error else [])


@pytest.mark.parametrize(("kind", "error"), [(0, 95), (1, 0), (2, 0), (3, 0), (4, 95), (-1, 95)])
async def test_types_of_upgrades(client: RawClient, kind: int, error: int) -> None:
    update = update_features.FeatureUpdateKey(feature="group.version", max_version_level=1, upgrade_type=kind)
    request = update_features.UpdateFeaturesRequest(feature_updates=(update,), validate_only=True)
    assert (await client.ask(1, request)).error_code == error


# configs of groups (KIP-848)

SESSION, INTERVAL = "consumer.session.timeout.ms", "consumer.heartbeat.interval.ms"
GROUP = 32


async def altered(client: RawClient, group: str, *changes: tuple[str, int, str | None], dry: bool = False) -> int:
    """The error of it."""
    configs = tuple(alter.AlterableConfig(*change) for change in changes)
    request = alter.IncrementalAlterConfigsRequest((alter.AlterConfigsResource(GROUP, group, configs),), dry)
    return int((await client.ask(1, request)).responses[0].error_code)


async def described(client: RawClient, group: str) -> dict[str, tuple[str, int, bool]]:
    """Value, source and read-only flag of the configs of the consumer protocol."""
    request = describe.DescribeConfigsRequest((describe.DescribeConfigsResource(GROUP, group, None),))
    (found,) = (await client.ask(4, request)).results
    assert found.error_code == 0
    configs = {each.name: (each.value, each.config_source, each.read_only) for each in found.configs}
    return {name: configs[name] for name in (SESSION, INTERVAL)}


async def test_a_group_has_configs_of_its_own(client: RawClient) -> None:
    group = uuid4().hex
    own = 8
    assert await altered(client, group, (SESSION, 0, " 50000 "), (INTERVAL, 0, "5500")) == 0
    assert await described(client, group) == {SESSION: ("50000", own, False), INTERVAL: ("5500", own, False)}
    listed = await client.ask(1, resources.ListConfigResourcesRequest(resource_types=(GROUP,)))
    assert group in [each.resource_name for each in listed.config_resources]
    assert await altered(client, group, (SESSION, 1, None), ("nope", 1, None)) == 0
    assert {name: source == own for name, (_, source, _) in (await described(client, group)).items()} == {
        SESSION: False,
        INTERVAL: True,
    }
    older = legacy.AlterConfigsResource(GROUP, group, (legacy.AlterableConfig(SESSION, "46000"),))
    assert (await client.ask(2, legacy.AlterConfigsRequest((older,)))).responses[0].error_code == 0
    assert {name: value for name, (value, source, _) in (await described(client, group)).items() if source == own} == {
        SESSION: "46000"
    }, "what it does not name has its default again"


@pytest.mark.parametrize(
    ("key", "value", "error"),
    [
        *((SESSION, value, 40) for value in ("44999", "60001", "-1", "", "x", "4_6000")),
        *((INTERVAL, value, 40) for value in ("4999", "15001", "0")),
        *((SESSION, value, 0) for value in ("45000", "60000")),
        *((INTERVAL, value, 0) for value in ("5000", "15000")),
        *((SESSION, None, 42), ("nope", "1", 40), ("retention.ms", "1", 40)),
    ],
)
async def test_what_a_group_can_be_given(client: RawClient, key: str, value: str | None, error: int) -> None:
    longest = [(SESSION, 0, "60000")] if key == INTERVAL else []  # a session is longer than the interval
    assert await altered(client, "g", (key, 0, value), *longest, dry=True) == error


async def test_a_group_with_configs_has_a_name(client: RawClient) -> None:
    assert await altered(client, "", (SESSION, 0, "50000"), dry=True) == ErrorCode.INVALID_REQUEST
    request = describe.DescribeConfigsRequest((describe.DescribeConfigsResource(GROUP, "", None),))
    assert (await client.ask(4, request)).results[0].error_code == ErrorCode.INVALID_REQUEST
    assert await altered(client, "g", (SESSION, 2, "1"), dry=True) == ErrorCode.INVALID_CONFIG, "nothing to append to"


@pytest.mark.parametrize(("name", "error"), [("", 42), (" ", 17), ("a/b", 17), (".", 17), ("nobody-made-this", 3)])
async def test_configs_of_what_is_no_topic(client: RawClient, name: str, error: int) -> None:
    configs = (alter.AlterableConfig("retention.ms", 0, "100000"),)
    request = alter.IncrementalAlterConfigsRequest((alter.AlterConfigsResource(2, name, configs),), True)
    assert (await client.ask(1, request)).responses[0].error_code == error


# absent things


@pytest.mark.parametrize("version", [1, 2, 3])
async def test_there_are_no_acls(client: RawClient, version: int) -> None:
    anything = (1, None, 1, None, None, 1, 1)
    described = await client.ask(version, describe_acls.DescribeAclsRequest(*anything))
    assert (described.error_code, described.resources) == (ErrorCode.SECURITY_DISABLED, ())
    creation = create_acls.AclCreation(2, "t", 3, "User:a", "*", 2, 3)
    made = await client.ask(version, create_acls.CreateAclsRequest(creations=(creation, creation)))
    assert [one.error_code for one in made.results] == [ErrorCode.SECURITY_DISABLED] * 2
    wanted = delete_acls.DeleteAclsFilter(*anything)
    gone = await client.ask(version, delete_acls.DeleteAclsRequest(filters=(wanted, wanted)))
    assert [(one.error_code, one.matching_acls) for one in gone.filter_results] == [
        (ErrorCode.SECURITY_DISABLED, ())
    ] * 2


async def test_there_are_no_users_with_credentials(client: RawClient) -> None:
    def names(*users: str) -> tuple[scram.UserName, ...]:
        return tuple(map(scram.UserName, users))

    described = await client.ask(0, scram.DescribeUserScramCredentialsRequest(users=names("nobody", "twice", "twice")))
    assert {one.user: one.error_code for one in described.results} == {
        "nobody": ErrorCode.RESOURCE_NOT_FOUND,
        "twice": ErrorCode.DUPLICATE_RESOURCE,
    }
    absent = alter_scram.ScramCredentialDeletion("nobody", 1)
    altered = await client.ask(0, alter_scram.AlterUserScramCredentialsRequest(deletions=(absent,)))
    assert [(one.user, one.error_code) for one in altered.results] == [("nobody", ErrorCode.RESOURCE_NOT_FOUND)]


async def test_there_are_no_delegation_tokens(client: RawClient) -> None:
    refused = ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED
    for version in (1, 2, 3):
        made = await client.ask(version, create_token.CreateDelegationTokenRequest(max_lifetime_ms=-1))
        assert (made.error_code, made.issue_timestamp_ms, made.expiry_timestamp_ms) == (refused, -1, -1)
        assert (await client.ask(version, tokens.DescribeDelegationTokenRequest(owners=None))).error_code == refused
    for version in (1, 2):
        for request in (
            renew_token.RenewDelegationTokenRequest(b"x", 1),
            expire_token.ExpireDelegationTokenRequest(b"x", 1),
        ):
            answer = await client.ask(version, request)
            assert (answer.error_code, answer.expiry_timestamp_ms) == (refused, -1)


async def test_this_listener_has_no_sasl(client: RawClient) -> None:
    for version in (0, 1):
        answer = await client.ask(version, sasl_handshake.SaslHandshakeRequest(mechanism="PLAIN"))
        assert (answer.error_code, answer.mechanisms) == (ErrorCode.ILLEGAL_SASL_STATE, ())
    for version in (0, 1, 2):
        answer = await client.ask(version, sasl_authenticate.SaslAuthenticateRequest(auth_bytes=b"x"))
        assert answer.error_code == ErrorCode.ILLEGAL_SASL_STATE


async def test_there_are_no_such_transactions(client: RawClient) -> None:
    for version in (0, 1, 2):
        listed = await client.ask(version, list_transactions.ListTransactionsRequest(state_filters=("Ongoing", "Nope")))
        assert (listed.error_code, listed.transaction_states) == (0, ())
        assert listed.unknown_state_filters == ("Nope",)
    name = uuid4().hex
    await client.ask(3, coordinator.FindCoordinatorRequest(key=name, key_type=1))
    request = transactions.DescribeTransactionsRequest(transactional_ids=(name, ""))
    told = await retried(client, 0, request, lambda found: found.transaction_states[0])
    assert {one.transactional_id: one.error_code for one in told.transaction_states} == {
        name: ErrorCode.TRANSACTIONAL_ID_NOT_FOUND,
        "": ErrorCode.INVALID_REQUEST,
    }
