"""Groups on replicated partitions, in running brokers: the coordinator follows the leader, and what it says rests on
what
all in-sync replicas have."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Coroutine, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

from headrace.base.ids import BrokerId, PartitionIndex, TopicPartition
from headrace.broker.boot import Broker
from headrace.broker.cluster.control import Control
from headrace.broker.kit import lease as leases
from headrace.controller.asks.asking import Ask
from headrace.controller.asks.brokers import Heartbeat
from headrace.controller.decision import Refusal
from headrace.metadata.image import BrokerImage
from headrace.wire.errors import ErrorCode
from headrace.wire.messages.delete_groups import DeleteGroupsRequest
from headrace.wire.messages.find_coordinator import FindCoordinatorRequest
from headrace.wire.messages.heartbeat import HeartbeatRequest
from headrace.wire.messages.offset_delete import OffsetDeleteRequest
from headrace.wire.messages.offset_fetch import OffsetFetchRequest, OffsetFetchRequestGroup
from tests import loops
from tests.broker.clusters import BY_HAND, Cluster, running
from tests.broker.group_broker import RawClient
from tests.broker.groups.test_wire import commit, committed, join, join_request, sync
from tests.broker.replicas import elect, held_rounds, known, leader, make_topic, set_isr, until

OFFSETS = "__consumer_offsets"
CONFIGS = {
    "offsets.topic.num.partitions": "1",
    "offsets.topic.replication.factor": "3",
    **BY_HAND,
    "replica.lag.time.max.ms": "3600000",
}
"""Every group is in one partition on all brokers, and only tests say who is in sync."""
DEADLINE_S = 150
HEARD_WITHIN_MS = DEADLINE_S * 1000
"""A request waits so long for the controller to answer, which takes its time where all brokers share two processors."""


def run(work: Coroutine[Any, Any, None]) -> None:
    loops.run(work)


class World:
    """Three brokers, of which one coordinates."""

    def __init__(self, cluster: Cluster, key: TopicPartition) -> None:
        self.cluster = cluster
        self.key = key
        self.others = sorted({1, 2, 3} - {self.coordinator})

    @property
    def coordinator(self) -> int:
        return int(known(self.cluster.image(1), self.key).leader)

    def client(self, broker: int) -> RawClient:
        return RawClient(str(self.cluster.address(broker)))

    async def move(self, to: int) -> None:
        """Another broker coordinates from now on, and everybody knows."""
        await elect(self.cluster, self.key, to)
        await self.cluster.agree()


@asynccontextmanager
async def world(directory: Path) -> AsyncIterator[World]:
    async with running(directory, 3, CONFIGS) as cluster, asyncio.timeout(DEADLINE_S):
        with patch.object(leases, "LEASE_WAIT_MS_MAX", HEARD_WITHIN_MS):
            yield await _made(cluster)


async def _made(cluster: Cluster) -> World:
    """The topic "t", and one that all brokers keep groups in."""
    await make_topic(cluster, "t", 1)
    async with RawClient(str(cluster.address(1))) as client:
        found = await client.ask(2, FindCoordinatorRequest(key="g"))
        assert found.error_code == 0
    image = await cluster.agree()
    key = TopicPartition(image.topic_ids[OFFSETS], PartitionIndex(0))
    await until(lambda: leader(cluster, known(image, key).leader, key).isr.leader.in_sync == 3)
    service = cluster.brokers[int(known(image, key).leader)].parts.requests.services.groups
    await until(lambda: [shard.loaded for shard in service.shards] == [True])
    return World(cluster, key)


def test_the_topic_has_replicas_on_as_many_brokers_as_there_are(tmp_path: Path) -> None:
    async def work() -> None:
        async with world(tmp_path) as w:
            assert set(known(w.cluster.image(1), w.key).replicas) == {1, 2, 3}
            assert leader(w.cluster, w.coordinator, w.key).settings.min_insync_replicas == 2

    run(work())


def test_a_coordinator_that_the_controller_does_not_hear_names_the_others(tmp_path: Path) -> None:
    """One of them may coordinate by now. A client that asks only this one would be refused by it for ever."""

    async def work() -> None:
        async with world(tmp_path) as w:
            service = w.cluster.brokers[w.coordinator].parts.requests.services.groups
            partition = leader(w.cluster, w.coordinator, w.key)
            partition.doubt()
            named = [service.coordinator("g") for _ in range(4)]
            partition.trust()
            assert {broker.id for broker in named if isinstance(broker, BrokerImage)} == set(w.others)
            found = service.coordinator("g")
            assert isinstance(found, BrokerImage)
            assert found.id == w.coordinator

    run(work())


def test_the_next_coordinator_knows_what_was_committed_and_who_is_in(tmp_path: Path) -> None:
    async def work() -> None:
        async with world(tmp_path) as w, w.client(w.coordinator) as old, w.client(w.others[0]) as new:
            joined = await join(old)
            await sync(old, joined)
            mine = {"member_id": joined.member_id, "generation_id_or_member_epoch": joined.generation_id}
            assert await commit(old, {0: 7}, **mine) == [0]
            assert await commit(new, {0: 8}, **mine) == [ErrorCode.NOT_COORDINATOR]
            told = await old.ask(9, join_request())  # waits for the other member
            async with w.client(w.coordinator) as parked:
                waiting = asyncio.ensure_future(parked.ask(9, join_request(member_id=told.member_id)))
                beat = HeartbeatRequest(group_id="g", member_id=joined.member_id, generation_id=joined.generation_id)
                while (await old.ask(4, beat)).error_code != ErrorCode.REBALANCE_IN_PROGRESS:
                    assert not waiting.done()
                await w.move(w.others[0])
                assert (await waiting).error_code == ErrorCode.NOT_COORDINATOR
            assert await commit(old, {0: 9}, **mine) == [ErrorCode.NOT_COORDINATOR]
            assert (await old.ask(4, beat)).error_code == ErrorCode.NOT_COORDINATOR
            found = await old.ask(2, FindCoordinatorRequest(key="g"))
            assert found.node_id == w.others[0]
            assert await committed(new, (0,)) == {0: 7}
            assert (await new.ask(4, beat)).error_code == 0
            assert await commit(new, {0: 10}, **mine) == [0]

    run(work())


def test_a_commit_is_answered_once_all_in_sync_have_it_on_disk(tmp_path: Path) -> None:
    async def work() -> None:
        async with world(tmp_path) as w, w.client(w.coordinator) as client, w.client(w.coordinator) as reader:
            assert await commit(client, {0: 1}) == [0]
            led = leader(w.cluster, w.coordinator, w.key)
            with held_rounds(w.cluster, w.others[1]) as let_go:
                end = led.log.log_end_offset
                committing = asyncio.ensure_future(commit(client, {0: 2}))
                await until(lambda: led.log.flushed_end > end)
                await until(lambda: sorted(led.isr.leader.isr_ends.values())[-2] > end)
                assert not committing.done()
                assert await committed(reader, (0,)) == {0: 1}, "nothing is told that could yet be lost"
                let_go()
                assert await committing == [0]
            assert await committed(reader, (0,)) == {0: 2}

    run(work())


def test_a_deposed_coordinator_takes_nothing_back_and_acknowledges_nothing(tmp_path: Path) -> None:
    """A commit that only it has is told NOT_COORDINATOR, and is not there afterwards."""

    async def work() -> None:
        async with world(tmp_path) as w, w.client(w.coordinator) as old, w.client(w.others[0]) as new:
            assert await commit(old, {0: 1}) == [0]
            led = leader(w.cluster, w.coordinator, w.key)
            with held_rounds(w.cluster, w.others[0]), held_rounds(w.cluster, w.others[1]):
                end = led.log.log_end_offset
                committing = asyncio.ensure_future(commit(old, {0: 2}))
                await until(lambda: led.log.flushed_end > end)
                await elect(w.cluster, w.key, w.others[0])
                assert await committing == [ErrorCode.NOT_COORDINATOR]
            await w.cluster.agree()
            found = (await committed(new, (0,)))[0]
            assert found in (1, 2), "what was not acknowledged may be there, what was, is"
            assert await commit(new, {0: 3}) == [0]
            assert await committed(new, (0,)) == {0: 3}

    run(work())


def test_while_too_few_are_in_sync_commits_are_not_available(tmp_path: Path) -> None:
    async def work() -> None:
        async with world(tmp_path) as w, w.client(w.coordinator) as client:
            assert await commit(client, {0: 1}) == [0]
            with held_rounds(w.cluster, w.others[0]), held_rounds(w.cluster, w.others[1]):
                led = leader(w.cluster, w.coordinator, w.key)
                end = led.log.log_end_offset
                async with w.client(w.coordinator) as other:
                    late = asyncio.ensure_future(commit(other, {0: 2}))
                    await until(lambda: led.log.flushed_end > end)
                    await set_isr(w.cluster, w.key, (w.coordinator,))
                    not_available = ErrorCode.COORDINATOR_NOT_AVAILABLE
                    assert await late == [not_available], "it is on one replica, where two are wanted"
                assert await commit(client, {0: 3}) == [not_available]
                assert await committed(client, (0,)) == {0: 2}, "it stands in the log for good"

    run(work())


def test_while_the_log_is_not_committed_the_new_coordinator_loads(tmp_path: Path) -> None:
    async def work() -> None:
        async with world(tmp_path) as w, w.client(w.others[0]) as new, w.client(w.coordinator) as old:
            assert await commit(old, {0: 1}) == [0]
            with held_rounds(w.cluster, w.others[1]) as let_go:
                led = leader(w.cluster, w.coordinator, w.key)
                end = led.log.log_end_offset
                committing = asyncio.ensure_future(commit(old, {0: 2}))
                await until(
                    lambda: leader(w.cluster, w.coordinator, w.key).isr.leader.isr_ends[BrokerId(w.others[0])] > end
                )
                await elect(w.cluster, w.key, w.others[0])
                await w.cluster.agree()
                assert await committing == [ErrorCode.NOT_COORDINATOR]
                asked = OffsetFetchRequest(groups=(OffsetFetchRequestGroup(group_id="g", topics=None),))
                loading = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
                assert (await new.ask(8, asked)).groups[0].error_code == loading
                assert await commit(new, {0: 3}) == [loading]
                let_go()
            assert await committed(new, (0,)) == {0: 2}

    run(work())


def test_a_coordinator_that_the_controller_does_not_hear_gives_out_no_offsets(tmp_path: Path) -> None:
    """Another may have later ones by now, and who began at the older would go back."""

    async def work() -> None:
        async with world(tmp_path) as w, w.client(w.coordinator) as client:
            assert await commit(client, {0: 1}) == [0]
            asked = OffsetFetchRequest(groups=(OffsetFetchRequestGroup(group_id="g", topics=None),))
            with unheard(w.cluster.brokers[w.coordinator]):
                assert (await client.ask(8, asked)).groups[0].error_code == ErrorCode.NOT_COORDINATOR
                assert (await client.ask(0, OffsetDeleteRequest(group_id="g"))).error_code == ErrorCode.NOT_COORDINATOR
                deleted = await client.ask(2, DeleteGroupsRequest(groups_names=("nobody knows",)))
                assert deleted.results[0].error_code == ErrorCode.NOT_COORDINATOR
            assert (await client.ask(8, asked)).groups[0].error_code == 0, "it asks at once, and is heard"

    run(work())


@contextmanager
def unheard(broker: Broker) -> Iterator[None]:
    """Its lease is over, and no heartbeat of it is taken."""

    async def refuse(self: Control, ask: Ask[Any], **options: Any) -> Any:
        mine = isinstance(ask, Heartbeat) and self is broker.parts.control
        return Refusal(ErrorCode.NOT_CONTROLLER, "cut off") if mine else await submit(self, ask, **options)

    submit, lease = Control.submit, broker.parts.membership.lease
    with patch.object(Control, "submit", refuse):
        lease._from = -math.inf
        yield
