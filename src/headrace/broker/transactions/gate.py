"""Asks the coordinator about a producer's transaction before its first batch goes into a partition (KIP-890).

Promises: no partition takes the first batch of a transaction to which it does not belong. A client of the new protocol
(TV2) has added no partition, so it is added here. Where the coordinator is this broker, no request is sent. Requests of
one transactional id have their turns in the order in which they came.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Final
from weakref import WeakValueDictionary

from headrace.base.errors import HeadraceError
from headrace.base.ids import BrokerId, ProducerEpoch, ProducerId
from headrace.base.limits import (
    TRANSACTION_GATE_ANSWER_MS_MAX,
    TRANSACTION_GATE_LINKS_MAX,
    TRANSACTION_GATE_RETRY_MS,
    TRANSACTION_GATE_WAIT_MS_MAX,
)
from headrace.broker.groups.service import OFFSETS_TOPIC, GroupService
from headrace.broker.kit.links import Links
from headrace.controller.decision import Refusal
from headrace.coordinators.transactions.events import AddPartitions, AddReply, VerifyPartitions, VerifyReply
from headrace.coordinators.transactions.model import Producer, TransactionVersion
from headrace.coordinators.values import NamedPartition
from headrace.net.client.security.settings import PLAIN, ClientSecurity
from headrace.wire.apis import ApiKey
from headrace.wire.errors import ErrorCode, error_of

if TYPE_CHECKING:
    from headrace.base.addresses import Address
    from headrace.broker.transactions.service import TransactionService
    from headrace.broker.transactions.shard import Told
    from headrace.coordinators.transactions.events import Event
    from headrace.wire.messages import add_partitions_to_txn as wire

VERSIONS: Final = (4, 5)
"""v4 is the first in which a broker asks."""
Answers = Mapping[NamedPartition, ErrorCode]


class TransactionGate:
    """See the module. Loop-only."""

    def __init__(
        self,
        *,
        node: BrokerId,
        service: TransactionService,
        groups: GroupService,
        address_of: Callable[[BrokerId], Address | None],
        verifies: Callable[[], bool],
        security: ClientSecurity = PLAIN,
    ) -> None:
        """`address_of`: where other brokers reach a broker. `verifies`: whether the coordinator is asked for clients of
        the old protocol (`transaction.partition.verification.enable`)."""
        self._node: Final = node
        self._service: Final = service
        self._groups: Final = groups
        self._address_of: Final = address_of
        self._verifies: Final = verifies
        self._links = Links(TRANSACTION_GATE_LINKS_MAX, security)
        self._turns: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    def is_busy(self, transactional_id: str) -> bool:
        """Whether a request of this id has its turn, or waits for it."""
        return transactional_id in self._turns

    def queue(self, transactional_id: str) -> asyncio.Lock:
        """Return the turn of this id's requests: held by one at a time, in the order in which they asked for it. The id
        is busy for as long as anybody keeps it; a request that is dropped before it began leaves nothing behind."""
        return self._turns.setdefault(transactional_id, asyncio.Lock())

    async def admit(
        self, transactional_id: str, producer: Producer, partitions: Sequence[NamedPartition], *, adds: bool
    ) -> Answers:
        """Return NONE for each partition that the transaction has, else why its batch may not be appended. `adds`: the
        partitions are added first. While the transaction before is being ended, that is tried for a little while."""
        if not (adds or self._verifies()):
            return dict.fromkeys(partitions, ErrorCode.NONE)
        loop = asyncio.get_running_loop()
        deadline = loop.time() + TRANSACTION_GATE_WAIT_MS_MAX / 1000
        while True:
            answers = await self._ask(transactional_id, producer, partitions, adds=adds)
            is_busy = adds and ErrorCode.CONCURRENT_TRANSACTIONS in answers.values()
            if not is_busy or loop.time() + TRANSACTION_GATE_RETRY_MS / 1000 > deadline:
                return answers
            await asyncio.sleep(TRANSACTION_GATE_RETRY_MS / 1000)

    async def admit_offsets(
        self, transactional_id: str, producer: Producer, group_id: str, *, adds: bool, knows_abortable: bool
    ) -> ErrorCode:
        """As `admit`, for the group's partition of the offsets topic, which this broker has to lead. The error is for
        the client that commits offsets (`knows_abortable`: TxnOffsetCommit v4 and later)."""
        shard = self._groups.shard(group_id)
        if isinstance(shard, ErrorCode):
            return shard  # told as it is: the client looks for the group's coordinator again
        partition = shard.partition
        guard = partition.ask_for(producer.id, producer.epoch, bumps_epochs=adds)
        if guard is None:
            return ErrorCode.NONE
        named = NamedPartition(OFFSETS_TOPIC, partition.topic_partition.partition)
        error = (await self.admit(transactional_id, producer, [named], adds=adds))[named]
        if error is ErrorCode.NONE:
            partition.grant(producer.id, guard)
        return _told_to_group(error, knows_abortable=knows_abortable, adds=adds)

    async def _ask(
        self, transactional_id: str, producer: Producer, partitions: Sequence[NamedPartition], *, adds: bool
    ) -> Answers:
        coordinator = self._service.coordinator(transactional_id)
        if isinstance(coordinator, Refusal):
            return dict.fromkeys(partitions, coordinator.code)
        if coordinator.id == self._node:
            return await self._ask_here(transactional_id, producer, partitions, adds=adds)
        address = self._address_of(coordinator.id)
        if address is None:
            return dict.fromkeys(partitions, ErrorCode.COORDINATOR_NOT_AVAILABLE)
        from headrace.wire.messages import add_partitions_to_txn as wire

        wanted = wire.AddPartitionsToTxnTransaction(
            transactional_id=transactional_id,
            producer_id=producer.id,
            producer_epoch=producer.epoch,
            verify_only=not adds,
            topics=_topics(partitions),
        )
        deadline = asyncio.get_running_loop().time() + TRANSACTION_GATE_ANSWER_MS_MAX / 1000
        try:
            response = await self._links.ask(
                address,
                ApiKey.ADD_PARTITIONS_TO_TXN,
                wire.AddPartitionsToTxnRequest(transactions=(wanted,)),
                versions=VERSIONS,
                deadline=deadline,
            )
        except HeadraceError:
            return dict.fromkeys(partitions, ErrorCode.NETWORK_EXCEPTION)
        assert isinstance(response, wire.AddPartitionsToTxnResponse)
        return _answers(response, partitions)

    async def ask_to_add(self, transactional_id: str, build: Callable[[int], Event]) -> Told:
        """As `TransactionService.ask`, with an event that adds partitions. Where the transaction before is being ended,
        its end is waited for, TRANSACTION_GATE_WAIT_MS_MAX at the longest. Kafka answers CONCURRENT_TRANSACTIONS at
        once, and its clients ask again after a pause that is longer than most ends take."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + TRANSACTION_GATE_WAIT_MS_MAX / 1000
        while True:
            told = await self._service.ask(transactional_id, build)
            if not (isinstance(told, AddReply) and told.error is ErrorCode.CONCURRENT_TRANSACTIONS):
                return told
            shard = self._service.shard(transactional_id)
            left = deadline - loop.time()
            if left <= 0 or isinstance(shard, ErrorCode):
                return told
            if (rest := shard.at_rest(transactional_id)) is not None:
                await asyncio.wait([rest], timeout=left)
                if not rest.done():
                    rest.cancel()

    async def _ask_here(
        self, transactional_id: str, producer: Producer, partitions: Sequence[NamedPartition], *, adds: bool
    ) -> Answers:
        if adds:
            reply = await self.ask_to_add(
                transactional_id,
                lambda waiter: AddPartitions(
                    waiter=waiter,
                    producer=producer,
                    partitions=frozenset(partitions),
                    client_version=TransactionVersion.TV2,
                ),
            )
        else:
            reply = await self._service.ask(
                transactional_id,
                lambda waiter: VerifyPartitions(waiter=waiter, producer=producer, partitions=tuple(partitions)),
            )
        if isinstance(reply, VerifyReply) and reply.error is ErrorCode.NONE:
            return dict(zip(partitions, reply.partitions, strict=True))
        assert isinstance(reply, ErrorCode | AddReply | VerifyReply)
        return dict.fromkeys(partitions, reply if isinstance(reply, ErrorCode) else reply.error)

    async def stop(self) -> None:
        await self._links.close()


