"""Apache Kafka's own tools administer a cluster of three: what they print is what an operator of Kafka would read."""

from __future__ import annotations

import asyncio
import json
import re
import threading
import urllib.request
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import confluent_kafka
import pytest

from headrace.metadata.config_table import STANDARD_AUTHORIZER
from headrace.metadata.levels import METADATA_LEVEL
from tests.interop.hanging import VERIFICATION, hang
from tests.interop.kafka_tools import KafkaTools, Said
from tools import kafka_jars, warm
from tools.servers.broker_cluster import BrokerCluster

pytestmark = pytest.mark.skipif(kafka_jars.missing_tool() is not None, reason=kafka_jars.missing_tool() or "")

DEADLINE_S = 150.0
LOOK_EVERY_S = 0.01


@pytest.fixture(scope="module")
def tools(tmp_path_factory: pytest.TempPathFactory, engine: str) -> Iterator[KafkaTools]:
    with asyncio.Runner() as runner:
        configs = (
            "group.initial.rebalance.delay.ms=0",
            "metrics.listen=127.0.0.1:0",
            f"authorizer.class.name={STANDARD_AUTHORIZER}",
            "super.users=User:ANONYMOUS",
        )
        options = (option for config in configs for option in ("--config", config))
        cluster = BrokerCluster(tmp_path_factory.mktemp("tools"), 3, *options)
        runner.run(cluster.start(1, 2, 3))
        urls = [told_metrics(cluster.log(broker)) for broker in (1, 2, 3)]

        pause = threading.Event()

        def heard() -> None:
            furthest = max(map(replayed, urls))
            while min(map(replayed, urls)) < furthest:
                pause.wait(LOOK_EVERY_S)  # pytest ends what never comes

        try:
            with KafkaTools(cluster.bootstrap, heard) as tools:
                yield tools
        finally:
            assert runner.run(cluster.stop(1, 2, 3)) == [0, 0, 0]


def told_metrics(log: Path) -> str:
    """The address of a broker's metrics, as its log has it."""
    found = re.search(r'"url": "(http://[^"]+/metrics)"', log.read_text())
    assert found is not None, log.read_text()[-2000:]
    return found[1]


def replayed(url: str) -> float:
    """The last entry of the metadata that the broker has replayed."""
    name = "kafka_server_broker_metadata_metrics_last_applied_record_offset"
    with urllib.request.urlopen(url) as answer:
        found = re.search(rf"^{name} (\S+)$", answer.read().decode(), re.MULTILINE)
    assert found is not None
    return float(found[1])


@pytest.fixture
def topic(tools: KafkaTools) -> str:
    """Three partitions with two replicas each."""
    name = f"orders-{uuid.uuid4().hex[:8]}"
    tools.did("TopicCommand", "--create", "--topic", name, "--partitions", "3", "--replication-factor", "2")
    return name


def produce(tools: KafkaTools, topic: str, count: int, *, partition: int = 0, **options: Any) -> list[str]:
    """Errors of the records that were not taken, by name."""
    failed: list[str] = []

    def told(error: Any, _: Any) -> None:
        if error is not None:
            failed.append(error.name())

    producer = confluent_kafka.Producer({"bootstrap.servers": tools.bootstrap} | options)
    for _ in range(count):
        producer.produce(topic, b"v" * 100, partition=partition, on_delivery=told)
    assert producer.flush(DEADLINE_S) == 0
    return failed


def described(tools: KafkaTools, topic: str, *options: str) -> list[dict[str, str]]:
    """A row for each partition: its fields as TopicCommand prints them."""
    said = tools.did("TopicCommand", "--describe", "--topic", topic, *options)
    rows = [line for line in said.lines if line.startswith("\tTopic: ")]
    return [dict(re.findall(r"(\w+): (\S*)", row)) for row in rows]


def dynamic(said: Said) -> dict[str, str]:
    """The output of ConfigCommand: each config with its value."""
    return dict(re.findall(r"^  (\S+?)=(.*?) sensitive=", said.text, re.MULTILINE))


