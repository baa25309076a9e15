"""Named contexts: where they are kept, and which cluster a command asks."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from headrace.testing import RunningBroker
from tests.cli.test_command_config import ASKING
from tests.cli.test_commands import Headrace
from tests.cli.test_every_command import COMMANDS

SECRET = "hush"
NOWHERE = "127.0.0.1:1"


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, headrace: Headrace) -> Path:
    """A user without settings."""
    monkeypatch.delenv("HEADRACE_BOOTSTRAP")
    monkeypatch.delenv("HEADRACE_CONTEXT", raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "settings"))
    return tmp_path


def test_every_command_that_asks_brokers_takes_it() -> None:
    for name in set(ASKING) - {"context add"}:
        assert any("--context" in each.opts for each in COMMANDS[name].params), name


def test_commands_ask_the_context_in_use(headrace: Headrace, headrace_broker: RunningBroker) -> None:
    headrace.ok("context", "add", "test", "--bootstrap", headrace_broker.bootstrap)
    headrace.ok("context", "add", "gone", "-b", NOWHERE)
    assert [(one["context"], one["used"]) for one in headrace.json("context", "list")] == [
        ("gone", False),
        ("test", False),
    ]
    headrace.ok("topic", "create", "orders", "--context", "test")
    headrace.ok("--context", "test", "topic", "describe", "orders")
    headrace.ok("context", "use", "test")
    assert [one["topic"] for one in headrace.json("topic", "list")] == ["orders"]
    headrace.ok("quorum")
    assert NOWHERE in headrace.refused("topic", "list", "--context", "gone")
    assert NOWHERE in headrace.refused("--context", "test", "topic", "list", "--context", "gone")
    headrace.ok("context", "use", "gone")
    assert NOWHERE in headrace.refused("topic", "list")
    assert headrace.ok("context", "remove", "gone") == "removed context gone\n"
    assert [one["context"] for one in headrace.json("context", "list")] == ["test"]


def test_the_command_line_and_the_environment_go_before_the_context_in_use(
    headrace: Headrace, headrace_broker: RunningBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where they name the default, as it would be without them."""
    headrace.ok("context", "add", "gone", "-b", NOWHERE)
    headrace.ok("context", "use", "gone")
    headrace.ok("topic", "list", "-b", headrace_broker.bootstrap)
    code, _, said = headrace("topic", "list", "-b", "127.0.0.1:9092")
    assert code == 0 or "127.0.0.1:9092" in said
    monkeypatch.setenv("HEADRACE_BOOTSTRAP", headrace_broker.bootstrap)
    headrace.ok("topic", "list")
    monkeypatch.delenv("HEADRACE_BOOTSTRAP")
    headrace.ok("context", "add", "test", "-b", headrace_broker.bootstrap)
    monkeypatch.setenv("HEADRACE_CONTEXT", "test")
    headrace.ok("topic", "list")


def test_properties_of_a_context_are_for_its_brokers_alone(
    headrace: Headrace, headrace_broker: RunningBroker, home: Path
) -> None:
    file = home / "client.properties"
    file.write_text("security.protocol=SASL_PLAINTEXT\nsasl.mechanism=PLAIN\nsasl.jaas.config=wrong\n")
    headrace.ok("context", "add", "safe", "-b", headrace_broker.bootstrap, "--command-config", file)
    headrace.ok("context", "use", "safe")
    assert "sasl.jaas.config" in headrace.refused("topic", "list", code=2)
    headrace.ok("topic", "list", "-b", headrace_broker.bootstrap)
    other = home / "other.properties"
    other.write_text(f"bootstrap.servers={headrace_broker.bootstrap}\n")
    headrace.ok("topic", "list", "--command-config", other)
    assert "sasl.jaas.config" in headrace.refused(
        "topic", "list", "--context", "safe", "-b", headrace_broker.bootstrap, code=2
    )


def test_the_file_is_for_its_owner_and_has_no_secret(headrace: Headrace, home: Path) -> None:
    file = home / "client.properties"
    file.write_text(
        f"security.protocol=SASL_SSL\nssl.key.password={SECRET}\nsasl.password={SECRET}\nssl.ca.location=/ca.pem\n"
    )
    headrace.ok("context", "add", "safe", "-b", NOWHERE, "--command-config", file)
    headrace.ok("context", "use", "safe")
    (kept,) = (home / "settings").rglob("*.json")
    assert stat.S_IMODE(kept.stat().st_mode) == 0o600
    assert stat.S_IMODE(kept.parent.stat().st_mode) == 0o700
    assert SECRET not in kept.read_text()
    for words in (["show"], ["show", "safe", "--json"], ["list"]):
        assert SECRET not in headrace.ok("context", *words)
    (shown,) = headrace.json("context", "show")
    assert shown["properties"] == {
        "security.protocol": "SASL_SSL",
        "ssl.key.password": "[hidden]",
        "sasl.password": "[hidden]",
        "ssl.ca.location": "/ca.pem",
    }
    assert "  security.protocol=SASL_SSL\n" in headrace.ok("context", "show")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["context", "use", "prod"], "headrace context add prod --bootstrap HOST:PORT"),
        (["context", "remove", "prod"], "There is no context 'prod', only none yet"),
        (["context", "show"], "No context is in use"),
        (["topic", "list", "--context", "prod"], "There is no context 'prod'"),
        (["context", "add", "prod", "-b", "here:there"], "HOST:PORT"),
        (["context", "add", "prod", "-F", "/nowhere"], "it is no file"),
    ],
)
def test_what_is_not_there_is_told(headrace: Headrace, words: list[str], said: str) -> None:
    assert said in headrace.refused(*words, code=2)


@pytest.mark.parametrize("text", ["{", "[]", '{"contexts": {"a": 3}}', '{"contexts": {"a": {"password": "hush"}}}'])
def test_a_file_that_has_no_contexts_is_told(headrace: Headrace, home: Path, text: str) -> None:
    headrace.ok("context", "add", "a", "-b", NOWHERE)
    (kept,) = (home / "settings").rglob("*.json")
    kept.write_text(text)
    said = headrace.refused("topic", "list", code=2)
    assert "remove it, and add them again" in said
    assert SECRET not in said
