"""The admin and metadata APIs over the wire, against a real broker, in every version that is advertised."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from headrace.base.limits import RESOURCES_PER_TURN_MAX
from headrace.broker.handlers import (
    alter_configs,
    create_partitions,
    create_topics,
    delete_topics,
    describe_cluster,
    describe_configs,
    describe_topic_partitions,
    incremental_alter_configs,
    metadata,
)
from headrace.metadata.kafka_configs import BROKER_FACTS, TOPIC_FACTS
from headrace.metadata.known_configs import TOLD_OTHERWISE
from headrace.wire.codec import NO_UUID
from headrace.wire.messages import alter_configs as legacy
from headrace.wire.messages.api_versions import ApiVersionsRequest
from headrace.wire.messages.create_partitions import CreatePartitionsRequest, CreatePartitionsTopic
from headrace.wire.messages.create_topics import (
    CreatableReplicaAssignment,
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
)
from headrace.wire.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from headrace.wire.messages.describe_cluster import DescribeClusterRequest
from headrace.wire.messages.describe_configs import DescribeConfigsRequest, DescribeConfigsResource
from headrace.wire.messages.describe_topic_partitions import (
    DescribeTopicPartitionsRequest,
    RequestCursor,
    TopicRequest,
)
from headrace.wire.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from headrace.wire.messages.metadata import MetadataRequest, MetadataRequestTopic
from tests.broker.group_broker import RawClient, running
from tests.metadata.test_known_configs import FIXED

TOPIC, BROKER = 2, 4
SET, DELETE = 0, 1


def versions(module: Any) -> range:
    lowest, highest = module.HANDLER.versions
    return range(lowest, highest + 1)


@pytest.fixture
async def client(tmp_path: Path) -> AsyncIterator[RawClient]:
    configs = {"num.partitions": "2", "log.retention.ms": "1000"}
    async with running(tmp_path / "data", configs) as bootstrap, RawClient(bootstrap) as client, asyncio.timeout(150):
        yield client


def creation(name: str, partitions: int = -1, factor: int = -1, **configs: str | None) -> CreatableTopic:
    items = tuple(CreatableTopicConfig(name=key.replace("_", "."), value=value) for key, value in configs.items())
    return CreatableTopic(name=name, num_partitions=partitions, replication_factor=factor, configs=items)


async def create(client: RawClient, *topics: CreatableTopic, version: int = 7, validate_only: bool = False) -> Any:
    request = CreateTopicsRequest(topics=topics, validate_only=validate_only)
    return (await client.ask(version, request)).topics


async def described(client: RawClient, *names: str | None, version: int = 13, create: bool = False) -> Any:
    topics = tuple(MetadataRequestTopic(name=name) for name in names) if names else None
    return await client.ask(version, MetadataRequest(topics=topics, allow_auto_topic_creation=create))


# CreateTopics


@pytest.mark.parametrize("version", versions(create_topics))
async def test_create_topics_in_every_version(client: RawClient, version: int) -> None:
    good, bad = await create(client, creation("good", retention_ms="5"), creation("no/good"), version=version)
    assert (good.name, good.error_code, good.error_message) == ("good", 0, None)
    assert (bad.name, bad.error_code) == ("no/good", 17)
    assert "no/good" in bad.error_message
    (topic,) = (await described(client)).topics
    assert (topic.name, len(topic.partitions)) == ("good", 2)
    if version >= 5:
        assert (good.num_partitions, good.replication_factor) == (2, 1)
        assert (bad.num_partitions, bad.replication_factor) == (-1, -1)
    if version >= 7:
        assert good.topic_id == topic.topic_id
        assert bad.topic_id == NO_UUID


async def test_the_answer_carries_the_topic_s_configs_with_value_source_and_default_flag(client: RawClient) -> None:
    (topic,) = await create(client, creation("t", segment_bytes="4096"))
    configs = {config.name: (config.value, config.config_source) for config in topic.configs}
    assert configs["segment.bytes"] == ("4096", 1), "the topic's own"
    assert configs["retention.ms"] == ("1000", 4), "the broker's, given at its start"
    assert configs["cleanup.policy"] == ("delete", 5), "nobody's: the default"
    assert len(configs) >= 15


async def test_validate_only_answers_alike_and_makes_nothing(client: RawClient) -> None:
    good, bad = await create(client, creation("t"), creation("u", 0), validate_only=True)
    assert (good.error_code, good.num_partitions, bad.error_code) == (0, 2, 37)
    assert (await described(client)).topics == ()


async def test_what_cannot_be_made_is_refused_and_the_rest_is_made(client: RawClient) -> None:
    await create(client, creation("old"))
    assigned = CreatableTopic(
        name="assigned",
        num_partitions=-1,
        replication_factor=-1,
        assignments=(
            CreatableReplicaAssignment(partition_index=0, broker_ids=(1,)),
            CreatableReplicaAssignment(partition_index=1, broker_ids=(1,)),
        ),
    )
    astray = assigned._replace(name="astray", assignments=(CreatableReplicaAssignment(broker_ids=(7,)),))
    results = await create(
        client, creation("old"), creation("rf", 1, 2), creation("c", cleanup_policy="compress"), assigned, astray
    )
    assert [(result.name, result.error_code) for result in results] == [
        ("old", 36),
        ("rf", 38),
        ("c", 40),
        ("assigned", 0),
        ("astray", 39),
    ]
    assert "cleanup.policy" in results[2].error_message
    assert results[3].num_partitions == 2


# DeleteTopics


@pytest.mark.parametrize("version", versions(delete_topics))
async def test_delete_topics_in_every_version(client: RawClient, version: int) -> None:
    (made,) = await create(client, creation("t"))
    names = ("t", "x")
    request = (
        DeleteTopicsRequest(topics=tuple(DeleteTopicState(name=name) for name in names))
        if version >= 6
        else DeleteTopicsRequest(topic_names=names)
    )
    gone, unknown = (await client.ask(version, request)).responses
    assert (gone.name, gone.error_code) == ("t", 0)
    assert (unknown.name, unknown.error_code) == ("x", 3)
    if version >= 5:
        assert unknown.error_message == "Topic 'x' does not exist"
    if version >= 6:
        assert gone.topic_id == made.topic_id
    assert (await described(client)).topics == ()
    (again,) = await create(client, creation("t"))
    assert again.topic_id != made.topic_id


async def test_delete_by_id_and_what_means_no_topic(client: RawClient) -> None:
    (made,) = await create(client, creation("t"))
    states = (
        DeleteTopicState(topic_id=uuid.uuid4()),
        DeleteTopicState(name="t", topic_id=made.topic_id),
        DeleteTopicState(),
        DeleteTopicState(topic_id=made.topic_id),
    )
    response = await client.ask(6, DeleteTopicsRequest(topics=states))
    results = sorted((result.error_code, result.name or "") for result in response.responses)
    assert results == [(0, "t"), (42, ""), (42, "t"), (100, "")]


# CreatePartitions


@pytest.mark.parametrize("version", versions(create_partitions))
async def test_create_partitions_in_every_version(client: RawClient, version: int) -> None:
    await create(client, creation("t"))
    topics = (
        CreatePartitionsTopic(name="t", count=5, assignments=None),
        CreatePartitionsTopic(name="x", count=5, assignments=None),
    )
    for validate_only, count in ((True, 2), (False, 5)):
        request = CreatePartitionsRequest(topics=topics, validate_only=validate_only)
        response = await client.ask(version, request)
        assert [(result.name, result.error_code) for result in response.results] == [("t", 0), ("x", 3)]
        assert len((await described(client, "t")).topics[0].partitions) == count
    response = await client.ask(version, CreatePartitionsRequest(topics=topics[:1]))
    assert response.results[0].error_code == 37


# Configs


async def configs_of(client: RawClient, kind: int, name: str, version: int = 4, **rest: Any) -> Any:
    keys = rest.pop("keys", None)
    resource = DescribeConfigsResource(resource_type=kind, resource_name=name, configuration_keys=keys)
    response = await client.ask(version, DescribeConfigsRequest(resources=(resource,), **rest))
    (result,) = response.results
    assert (result.resource_type, result.resource_name) == (kind, name)
    return result


@pytest.mark.parametrize("version", versions(describe_configs))
async def test_describe_configs_in_every_version(client: RawClient, version: int) -> None:
    await create(client, creation("t", segment_bytes="4096"))
    asked = {"include_documentation": True} if version >= 3 else {}
    result = await configs_of(client, TOPIC, "t", version, include_synonyms=True, **asked)
    found = {config.name: config for config in result.configs}
    assert result.error_code == 0
    assert (found["segment.bytes"].value, found["segment.bytes"].config_source) == ("4096", 1)
    assert [(one.name, one.value, one.source) for one in found["segment.bytes"].synonyms] == [
        ("segment.bytes", "4096", 1),
        ("log.segment.bytes", "1073741824", 5),
    ]
    if version >= 3:
        assert found["segment.bytes"].config_type == 3
        assert "segment" in found["segment.bytes"].documentation


async def test_describe_some_configs_plainly_and_a_broker_s(client: RawClient) -> None:
    await create(client, creation("t"))
    result = await configs_of(client, TOPIC, "t", keys=("retention.ms", "nope"))
    (config,) = result.configs
    assert (config.name, config.synonyms, config.documentation) == ("retention.ms", (), None)
    broker = {config.name: config for config in (await configs_of(client, BROKER, "1")).configs}
    assert (broker["num.partitions"].value, broker["num.partitions"].config_source) == ("2", 4)
    assert broker["durable.url"].read_only
    assert (await configs_of(client, BROKER, "")).configs == ()


@pytest.mark.parametrize(("kind", "name", "code"), [(2, "x", 3), (2, "no/good", 17), (4, "7", 42), (99, "t", 42)])
async def test_configs_of_what_is_not_there(client: RawClient, kind: int, name: str, code: int) -> None:
    result = await configs_of(client, kind, name)
    assert (result.error_code, result.configs) == (code, ())


async def test_a_topic_is_created_with_every_config_that_kafka_describes(client: RawClient) -> None:
    """As MirrorMaker 2 and backups create it. Each is stored and described, and can be set again, all at once."""
    told = {fact.key: fact.default for fact in TOPIC_FACTS if fact.default is not None}
    items = tuple(CreatableTopicConfig(name=key, value=value) for key, value in told.items())
    wanted = CreatableTopic(name="t", num_partitions=1, replication_factor=1, configs=items)
    (created,) = await create(client, wanted)
    assert (created.error_code, created.error_message) == (0, None)
    changes = tuple(AlterableConfig(name=key, config_operation=SET, value=value) for key, value in told.items())
    resource = AlterConfigsResource(resource_type=TOPIC, resource_name="t", configs=changes)
    (answer,) = (await client.ask(1, IncrementalAlterConfigsRequest(resources=(resource,)))).responses
    assert (answer.error_code, answer.error_message) == (0, None)
    described = {config.name: config for config in (await configs_of(client, TOPIC, "t")).configs}
    assert {key: (described[key].value, described[key].config_source) for key in told} == {
        key: (value, 1) for key, value in told.items()
    }
    types = {fact.key: int(fact.type) for fact in TOPIC_FACTS}
    assert {key: described[key].config_type for key in told} == {key: types[key] for key in told}


@pytest.mark.parametrize("version", versions(incremental_alter_configs))
async def test_incremental_alter_configs_in_every_version(client: RawClient, version: int) -> None:
    await create(client, creation("t", segment_bytes="4096"))
    changes = (
        AlterableConfig(name="retention.ms", config_operation=SET, value="7"),
        AlterableConfig(name="segment.bytes", config_operation=DELETE, value=None),
    )
    resources = (
        AlterConfigsResource(resource_type=TOPIC, resource_name="t", configs=changes),
        AlterConfigsResource(resource_type=TOPIC, resource_name="x", configs=changes),
    )
    for validate_only, expected in ((True, ("1000", "4096")), (False, ("7", "1073741824"))):
        request = IncrementalAlterConfigsRequest(resources=resources, validate_only=validate_only)
        response = await client.ask(version, request)
        assert [(one.resource_name, one.error_code) for one in response.responses] == [("t", 0), ("x", 3)]
        found = {config.name: config.value for config in (await configs_of(client, TOPIC, "t")).configs}
        assert (found["retention.ms"], found["segment.bytes"]) == expected


async def test_a_broker_s_configs_reach_its_topics(client: RawClient) -> None:
    await create(client, creation("t"))
    change = AlterableConfig(name="log.retention.ms", config_operation=SET, value="8")
    resource = AlterConfigsResource(resource_type=BROKER, resource_name="1", configs=(change,))
    response = await client.ask(1, IncrementalAlterConfigsRequest(resources=(resource,)))
    assert response.responses[0].error_code == 0
    (config,) = (await configs_of(client, TOPIC, "t", keys=("retention.ms",))).configs
    assert (config.value, config.config_source) == ("8", 2)


async def test_brokers_take_what_kafka_can_change_while_it_runs(client: RawClient) -> None:
    """For one broker and for all; described with its source, and as one that is not read-only."""
    told = {fact.key: fact.default for fact in BROKER_FACTS if fact.updates == "cluster-wide" and fact.default}
    for name in ("", "1"):
        changes = tuple(AlterableConfig(name=key, config_operation=SET, value=value) for key, value in told.items())
        resource = AlterConfigsResource(resource_type=BROKER, resource_name=name, configs=changes)
        (answer,) = (await client.ask(1, IncrementalAlterConfigsRequest(resources=(resource,)))).responses
        assert (answer.error_code, answer.error_message) == (0, None)
        found = {config.name: config for config in (await configs_of(client, BROKER, name)).configs}
        for key, value in told.items():
            source = 2 if name else 3
            assert (found[key].value, found[key].config_source, found[key].read_only) == (value, source, False), key


async def test_a_broker_tells_all_of_kafka_s_configs_that_hold_here_and_which_are_read_only(client: RawClient) -> None:
    found = {config.name: config for config in (await configs_of(client, BROKER, "1")).configs}
    for fact in BROKER_FACTS:
        if fact.key in TOLD_OTHERWISE or fact.is_internal:
            assert fact.key not in found
        elif fact.updates != "read-only":
            assert found[fact.key].read_only is (fact.key in FIXED)
    assert (found["num.io.threads"].value, found["num.io.threads"].config_source) == ("8", 5)
    assert (found["ssl.keystore.location"].value, found["socket.request.max.bytes"].read_only) == (None, True)


async def test_how_many_connections_there_may_be_follows_the_configs(client: RawClient) -> None:
    for value, refused in (("1", True), ("2", False)):
        change = AlterableConfig(name="max.connections.per.ip", config_operation=SET, value=value)
        resource = AlterConfigsResource(resource_type=BROKER, resource_name="", configs=(change,))
        (answer,) = (await client.ask(1, IncrementalAlterConfigsRequest(resources=(resource,)))).responses
        assert answer.error_code == 0
        async with RawClient(client.address) as second:
            if refused:
                with pytest.raises((asyncio.IncompleteReadError, ConnectionError)):
                    await second.ask(1, IncrementalAlterConfigsRequest(resources=()))
            else:
                await second.ask(1, IncrementalAlterConfigsRequest(resources=()))


@pytest.mark.parametrize("version", versions(alter_configs))
async def test_alter_configs_in_every_version(client: RawClient, version: int) -> None:
    await create(client, creation("t", segment_bytes="4096"))
    good = legacy.AlterConfigsResource(
        resource_type=TOPIC,
        resource_name="t",
        configs=(legacy.AlterableConfig(name="retention.ms", value="7"),),
    )
    bad = good._replace(resource_name="x")
    response = await client.ask(version, legacy.AlterConfigsRequest(resources=(good, bad)))
    assert [one.error_code for one in response.responses] == [0, 3]
    found = {config.name: config.value for config in (await configs_of(client, TOPIC, "t")).configs}
    assert (found["retention.ms"], found["segment.bytes"]) == ("7", "1073741824")


# DescribeCluster


@pytest.mark.parametrize("version", versions(describe_cluster))
async def test_describe_cluster_in_every_version(client: RawClient, version: int) -> None:
    request = DescribeClusterRequest(include_cluster_authorized_operations=True, include_fenced_brokers=version >= 2)
    response = await client.ask(version, request)
    assert (response.error_code, response.controller_id) == (0, 1)
    assert len(response.cluster_id) == 22
    (broker,) = response.brokers
    assert (broker.broker_id, broker.host, broker.rack, broker.is_fenced) == (1, "127.0.0.1", None, False)
    assert response.cluster_authorized_operations > 0
    if version >= 1:
        assert (await client.ask(version, DescribeClusterRequest(endpoint_type=2))).error_code == 114
        assert (await client.ask(version, DescribeClusterRequest(endpoint_type=9))).error_code == 115


# DescribeTopicPartitions


async def test_pages_join_to_the_whole(client: RawClient) -> None:
    await create(client, creation("a", 3), creation("b", 1), creation("c", 4))
    assert versions(describe_topic_partitions) == range(1)
    for limit in (1, 2, 3, 4, 100, -5):
        seen, pages, cursor = [], 0, None
        while True:
            request = DescribeTopicPartitionsRequest(response_partition_limit=limit, cursor=cursor)
            response = await client.ask(0, request)
            page = [(topic.name, part.partition_index) for topic in response.topics for part in topic.partitions]
            assert len(page) <= max(limit, 1)
            seen += page
            pages += 1
            if response.next_cursor is None:
                break
            cursor = RequestCursor(*response.next_cursor)
        assert seen == [("a", 0), ("a", 1), ("a", 2), ("b", 0), ("c", 0), ("c", 1), ("c", 2), ("c", 3)]
        assert pages == -(-8 // max(limit, 1))


async def test_named_topics_are_described_in_name_order_and_unknown_ones_too(client: RawClient) -> None:
    (made,) = await create(client, creation("b"))
    topics = tuple(TopicRequest(name=name) for name in ("x", "b", "a/", "b"))
    response = await client.ask(0, DescribeTopicPartitionsRequest(topics=topics))
    assert [(topic.name, topic.error_code) for topic in response.topics] == [("a/", 17), ("b", 0), ("x", 3)]
    known = response.topics[1]
    assert (known.topic_id, known.is_internal) == (made.topic_id, False)
    partition = known.partitions[0]
    assert (partition.leader_id, partition.replica_nodes, partition.isr_nodes) == (1, (1,), (1,))


# Metadata


@pytest.mark.parametrize("version", versions(metadata))
async def test_metadata_in_every_version(client: RawClient, version: int) -> None:
    await create(client, creation("a"), creation("b"))
    everything = () if version == 0 else None
    response = await client.ask(version, MetadataRequest(topics=everything))
    assert [topic.name for topic in response.topics] == ["a", "b"]
    (broker,) = response.brokers
    assert (broker.node_id, broker.host) == (1, "127.0.0.1")
    partition = response.topics[0].partitions[1]
    assert (partition.error_code, partition.partition_index, partition.leader_id) == (0, 1, 1)
    assert (partition.replica_nodes, partition.isr_nodes, partition.offline_replicas) == ((1,), (1,), ())
    if version >= 1:
        assert response.controller_id == 1
        assert (await client.ask(version, MetadataRequest(topics=()))).topics == ()
    if version >= 7:
        assert partition.leader_epoch == 0
    named = MetadataRequest(
        topics=(MetadataRequestTopic(name="b"), MetadataRequestTopic(name="x"), MetadataRequestTopic(name="no/good")),
        allow_auto_topic_creation=version < 4,
    )
    if version >= 4:
        response = await client.ask(version, named)
        assert [(one.name, one.error_code) for one in response.topics] == [("b", 0), ("x", 3), ("no/good", 17)]


@pytest.mark.parametrize("version", [10, 11, 12, 13])
async def test_metadata_by_id(client: RawClient, version: int) -> None:
    (made,) = await create(client, creation("a"))
    unknown = uuid.uuid4()
    request = MetadataRequest(
        topics=(
            MetadataRequestTopic(topic_id=made.topic_id, name=None),
            MetadataRequestTopic(topic_id=unknown, name=None),
        )
    )
    found, missing = (await client.ask(version, request)).topics
    assert (found.name, found.topic_id, found.error_code, len(found.partitions)) == ("a", made.topic_id, 0, 2)
    assert (missing.topic_id, missing.error_code, missing.partitions) == (unknown, 100, ())
    assert not missing.name


async def test_a_topic_is_made_where_request_and_broker_allow_it_and_is_in_the_same_answer(client: RawClient) -> None:
    refused = await described(client, "new", create=False)
    assert [topic.error_code for topic in refused.topics] == [3]
    made = await described(client, "new", "no/good", "__transaction_state", create=True)
    assert [(one.name, one.error_code, len(one.partitions)) for one in made.topics] == [
        ("new", 0, 2),
        ("no/good", 17, 0),
        ("__transaction_state", 3, 0),
    ]


async def test_a_topic_is_not_made_where_the_broker_forbids_it(tmp_path: Path) -> None:
    configs = {"auto.create.topics.enable": "false"}
    async with running(tmp_path / "data", configs) as bootstrap, RawClient(bootstrap) as client, asyncio.timeout(150):
        answer = await described(client, "new", create=True)
        assert [topic.error_code for topic in answer.topics] == [3]
        assert (await described(client)).topics == ()


async def test_allowed_operations_are_told_where_asked_for(client: RawClient) -> None:
    await create(client, creation("a"))
    request = MetadataRequest(include_topic_authorized_operations=True, topics=None)
    assert (await client.ask(13, request)).topics[0].topic_authorized_operations == 0b1101_1111_1000
    assert (await described(client)).topics[0].topic_authorized_operations == -(2**31)


# All of them


async def test_state_is_the_same_after_a_restart_but_for_the_epochs(tmp_path: Path) -> None:
    def facts(response: Any) -> Any:
        return [(one.name, one.topic_id, [part.leader_epoch for part in one.partitions]) for one in response.topics]

    async with running(tmp_path / "data") as bootstrap, RawClient(bootstrap) as client:
        await create(client, creation("a", 2), creation("b", 1))
        first = facts(await described(client))
    async with running(tmp_path / "data") as bootstrap, RawClient(bootstrap) as client:
        second = facts(await described(client))
    assert second == [(name, topic_id, [epoch + 1 for epoch in epochs]) for name, topic_id, epochs in first]


async def test_the_admin_apis_are_advertised_as_they_are_served(client: RawClient) -> None:
    response = await client.ask(4, ApiVersionsRequest(client_software_name="t", client_software_version="1"))
    offered = {one.api_key: (one.min_version, one.max_version) for one in response.api_keys}
    for module in (
        alter_configs,
        create_partitions,
        create_topics,
        delete_topics,
        describe_cluster,
        describe_configs,
        describe_topic_partitions,
        incremental_alter_configs,
        metadata,
    ):
        assert offered[module.HANDLER.key] == module.HANDLER.versions


@pytest.mark.parametrize(
    "request_",
    [
        lambda: CreateTopicsRequest(),
        lambda: DeleteTopicsRequest(),
        lambda: CreatePartitionsRequest(),
        lambda: DescribeConfigsRequest(),
        lambda: IncrementalAlterConfigsRequest(),
    ],
)
async def test_an_empty_request_gets_an_empty_answer(client: RawClient, request_: Callable[[], Any]) -> None:
    response = await client.ask(3 if isinstance(request_(), CreateTopicsRequest) else 1, request_())
    assert all(field in ((), 0) for field in response)


async def test_every_config_tells_its_documentation_type_and_all_its_levels(client: RawClient) -> None:
    await create(client, creation("t", retention_ms="5"))
    resources = (
        DescribeConfigsResource(resource_type=TOPIC, resource_name="t", configuration_keys=None),
        DescribeConfigsResource(resource_type=BROKER, resource_name="1", configuration_keys=None),
    )
    request = DescribeConfigsRequest(resources=resources, include_synonyms=True, include_documentation=True)
    for result in (await client.ask(4, request)).results:
        for config in result.configs:
            assert config.documentation, config.name
            assert config.config_type > 0, config.name
            assert (config.synonyms[0].value, config.synonyms[0].source) == (config.value, config.config_source)
            if config.name != "advertised.listeners":  # this one has none
                assert config.synonyms[-1].source == 5, "the default comes last"
    configs = (await client.ask(4, request)).results[0].configs
    retention = next(config for config in configs if config.name == "retention.ms")
    assert [(it.name, it.value, it.source) for it in retention.synonyms] == [
        ("retention.ms", "5", 1),
        ("log.retention.ms", "1000", 4),
        ("log.retention.ms", "604800000", 5),
    ]


async def test_a_broker_tells_what_it_advertises(client: RawClient) -> None:
    """As on Kafka in KRaft mode: static, and for reading only."""
    result = await configs_of(client, BROKER, "1", 4, include_synonyms=True, keys=["advertised.listeners"])
    (config,) = result.configs
    assert (config.value, config.config_source) == (f"PLAINTEXT://{client.address}", 4)
    assert config.read_only
    assert not config.is_sensitive
    assert [(it.name, it.value, it.source) for it in config.synonyms] == [(config.name, config.value, 4)]


async def test_one_request_describes_a_resource_once_however_often_it_is_named(client: RawClient) -> None:
    """Each answer is some thousand times as large as the name that asks for it."""
    one = DescribeConfigsResource(resource_type=TOPIC, resource_name="t", configuration_keys=None)
    response = await client.ask(4, DescribeConfigsRequest(resources=(one,) * 1_000))
    assert len(response.results) == 1


async def test_many_resources_are_described_in_turns() -> None:
    """Others have the event loop between them."""
    names = [f"no such topic {at}" for at in range(3 * RESOURCES_PER_TURN_MAX)]
    resources = tuple(DescribeConfigsResource(resource_type=TOPIC, resource_name=name) for name in names)
    context: Any = None  # names as these ask nothing of it
    answer = describe_configs.handle(DescribeConfigsRequest(resources=resources), context)
    assert isinstance(answer, Awaitable)
    turns = 0
    work = asyncio.ensure_future(answer)
    while not work.done():
        await asyncio.sleep(0)
        turns += 1
    assert turns >= 3
    assert [result.resource_name for result in work.result().results] == names