def wait_for_dynamic(tools: KafkaTools, expected: dict[str, str], *about: str) -> None:
    """Until ConfigCommand tells just these: it asks any broker, and that one may hear of a change a little later."""
    while dynamic(tools.did("ConfigCommand", *about, "--describe")) != expected:
        pass  # each asks again, in a JVM of its own; pytest ends what never comes


# topics


def test_a_topic_is_made_listed_described_and_deleted(tools: KafkaTools) -> None:
    made = ("--partitions", "3", "--replication-factor", "2", "--config", "retention.ms=100000")
    assert "Created topic life." in tools.did("TopicCommand", "--create", "--topic", "life", *made).text
    assert "life" in tools.did("TopicCommand", "--list").lines
    head = tools.did("TopicCommand", "--describe", "--topic", "life").lines[0]
    assert re.search(r"Topic: life\tTopicId: \S{22}\tPartitionCount: 3\tReplicationFactor: 2", head)
    assert head.endswith("Configs: retention.ms=100000")
    rows = described(tools, "life")
    assert [row["Partition"] for row in rows] == ["0", "1", "2"]
    assert sorted(row["Leader"] for row in rows) == ["1", "2", "3"]
    assert all(row["Replicas"] == row["Isr"] and row["Replicas"].startswith(row["Leader"]) for row in rows)
    again = tools.run("TopicCommand", "--create", "--topic", "life")
    assert (again.status, "Topic 'life' already exists" in again.text) == (1, True)
    tools.did("TopicCommand", "--create", "--topic", "life", "--if-not-exists")
    tools.did("TopicCommand", "--delete", "--topic", "life")
    assert "life" not in tools.did("TopicCommand", "--list").lines
    assert "does not exist" in tools.run("TopicCommand", "--describe", "--topic", "life").text


def test_partitions_are_added_and_told_page_by_page(tools: KafkaTools, topic: str) -> None:
    tools.did("TopicCommand", "--alter", "--topic", topic, "--partitions", "7")
    rows = described(tools, topic, "--partition-size-limit-per-response", "2")
    assert [row["Partition"] for row in rows] == list("0123456")
    fewer = tools.run("TopicCommand", "--alter", "--topic", topic, "--partitions", "2")
    assert fewer.status == 1
    assert "7" in fewer.text
    for healthy in ("--under-replicated-partitions", "--unavailable-partitions", "--under-min-isr-partitions"):
        assert described(tools, topic, healthy) == []


# configs


def test_a_topics_configs_change_with_effect(tools: KafkaTools, topic: str) -> None:
    about = ("--entity-type", "topics", "--entity-name", topic)
    assert produce(tools, topic, 1) == []
    changed = "max.message.bytes=50,cleanup.policy=[compact,delete]"
    assert "Completed updating config" in tools.did("ConfigCommand", *about, "--alter", "--add-config", changed).text
    assert produce(tools, topic, 1) == ["MSG_SIZE_TOO_LARGE"]
    told = tools.did("ConfigCommand", *about, "--describe")
    assert dynamic(told) == {"max.message.bytes": "50", "cleanup.policy": "compact,delete"}
    assert "synonyms={DYNAMIC_TOPIC_CONFIG:max.message.bytes=50, DEFAULT_CONFIG:message.max.bytes=1048588}" in told.text
    tools.did("ConfigCommand", *about, "--alter", "--delete-config", "max.message.bytes,cleanup.policy")
    wait_for_dynamic(tools, {}, *about)
    assert produce(tools, topic, 1) == []
    everything = dynamic(tools.did("ConfigCommand", *about, "--describe", "--all"))
    assert everything["max.message.bytes"] == "1048588"
    assert len(everything) > 20
    bad = tools.run("ConfigCommand", *about, "--alter", "--add-config", "retention.ms=soon")
    assert (bad.status, "InvalidConfigurationException" in bad.text, "retention.ms" in bad.text) == (1, True, True)


