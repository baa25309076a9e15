"""A Redis that may have lost the last changes of the metadata: no image of a broker goes back, nor does any epoch."""

from __future__ import annotations

import asyncio
import uuid
from contextlib import suppress
from pathlib import Path

import pytest

from headrace.base.ids import BrokerId, LeaderEpoch, PartitionEpoch, PartitionIndex, TopicId
from headrace.base.limits import DOUBTED_EPOCHS, DOUBTED_INDEXES, DOUBTED_PRODUCER_IDS
from headrace.broker.cluster.driver import NotController, OutcomeUnknown
from headrace.metadata.events import LeaderChanged
from headrace.storage.redis.metadata import commit_log
from headrace.storage.redis.metadata.durability import Durability
from headrace.storage.redis.metadata.lease import LeaseTimes
from tests.broker.group_broker import until
from tests.storage.redis.conftest import Start
from tests.storage.redis.metadata.nodes import BORN, KEYS, QUICK, TOPIC, Join, Losing, Node, Way, created
from tests.storage.redis.redis_world import engine_of, follow

HOUR = LeaseTimes(lasts=3_600_000, poll=20)
"""No holder looks by itself whether it has the lease."""
PAYMENTS = TopicId(uuid.UUID(int=9))


def epoch(node: Node) -> int:
    return node.image.topics[TOPIC].partitions[0].leader_epoch


async def until_doubted(*nodes: Node) -> None:
    """Wait until all have heard of a doubt, and then of the same. No image may have gone back."""
    await until(lambda: any(node.went_back for node in nodes) or all(node.image.doubts for node in nodes))
    assert not any(node.went_back for node in nodes)
    await until(lambda: len({node.image.index for node in nodes}) == 1)
    assert all(node.image == nodes[0].image for node in nodes)


async def test_a_controller_that_slept_past_a_failover_knows_that_it_lacks_what_others_have_seen(
    join: Join, place: Path
) -> None:
    """Another one took the lease meanwhile. Redis has lost that, and still has the first one's."""
    way = Way(join.server, place / "way")
    sleeper = await join(1, HOUR, reading=way.url)
    await until(lambda: sleeper.driver.is_controller)
    await sleeper.submit(BORN, created())
    witness = await join(2, HOUR)
    losing = Losing(join.server)
    with way.cut(sleeper.reading):
        await witness.commands.call("HSET", KEYS.lease, "until", 0)
        await until(lambda: witness.driver.is_controller)
        await witness.submit(
            LeaderChanged(
                topic_id=TOPIC,
                partition=PartitionIndex(0),
                leader=BrokerId(2),
                leader_epoch=LeaderEpoch(1),
                partition_epoch=PartitionEpoch(1),
                isr=(BrokerId(2),),
            )
        )
        assert epoch(witness) == 1
        await asyncio.to_thread(losing.fail)
        assert sleeper.driver.is_controller, "it slept"
        deciding = asyncio.create_task(sleeper.submit(created("payments", PAYMENTS)))
        await until(lambda: sleeper.commands.is_connected)
    await until_doubted(sleeper, witness)
    with suppress(OutcomeUnknown, NotController):
        await deciding
    assert epoch(witness) == DOUBTED_EPOCHS
    assert witness.image.topic_names() == ["orders"]


async def test_a_controller_notices_that_redis_has_lost_what_it_decided_and_others_have_seen(
    join: Join, place: Path
) -> None:
    """It has not read that entry itself, and decides nothing more."""
    way = Way(join.server, place / "way")
    holder = await join(1, LeaseTimes(lasts=3_000, poll=20), reading=way.url)
    await until(lambda: holder.driver.is_controller)
    await holder.submit(BORN, created())
    witness = await join(2, HOUR)
    losing = Losing(join.server)
    with way.cut(holder.reading):
        deciding = asyncio.create_task(holder.submit(created("payments", PAYMENTS)))
        await until(lambda: "payments" in witness.image.topic_names())
        await asyncio.to_thread(losing.fail)
    await until_doubted(holder, witness)
    with suppress(OutcomeUnknown, NotController):
        await deciding
    assert witness.image.topic_names() == ["orders"]


