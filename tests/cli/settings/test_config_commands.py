"""`headrace config` and `headrace quota` against a real broker; librdkafka reads what they set."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient, ConfigResource

from headrace.testing import RunningBroker
from tests.cli.test_commands import Headrace


def as_librdkafka_reads(bootstrap: str, kind: ConfigResource.Type, name: str) -> dict[str, str]:
    resource = ConfigResource(kind, name)
    admin = AdminClient({"bootstrap.servers": bootstrap})
    found = admin.describe_configs([resource])[resource].result(60)
    return {key: each.value for key, each in found.items()}


def test_a_topics_configs(headrace: Headrace, headrace_broker: RunningBroker) -> None:
    headrace.ok("topic", "create", "orders")
    assert headrace.ok("config", "set", "topic", "orders", "retention.ms=7200000", "cleanup.policy=compact") == (
        "set retention.ms, cleanup.policy of topic orders\n"
    )
    known = as_librdkafka_reads(headrace_broker.bootstrap, ConfigResource.Type.TOPIC, "orders")
    listed = {each["name"]: each for each in headrace.json("config", "list", "topic", "orders")}
    assert {name: each["value"] for name, each in listed.items()} == known
    assert listed["retention.ms"]["value"] == "7200000"
    assert listed["retention.ms"]["source"] == "DYNAMIC_TOPIC_CONFIG"
    assert all(each["documentation"] for each in listed.values())
    changed = [each["name"] for each in headrace.json("config", "list", "topic", "orders", "--changed")]
    assert set(changed) == {"cleanup.policy", "retention.ms"}
    got = headrace.ok("config", "get", "topic", "orders", "retention.ms").splitlines()
    assert got[:2] == ["retention.ms=7200000", "  from DYNAMIC_TOPIC_CONFIG"]
    assert got[2].strip() == listed["retention.ms"]["documentation"]
    headrace.ok("config", "unset", "topic", "orders", "retention.ms")
    (one,) = headrace.json("config", "get", "topic", "orders", "retention.ms")
    assert (one["value"], one["is_default"]) == ("604800000", True)
    assert "DOCUMENTATION" in headrace.ok("config", "list", "topic", "orders", "--doc")


def test_a_brokers_configs_and_those_of_all(headrace: Headrace, headrace_broker: RunningBroker) -> None:
    headrace.ok("config", "set", "broker", 1, "log.retention.ms=5000")
    headrace.ok("config", "set", "broker", "all", "log.retention.ms=6000", "log.segment.bytes=2000000")
    known = as_librdkafka_reads(headrace_broker.bootstrap, ConfigResource.Type.BROKER, "1")
    assert (known["log.retention.ms"], known["log.segment.bytes"]) == ("5000", "2000000")
    own, general = headrace.json("config", "get", "broker", 1, "log.retention.ms", "log.segment.bytes")
    assert (own["source"], general["source"]) == ("DYNAMIC_BROKER_CONFIG", "DYNAMIC_DEFAULT_BROKER_CONFIG")
    assert {each["name"]: each["value"] for each in headrace.json("config", "list", "broker", "all")} == {
        "log.retention.ms": "6000",
        "log.segment.bytes": "2000000",
    }
    headrace.ok("config", "unset", "broker", "all", "log.retention.ms", "log.segment.bytes")
    headrace.ok("config", "unset", "broker", 1, "log.retention.ms")
    assert headrace.json("config", "list", "broker", "all") == []
    assert "give a number, or all" in headrace.refused("config", "list", "broker", "first", code=2)


def test_a_groups_configs(headrace: Headrace) -> None:
    headrace.ok("config", "set", "group", "billing", "consumer.session.timeout.ms=50000")
    (one,) = headrace.json("config", "get", "group", "billing", "consumer.session.timeout.ms")
    assert (one["value"], one["source"]) == ("50000", "DYNAMIC_GROUP_CONFIG")
    assert one["documentation"]
    headrace.ok("config", "unset", "group", "billing", "consumer.session.timeout.ms")
    assert headrace.json("config", "list", "group", "billing", "--changed") == []


def test_quotas_are_a_clients_configs(headrace: Headrace) -> None:
    headrace.ok("config", "set", "client", "loader", "producer_byte_rate=1048576")
    (one,) = headrace.json("config", "list", "client", "loader")
    assert (one["name"], one["value"], one["source"]) == ("producer_byte_rate", "1048576", "CLIENT_QUOTA")
    assert "Bytes of produce requests" in headrace.ok("config", "get", "client", "loader", "producer_byte_rate")
    assert headrace.json("quota", "get", "--client-id", "loader") == [
        {"entity": {"client-id": "loader"}, "quotas": {"producer_byte_rate": 1048576.0}}
    ]
    headrace.ok("config", "set", "user", "alice", "request_percentage=12.5")
    headrace.ok("config", "set", "ip", "10.0.0.1", "connection_creation_rate=5")
    assert len(headrace.json("quota", "list")) == 3
    headrace.ok("config", "unset", "client", "loader", "producer_byte_rate")
    assert headrace.json("config", "list", "client", "loader") == []


def test_quotas_of_entities_with_several_parts_and_of_all_others(headrace: Headrace) -> None:
    said = headrace.ok("quota", "set", "--user", "alice", "--client-id", "loader", "consumer_byte_rate=2000")
    assert said == "set consumer_byte_rate of client-id 'loader', user 'alice'\n"
    headrace.ok("quota", "set", "--default-user", "producer_byte_rate=1000")
    listed = {tuple(one["entity"].items()) for one in headrace.json("quota", "list")}
    assert listed == {(("client-id", "loader"), ("user", "alice")), (("user", None),)}
    (found,) = headrace.json("quota", "list", "--client-id", "loader")
    assert found["entity"] == {"client-id": "loader", "user": "alice"}
    assert headrace.json("quota", "get", "--client-id", "loader") == []
    table = headrace.ok("quota", "list").splitlines()
    assert table[1].startswith("client-id 'loader', user 'alice'  consumer_byte_rate  2000")
    assert table[2].startswith("every user")
    headrace.ok("quota", "unset", "--default-user", "producer_byte_rate")
    assert len(headrace.json("quota", "list")) == 1


WRONG = [
    (["config", "set", "topic", "orders", "log.retention.hours=2"], "retention.ms=7200000"),
    (["config", "set", "topic", "orders", "log.retention.ms=7"], "retention.ms=7"),
    (["config", "set", "topic", "orders", "retention.days=1"], "retention.ms=86400000"),
    (["config", "set", "topic", "orders", "retention.ms=7d"], "retention.ms=604800000"),
    (["config", "set", "topic", "orders", "segment.bytes=16MiB"], "segment.bytes=16777216"),
    (["config", "set", "topic", "orders", "retenton.ms=5", "cleanup.policy=compact"], "retention.ms=5"),
    (["config", "set", "topic", "orders", "min_insync_replicas=1"], "min.insync.replicas=1"),
    (["config", "set", "topic", "orders", "message.max.bytes=1000"], "max.message.bytes=1000"),
    (["config", "set", "topic", "orders", "ttl=soon"], "config get topic orders retention.ms"),
    (["config", "set", "broker", "1", "log.retention.hours=2"], "log.retention.ms=7200000"),
    (["config", "set", "broker", "all", "retention.ms=5000"], "log.retention.ms=5000"),
    (["config", "set", "group", "billing", "session.timeout.ms=50000"], "consumer.session.timeout.ms=50000"),
    (["config", "set", "client", "loader", "producer.byte.rate=1000"], "producer_byte_rate=1000"),
    (["config", "get", "topic", "orders", "log.retention.hours"], "config get topic orders retention.ms"),
    (["config", "get", "topic", "orders", "nonsense"], "config list topic orders"),
    (["config", "unset", "topic", "orders", "retentionms"], "config get topic orders retention.ms"),
    (["topic", "create", "new", "-c", "log.retention.hours=1", "--partitions", "2"], "--config retention.ms=3600000"),
    (["topic", "alter", "orders", "--config", "retention.hours=1"], "--config retention.ms=3600000"),
]


@pytest.mark.parametrize(("words", "said"), WRONG, ids=lambda each: each[-1] if isinstance(each, list) else None)
@pytest.mark.parametrize("is_named", [False, True])
def test_the_command_that_is_suggested_is_not_refused(
    headrace: Headrace,
    headrace_broker: RunningBroker,
    monkeypatch: pytest.MonkeyPatch,
    words: list[str],
    said: str,
    is_named: bool,
) -> None:
    """Also where brokers were named on the command line: the suggestion names them, too."""
    headrace.ok("topic", "create", "orders")
    bootstrap = []
    if is_named:
        monkeypatch.delenv("HEADRACE_BOOTSTRAP")
        bootstrap = ["--bootstrap", headrace_broker.bootstrap]
    code, out, sentence = headrace(*words, *bootstrap)
    assert (code in (1, 2), out) == (True, b"")
    command = shlex.split(sentence.partition("Run: ")[2])
    assert command[0] == "headrace", sentence
    assert said in shlex.join(command)
    headrace.ok(*command[1:])


def test_nothing_is_suggested_that_would_be_refused(headrace: Headrace) -> None:
    """The value that was meant is in order by itself, and not beside another one of this topic."""
    headrace.ok("topic", "create", "orders", "--config", "max.compaction.lag.ms=1000")
    sentence = headrace.refused("config", "set", "topic", "orders", "min.compaction.lag=5000")
    assert "Run:" not in sentence or "config get" in sentence
    for words in (["topic", "nowhere", "retention.hours=1"], ["topic", "orders", "quite.other.words=1"]):
        assert "Run:" not in headrace.refused("config", "set", *words)


def test_a_secret_is_not_repeated(headrace: Headrace) -> None:
    for words in (["set", "broker", "1", "ssl.key.pasword=hush"], ["set", "broker", "1", "ssl_key_password=hush"]):
        assert "hush" not in headrace.refused("config", *words)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["config", "set", "topic", "orders", "retention.ms"], "is not KEY=VALUE"),
        (["config", "set", "client", "loader", "producer_byte_rate=much"], "is a number"),
        (["config", "set", "table", "orders", "a=b"], "KIND"),
        (["quota", "set", "producer_byte_rate=1"], "Say whose quotas"),
        (["quota", "get", "--user", "alice", "--default-user"], "give one of them"),
    ],
)
def test_what_cannot_be_is_told(headrace: Headrace, words: list[str], said: str) -> None:
    assert said in headrace.refused(*words, code=2)


def test_a_json_line_is_printed_for_each(headrace: Headrace, tmp_path: Path) -> None:
    headrace.ok("topic", "create", "orders")
    assert headrace.json("config", "set", "topic", "orders", "retention.ms=5") == [
        {"kind": "topic", "name": "orders", "set": {"retention.ms": "5"}}
    ]
    assert json.loads(headrace.ok("quota", "set", "--ip", "10.0.0.1", "connection_creation_rate=1", "--json")) == {
        "entity": {"ip": "10.0.0.1"},
        "set": ["connection_creation_rate"],
    }