def test_brokers_configs_change_with_effect(tools: KafkaTools) -> None:
    second, everyone = ("--entity-type", "brokers", "--entity-name", "2"), ("--entity-type", "brokers")
    default = (*everyone, "--entity-default")
    tools.did("ConfigCommand", *second, "--alter", "--add-config", "log.retention.ms=7000000")
    tools.did("ConfigCommand", *default, "--alter", "--add-config", "num.partitions=4")
    try:
        assert dynamic(tools.did("ConfigCommand", *second, "--describe"))["log.retention.ms"] == "7000000"
        wait_for_dynamic(tools, {"num.partitions": "4"}, *default)
        overview = tools.did("ConfigCommand", *everyone, "--describe").text
        assert overview.index("broker 1 are") < overview.index("broker 2 are") < overview.index("broker 3 are")
        tools.did("TopicCommand", "--create", "--topic", "four")
        assert len(described(tools, "four")) == 4
    finally:
        tools.did("ConfigCommand", *default, "--alter", "--delete-config", "num.partitions")
        tools.did("ConfigCommand", *second, "--alter", "--delete-config", "log.retention.ms")
    fixed = tools.run("ConfigCommand", *second, "--alter", "--add-config", "controller.voters=1")
    assert fixed.status == 1
    assert "cannot be changed while a broker runs" in fixed.text
    unknown = tools.run("ConfigCommand", *second, "--alter", "--add-config", "nonsense=1")
    assert (unknown.status, "Unknown broker config name: nonsense" in unknown.text) == (1, True)


# offsets and records


def test_offsets_are_told_by_time(tools: KafkaTools, topic: str) -> None:
    assert produce(tools, topic, 10, partition=1) == []

    def offsets(*time: str) -> list[str]:
        said = tools.did("GetOffsetShell", "--topic-partitions", f"{topic}:0-2", *time)
        return sorted(line.removeprefix(topic) for line in said.lines)

    assert offsets() == offsets("--time", "latest") == [":0:0", ":1:10"]
    assert offsets("--time", "earliest") == [":0:0", ":1:0"]
    assert offsets("--time", "earliest-local") == [":0:0", ":1:0"]
    (newest,) = offsets("--time", "max-timestamp")
    assert re.fullmatch(r":1:\d", newest)
    assert offsets("--time", "1") == [":1:0"]
    assert offsets("--time", "latest-tiered") == []


def test_records_are_deleted(tools: KafkaTools, topic: str, tmp_path: Path) -> None:
    assert produce(tools, topic, 10) == []
    plan = tmp_path / "plan.json"
    wanted = [{"topic": topic, "partition": 0, "offset": 4}, {"topic": topic, "partition": 1, "offset": 9}]
    plan.write_text(json.dumps({"version": 1, "partitions": wanted}))
    said = tools.run("DeleteRecordsCommand", "--offset-json-file", str(plan))
    assert f"partition: {topic}-0\tlow_watermark: 4" in said.text
    assert re.search(rf"partition: {topic}-1\terror: .*OffsetOutOfRange", said.text)
    first = tools.did("GetOffsetShell", "--topic-partitions", f"{topic}:0", "--time", "earliest")
    assert first.lines == [f"{topic}:0:4"]


# disks and producers


def test_log_directories_tell_every_replica(tools: KafkaTools, topic: str) -> None:
    assert produce(tools, topic, 10, acks="all") == []
    said = tools.did("LogDirsCommand", "--describe", "--topic-list", topic)
    (told,) = [json.loads(line) for line in said.lines if line.startswith("{")]
    held: dict[str, dict[str, int]] = {}
    for broker in told["brokers"]:
        (directory,) = broker["logDirs"]
        assert directory["error"] is None
        for replica in directory["partitions"]:
            assert (replica["offsetLag"], replica["isFuture"]) == (0, False)
            held.setdefault(replica["partition"], {})[str(broker["broker"])] = replica["size"]
    rows = described(tools, topic)
    for row in rows:
        sizes = held[f"{topic}-{row['Partition']}"]
        assert set(sizes) == set(row["Replicas"].split(","))
        assert len(set(sizes.values())) == 1, "each has the same bytes"
    assert [max(held[f"{topic}-{at}"].values()) > 0 for at in range(3)] == [True, False, False]


