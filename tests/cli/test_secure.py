"""`headrace up --secure`: strangers get nothing, its client file opens the door to other programs, no secret shows."""

from __future__ import annotations

import json
import re
import signal
import socket
import ssl
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer
from confluent_kafka.admin import AdminClient, NewTopic

from headrace.base.addresses import Address
from headrace.base.errors import UsageError
from headrace.base.properties import parse_properties
from headrace.broker.home import securing
from headrace.security.jaas import read_jaas
from tests.interop.kafka_tools import KafkaTools
from tests.tiers import long_only
from tools import kafka_jars, warm

COMMAND = (sys.executable, "-m", "headrace.cli.main")


class Secured:
    """A running command, its addresses, and the file that it told."""

    def __init__(self, process: subprocess.Popen[str], client: Path, bootstrap: str) -> None:
        self.process, self.client, self.bootstrap = process, client, bootstrap

    def librdkafka(self, **others: str) -> Mapping[str, str]:
        """The client file in librdkafka's names."""
        found = parse_properties(self.client.read_text())
        login = read_jaas(found["sasl.jaas.config"]).options
        return {
            "bootstrap.servers": self.bootstrap,
            "security.protocol": found["security.protocol"],
            "sasl.mechanism": found["sasl.mechanism"],
            "sasl.username": login["username"],
            "sasl.password": login["password"],
            "ssl.ca.location": found["ssl.truststore.location"],
            "log_level": "0",
            **others,
        }


@contextmanager
def up(data: Path, *more: str, by: tuple[str, ...] = ("--secure",)) -> Iterator[Secured]:
    command = [*COMMAND, "up", *by, "--data", str(data), "--listen", "127.0.0.1:0", *more]
    with (
        (data.parent / "log").open("a") as log,
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True) as process,
    ):
        try:
            assert process.stdout is not None
            told: dict[str, str] = {}
            while "ready" not in told:
                word, _, rest = process.stdout.readline().strip().partition(" ")
                assert word, (data.parent / "log").read_text()[-2000:]
                told[word] = rest
            yield Secured(process, Path(told.get("client", data / "security" / "client.properties")), told["ready"])
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(60)


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    with up(tmp_path_factory.mktemp("secure") / "data") as found:
        yield found


def test_the_client_file_opens_the_door_to_librdkafka(secured: Secured) -> None:
    admin = AdminClient(dict(secured.librdkafka()))
    admin.create_topics([NewTopic("guarded", 1)])["guarded"].result(150)
    told: list[object] = []
    producer = Producer({**secured.librdkafka(), "acks": "all"})
    producer.produce("guarded", b"value", on_delivery=lambda error, _: told.append(error))
    assert producer.flush(150) == 0
    assert told == [None]
    consumer = Consumer({**secured.librdkafka(), "group.id": "g", "auto.offset.reset": "earliest"})
    consumer.subscribe(["guarded"])
    record = consumer.poll(60)
    assert record is not None
    assert record.value() == b"value"
    consumer.close()


def test_the_client_file_is_one_of_our_commands(secured: Secured) -> None:
    options = ("--command-config", str(secured.client))
    assert parse_properties(secured.client.read_text())["bootstrap.servers"] == secured.bootstrap
    assert warm.ran("topic", "create", "ours", *options, timeout=150).returncode == 0
    assert "ours" in warm.ran("topic", "list", "--json", *options, timeout=150).stdout
    refused = warm.ran("topic", "list", "--bootstrap", secured.bootstrap, timeout=150)
    assert refused.returncode == 1
    assert "does it ask for TLS, or a login? --command-config FILE" in refused.stderr


