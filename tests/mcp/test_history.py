"""Durable history and metrics, as agents see them."""

from __future__ import annotations

from pathlib import Path

import confluent_kafka
import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from headrace.base.addresses import parse_address
from headrace.mcp.tools import history as history_tools
from headrace.testing import BrokerThread
from tests.mcp.agents import Agent, RefusalError, agent_of
from tools.servers.server_process import port_held_for

RECORDS = 200


async def until_durable(agent: Agent) -> None:
    while (found := (await agent("durable_list"))["histories"]) == [] or found[0]["lag"]:
        pass


async def test_history_is_proven_and_damage_is_told(tmp_path: Path) -> None:
    store = tmp_path / "store"
    with BrokerThread(configs={"durable.url": f"file://{store}"}) as broker:
        admin = AdminClient({"bootstrap.servers": broker.bootstrap})
        configs = {"segment.bytes": "4096", "durable.export.max.lag.ms": "0"}
        admin.create_topics([NewTopic("orders", 1, config=configs)])["orders"].result(60)
        producer = confluent_kafka.Producer({"bootstrap.servers": broker.bootstrap, "batch.num.messages": 10})
        for number in range(RECORDS):
            producer.produce("orders", b"%d" % number + b"v" * 100)
        assert producer.flush(60) == 0
        async with agent_of(broker.bootstrap) as agent:
            await until_durable(agent)
            (history,) = (await agent("durable_list"))["histories"]
            assert (history["topic"], history["first_offset"], history["end_offset"]) == ("orders", 0, RECORDS - 1)
            found = await agent("durable_verify", topic="orders")
            assert (found["is_whole"], found["is_sound"]) == (True, True)
            (proof,) = found["proofs"]
            assert proof["proven_bytes"] == proof["bytes"] == history["bytes"]
            offset, calls, proven = "", 0, 0
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(history_tools, "bounded", lambda *_: 0)  # seconds: each call reads one object
                while calls == 0 or offset:
                    found = await agent("durable_verify", topic="orders", after=offset)
                    (proof,) = found["proofs"]
                    assert (found["is_sound"], found["is_whole"]) == (True, not found["after"])
                    offset, calls, proven = found["after"], calls + 1, proven + proof["proven_bytes"]
                    assert (f"after='{offset}'" in found["next"][0]) == bool(offset)
            assert (calls, proven) == (history["segments"], history["bytes"]), "each call proves the next segment"
            for wrong, says in (("x", "is of no call before"), ("7:3", "has no history at '7:3'")):
                with pytest.raises(RefusalError, match=says):
                    await agent("durable_verify", topic="orders", after=wrong)
            segment = sorted(store.glob("clusters/*/topics/*/0/*.segment"))[1]
            damaged = bytearray(segment.read_bytes())
            damaged[100] ^= 1
            segment.write_bytes(damaged)
            found = await agent("durable_verify", topic="orders", partition=0)
            assert (found["is_whole"], found["is_sound"], len(found["proofs"][0]["problems"])) == (True, False, 1)
            assert segment.name in found["proofs"][0]["problems"][0]


async def test_metrics_are_those_of_the_broker() -> None:
    port = port_held_for(test_metrics_are_those_of_the_broker)
    with BrokerThread(configs={"metrics.listen": f"127.0.0.1:{port}"}) as broker:
        assert parse_address(broker.bootstrap).port != port
        async with agent_of(broker.bootstrap) as agent:
            found = await agent("metrics", broker=1, query="Connection_Count")
            assert found["total"] == len(found["samples"]) > 0
            assert all("connection_count" in each["name"] for each in found["samples"])
            assert sum(each["value"] for each in found["samples"]) >= 1
            assert (await agent("metrics", broker=1, limit=2))["left_out"] > 0
            with pytest.raises(RefusalError, match="Broker 7 is not registered"):
                await agent("metrics", broker=7)
