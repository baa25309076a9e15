"""Each call is one principal's: the brokers' rights hold, a refusal is told, and the log says who asked."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Final

import confluent_kafka
import pytest
from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    AdminClient,
    NewTopic,
    ResourcePatternType,
    ResourceType,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)

from headrace.testing import RunningBroker
from tests.mcp.agents import RefusalError, by_input

PASSWORD: Final = "wonder-land"
USER: Final = "alice"


def prepare(broker: RunningBroker, directory: Path) -> Path:
    """Two topics, and a user who may read one of them. Returns the user's file."""
    at = broker.clients.confluent
    admin = AdminClient(at)
    for done in admin.create_topics([NewTopic(name, 1) for name in ("open", "closed")]).values():
        done.result(60)
    producer = confluent_kafka.Producer(at)
    for name in ("open", "closed"):
        producer.produce(name, b"value")
    assert producer.flush(60) == 0
    info = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_512, 4_096)
    for done in admin.alter_user_scram_credentials(
        [UserScramCredentialUpsertion(USER, info, PASSWORD.encode())]
    ).values():
        done.result(60)
    rules = [
        AclBinding(ResourceType.TOPIC, "open", ResourcePatternType.LITERAL, f"User:{USER}", "*", operation,
                   AclPermissionType.ALLOW)
        for operation in (AclOperation.READ, AclOperation.DESCRIBE)
    ]  # fmt: skip
    for done in admin.create_acls(rules).values():
        done.result(60)
    assert broker.login is not None
    file = directory / "alice.properties"
    lines = [
        "security.protocol=SASL_SSL",
        "sasl.mechanism=SCRAM-SHA-512",
        "sasl.jaas.config=org.apache.kafka.common.security.scram.ScramLoginModule required "
        f'username="{USER}" password="{PASSWORD}";',
        f"ssl.truststore.location={broker.login.ca}",
        "ssl.truststore.type=PEM",
    ]
    file.write_text("\n".join(lines))
    return file


@pytest.mark.headrace(secure=True)
async def test_a_principal_gets_what_its_rights_are_and_is_told_of_the_rest(
    headrace_broker: RunningBroker, tmp_path: Path
) -> None:
    file, log = prepare(headrace_broker, tmp_path), tmp_path / "log"
    options = ("--bootstrap", headrace_broker.bootstrap, "--command-config", str(file), "--allow")
    async with by_input(*options, log=log) as agent:
        assert [each["topic"] for each in (await agent("topic_list"))["topics"]] == ["open"]
        assert (await agent("consume", topic="open"))["records"][0]["value"]["data"] == "value"
        for tool, arguments in (
            ("consume", {"topic": "closed"}),
            ("acl_list", {}),
            ("plan_topic_create", {"topic": "mine"}),
            ("plan_config_set", {"topic": "open", "key": "retention.ms", "value": "1"}),
        ):
            with pytest.raises(RefusalError, match="AUTHORIZATION_FAILED"):
                await agent(tool, **arguments)
        plan = await agent("plan_topic_delete", topic="open")
        with pytest.raises(RefusalError, match="AUTHORIZATION_FAILED"):
            await agent("approve", plan=plan["plan"], name="open")
        assert [each["topic"] for each in (await agent("topic_list"))["topics"]] == ["open"]
    told = log.read_text()
    assert PASSWORD not in told
    lines = [json.loads(line) for line in told.splitlines()]
    assert {line["principal"] for line in lines if "tool" in line} == {f"User:{USER}"}
    (refused,) = [line for line in lines if line.get("tool") == "acl_list"]
    assert (refused["outcome"], refused["level"]) == ("failed", "warning")
    assert "AUTHORIZATION_FAILED" in refused["reason"]


@pytest.mark.headrace(secure=True)
async def test_wrong_credentials_are_told_in_a_sentence(headrace_broker: RunningBroker, tmp_path: Path) -> None:
    file = prepare(headrace_broker, tmp_path)
    file.write_text(file.read_text().replace(PASSWORD, "another"))
    options = ("--bootstrap", headrace_broker.bootstrap, "--command-config", str(file))
    async with by_input(*options, log=tmp_path / "log") as agent:
        with pytest.raises(RefusalError, match="password"):
            await agent("topic_list")
