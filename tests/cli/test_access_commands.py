"""`headrace user` and `headrace acl` against a broker that asks who somebody is, and what they may."""

from __future__ import annotations

import io
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace.cli.access.user import PASSWORD
from headrace.testing import BrokerThread
from tests.cli.test_commands import Headrace
from tests.sasl_broker import SASL

AUTHORIZER = {
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "super.users": "User:admin;User:ANONYMOUS",
}


@pytest.fixture(scope="module")
def bootstrap(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Of a broker in a thread, with admin as its super user."""
    with BrokerThread(configs={**SASL, **AUTHORIZER}) as broker:
        yield broker.bootstrap


def client_file(directory: Path, bootstrap: str, mechanism: str, user: str, password: str) -> Path:
    module = "plain.PlainLoginModule" if mechanism == "PLAIN" else "scram.ScramLoginModule"
    path = directory / f"{user}-{mechanism}.properties"
    path.write_text(
        f"bootstrap.servers={bootstrap}\nsecurity.protocol=SASL_PLAINTEXT\nsasl.mechanism={mechanism}\n"
        f"sasl.jaas.config=org.apache.kafka.common.security.{module} required \\\n"
        f'  username="{user}" password="{password}";\n'
    )
    return path


@pytest.fixture
def headrace(
    bootstrap: str, tmp_path: Path, capsysbinary: pytest.CaptureFixture[bytes], monkeypatch: pytest.MonkeyPatch
) -> Headrace:
    """It logs in as admin."""
    monkeypatch.delenv("HEADRACE_BOOTSTRAP", raising=False)
    monkeypatch.delenv(PASSWORD, raising=False)
    monkeypatch.setenv("HEADRACE_COMMAND_CONFIG", str(client_file(tmp_path, bootstrap, "PLAIN", "admin", "of all")))
    return Headrace(capsysbinary)


def said(headrace: Headrace, *arguments: object, code: int = 0) -> str:
    """Standard output and the sentence, without the lines that the broker logs."""
    found, out, err = headrace(*arguments)
    assert found == code, (out, err)
    return out.decode() + err


def test_a_user_from_its_creation_to_its_end(
    headrace: Headrace, bootstrap: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "would be set" in said(headrace, "user", "create", "bob")
    assert "bob" not in said(headrace, "user", "list")
    monkeypatch.setattr("sys.stdin", io.StringIO("first secret\n"))
    text = said(headrace, "user", "create", "bob", "--password-stdin", "--execute", "--iterations", 4096)
    assert "credential of bob for SCRAM-SHA-256 set" in text
    assert "first secret" not in text
    rows = headrace.json("user", "list")
    assert [row for row in rows if row["user"] == "bob"] == [
        {"user": "bob", "mechanism": mechanism, "iterations": 4096} for mechanism in ("SCRAM-SHA-256", "SCRAM-SHA-512")
    ]
    for mechanism in ("SCRAM-SHA-256", "SCRAM-SHA-512"):
        as_bob = client_file(tmp_path, bootstrap, mechanism, "bob", "first secret")
        said(headrace, "topic", "list", "--command-config", as_bob)
    assert "is there already" in said(headrace, "user", "create", "bob", "--execute", code=2)

    monkeypatch.setenv(PASSWORD, "second secret")
    said(headrace, "user", "alter", "bob", "--execute", "--mechanism", "SCRAM-SHA-256")
    refused = said(
        headrace,
        "topic",
        "list",
        "--command-config",
        client_file(tmp_path, bootstrap, "SCRAM-SHA-256", "bob", "first secret"),
        code=1,
    )
    assert "does not let user 'bob' in" in refused
    assert "first secret" not in refused

    assert "would be deleted" in said(headrace, "user", "delete", "bob")
    said(headrace, "user", "delete", "bob", "--execute", "--mechanism", "SCRAM-SHA-512")
    assert [row["mechanism"] for row in headrace.json("user", "list")] == ["SCRAM-SHA-256"]
    said(headrace, "user", "delete", "bob", "--execute")
    assert headrace.json("user", "list") == []
    assert "has no such credential" in said(headrace, "user", "delete", "bob", "--execute", code=2)


def test_passwords_that_are_none_are_refused_before_anything_is_asked(
    headrace: Headrace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("\n"))
    assert "1 to 1024 characters" in said(headrace, "user", "create", "eve", "--password-stdin", "--execute", code=2)
    assert "no terminal" in said(headrace, "user", "create", "eve", "--execute", code=2)
    assert "is unknown" in said(headrace, "user", "create", "eve", "--mechanism", "MD5", code=2)
    assert "There is no user 'eve'" in said(headrace, "user", "alter", "eve", "--execute", code=2)
    monkeypatch.setenv(PASSWORD, "x")
    assert "headrace: User 'eve'" in said(headrace, "user", "create", "eve", "--execute", "--iterations", 100, code=1)


def test_rights_from_their_creation_to_their_end(headrace: Headrace, bootstrap: str, tmp_path: Path) -> None:
    said(headrace, "topic", "create", "orders")
    as_alice = ("--command-config", client_file(tmp_path, bootstrap, "PLAIN", "alice", "wonder;land"))
    assert "orders" not in said(headrace, "topic", "list", *as_alice)
    given = [
        "--principal",
        "User:alice",
        "--consumer",
        "--topic",
        "ord",
        "--group",
        "g",
        "--resource-pattern-type",
        "prefixed",
    ]
    assert "would be created" in said(headrace, "acl", "allow", *given)
    assert headrace.json("acl", "list") == []
    text = said(headrace, "acl", "allow", *given, "--execute")
    assert "User:alice from *: Allow Read on Topic Prefixed ord: created" in text
    assert "orders" in said(headrace, "topic", "list", *as_alice)
    assert "is there already" in said(headrace, "acl", "allow", *given, "--execute")

    deny = ("--principal", "User:alice", "--operation", "describe", "--topic", "orders")
    said(headrace, "acl", "deny", *deny, "--host", "127.0.0.0/8", "--execute")
    assert "orders" not in said(headrace, "topic", "list", *as_alice)
    rows = headrace.json("acl", "list", "--topic", "orders", "--resource-pattern-type", "match")
    assert [(row["permission"], row["operation"], row["pattern"], row["name"], row["host"]) for row in rows] == [
        ("Deny", "Describe", "Literal", "orders", "127.0.0.0/8"),
        ("Allow", "Read", "Prefixed", "ord", "*"),
        ("Allow", "Describe", "Prefixed", "ord", "*"),
    ]
    refused = said(headrace, "acl", "list", *as_alice, code=1)
    assert "CLUSTER_AUTHORIZATION_FAILED" in refused

    assert "would be removed" in said(headrace, "acl", "remove", "--principal", "User:alice")
    assert len(headrace.json("acl", "list")) == 4
    said(headrace, "acl", "remove", "--principal", "User:alice", "--execute")
    assert headrace.json("acl", "list") == []
    assert "no ACL is like this" in said(headrace, "acl", "remove", "--principal", "User:alice", "--execute")


def test_commands_ask_brokers_about_what_kafka_has_no_api_for(headrace: Headrace) -> None:
    said(headrace, "topic", "create", "moving")
    for command in (["durable", "list"], ["topic", "moves"], ["topic", "move", "moving", "--to", 1, "--dry-run"]):
        said(headrace, *command)
    code, out, err = headrace("doctor", "--json")
    assert (code, err) == (0, "")
    assert b"does not answer" not in out


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (["allow"], "Say who, and what"),
        (["allow", "--principal", "alice", "--topic", "t"], "write User:NAME"),
        (["allow", "--principal", "User:a", "--topic", "t"], "Say what they may do"),
        (["allow", "--principal", "User:a", "--topic", "t", "--operation", "Any"], "is unknown: choose one of All"),
        (["allow", "--principal", "User:a", "--cluster", "--producer"], "say nothing about a Cluster"),
        (["deny", "--principal", "User:a", "--topic", "t", "--operation", "Read", "--resource-pattern-type", "match"],
         "must be literal or prefixed"),
        (["remove"], "Say which to remove"),
        (["list", "--resource-pattern-type", "x"], "is unknown: choose one of"),
    ],
)  # fmt: skip
def test_what_is_not_said_is_asked_for(headrace: Headrace, arguments: list[str], why: str) -> None:
    assert why in said(headrace, "acl", *arguments, code=2)


def test_a_user_without_rights_hears_who_gives_them_and_not_that_the_quorum_is_lost(
    headrace: Headrace, bootstrap: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(PASSWORD, "patient")
    said(headrace, "user", "create", "nora", "--execute")
    own = client_file(tmp_path, bootstrap, "SCRAM-SHA-512", "nora", "patient")
    assert "headrace acl allow" in said(headrace, "topic", "create", "t", "--command-config", own, code=1)
    told = said(headrace, "doctor", "--command-config", own, code=1)
    assert "this user may not ask for its condition: it needs the rights Describe and DescribeConfigs" in told
    assert "headrace acl allow --principal User:NAME --operation Describe --operation DescribeConfigs" in told
    assert "quorum" not in told
    grant = ("acl", "allow", "--principal", "User:nora", "--cluster", "--execute", "--operation")
    said(headrace, *grant, "Describe")
    told = said(headrace, "doctor", "--command-config", own, code=1)
    assert "may not ask for its configuration" in told
    assert "quorum" not in told
    said(headrace, *grant, "DescribeConfigs")
    assert "may not ask" not in said(headrace, "doctor", "--command-config", own)


def test_the_rights_that_doctor_names_are_given_by_the_command_that_it_names(
    headrace: Headrace, bootstrap: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(PASSWORD, "a secret")
    said(headrace, "user", "create", "guard", "--execute")
    as_guard = client_file(tmp_path, bootstrap, "SCRAM-SHA-256", "guard", "a secret")
    told = said(headrace, "doctor", "--command-config", as_guard, code=1)
    assert "this user may not ask for" in told
    mending, *more = set(re.findall(r"'headrace ([^']+)'", told))
    assert more == []
    said(headrace, *mending.replace("NAME", "guard").split())
    assert "nothing is wrong" in said(headrace, "doctor", "--command-config", as_guard)