def test_a_partition_tells_its_producers(tools: KafkaTools, topic: str) -> None:
    assert produce(tools, topic, 7, **{"enable.idempotence": True, "linger.ms": 1000}) == []
    said = tools.did("TransactionsCommand", "describe-producers", "--topic", topic, "--partition", "0")
    header, row = (line.split("\t") for line in said.lines)
    told = dict(zip(header, (each.strip() for each in row), strict=False))
    assert (told["LastSequence"], told["ProducerEpoch"], told["CurrentTransactionStartOffset"]) == ("6", "0", "None")


def test_a_transaction_that_hangs_is_found_and_aborted(tools: KafkaTools, topic: str) -> None:
    alter = ("--alter", "--entity-type", "brokers", "--entity-default")
    tools.did("ConfigCommand", *alter, "--add-config", f"{VERIFICATION}=false")
    producer_id = asyncio.run(hang(tools.bootstrap, topic))
    tools.did("ConfigCommand", *alter, "--delete-config", VERIFICATION)
    find = ("find-hanging", "--topic", topic, "--max-transaction-timeout", "0")
    _, row = tools.did("TransactionsCommand", *find).lines
    assert row.split()[:6] == [topic, "0", str(producer_id), "0", "-1", "0"]
    tools.did("TransactionsCommand", "abort", "--topic", topic, "--partition", "0", "--start-offset", "0")
    assert len(tools.did("TransactionsCommand", *find).lines) == 1


# placement


def test_a_partition_is_moved_throttled_and_led(tools: KafkaTools, topic: str, tmp_path: Path) -> None:
    assert produce(tools, topic, 100) == []
    (row, *_) = described(tools, topic)
    (new,) = {"1", "2", "3"} - set(row["Replicas"].split(","))
    wanted = [int(new), int(row["Leader"])]
    plan = tmp_path / "plan.json"
    plan.write_text(json.dumps({"version": 1, "partitions": [{"topic": topic, "partition": 0, "replicas": wanted}]}))
    reassign = ("ReassignPartitionsCommand", "--reassignment-json-file", str(plan))
    started = tools.did(*reassign, "--execute", "--throttle", "10000000")
    assert f"Successfully started partition reassignment for {topic}-0" in started.text
    assert "throttle limit was set to 10000000 B/s" in started.text
    while "still in progress" in (said := tools.did(*reassign, "--verify")).text:
        pass  # each asks the whole cluster: what it waits for comes from the brokers
    assert f"Reassignment of partition {topic}-0 is completed." in said.text
    assert "Clearing broker-level throttles on brokers 1,2,3" in said.text
    assert f"Clearing topic-level throttles on topic {topic}" in said.text
    wait_for_dynamic(tools, {}, "--entity-type", "topics", "--entity-name", topic)
    assert "No partition reassignments found." in tools.did("ReassignPartitionsCommand", "--list").text
    (row, *_) = described(tools, topic)
    assert (row["Replicas"], sorted(row["Isr"].split(","))) == (
        ",".join(map(str, wanted)),
        sorted(map(str, wanted)),
    )
    about = ("LeaderElectionCommand", "--topic", topic, "--partition", "0")
    said = tools.did(*about, "--election-type", "preferred")
    assert f"for partitions {topic}-0" in said.text
    assert described(tools, topic)[0]["Leader"] == new
    assert "Valid replica already elected" in tools.did(*about, "--election-type", "preferred").text
    assert "Valid replica already elected" in tools.did(*about, "--election-type", "unclean").text
    lost = tools.run("LeaderElectionCommand", "--topic", "nope", "--partition", "0", "--election-type", "preferred")
    assert (lost.status, "UnknownTopicOrPartition" in lost.text) == (1, True)


