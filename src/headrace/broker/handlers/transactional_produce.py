"""Produce with a transactional id: which of its batches may be appended (KIP-890).

Before a partition takes the first batch of a transaction, the coordinator is asked whether the partition is a part of
it. Requests of one transactional id are appended in their order, also where some wait.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Final, NamedTuple

from headrace.base.errors import CorruptData
from headrace.base.ids import PartitionIndex, TopicId, TopicPartition
from headrace.base.ports import Buffer
from headrace.broker.partitions.partition import Partition
from headrace.broker.requests.context import RequestContext
from headrace.broker.transactions.gate import producer_of, told_to_producer
from headrace.coordinators.transactions.model import Producer
from headrace.coordinators.values import NamedPartition
from headrace.replica.transactions import Guard
from headrace.wire.batches import HEADER_BYTES, BatchHeader, parse_header
from headrace.wire.errors import ErrorCode
from headrace.wire.messages.produce import ProduceRequest
from headrace.wire.plain_produce import TOPIC_ID_VERSION

ABORTABLE_VERSION: Final = 11
ADDS_VERSION: Final = 12


class _Wanted(NamedTuple):
    """A batch whose partition is to be asked for."""

    partition: Partition
    header: BatchHeader

    @property
    def producer(self) -> Producer:
        return producer_of(self.header.producer_id, self.header.producer_epoch)


class Admitting:
    """One request, before its batches are appended."""

    def __init__(self, transactional_id: str, request: ProduceRequest, context: RequestContext) -> None:
        self.request: Final = request
        self.context: Final = context
        self._transactional_id: Final = transactional_id

    @property
    def must_wait(self) -> bool:
        """Whether the coordinator has to be asked, or an earlier request waits for its answer."""
        return self.context.services.gate.is_busy(self._transactional_id) or bool(self._wanted())

    def queue(self) -> None:
        """Take a place behind the earlier requests, before `turn`."""
        self._place = self.context.services.gate.queue(self._transactional_id)

    @asynccontextmanager
    async def turn(self) -> AsyncIterator[Mapping[TopicPartition, ErrorCode]]:
        """Wait for the request's turn and for the coordinator. Gives the partitions that may not take their batches."""
        try:
            async with self._place:
                yield await self._refused()
        finally:
            del self._place  # else the id is busy until the batches are committed

    async def _refused(self) -> Mapping[TopicPartition, ErrorCode]:
        refused: dict[TopicPartition, ErrorCode] = {}
        asked: dict[Producer, dict[NamedPartition, tuple[Partition, Guard]]] = {}
        adds = self.context.version >= ADDS_VERSION
        for wanted in self._wanted():
            partition = wanted.partition
            guard = partition.begin_verification(wanted.header, bumps_epochs=adds)
            if isinstance(guard, ErrorCode):
                refused[partition.topic_partition] = guard
            elif guard is not None:
                named = NamedPartition(partition.topic, partition.topic_partition.partition)
                asked.setdefault(wanted.producer, {})[named] = partition, guard
        for producer, partitions in asked.items():
            answers = await self.context.services.gate.admit(
                self._transactional_id, producer, list(partitions), adds=adds
            )
            for named, (partition, guard) in partitions.items():
                error = told_to_producer(
                    answers[named], knows_abortable=self.context.version >= ABORTABLE_VERSION, adds=adds
                )
                if error is ErrorCode.NONE:
                    partition.grant(producer.id, guard)
                else:
                    refused[partition.topic_partition] = error
        return refused

    def _wanted(self) -> list[_Wanted]:
        """The batches whose partitions the coordinator is to be asked for. Others are refused, or taken, without."""
        found = []
        for topic in self.request.topic_data:
            topic_id = self._topic_id(topic.name, TopicId(topic.topic_id))
            for data in topic.partition_data if topic_id is not None else ():
                assert topic_id is not None
                key = TopicPartition(topic_id, PartitionIndex(data.index))
                partition = self.context.services.partitions.find(key, self.context.image)
                header = None if data.records is None else _header(data.records)
                if isinstance(partition, Partition) and header is not None and _begins(partition, header):
                    found.append(_Wanted(partition, header))
        return found

    def _topic_id(self, name: str, topic_id: TopicId) -> TopicId | None:
        image = self.context.image
        topic = image.topic_by_id(topic_id) if self.context.version >= TOPIC_ID_VERSION else image.topic(name)
        return None if topic is None else topic.id


def _begins(partition: Partition, header: BatchHeader) -> bool:
    """Whether the batch is the first of its transaction in the partition."""
    return header.is_transactional and not partition.has_open_transaction(header.producer_id, header.producer_epoch)


def _header(records: Buffer) -> BatchHeader | None:
    """The header of a batch; None where there is no whole one, which the append refuses."""
    if len(records) < HEADER_BYTES:
        return None
    try:
        return parse_header(records)
    except CorruptData:
        return None
