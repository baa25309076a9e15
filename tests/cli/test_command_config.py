"""`--command-config`: Kafka's own file of a client, before and behind each command."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

import pytest

from headrace.testing import RunningBroker
from tests.cli.test_commands import Headrace
from tests.cli.test_every_command import COMMANDS

PASSWORD = "s3cret"


@pytest.fixture
def headrace(
    headrace_broker: RunningBroker, capsysbinary: pytest.CaptureFixture[bytes], monkeypatch: pytest.MonkeyPatch
) -> Headrace:
    for name in ("HEADRACE_BOOTSTRAP", "HEADRACE_COMMAND_CONFIG"):
        monkeypatch.delenv(name, raising=False)
    return Headrace(capsysbinary)


def a_file(directory: Path, *lines: str) -> Path:
    directory.mkdir(exist_ok=True)
    path = directory / "client.properties"
    path.write_text("# of a client\n" + "\n".join(lines) + "\n")
    return path


ASKING = [
    name
    for name, command in COMMANDS.items()
    if any("--bootstrap" in each.opts and "tried in turn" in (each.help or "") for each in command.params)
]


def test_commands_that_ask_brokers_take_it() -> None:
    assert {"topic list", "group describe", "produce", "consume", "doctor", "top", "quorum"} <= set(ASKING)
    for name, command in COMMANDS.items():
        options = {option: each for each in command.params for option in each.opts}
        assert ("--command-config" in options) == (name in ASKING), name


WRONG: Final = "security.protocol must be one of"


@pytest.mark.parametrize("command", [("quorum",), ("broker", "list"), ("topic", "describe", "orders"), ("doctor",)])
def test_it_stands_before_a_command_or_behind_it(headrace: Headrace, tmp_path: Path, command: Sequence[str]) -> None:
    path = a_file(tmp_path, "security.protocol=TLS")
    assert WRONG in headrace.refused("--command-config", path, *command, code=2)
    assert WRONG in headrace.refused(*command, "--command-config", path, code=2)
    right = a_file(tmp_path / "right", "security.protocol=PLAINTEXT")
    assert WRONG in headrace.refused("--command-config", right, *command, "--command-config", path, code=2)


def test_a_file_says_where_brokers_are(
    headrace: Headrace, headrace_broker: RunningBroker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = a_file(tmp_path, f"bootstrap.servers={headrace_broker.bootstrap}", "acks=all", "security.protocol=PLAINTEXT")
    headrace.ok("topic", "create", "orders", "--command-config", path)
    headrace.ok("--command-config", path, "topic", "describe", "orders")
    monkeypatch.setenv("HEADRACE_COMMAND_CONFIG", str(path))
    (found,) = headrace.json("topic", "list")
    assert found["topic"] == "orders"
    monkeypatch.delenv("HEADRACE_COMMAND_CONFIG")
    headrace.ok("topic", "list", "--bootstrap", headrace_broker.bootstrap)  # nothing is left of the file


def test_what_the_command_line_names_goes_before_the_file(
    headrace: Headrace, headrace_broker: RunningBroker, tmp_path: Path
) -> None:
    path = a_file(tmp_path, "bootstrap.servers=127.0.0.1:1")
    headrace.ok("topic", "list", "--command-config", path, "--bootstrap", headrace_broker.bootstrap)


def test_security_that_the_broker_has_not_is_told(
    headrace: Headrace, headrace_broker: RunningBroker, tmp_path: Path
) -> None:
    for lines, said in (
        (["security.protocol=SSL"], "TLS"),
        (
            [
                "security.protocol=SASL_PLAINTEXT",
                "sasl.mechanism=PLAIN",
                f'sasl.jaas.config=x.PlainLoginModule required username="alice" password="{PASSWORD}";',
            ],
            "asks nobody to log in",
        ),
    ):
        path = a_file(tmp_path, f"bootstrap.servers={headrace_broker.bootstrap}", *lines)
        for command in (["topic", "list"], ["doctor"], ["durable", "list"], ["topic", "moves"]):
            code, _, sentence = headrace(*command, "--command-config", path)
            assert code == 1
            assert said in sentence
            assert PASSWORD not in sentence


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (None, "cannot be read: No such file"),
        (b"\xff\xfe", "is no text in UTF-8"),
        (b"a=b\n" * 300_000, "it is another kind of file"),
        (b"security.protocol=TLS", "security.protocol must be one of"),
        (b"a=\\u12", "hexadecimal"),
    ],
)
def test_a_file_that_is_wrong_is_told(headrace: Headrace, tmp_path: Path, text: bytes | None, said: str) -> None:
    path = tmp_path / "client.properties"
    if text is not None:
        path.write_bytes(text)
    assert said in headrace.refused("topic", "list", "--command-config", path, code=2)