def test_a_plan_is_proposed(tools: KafkaTools, topic: str, tmp_path: Path) -> None:
    topics = tmp_path / "topics.json"
    topics.write_text(json.dumps({"version": 1, "topics": [{"topic": topic}]}))
    said = tools.did(
        "ReassignPartitionsCommand", "--generate", "--topics-to-move-json-file", str(topics), "--broker-list", "1,2,3"
    )
    current, proposed = (json.loads(line) for line in said.lines if line.startswith("{"))
    assert [each["partition"] for each in current["partitions"]] == [0, 1, 2]
    assert all(len(each["replicas"]) == 2 for each in proposed["partitions"])


# the cluster


def test_the_cluster_tells_of_itself(tools: KafkaTools) -> None:
    identity = tools.run_bare("ClusterTool", "cluster-id", "--bootstrap-server", tools.bootstrap)
    assert re.search(r"Cluster ID: \S{22}", identity.text)
    status = tools.did("MetadataQuorumCommand", "describe", "--status").text
    assert re.search(r"LeaderId: +[123]\n", status)
    assert len(re.findall(r'"id": [123],', status)) == 3
    versions = tools.did("BrokerApiVersionsCommand").text
    assert versions.count("isFenced: false") == 3
    assert "Produce(0): " in versions


def test_a_running_broker_is_not_unregistered(tools: KafkaTools) -> None:
    said = tools.run_bare("ClusterTool", "unregister", "--bootstrap-server", tools.bootstrap, "--id", "3")
    assert said.status != 0
    assert "3" in said.text


def test_what_has_configs_is_listed(tools: KafkaTools) -> None:
    assert tools.did("ClientMetricsCommand", "--list").text.strip() == ""
    for none in ("client-metrics", "groups"):
        assert dynamic(tools.did("ConfigCommand", "--entity-type", none, "--describe")) == {}


def test_a_group_s_configs_change(tools: KafkaTools) -> None:
    group = ("--entity-type", "groups", "--entity-name", "readers")
    tools.did("ConfigCommand", *group, "--alter", "--add-config", "consumer.session.timeout.ms=50000")
    wait_for_dynamic(tools, {"consumer.session.timeout.ms": "50000"}, *group)
    refused = tools.run("ConfigCommand", *group, "--alter", "--add-config", "consumer.session.timeout.ms=1")
    assert "group.consumer.min.session.timeout.ms" in refused.text
    tools.did("ConfigCommand", *group, "--alter", "--delete-config", "consumer.session.timeout.ms")
    wait_for_dynamic(tools, {}, *group)


def test_features_are_told_and_have_the_levels_that_they_have(tools: KafkaTools) -> None:
    told = dict(
        re.findall(r"^Feature: (\S+).*FinalizedVersionLevel: (\S+)", tools.did("FeatureCommand", "describe").text, re.M)
    )
    level = str(METADATA_LEVEL)
    assert told.pop("headrace.version") == level
    assert told == {"group.version": "1", "metadata.version": "4.1-IV1", "transaction.version": "2"}
    assert "upgraded to 1" in tools.did("FeatureCommand", "upgrade", "--feature", "group.version=1").text
    assert (
        f"upgraded to {level}" in tools.did("FeatureCommand", "upgrade", "--feature", f"headrace.version={level}").text
    )
    for absent in ("transaction.version=3", "metadata.version=26", "group.version=2", "headrace.version=9"):
        said = tools.run("FeatureCommand", "upgrade", "--feature", absent)
        assert said.status != 0
        assert f"Could not upgrade {absent.partition('=')[0]}" in said.text


def test_what_is_not_there_says_so(tools: KafkaTools) -> None:
    assert tools.did("TransactionsCommand", "list").lines[1:] == []


