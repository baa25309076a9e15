"""A copy that is assigned elsewhere and here again, while the journal still has what it led with and nobody copied."""

from __future__ import annotations

import asyncio

from headrace.storage.log.journal.journal import JournalSettings
from headrace.wire.apis import ApiKey, api
from headrace.wire.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    ReassignablePartition,
    ReassignableTopic,
)
from headrace.wire.messages.create_topics import CreatableTopic, CreateTopicsRequest
from tests.sim.cluster.test_found_by_clusters import until
from tests.sim.cluster.test_found_by_records import NAME, RecordsScript

JOURNAL = JournalSettings(file_bytes=1 << 20, files_max=3, after_rounds=1)
COUNT = 6


class Assigning(RecordsScript):
    """Three brokers, two of which have the partition."""

    def __init__(self) -> None:
        api(ApiKey.ALTER_PARTITION_REASSIGNMENTS)
        super().__init__(JOURNAL)

    async def begin(self) -> None:
        for host in self.hosts.values():
            host.boot()
        await self.served(*self.hosts)
        topic = CreatableTopic(name=NAME, num_partitions=1, replication_factor=2)
        made = await self.insist(1, ApiKey.CREATE_TOPICS, 7, CreateTopicsRequest((topic,), 3_000))
        assert made.topics[0].error_code == 0
        await until(lambda: len(self.partition().isr) == 2)
        await asyncio.sleep(1.0)

    async def assign(self, *nodes: int) -> None:
        """Returns once all of these are in sync, and no others hold it."""
        topic = ReassignableTopic(NAME, (ReassignablePartition(0, nodes),))
        request = AlterPartitionReassignmentsRequest(timeout_ms=3_000, topics=(topic,))
        answer = await self.insist(nodes[0], ApiKey.ALTER_PARTITION_REASSIGNMENTS, 0, request)
        assert answer.responses[0].partitions[0].error_code == 0
        await until(lambda: set(self.partition().replicas) == set(self.partition().isr) == set(nodes))
        await asyncio.sleep(1.0)  # the former holder has learned of its removal


def test_what_is_acknowledged_is_there_and_not_what_was_there_before() -> None:
    script = Assigning()

    async def story() -> None:
        await script.begin()
        first = script.partition().leader
        (second,) = set(script.partition().isr) - {first}
        (third,) = set(script.hosts) - {first, second}
        for number in range(COUNT):
            assert await script.produce(first, b"%d" % number, acks=-1) == 0
        others = [script.hosts[node].address for node in (second, third)]
        here = script.hosts[first].address
        script.loop.network.links.set_cut([link for other in others for link in ((here, other), (other, here))])
        for number in range(3):
            assert await script.produce(first, b"lost %d" % number, acks=1) == 0
        await until(lambda: script.partition().leader == second)
        script.loop.network.links.set_cut([])
        await until(lambda: set(script.partition().isr) == {first, second})
        await script.assign(second, third)
        await script.assign(second, first)
        assert await script.end_at(second) == (0, COUNT)
        assert await script.produce(second, b"kept", acks=-1) == 0
        script.hosts[second].kill()
        script.hosts[first].power_cut()
        script.hosts[first].boot()
        await until(lambda: script.partition().leader == first and script.hosts[first].serves)
        async with asyncio.timeout(30):
            while (told := await script.end_at(first))[0] != 0:  # noqa: ASYNC110 - virtual time
                await asyncio.sleep(0.2)
        assert told == (0, COUNT + 1)

    script.run(story)