def test_the_documented_settings_of_confluent_kafka_work(secured: Secured) -> None:
    text = Path("docs/SECURITY.md").read_text()
    block = next(each for each in re.findall(r"```python\n(.*?)```", text, re.DOTALL) if "ssl.ca.location" in each)
    made = secured.librdkafka()
    for example, real in (
        ("127.0.0.1:9092", secured.bootstrap),
        ("the password in FILE", made["sasl.password"]),
        ("/var/tmp/headrace/security", str(secured.client.parent)),
    ):
        assert example in block
        block = block.replace(example, real)
    found: dict[str, object] = {}
    exec(block, found)
    settings = found["settings"]
    assert isinstance(settings, dict)
    assert AdminClient(settings).list_topics(timeout=150).brokers


def test_the_client_file_has_what_clients_are_told(tmp_path: Path) -> None:
    with up(tmp_path / "data", "--advertise", "localhost") as found:
        at = parse_properties(found.client.read_text())["bootstrap.servers"]
        assert at == found.bootstrap.replace("127.0.0.1", "localhost")


@pytest.mark.parametrize(
    "wrong",
    [
        {"sasl.password": "wrong"},
        {"sasl.username": "nobody"},
        {"security.protocol": "SASL_PLAINTEXT"},
        {"security.protocol": "PLAINTEXT"},
    ],
)
def test_nobody_else_gets_in(secured: Secured, wrong: Mapping[str, str]) -> None:
    told: list[KafkaError] = []
    client = Producer({**secured.librdkafka(), **wrong, "error_cb": told.append})
    while not told:
        client.poll(0.1)
    with pytest.raises(KafkaException):
        client.list_topics(timeout=0.1)


def test_a_certificate_of_another_ca_is_not_believed(secured: Secured, tmp_path: Path) -> None:
    other = securing.secure(tmp_path / "other", [])
    host, port = secured.bootstrap.split(":")
    context = ssl.create_default_context(cafile=other.client.with_name("ca.pem"))
    with socket.create_connection((host, int(port))) as plain, pytest.raises(ssl.SSLCertVerificationError):
        context.wrap_socket(plain, server_hostname="localhost")


def test_no_secret_shows(secured: Secured) -> None:
    """In the list of processes, in the log, or to another user of this machine."""
    directory = secured.client.parent
    secrets = set(
        re.findall(r'password="([^"]+)"', "".join(path.read_text() for path in directory.glob("*.properties")))
    )
    assert len(secrets) == 2
    log = (directory.parent.parent / "log").read_text()
    process = psutil.Process(secured.process.pid)
    shown = " ".join(word for each in (process, *process.children(recursive=True)) for word in each.cmdline())
    assert not [secret for secret in secrets if secret in log or secret in shown]
    assert directory.stat().st_mode & 0o077 == 0
    private = [path for path in directory.iterdir() if path.name != "ca.pem"]
    assert [path.name for path in private if path.stat().st_mode & 0o077] == []


def test_brokers_of_a_cluster_are_secured_alike_and_all_is_there_after_a_restart(tmp_path: Path) -> None:
    with up(tmp_path / "data", "--nodes", "3") as cluster:
        before = cluster.client.read_text()
        admin = AdminClient(dict(cluster.librdkafka()))
        admin.create_topics([NewTopic("three", 3, 3)])["three"].result(150)
        children = psutil.Process(cluster.process.pid).children(recursive=True)
        shown = " ".join(word for child in children for word in child.cmdline())
        assert str(cluster.client.with_name("broker.properties")) in shown
        assert "password" not in shown
        producer = Producer({**cluster.librdkafka(), "acks": "all"})
        for number in range(30):
            producer.produce("three", b"x", partition=number % 3)
        assert producer.flush(150) == 0
    with up(tmp_path / "data", "--nodes", "3") as cluster:
        assert cluster.client.read_text() == before
        topics = AdminClient(dict(cluster.librdkafka())).list_topics(timeout=150).topics
        assert {len(each.isrs) for each in topics["three"].partitions.values()} <= {1, 2, 3}