def acls(said: Said) -> set[tuple[str, ...]]:
    """Name, pattern, principal, host, operation and permission of each."""
    found, about = set(), ("", "")
    for line in said.lines:
        if resource := re.search(r"resourceType=\w+, name=([^,]+), patternType=(\w+)", line):
            about = (resource[1], resource[2])
        for rule in re.findall(r"principal=([^,]+), host=([^,]+), operation=(\w+), permissionType=(\w+)", line):
            found.add((*about, *rule))
    return found


def test_acls_are_added_listed_and_removed(tools: KafkaTools) -> None:
    alice = ("--allow-principal", "User:alice")
    tools.did("AclCommand", "--add", *alice, "--producer", "--topic", "acl-", "--resource-pattern-type", "prefixed")
    tools.did("AclCommand", "--add", "--deny-principal", "User:*", "--deny-host", "10.0.0.7", "--topic", "acl-secret")
    told = acls(tools.did("AclCommand", "--list", "--topic", "acl-", "--resource-pattern-type", "prefixed"))
    writes = {("acl-", "PREFIXED", "User:alice", "*", each, "ALLOW") for each in ("WRITE", "CREATE", "DESCRIBE")}
    denied = ("acl-secret", "LITERAL", "User:*", "10.0.0.7", "ALL", "DENY")
    assert told == writes
    matched = ("--topic", "acl-secret", "--resource-pattern-type", "match")
    assert acls(tools.did("AclCommand", "--list", *matched)) == {*writes, denied}
    assert acls(tools.did("AclCommand", "--list", "--principal", "User:alice")) == writes
    tools.did("AclCommand", "--remove", "--force", *matched)
    assert acls(tools.did("AclCommand", "--list")) == set()


# quotas


def quotas(said: Said) -> dict[str, set[str]]:
    """By entity, in ConfigCommand's words: its quotas."""
    found = re.findall(r"^Quota configs for (.*) are (.*)$", said.text, re.MULTILINE)
    return {entity: set(told.split(", ")) for entity, told in found}


def test_quotas_are_set_told_and_removed(tools: KafkaTools) -> None:
    client = ("--entity-type", "clients", "--entity-name", "c1")
    both = ("--entity-type", "users", "--entity-default", "--entity-type", "clients", "--entity-name", "c1")
    everyone = ("--entity-type", "clients", "--entity-default")
    rates = "producer_byte_rate=1024,consumer_byte_rate=2048"
    said = tools.did("ConfigCommand", *client, "--alter", "--add-config", rates)
    assert "Completed updating config" in said.text
    tools.did("ConfigCommand", *both, "--alter", "--add-config", "request_percentage=12.5")
    tools.did("ConfigCommand", *everyone, "--alter", "--add-config", "request_percentage=200")
    assert quotas(tools.did("ConfigCommand", "--entity-type", "clients", "--describe")) == {
        "client-id 'c1'": {"producer_byte_rate=1024.0", "consumer_byte_rate=2048.0"},
        "the default client-id": {"request_percentage=200.0"},
    }
    assert quotas(tools.did("ConfigCommand", *both, "--describe")) == {
        "the default user-principal, client-id 'c1'": {"request_percentage=12.5"}
    }
    tools.did("ConfigCommand", "--entity-type", "users", "--describe")
    tools.did("ConfigCommand", *client, "--alter", "--delete-config", "producer_byte_rate")
    assert quotas(tools.did("ConfigCommand", *client, "--describe")) == {
        "client-id 'c1'": {"consumer_byte_rate=2048.0"}
    }
    tools.did("ConfigCommand", *client, "--alter", "--delete-config", "consumer_byte_rate")
    for entity in (both, everyone):
        tools.did("ConfigCommand", *entity, "--alter", "--delete-config", "request_percentage")
    assert quotas(tools.did("ConfigCommand", "--entity-type", "clients", "--describe")) == {}
    address = ("--entity-type", "ips", "--entity-name", "127.0.0.1")
    tools.did("ConfigCommand", *address, "--alter", "--add-config", "connection_creation_rate=100000")
    assert "connection_creation_rate=100000.0" in tools.did("ConfigCommand", *address, "--describe").text
    tools.did("ConfigCommand", *address, "--alter", "--delete-config", "connection_creation_rate")
    assert "connection_creation_rate" not in tools.did("ConfigCommand", *address, "--describe").text


