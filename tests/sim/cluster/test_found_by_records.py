"""Faults that simulated clusters found in the copying of partitions, each as the shortest story that shows it."""

from __future__ import annotations

import asyncio
from typing import Any

from headrace.base.limits import REPLICA_BULK_BYTES_MIN
from headrace.metadata.values import PartitionImage
from headrace.sim.client import Client, Lost
from headrace.sim.cluster.records.stage import APIS
from headrace.sim.cluster.world import PORT, address_of
from headrace.sim.journals import NONE
from headrace.storage.log.journal.journal import JournalSettings
from headrace.wire.apis import ApiKey, api
from headrace.wire.batches import encode_batch
from headrace.wire.messages.create_topics import CreatableTopic, CreateTopicsRequest
from headrace.wire.messages.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from headrace.wire.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from headrace.wire.records import Record
from tests.sim.cluster.test_found_by_clusters import Script, until

NAME = "records"


class RecordsScript(Script):
    """Three brokers and a topic with one partition, copied by all."""

    def __init__(self, journal: JournalSettings = NONE) -> None:
        for key in APIS:
            api(key)
        super().__init__(born=3, spare=0, journal=journal)

    def partition(self) -> PartitionImage:
        """As the newest image has it."""
        image = self.judge.images[max(self.judge.images)]
        [topic] = (each for each in image.topics.values() if each.name == NAME)
        return topic.partitions[0]

    async def begin(self) -> None:
        """Returns once the topic is made, and its followers are in sync."""
        for host in self.hosts.values():
            host.boot()
        await self.served(*self.hosts)
        topic = CreatableTopic(name=NAME, num_partitions=1, replication_factor=3)
        made = await self.insist(1, ApiKey.CREATE_TOPICS, 7, CreateTopicsRequest((topic,), 3_000))
        assert made.topics[0].error_code == 0
        await until(lambda: len(self.partition().isr) == 3)
        await asyncio.sleep(1.0)

    async def produce(self, node: int, value: bytes, *, acks: int, producer: tuple[int, int] = (-1, -1)) -> int:
        """One record to this broker: the error code."""
        record = Record(0, 1_700_000_000_000, None, value)
        batch = encode_batch(
            [record], producer_id=producer[0], producer_epoch=0 if producer[0] >= 0 else -1, base_sequence=producer[1]
        )
        topic = TopicProduceData(name=NAME, partition_data=(PartitionProduceData(index=0, records=batch),))
        answer = await self._ask(node, ApiKey.PRODUCE, 9, ProduceRequest(None, acks, 3_000, (topic,)))
        code: int = answer.responses[0].partition_responses[0].error_code
        return code

    async def end_at(self, node: int) -> tuple[int, int]:
        """This broker's answer for the partition's end: error code and offset."""
        asked = ListOffsetsTopic(NAME, (ListOffsetsPartition(0, -1, -1),))
        answer = await self._ask(node, ApiKey.LIST_OFFSETS, 7, ListOffsetsRequest(-1, 0, (asked,)))
        told = answer.topics[0].partitions[0]
        return told.error_code, told.offset

    async def _ask(self, node: int, key: ApiKey, version: int, request: Any) -> Any:
        client = Client("script", (address_of(node), PORT))
        while True:
            try:
                return await client.call(key, version, request)
            except Lost:
                await asyncio.sleep(0.2)
            finally:
                client.close()


def test_a_new_leader_flushes_what_it_appended_as_a_follower() -> None:
    """Nobody may ever write again; and an idempotent producer that sends once more writes nothing new."""
    script = RecordsScript()

    async def story() -> None:
        await script.begin()
        old = script.partition().leader
        for node in script.partition().isr:
            script.hosts[node].disk.slowness = 1.0 if node == old else 300.0
        for number in range(3):  # large ones: while the followers flush the first, others reach their page caches
            assert await script.produce(old, b"%d" % number + bytes(REPLICA_BULK_BYTES_MIN), acks=1) == 0
            await asyncio.sleep(0.05)
        script.hosts[old].kill()
        await until(lambda: script.partition().leader not in (old, -1))
        for host in script.hosts.values():
            host.disk.slowness = 1.0
        async with asyncio.timeout(30):
            while await script.end_at(script.partition().leader) != (0, 3):  # noqa: ASYNC110 - virtual time
                await asyncio.sleep(0.2)

    script.run(story)
