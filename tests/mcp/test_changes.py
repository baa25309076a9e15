"""Changes: none without leave, none without a plan, and none whose ground has changed."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import confluent_kafka
import pytest
import structlog

from headrace.base.limits import MCP_PLAN_MS_MAX, MCP_PLANS_MAX, MCP_PRODUCED_BYTES_MAX
from headrace.mcp.auditing import HIDDEN
from headrace.mcp.plans import Plans
from headrace.net.client.cluster import Cluster
from headrace.net.client.groups import Groups, TopicPartition
from headrace.operations.changes.plan import Plan
from headrace.testing import RunningBroker
from tests.broker.moving import A, B, moving
from tests.mcp.agents import RefusalError, agent_of

EACH: Final[Mapping[str, Mapping[str, Any]]] = {
    "plan_topic_create": {"topic": "new"},
    "plan_topic_delete": {"topic": "orders"},
    "plan_config_set": {"topic": "orders", "key": "retention.ms", "value": "1"},
    "plan_group_reset_offsets": {"group": "billing", "to": "latest"},
    "plan_topic_move": {"topic": "orders"},
    "plan_txn_abort": {"transactional_id": "teller"},
    "plan_topic_delete_records": {"topic": "orders", "partition": 0, "before": "1"},
    "plan_produce": {"topic": "orders", "value": "x"},
    "plan_topic_move_cancel": {"topic": "orders", "partition": 0},
    "plan_broker_drain": {"broker": 1},
    "plan_quota_set": {"key": "producer_byte_rate", "value": "1", "user": "alice"},
    "approve": {"plan": "0" * 32},
}


def write(bootstrap: str, count: int) -> None:
    producer = confluent_kafka.Producer({"bootstrap.servers": bootstrap})
    for number in range(count):
        producer.produce("orders", b"%d" % number, partition=0)
    assert producer.flush(60) == 0


async def commit(bootstrap: str, offset: int) -> None:
    async with Cluster(bootstrap) as client:
        await Groups(client).commit("billing", {TopicPartition("orders", 0): offset})


async def committed(bootstrap: str) -> int:
    async with Cluster(bootstrap) as client:
        return (await Groups(client).committed("billing"))[TopicPartition("orders", 0)]


@pytest.mark.parametrize("tool", EACH)
async def test_a_read_only_session_changes_nothing(tool: str, headrace_broker: RunningBroker) -> None:
    write(headrace_broker.bootstrap, 3)
    async with agent_of(headrace_broker.bootstrap) as agent:
        assert tool not in await agent.tools()
        with pytest.raises(RefusalError, match="This server is read-only, and nothing was changed"):
            await agent(tool, **EACH[tool])
        assert [each["topic"] for each in (await agent("topic_list"))["topics"]] == ["orders"]


async def test_a_plan_whose_ground_has_changed_is_refused(headrace_broker: RunningBroker) -> None:
    at = headrace_broker.bootstrap
    write(at, 20)
    await commit(at, 4)
    async with agent_of(at, allows_changes=True) as agent:
        asked = {"group": "billing", "to": "shift", "value": "-3"}
        plan = await agent("plan_group_reset_offsets", **asked)
        assert plan["effect"] == [{"topic": "orders", "partition": 0, "current": 4, "new": 1}]
        assert plan["command"] == "headrace group reset-offsets billing --all-topics --shift-by -3 --execute"
        await commit(at, 9)
        with pytest.raises(RefusalError, match="The ground has changed"):
            await agent("approve", plan=plan["plan"])
        assert await committed(at) == 9
        with pytest.raises(RefusalError, match="No plan with this hash"):
            await agent("approve", plan=plan["plan"])
        again = await agent("plan_group_reset_offsets", **asked)
        await agent("approve", plan=again["plan"])
        assert await committed(at) == 6


async def test_a_group_is_set_to_the_end_while_records_come(headrace_broker: RunningBroker) -> None:
    at = headrace_broker.bootstrap
    write(at, 20)
    await commit(at, 4)
    async with agent_of(at, allows_changes=True) as agent:
        plan = await agent("plan_group_reset_offsets", group="billing", to="latest")
        assert plan["effect"] == [{"topic": "orders", "partition": 0, "current": 4, "new": 20}]
        write(at, 5)
        done = await agent("approve", plan=plan["plan"])
        assert done["effect"] == [{"topic": "orders", "partition": 0, "current": 4, "new": 25}]
        assert await committed(at) == 25
        plan = await agent("plan_group_reset_offsets", group="billing", to="latest")
        await commit(at, 9)
        with pytest.raises(RefusalError, match="The ground has changed"):
            await agent("approve", plan=plan["plan"])


async def test_what_loses_data_is_approved_by_its_name(headrace_broker: RunningBroker) -> None:
    at = headrace_broker.bootstrap
    write(at, 7)
    async with agent_of(at, allows_changes=True) as agent:
        plan = await agent("plan_topic_delete", topic="orders")
        assert (plan["loses"], plan["records_lost"]) == ("orders", 7)
        for wrong in ("", "Orders", "payments"):
            with pytest.raises(RefusalError, match="'orders' is gone with its data"):
                await agent("approve", plan=plan["plan"], name=wrong)
        write(at, 1)  # records come all the time: they are no other ground
        await agent("approve", plan=plan["plan"], name="orders")
        assert (await agent("topic_list"))["total"] == 0
        write(at, 1)
        another = await agent("plan_topic_delete", topic="orders")
        assert another["plan"] != plan["plan"], "it is another topic"


async def test_two_changes_have_two_plans_and_what_cannot_be_is_refused(headrace_broker: RunningBroker) -> None:
    at = headrace_broker.bootstrap
    write(at, 1)
    async with agent_of(at, allows_changes=True) as agent:
        await agent("approve", plan=(await agent("plan_topic_create", topic="other"))["plan"])
        plans = [
            (await agent("plan_config_set", topic=topic, key="retention.ms", value="60000"))["plan"]
            for topic in ("orders", "other")
        ]
        assert plans[0] != plans[1]
        with pytest.raises(RefusalError, match="Nothing is lost by this plan"):
            await agent("approve", plan=plans[0], name="orders")
        await agent("approve", plan=plans[0])
        same = await agent("plan_config_set", topic="orders", key="retention.ms", value="60000")
        assert same["obstacle"] == "It is so already."
        with pytest.raises(RefusalError, match="No plan with this hash"):
            await agent("approve", plan=same["plan"])
        for tool, arguments, sentence in (
            ("plan_config_set", {"topic": "orders", "key": "no.such"}, "There is no config 'no.such'"),
            ("plan_config_set", {"topic": "orders", "key": "retention.ms", "value": "soon"}, "soon"),
            ("plan_topic_create", {"topic": "a/b"}, "a/b"),
            ("plan_topic_delete", {"topic": "away"}, "does not exist"),
            ("plan_group_reset_offsets", {"group": "billing", "to": "offset"}, "Give a value with to='offset'"),
            ("plan_txn_abort", {"transactional_id": "away"}, "There is no transactional id"),
        ):
            with pytest.raises(RefusalError, match=sentence):
                await agent(tool, **arguments)


async def test_records_before_an_offset_are_deleted_and_one_is_written(headrace_broker: RunningBroker) -> None:
    at = headrace_broker.bootstrap
    write(at, 9)
    async with agent_of(at, allows_changes=True) as agent:
        gone = await agent("plan_topic_delete_records", topic="orders", partition=0, before="4")
        assert (gone["loses"], gone["records_lost"]) == ("orders", 4)
        assert gone["command"] == "headrace topic delete-records orders --partition 0 --before 4 --execute"
        with pytest.raises(RefusalError, match="'orders' is gone with its data"):
            await agent("approve", plan=gone["plan"])
        await agent("approve", plan=gone["plan"], name="orders")
        (row,) = (await agent("topic_describe", topic="orders"))["rows"]
        assert (row["first_offset"], row["end_offset"]) == (4, 9)
        with structlog.testing.capture_logs() as logs:
            new = await agent("plan_produce", topic="orders", value="it's secret", key="k", headers={"a": "b"})
        line, _, command = new["command"].rpartition(" | ")
        assert (line[:14], command) == ("printf '%s\\n' ", "headrace produce orders --format json")
        assert [line["arguments"] for line in logs] == [
            {"topic": "orders", "value": HIDDEN, "key": HIDDEN, "headers": HIDDEN}
        ]
        await agent("approve", plan=new["plan"])
        with pytest.raises(RefusalError, match="No plan with this hash"):
            await agent("approve", plan=new["plan"])
        (record,) = (await agent("consume", topic="orders", count=1))["records"]
        assert (record["offset"], record["value"]["data"]) == (9, "it's secret")
        for tool, arguments, sentence in (
            ("plan_produce", {"topic": "orders", "value": "ü" * MCP_PRODUCED_BYTES_MAX}, "is not for this tool"),
            ("plan_produce", {"topic": "away", "value": "x"}, "does not exist"),
            ("plan_topic_delete_records", {"topic": "orders", "partition": 5, "before": "1"}, "has partitions 0 to 0"),
            ("plan_topic_move_cancel", {"topic": "orders", "partition": 0}, "No move of orders-0 is under way"),
            ("plan_quota_set", {"key": "producer_byte_rate"}, "Say whose quota"),
            ("plan_broker_drain", {"broker": 77}, "77"),
        ):
            with pytest.raises(RefusalError, match=sentence):
                await agent(tool, **arguments)


async def test_the_plan_of_moves_has_its_cost(tmp_path: Path) -> None:
    async with moving(tmp_path) as world:
        await world.make()
        for number in range(9):
            assert await world.write(A, b"%d" % number) == number
        size = world.leading(A).log.size_bytes
        async with agent_of(world.cluster.bootstrap, allows_changes=True) as agent:
            plans = [
                await agent("plan_broker_drain", broker=A),
                await agent("plan_topic_move", topic="t", partitions=[0], to=B),
            ]
            for plan in plans:
                (one,) = plan["effect"]
                target = {
                    "broker": one["target"],
                    "partitions": 1,
                    "bytes": size,
                    "partitions_of_unknown_size": 0,
                    "partitions_with_a_copy": 0,
                }
                assert plan["cost"] == {
                    "targets": [target],
                    "bytes": size,
                    "writes_wait": True,
                    "finished_moves": 0,
                    "waited_ms_median": None,
                    "waited_ms_most": None,
                }
            assert (await agent("plan_config_set", topic="t", key="retention.ms", value="60000"))["cost"] is None
            await agent("approve", plan=plans[1]["plan"])
            await world.until_owned(B)
            cost = (await agent("plan_broker_drain", broker=B))["cost"]
            assert (cost["finished_moves"], cost["waited_ms_median"]) == (1, cost["waited_ms_most"])


def plan_of(number: int, done: list[int]) -> Plan:
    async def carry_out() -> None:
        done.append(number)

    return Plan(["do", str(number)], [(number,)], carry_out)


async def test_plans_are_kept_for_a_while_and_there_are_not_many() -> None:
    now, done = [0.0], list[int]()
    plans = Plans(lambda: now[0])

    async def made(number: int) -> str:
        async def make() -> Plan:
            return plan_of(number, done)

        return (await plans.add(make)).digest

    digests = [await made(number) for number in range(MCP_PLANS_MAX + 1)]
    with pytest.raises(Exception, match="No plan with this hash"):
        await plans.carry_out(digests[0], "")
    await plans.carry_out(digests[1], "")
    now[0] = MCP_PLAN_MS_MAX / 1000 + 1
    with pytest.raises(Exception, match="No plan with this hash"):
        await plans.carry_out(digests[2], "")
    assert done == [1]