def test_kafkas_tool_tells_the_settings_that_headrace_has_set(tools: KafkaTools) -> None:
    tools.did("TopicCommand", "--create", "--topic", "settings", "--partitions", "1")

    def headrace(*words: str) -> str:
        done = warm.ran(*words, "--bootstrap", tools.bootstrap, timeout=150)
        assert done.returncode == 0, done.stderr
        tools.settle()
        return done.stdout

    headrace("quota", "set", "--user", "alice", "--default-client-id", "producer_byte_rate=1024")
    headrace("config", "set", "client", "c1", "request_percentage=12.5")
    headrace("config", "set", "topic", "settings", "retention.ms=5000")
    both = ("--entity-type", "users", "--entity-name", "alice", "--entity-type", "clients", "--entity-default")
    assert quotas(tools.did("ConfigCommand", *both, "--describe")) == {
        "user-principal 'alice', the default client-id": {"producer_byte_rate=1024.0"}
    }
    client = ("--entity-type", "clients", "--entity-name", "c1")
    assert quotas(tools.did("ConfigCommand", *client, "--describe")) == {"client-id 'c1'": {"request_percentage=12.5"}}
    topic = ("--entity-type", "topics", "--entity-name", "settings")
    assert "retention.ms=5000" in tools.did("ConfigCommand", *topic, "--describe").text
    tools.did("ConfigCommand", *client, "--alter", "--add-config", "consumer_byte_rate=7")
    assert "consumer_byte_rate  7 " in headrace("quota", "get", "--client-id", "c1")
    headrace("quota", "unset", "--user", "alice", "--default-client-id", "producer_byte_rate")
    headrace("config", "unset", "client", "c1", "request_percentage", "consumer_byte_rate")
    assert quotas(tools.did("ConfigCommand", "--entity-type", "clients", "--describe")) == {}


def test_a_java_producer_is_throttled_and_says_so(tools: KafkaTools) -> None:
    tools.did("TopicCommand", "--create", "--topic", "throttled", "--partitions", "1")  # each broker measures by itself

    def produce_throttle(client: str) -> float:
        """The longest that it was told to wait, in milliseconds, by its own metric."""
        props = ("--producer-props", f"bootstrap.servers={tools.bootstrap}", f"client.id={client}", "batch.size=16384")
        sizes = ("--num-records", "120", "--record-size", "1000", "--throughput", "-1")
        said = tools.run_bare("ProducerPerformance", "--topic", "throttled", *sizes, "--print-metrics", *props)
        assert "120 records sent" in said.text
        told = re.search(r"producer-metrics:produce-throttle-time-max:\S+ +: ([\d.]+)", said.text)
        assert told is not None
        return float(told[1])

    about = ("--entity-type", "clients", "--entity-name", "slow")
    tools.did("ConfigCommand", *about, "--alter", "--add-config", "producer_byte_rate=10000")
    assert produce_throttle("slow") > 0
    assert produce_throttle("quick") == 0
    tools.did("ConfigCommand", *about, "--alter", "--delete-config", "producer_byte_rate")


def test_librdkafka_is_throttled_and_says_so(tools: KafkaTools, topic: str) -> None:
    about = ("--entity-type", "clients", "--entity-name", "small")
    tools.did("ConfigCommand", *about, "--alter", "--add-config", "producer_byte_rate=2000")
    told: list[float] = []
    options: dict[str, Any] = {"client.id": "small", "throttle_cb": lambda event: told.append(event.throttle_time)}
    assert produce(tools, topic, 230, **options) == []
    assert max(told) > 0
    tools.did("ConfigCommand", *about, "--alter", "--delete-config", "producer_byte_rate")
