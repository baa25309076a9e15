"""Kafka's own tools, in one Java process: they make users with SCRAM credentials, and authenticate by them."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.interop.kafka_tools import KafkaTools
from tests.sasl_broker import PLAIN_MODULE, SCRAM_MODULE, sasl_broker
from tools import kafka_jars


@pytest.fixture(scope="module")
def tools() -> Iterator[KafkaTools]:
    with KafkaTools("") as tools:
        yield tools


@pytest.mark.skipif(kafka_jars.missing_tool() is not None, reason=kafka_jars.missing_tool() or "")
async def test_kafka_s_tools_make_users_who_authenticate(tools: KafkaTools, tmp_path: Path) -> None:
    def run(mechanism: str, user: str, password: str, tool: str, *arguments: str) -> tuple[int, str]:
        module = PLAIN_MODULE if mechanism == "PLAIN" else SCRAM_MODULE
        file = tmp_path / "client.properties"
        file.write_text(
            f"security.protocol=SASL_PLAINTEXT\nsasl.mechanism={mechanism}\n"
            f'sasl.jaas.config={module} required username="{user}" password="{password}";\n'
            "request.timeout.ms=20000\ndefault.api.timeout.ms=120000\n"
        )
        at = ("--bootstrap-server", str(broker.address), "--command-config", str(file))
        return tuple(tools.run_bare(tool, *at, *arguments))  # type: ignore[return-value]  # as it is declared

    def story() -> None:
        user = ("--entity-type", "users", "--entity-name", "bob")
        for mechanism, iterations in (("SCRAM-SHA-256", 8192), ("SCRAM-SHA-512", 4096)):
            config = f"{mechanism}=[iterations={iterations},password=secret of bob]"
            status, text = run("PLAIN", "admin", "of all", "ConfigCommand", "--alter", *user, "--add-config", config)
            assert status == 0, text
        status, text = run("SCRAM-SHA-256", "bob", "secret of bob", "ConfigCommand", "--describe", *user)
        assert "SCRAM credential configs for user-principal 'bob' are" in text
        assert "SCRAM-SHA-256=iterations=8192" in text
        assert "SCRAM-SHA-512=iterations=4096" in text
        assert run("SCRAM-SHA-512", "bob", "secret of bob", "TopicCommand", "--list") == (0, "\n")
        status, text = run("PLAIN", "alice", "wonder;land", "TopicCommand", "--list")
        assert status == 0, text
        for mechanism in ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"):
            status, text = run(mechanism, "bob", "wrong", "TopicCommand", "--list")
            assert status == 1
            assert "Authentication failed" in text
        gone = ("--delete-config", "SCRAM-SHA-256")
        assert run("PLAIN", "admin", "of all", "ConfigCommand", "--alter", *user, *gone)[0] == 0
        assert run("SCRAM-SHA-256", "bob", "secret of bob", "TopicCommand", "--list")[0] == 1

    async with asyncio.timeout(150), sasl_broker(tmp_path) as broker:
        await asyncio.to_thread(story)
