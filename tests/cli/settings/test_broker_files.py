"""`--config-file`: TOML, and Kafka's own server.properties."""

from __future__ import annotations

from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient, ConfigResource

from headrace.base.errors import UsageError
from headrace.cli.options import broker_configs
from headrace.cli.settings.broker_files import read_configs
from tests.cli.test_commands import Headrace
from tests.cli.test_process import up

TOML = """
num.partitions = 7
auto.create.topics.enable = false

[log]
retention.ms = 3_600_000
cleanup.policy = ["compact", "delete"]

[log.cleaner]
min.cleanable.ratio = 0.25

["listener.name.plaintext".ssl]
key.password = "hush"
"""

KAFKAS_OWN = """
# as Kafka's config/server.properties has it
process.roles=broker,controller
node.id=1
controller.quorum.bootstrap.servers=localhost:9093
controller.listener.names=CONTROLLER
num.network.threads=3
num.io.threads=8
socket.send.buffer.bytes=102400
log.dirs=/tmp/kraft-combined-logs
num.partitions=3
offsets.topic.replication.factor=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
log.retention.hours=168
log.segment.bytes=1073741824
log.retention.check.interval.ms=300000
"""


def write(directory: Path, name: str, text: str) -> Path:
    file = directory / name
    file.write_text(text)
    return file


def test_tables_of_toml_are_the_parts_of_names(tmp_path: Path) -> None:
    assert read_configs(write(tmp_path, "broker.toml", TOML), None) == {
        "num.partitions": "7",
        "auto.create.topics.enable": "false",
        "log.retention.ms": "3600000",
        "log.cleanup.policy": "compact,delete",
        "log.cleaner.min.cleanable.ratio": "0.25",
        "listener.name.plaintext.ssl.key.password": "hush",
    }


def test_kafkas_own_file_is_read(tmp_path: Path) -> None:
    file = write(tmp_path, "server.properties", KAFKAS_OWN)
    told: list[str] = []
    found = broker_configs([file], ["num.partitions=4"], tell=told.append)
    assert (found["num.partitions"], found["log.retention.hours"]) == ("4", "168")
    assert "node.id" not in found
    (sentence,) = told
    assert "node.id (start the broker with --id)" in sentence
    assert "log.dirs (start the broker with --data)" in sentence


@pytest.mark.parametrize(("name", "text"), [("server.properties", KAFKAS_OWN), ("broker.toml", "num.partitions = 3")])
def test_a_broker_starts_with_it(tmp_path: Path, name: str, text: str) -> None:
    with up(tmp_path / "data", "--config-file", str(write(tmp_path, name, text))) as (_, line):
        word, address = line.split()
        assert word == "ready"
        resource = ConfigResource(ConfigResource.Type.BROKER, "1")
        admin = AdminClient({"bootstrap.servers": address})
        assert admin.describe_configs([resource])[resource].result(150)["num.partitions"].value == "3"


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        (
            "a.toml",
            'log.retenton.ms = 5\nssl.key.pasword = "hush"\nquite.other.words = 1',
            "log.retenton.ms (did you mean log.retention.ms?), ssl.key.pasword (did you mean ssl.key.password?), "
            "quite.other.words are no configs that are known",
        ),
        ("a.properties", "retention.ms=hush", "retention.ms (did you mean log.retention.ms?) is no config"),
        ("a.toml", "log.retention.ms = ", "is no TOML"),
    ],
)
def test_what_is_unknown_is_named_in_one_sentence(
    headrace: Headrace, tmp_path: Path, name: str, text: str, said: str
) -> None:
    file = write(tmp_path, name, text)
    sentence = headrace.refused("up", "--data", tmp_path / "data", "--config-file", file, code=2)
    assert said in sentence
    assert "hush" not in sentence


def test_an_unknown_config_of_the_command_line_is_named_too(headrace: Headrace, tmp_path: Path) -> None:
    sentence = headrace.refused("up", "--data", tmp_path, "--config", "log.retention.hour=3", code=2)
    assert "--config: log.retention.hour (did you mean log.retention.hours?)" in sentence


def test_errors_of_files_repeat_no_value(tmp_path: Path) -> None:
    with pytest.raises(UsageError) as refused:
        read_configs(write(tmp_path, "a.properties", "a.secret=hush"), None)
    assert "hush" not in str(refused.value)
