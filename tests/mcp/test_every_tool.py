"""Every tool, by the SDK's client, on three brokers: over standard input and output, and over HTTP."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import confluent_kafka
import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from headrace.testing import ClusterThread
from tests.mcp.agents import Agent, RefusalError, by_input, over_http

RECORDS: Final = 40
GROUP: Final = "billing"
OPEN: Final = "teller-1"
READING: Final[Mapping[str, Mapping[str, Any]]] = {
    "status": {},
    "doctor": {},
    "top": {"seconds": 1},
    "broker_list": {},
    "topic_list": {"query": "orders"},
    "topic_describe": {"topic": "orders"},
    "config_list": {"kind": "topic", "name": "orders"},
    "consume": {"topic": "orders", "count": 3},
    "group_list": {},
    "group_describe": {"group": GROUP},
    "topic_moves": {},
    "durable_list": {},
    "durable_verify": {"topic": "orders"},
    "txn_list": {},
    "txn_describe": {"transactional_id": OPEN},
    "acl_list": {},
    "quota_list": {},
    "metrics": {"broker": 1},
    "pipeline_list": {},
}
PLANS: Final[Mapping[str, Mapping[str, Any]]] = {
    "plan_topic_create": {"topic": "payments", "partitions": 2},
    "plan_config_set": {"topic": "orders", "key": "retention.ms", "value": "60000"},
    "plan_group_reset_offsets": {"group": GROUP, "to": "earliest"},
    "plan_topic_move": {"topic": "orders", "partitions": [0]},
    "plan_txn_abort": {"transactional_id": OPEN},
    "plan_produce": {"topic": "payments", "value": "1", "key": "k", "partition": 0, "headers": {"by": "an agent"}},
    "plan_topic_delete_records": {"topic": "orders", "partition": 1, "before": "1"},
    "plan_quota_set": {"key": "producer_byte_rate", "value": "1000000", "user": "alice"},
    "plan_broker_drain": {"broker": 3},
    "plan_topic_delete": {"topic": "payments"},
}
"""In this order: the last one deletes what the first one made."""
REFUSED: Final[Mapping[str, str]] = {
    "metrics": "Broker 1 serves no metrics",
    "acl_list": "SECURITY_DISABLED",
    "pipeline_list": "--pipelines",
}
"""Tools that these brokers have nothing for, and say so."""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClusterThread]:
    store = tmp_path_factory.mktemp("store")
    with ClusterThread(configs={"default.replication.factor": "3", "durable.url": f"file://{store}"}) as running:
        prepare(running.bootstrap)
        yield running


def prepare(bootstrap: str) -> None:
    """A topic with records, a group that has read some of them, and an open transaction."""
    at = {"bootstrap.servers": bootstrap}
    admin = AdminClient(at)
    configs = {"segment.bytes": "1024", "durable.export.max.lag.ms": "0"}
    admin.create_topics([NewTopic("orders", 2, config=configs)])["orders"].result(60)
    producer = confluent_kafka.Producer(at)
    for number in range(RECORDS):
        producer.produce("orders", json.dumps({"number": number}).encode(), key=b"%d" % number, partition=number % 2)
    assert producer.flush(60) == 0
    consumer = confluent_kafka.Consumer({**at, "group.id": GROUP, "auto.offset.reset": "earliest"})
    consumer.subscribe(["orders"])
    assert consumer.poll(60) is not None
    consumer.commit(asynchronous=False)
    consumer.close()
    teller = confluent_kafka.Producer({**at, "transactional.id": OPEN, "transaction.timeout.ms": 600_000})
    teller.init_transactions(60)
    teller.begin_transaction()
    teller.produce("orders", b"not decided", partition=0)
    teller.flush(60)


@pytest.mark.parametrize("door", [by_input, over_http])
async def test_every_tool_answers(door: Any, cluster: ClusterThread, tmp_path: Path) -> None:
    log = tmp_path / "log"
    async with door("--bootstrap", cluster.bootstrap, log=log) as agent:
        tools = await agent.tools()
        assert tools.keys() == READING.keys()
        calls = 1
        while not (await agent("durable_list"))["histories"]:
            calls += 1
        for name, arguments in READING.items():
            assert tools[name].annotations.read_only_hint is True
            assert tools[name].output_schema is not None
            assert tools[name].description
            if name in REFUSED:
                with pytest.raises(RefusalError, match=REFUSED[name]):
                    await agent(name, **arguments)
            else:
                check(name, await agent(name, **arguments))
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    assert [line["tool"] for line in lines if "tool" in line][calls:] == [*READING]
    assert {line.get("address") for line in lines if "tool" in line} == {"127.0.0.1" if door is over_http else None}
    assert {line["principal"] for line in lines if "tool" in line} == {"User:ANONYMOUS"}
    assert {line["tool"] for line in lines if line.get("outcome") == "failed"} == REFUSED.keys()


def check(name: str, found: Mapping[str, Any]) -> None:
    """Some of what the answer has to have."""
    match name:
        case "status":
            assert (found["brokers"], found["live"]) == (3, 3)
            assert "bears the loss of 1 more" in found["quorum"]
        case "broker_list":
            assert [each["role"] for each in found["brokers"]] == ["voter"] * 3
        case "topic_list":
            (row,) = found["topics"]
            assert (row["topic"], row["partitions"], row["replicas"], row["offline"]) == ("orders", 2, 3, 0)
        case "topic_describe":
            assert [each["first_offset"] for each in found["rows"]] == [0, 0]
            assert "headrace topic describe orders" in found["command"]
        case "consume":
            assert len(found["records"]) == 3
            assert "follow no instruction" in found["note"]
        case "group_list":
            (row,) = [each for each in found["groups"] if each["group"] == GROUP]
            assert row["lag"] >= RECORDS // 2 - 1
        case "group_describe":
            assert found["lag"] >= RECORDS // 2 - 1
            assert found["next"][0] == "It has no members: a person starts its consumers."
        case "durable_verify":
            assert found["is_sound"]
            assert found["proofs"][0]["proven_bytes"] > 0
        case "txn_describe":
            assert (found["state"], found["partitions"]) == ("Ongoing", ["orders-0"])


async def test_every_change_is_planned_and_approved(cluster: ClusterThread, tmp_path: Path) -> None:
    async with by_input("--bootstrap", cluster.bootstrap, "--allow", log=tmp_path / "log") as agent:
        tools = await agent.tools()
        assert tools.keys() == {*READING, *PLANS, "plan_topic_move_cancel", "approve"}
        assert tools["approve"].annotations.destructive_hint is True
        while not any(each["partition"] == 1 for each in (await agent("durable_list"))["histories"]):
            pass  # records that the store lacks are not deleted
        for name, arguments in PLANS.items():
            assert tools[name].annotations.read_only_hint is True
            await planned_and_approved(agent, name, arguments)
        assert (await agent("txn_describe", transactional_id=OPEN))["state"] != "Ongoing"
        assert (await agent("topic_list", query="payments"))["total"] == 0
        found = await agent("config_list", kind="topic", name="orders")
        assert ("retention.ms", "60000") in {(each["key"], each["value"]) for each in found["configs"]}


async def planned_and_approved(agent: Agent, name: str, arguments: Mapping[str, Any]) -> None:
    plan = await agent(name, **arguments)
    assert plan["command"].rpartition("| ")[2].startswith("headrace ")
    if plan["obstacle"]:
        assert name in ("plan_topic_move", "plan_broker_drain"), plan["obstacle"]
        return
    assert plan["effect"], name
    done = await agent("approve", plan=plan["plan"], name=plan["loses"])
    assert done["command"] == plan["command"]
    with pytest.raises(RefusalError, match="No plan with this hash"):
        await agent("approve", plan=plan["plan"], name=plan["loses"])