@pytest.mark.parametrize("form", ["up", "up of three", "up beside configs of other things", "broker", "one of three"])
def test_a_directory_that_was_secured_is_not_opened_without_a_word(tmp_path: Path, form: str) -> None:
    data = tmp_path / "data"
    securing.secure(data / "security", [])
    if form == "one of three":
        (data / "nodes.json").write_text("{}")
    (tmp_path / "other").write_text("log.retention.ms=1000\n")
    words = {
        "up": ("up", "--data", str(data)),
        "up of three": ("up", "--data", str(data), "--nodes", "3"),
        "up beside configs of other things": ("up", "--data", str(data), "--config-file", str(tmp_path / "other")),
        "broker": ("broker", "--id", "1", "--data", str(data)),
        "one of three": ("broker", "--id", "1", "--data", str(data / "broker-1")),
    }[form]
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}
    refused = warm.ran(*words, "--listen", "127.0.0.1:0", timeout=150)
    assert refused.returncode == 2
    assert f"{data} was secured, and whoever reaches 127.0.0.1:0 could do everything now" in refused.stderr
    assert "--secure" in refused.stderr
    assert "--insecure" in refused.stderr
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")} == before, "nothing was touched"


def test_a_directory_that_was_secured_serves_by_its_own_configs_and_openly_where_that_is_asked(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with up(data) as first:
        admin = AdminClient(dict(first.librdkafka()))
        admin.create_topics([NewTopic("kept", 1)])["kept"].result(150)
    with up(data, by=("--config-file", str(data / "security" / "broker.properties"))) as again:
        assert "kept" in AdminClient(dict(again.librdkafka())).list_topics(timeout=150).topics
    with up(data, by=("--insecure",)) as opened:
        assert "kept" in AdminClient({"bootstrap.servers": opened.bootstrap}).list_topics(timeout=150).topics


def test_a_certificate_that_lacks_a_name_is_made_again(tmp_path: Path) -> None:
    securing.secure(tmp_path / "s", [])
    ca, first = ((tmp_path / "s" / name).read_bytes() for name in ("ca.pem", "broker.pem"))
    securing.secure(tmp_path / "s", [])
    assert (tmp_path / "s" / "broker.pem").read_bytes() == first
    securing.secure(tmp_path / "s", [Address("broker.example", 9092)])
    assert (tmp_path / "s" / "broker.pem").read_bytes() != first
    assert (tmp_path / "s" / "ca.pem").read_bytes() == ca
    (tmp_path / "s" / "ca.pem").write_text("no certificate")
    with pytest.raises(UsageError, match="move both away"):
        securing.secure(tmp_path / "s", [])


def test_the_audit_log_has_what_was_denied(secured: Secured) -> None:
    lines = (secured.client.parent.parent / "audit.log").read_text().splitlines()
    assert all(json.loads(line)["allowed"] is False for line in lines)


@long_only
@pytest.mark.skipif(kafka_jars.missing_tool() is not None, reason=kafka_jars.missing_tool() or "")
def test_the_client_file_is_one_of_kafkas_tools(secured: Secured) -> None:
    options = ("--bootstrap-server", secured.bootstrap, "--command-config", str(secured.client))
    with KafkaTools(secured.bootstrap) as tools:
        grant = ("--add", "--allow-principal", "User:alice", "--operation", "READ", "--topic", "of-alice")
        assert tools.run_bare("AclCommand", *options, *grant).status == 0
        told = tools.run_bare("AclCommand", *options, "--list").text
        assert "of-alice" in told
        users = ("--alter", "--add-config", "SCRAM-SHA-256=[password=wonder]", "--entity-type", "users")
        made = tools.run_bare("ConfigCommand", *options, *users, "--entity-name", "alice")
        assert made.status == 0, made.text
        described = ("--describe", "--entity-type", "users", "--entity-name", "alice")
        assert "SCRAM-SHA-256" in tools.run_bare("ConfigCommand", *options, *described).text