async def test_lost_entries_are_undone_behind_a_gap_and_under_higher_epochs(join: Join) -> None:
    first, second = await join(1), await join(2)
    await until(lambda: first.driver.is_controller or second.driver.is_controller)
    holder = first if first.driver.is_controller else second
    await holder.submit(BORN, created())
    keys = (KEYS.metadata, KEYS.head)
    dumps = [await holder.commands.call("DUMP", key) for key in keys]
    await holder.submit(created("payments", TopicId(uuid.UUID(int=9))))
    await until(lambda: first.image.index == second.image.index == 2)
    term = holder.driver.term
    for key, dump in zip(keys, dumps, strict=True):  # a failover to a replica that lacks the last entry
        await holder.commands.call("RESTORE", key, 0, dump, "REPLACE")
    await until(lambda: first.image.doubts == second.image.doubts == 1)
    assert first.image == second.image
    assert first.image.index > DOUBTED_INDEXES
    assert first.image.topic_names() == ["orders"]
    assert first.image.topics[TOPIC].partitions[0].leader_epoch == DOUBTED_EPOCHS
    assert first.image.next_producer_id == DOUBTED_PRODUCER_IDS
    await until(lambda: first.driver.is_controller or second.driver.is_controller)
    again = first if first.driver.is_controller else second
    assert again.driver.term > term
    await again.submit(created("later", TopicId(uuid.UUID(int=10))))
    await until(lambda: first.image.index == second.image.index == again.image.index)
    assert first.image.topic_names() == second.image.topic_names() == ["later", "orders"]
    assert not first.went_back
    assert not second.went_back
    late = await join(3)
    assert late.image == again.image


async def test_whoever_goes_on_in_another_redis_doubts_its_log_once(join: Join) -> None:
    """It lost nothing that anybody knows of. Clients may have heard of more than all brokers that are left."""
    first = await join(1)
    await until(lambda: first.driver.is_controller)
    await first.submit(BORN, created())
    second = await join(2)
    await first.driver.stop()
    await until(lambda: second.driver.is_controller)
    assert second.image.doubts == 0, "it is the same Redis"
    server = join.server
    await second.commands.call("HSET", KEYS.lease, "until", 0)
    await second.crash()
    server.kill()
    await asyncio.to_thread(server.start)
    third = await join(3, QUICK)
    await until(lambda: third.driver.is_controller)
    assert third.image.doubts == 1
    fourth = await join(4)
    await third.driver.stop()
    await until(lambda: fourth.driver.is_controller)
    assert fourth.image.doubts == 1


async def test_a_doubt_that_is_lost_itself_is_not_taken_for_the_next_one(
    join: Join, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = await join(1)
    await until(lambda: node.driver.is_controller)
    await node.submit(BORN, created())
    await node.commands.call("HSET", KEYS.head, "history", "another", "intended", 4)  # as the one before it noted
    node.log._lease.drop("for this test")
    await until(lambda: node.driver.is_controller)
    assert node.image.doubts == 5
    assert node.image.topics[TOPIC].partitions[0].leader_epoch == 5 * DOUBTED_EPOCHS
    assert node.image.index > 5 * DOUBTED_INDEXES


async def test_the_number_of_a_doubt_waits_for_a_replica_that_came_since_the_last_look(
    join: Join, start: Start, engines: None
) -> None:
    servers = engine_of(join.server).servers
    node = await join(1, durability=Durability(servers, KEYS.metadata))
    await until(lambda: node.driver.is_controller)
    await node.submit(BORN, created())
    await node.commands.call("CONFIG", "SET", "repl-diskless-sync-delay", 0)
    await follow(start(tcp=True), join.server)
    assert servers.replicas == 0, "it is not looked at again"
    assert b"cmdstat_wait:" not in await node.commands.call("INFO", "commandstats")
    await node.commands.call("HSET", KEYS.head, "history", "another")
    node.log._lease.drop("for this test")
    await until(lambda: node.driver.is_controller)
    assert node.image.doubts == 1
    assert b"cmdstat_wait:calls=1," in await node.commands.call("INFO", "commandstats")


async def test_a_broker_ahead_of_a_log_that_nobody_doubts_takes_what_is_there_in_the_end(
    join: Join, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where people restored keys while another broker was the controller."""
    monkeypatch.setattr(commit_log, "REDIS_METADATA_AHEAD_MS", 0)
    node = await join(1)
    await until(lambda: node.driver.is_controller)
    await node.submit(BORN)
    keys = (KEYS.metadata, KEYS.head)
    dumps = [await node.commands.call("DUMP", key) for key in keys]
    await node.submit(created())
    for key, dump in zip(keys, dumps, strict=True):
        await node.commands.call("RESTORE", key, 0, dump, "REPLACE")
    await node.commands.call("HSET", KEYS.lease, "token", 9, "holder", "x", "about", "", "until", 1 << 50)
    await until(lambda: node.image.index == 1)
    assert node.image.topic_names() == []