_COORDINATOR_IS_AWAY: Final = (
    ErrorCode.NETWORK_EXCEPTION,
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_COORDINATOR,
)


def told_to_producer(error: ErrorCode, *, knows_abortable: bool, adds: bool) -> ErrorCode:
    """Return the error for a producer, in codes that its version knows. `knows_abortable`: Produce v11 and later."""
    if error in _COORDINATOR_IS_AWAY or (error is ErrorCode.CONCURRENT_TRANSACTIONS and not adds):
        return ErrorCode.NOT_ENOUGH_REPLICAS  # every producer sends the batch again
    return _told(error, knows_abortable=knows_abortable)


def _told_to_group(error: ErrorCode, *, knows_abortable: bool, adds: bool) -> ErrorCode:
    """As `told_to_producer`, for a client that commits offsets: it is the transaction's coordinator that is away, and
    not its group's."""
    if error in _COORDINATOR_IS_AWAY or (error is ErrorCode.CONCURRENT_TRANSACTIONS and not adds):
        return ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    return _told(error, knows_abortable=knows_abortable)


def _told(error: ErrorCode, *, knows_abortable: bool) -> ErrorCode:
    """As Kafka tells them: a producer that only comes too late may go on after an abort."""
    if error is ErrorCode.TRANSACTION_ABORTABLE and not knows_abortable:
        return ErrorCode.INVALID_TXN_STATE
    return ErrorCode.INVALID_PRODUCER_EPOCH if error is ErrorCode.PRODUCER_FENCED else error


def producer_of(producer_id: int, producer_epoch: int) -> Producer:
    """Return a producer of a request."""
    return Producer(ProducerId(producer_id), ProducerEpoch(producer_epoch))


def _topics(partitions: Sequence[NamedPartition]) -> tuple[wire.AddPartitionsToTxnTopic, ...]:
    from headrace.wire.messages import add_partitions_to_txn as wire

    topics: dict[str, list[int]] = defaultdict(list)
    for name, index in partitions:
        topics[name].append(index)
    return tuple(wire.AddPartitionsToTxnTopic(name, tuple(indexes)) for name, indexes in topics.items())


def _answers(response: wire.AddPartitionsToTxnResponse, partitions: Sequence[NamedPartition]) -> Answers:
    if response.error_code:
        return dict.fromkeys(partitions, error_of(response.error_code))
    found = {
        NamedPartition(topic.name, each.partition_index): error_of(each.partition_error_code)
        for result in response.results_by_transaction
        for topic in result.topic_results
        for each in topic.results_by_partition
    }
    return {each: found.get(each, ErrorCode.UNKNOWN_SERVER_ERROR) for each in partitions}
