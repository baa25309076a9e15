"""Consumer groups (KIP-848) on replicated partitions: the next coordinator goes on where the last one was."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

from headrace.wire.errors import ErrorCode
from headrace.wire.messages.consumer_group_describe import ConsumerGroupDescribeRequest
from tests.broker.groups.test_consumer_groups_wire import beating, commit, fetched, joining, partitions
from tests.broker.groups.test_failover import run, unheard, world
from tests.broker.replicas import held_rounds, leader, until


def test_the_next_coordinator_knows_members_shares_and_offsets(tmp_path: Path) -> None:
    async def work() -> None:
        async with world(tmp_path) as w, w.client(w.coordinator) as old, w.client(w.others[0]) as new:
            joined = await old.ask(1, joining())
            assert partitions(joined) == [0]
            assert await commit(old, 1) == 0
            assert partitions(await old.ask(1, joining(member_id="n"))) == []
            assert (await new.ask(1, beating(1))).error_code == ErrorCode.NOT_COORDINATOR
            asked = ConsumerGroupDescribeRequest(group_ids=("g",))
            before = (await old.ask(1, asked)).groups
            assert before[0].group_state == "Reconciling"
            await w.move(w.others[0])
            assert (await old.ask(1, beating(1))).error_code == ErrorCode.NOT_COORDINATOR
            while (after := (await new.ask(1, asked)).groups)[0].error_code:
                assert after[0].error_code == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
            assert after == before
            beat = await new.ask(1, beating(1))
            assert (beat.error_code, beat.member_epoch, beat.assignment) == (0, 2, None)
            assert await commit(new, 3) == ErrorCode.STALE_MEMBER_EPOCH
            assert await commit(new, 1) == 0, "it has had the partition since then"
            assert await commit(new, 2) == 0
            assert (await fetched(new, "m", 2)).topics[0].partitions[0].committed_offset == 7

    run(work())


def test_what_a_member_is_told_is_on_all_replicas_in_sync(tmp_path: Path) -> None:
    """A deposed coordinator gave nobody a partition that the next one knows nothing of."""

    async def work() -> None:
        async with world(tmp_path) as w, w.client(w.coordinator) as client, w.client(w.coordinator) as again:
            led = leader(w.cluster, w.coordinator, w.key)
            with held_rounds(w.cluster, w.others[1]) as let_go:
                end = led.log.log_end_offset
                first = asyncio.ensure_future(client.ask(1, joining()))
                await until(lambda: first.done() or led.log.flushed_end > end)
                assert not first.done(), first.result()
                repeated = asyncio.ensure_future(again.ask(1, joining()))
                await until(lambda: sorted(led.isr.leader.isr_ends.values())[-2] > end)
                assert not first.done()
                assert not repeated.done(), "nothing is new in it, and what it says is not durable yet"
                let_go()
                assert partitions(await first) == partitions(await repeated) == [0]

    run(work())


def test_a_coordinator_that_the_controller_does_not_hear_prolongs_no_session(tmp_path: Path) -> None:
    """Another may let the member's session end, and give what it reads to somebody else."""

    async def work() -> None:
        async with world(tmp_path) as w, w.client(w.coordinator) as client:
            assert (await client.ask(1, joining())).error_code == 0
            with unheard(w.cluster.brokers[w.coordinator]):
                assert (await client.ask(1, beating(1))).error_code == ErrorCode.NOT_COORDINATOR
            assert (await client.ask(1, beating(1))).error_code == 0

    run(work())


def test_nobody_is_out_while_the_coordinator_can_prolong_no_session(tmp_path: Path) -> None:
    """The controller is away: members go on, and have as much time left then as they had before."""

    async def work() -> None:
        async with world(tmp_path) as w, w.client(w.coordinator) as client:
            assert (await client.ask(1, joining())).error_code == 0
            broker = w.cluster.brokers[w.coordinator]
            lease, (shard,) = broker.parts.membership.lease, broker.parts.requests.services.groups.shards
            with unheard(broker):
                now = asyncio.get_running_loop().time()
                lease._from = now - lease.seconds - 30
                consumer = shard.groups["g"].consumer
                assert consumer is not None
                late = replace(consumer, sessions=consumer.sessions.set("m", int(now * 1000) - 10))
                shard.groups["g"] = replace(shard.groups["g"], consumer=late)
                shard._wake("g")
                assert (await client.ask(1, beating(1))).error_code == ErrorCode.NOT_COORDINATOR
            await lease.renew()
            shard._wake("g")
            assert (await client.ask(1, beating(1))).error_code == 0

    run(work())


def test_the_next_coordinator_waits_for_as_long_as_the_last_may_have_prolonged_sessions(tmp_path: Path) -> None:
    async def work() -> None:
        async with world(tmp_path) as w, w.client(w.coordinator) as client:
            assert (await client.ask(1, joining())).error_code == 0
            to = w.others[0]
            before_ms = asyncio.get_running_loop().time() * 1000
            await w.move(to)
            parts = w.cluster.brokers[to].parts
            await until(lambda: [shard.loaded for shard in parts.requests.services.groups.shards] == [True])
            (shard,) = parts.requests.services.groups.shards
            consumer = shard.groups["g"].consumer
            assert consumer is not None
            timeout_ms = parts.requests.services.groups.config.consumer.group_consumer_session_timeout_ms
            assert consumer.sessions["m"] >= before_ms + timeout_ms + parts.membership.lease.seconds * 1000

    run(work())
