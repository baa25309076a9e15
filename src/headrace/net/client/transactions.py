"""Transactional ids over the wire: how they stand, and the end of an open transaction by an administrator (KIP-664).

Each request goes to the id's own coordinator, which is looked up again before each try.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from headrace.base.errors import HeadraceError
from headrace.base.ids import NO_LEADER, BrokerId
from headrace.net.client.cluster import Cluster
from headrace.net.client.connection import Connection
from headrace.net.client.errors import RefusedError, check
from headrace.net.client.groups import FIND_VERSION, TopicPartition
from headrace.net.client.retry import Backoff
from headrace.wire.apis import ApiKey
from headrace.wire.errors import ErrorCode

TRANSACTION_KEY: Final = 1
"""Of FindCoordinator."""
STATE_TOPIC: Final = "__transaction_state"
PARTITIONS_AT_A_TIME: Final = 20
"""Of one DescribeProducers request."""
LONGEST_MS: Final = 15 * 60_000
"""The default of `transaction.max.timeout.ms`, which no producer of such a broker exceeds."""
DURATION_VERSION: Final = 1
"""Of ListTransactions, from which on it takes a duration."""
PATTERN_VERSION: Final = 2
"""Of ListTransactions, from which on it takes a pattern."""
FENCING_TIMEOUT_MS: Final = 60_000
"""Of a producer that only ends what another one left open."""
ENDING: Final = Backoff()
"""An end that has begun is waited for, also by those who do not wait for a cluster that is away."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedTransaction:
    name: str
    """The transactional id."""
    state: str
    producer_id: int
    coordinator: BrokerId


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionView:
    name: str
    state: str
    producer_id: int
    producer_epoch: int
    timeout_ms: int
    started_ms: int
    """Wall time in milliseconds; -1: it has begun no transaction."""
    coordinator: BrokerId
    partitions: tuple[TopicPartition, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenTransaction:
    """One that a partition's leader has open, whatever the coordinator knows of it."""

    partition: TopicPartition
    leader: BrokerId
    producer_id: int
    producer_epoch: int
    coordinator_epoch: int
    """Of the coordinator that wrote the producer's last marker there; -1: there is none."""
    start_offset: int
    last_ms: int
    """The time of the producer's last batch there, in milliseconds of wall time."""

    @property
    def key(self) -> tuple[TopicPartition, int, int]:
        """Equal for two looks at one transaction."""
        return self.partition, self.producer_id, self.start_offset


class Transactions:
    """The transactional ids of one cluster. Keeps no state of its own."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    async def list_all(
        self, states: Collection[str] = (), pattern: str | None = None, *, longer_than_ms: int = -1, fresh: bool = True
    ) -> tuple[ListedTransaction, ...]:
        """All transactional ids of all brokers, by name. `states`, if any: only of those. `pattern`: a regular
        expression of the whole id (KIP-1152); `longer_than_ms`: only transactions that began longer ago (KIP-994). Both
        count where the brokers know of them, so the caller looks again. Not `fresh`: of the brokers that the last
        metadata told of."""
        from headrace.wire.messages import list_transactions as wire

        async def ask_one(broker: BrokerId) -> list[ListedTransaction]:
            connection = await self._cluster.broker_connection(broker)
            version = connection.version(ApiKey.LIST_TRANSACTIONS)
            request = wire.ListTransactionsRequest(
                state_filters=tuple(states),
                duration_filter=longer_than_ms if version >= DURATION_VERSION else -1,
                transactional_id_pattern=pattern if version >= PATTERN_VERSION else None,
            )
            response = await self._request(connection, ApiKey.LIST_TRANSACTIONS, request)
            check(response.error_code, f"Broker {broker}")
            return [
                ListedTransaction(
                    name=each.transactional_id,
                    state=each.transaction_state,
                    producer_id=each.producer_id,
                    coordinator=broker,
                )
                for each in response.transaction_states
            ]

        async def ask() -> tuple[ListedTransaction, ...]:
            brokers = self._cluster.known_brokers
            if fresh or not brokers:
                brokers = (await self._cluster.metadata(())).brokers
            answers = await asyncio.gather(*(ask_one(broker) for broker in brokers))
            return tuple(sorted((each for answer in answers for each in answer), key=lambda each: each.name))

        return await self._cluster.retried(ask)

    async def describe(self, name: str) -> TransactionView | None:
        """How a transactional id stands; None where nobody has it."""
        from headrace.wire.messages import describe_transactions as wire

        async def ask() -> TransactionView | None:
            connection, coordinator = await self.coordinator(name)
            request = wire.DescribeTransactionsRequest(transactional_ids=(name,))
            (found,) = (await self._request(connection, ApiKey.DESCRIBE_TRANSACTIONS, request)).transaction_states
            if found.error_code == ErrorCode.TRANSACTIONAL_ID_NOT_FOUND:
                return None
            check(found.error_code, f"Transactional id '{name}'")
            return TransactionView(
                name=name,
                state=found.transaction_state,
                producer_id=found.producer_id,
                producer_epoch=found.producer_epoch,
                timeout_ms=found.transaction_timeout_ms,
                started_ms=found.transaction_start_time_ms,
                coordinator=coordinator,
                partitions=tuple(
                    TopicPartition(topic.topic, index) for topic in found.topics for index in sorted(topic.partitions)
                ),
            )

        return await self._cluster.retried(ask)

    async def end(self, name: str) -> None:
        """Fence the producer of this id, which aborts its open transaction. Returns once that is done."""
        from headrace.wire.messages import init_producer_id as wire

        async def ask() -> int:
            connection, _ = await self.coordinator(name)
            request = wire.InitProducerIdRequest(transactional_id=name, transaction_timeout_ms=FENCING_TIMEOUT_MS)
            response = await self._request(connection, ApiKey.INIT_PRODUCER_ID, request)
            if response.error_code != ErrorCode.CONCURRENT_TRANSACTIONS:
                check(response.error_code, f"Transactional id '{name}'")
            return int(response.error_code)

        failures = 1
        while (found := await self._cluster.retried(ask)) != ErrorCode.NONE and failures < ENDING.attempts_max:
            await asyncio.sleep(ENDING.pause_s(failures))
            failures += 1
        check(found, f"Transactional id '{name}'")

    async def open_in(
        self,
        topics: Collection[str] | None = None,
        broker: BrokerId | None = None,
        partitions: Collection[int] | None = None,
    ) -> tuple[OpenTransaction, ...]:
        """The open transactions of all partitions, as their leaders know them, by partition and offset. `topics` None:
        of all topics. `broker`: only of those that it leads. `partitions`: only of these in each topic. Partitions
        without a leader are left out."""

        async def ask() -> tuple[OpenTransaction, ...]:
            view = await self._cluster.metadata(topics)
            led: dict[BrokerId, list[TopicPartition]] = {}
            for name, topic in view.topics.items():
                check(topic.error_code, f"Topic '{name}'")
                for partition in topic.partitions:
                    is_asked = partitions is None or partition.index in partitions
                    if is_asked and partition.leader != NO_LEADER and broker in (None, partition.leader):
                        led.setdefault(partition.leader, []).append(TopicPartition(name, partition.index))
            answers = await asyncio.gather(*(self._open_at(leader, asked) for leader, asked in led.items()))
            found = [each for answer in answers for each in answer]
            return tuple(sorted(found, key=lambda each: (*each.partition, each.start_offset)))

        return await self._cluster.retried(ask)

    async def _open_at(self, leader: BrokerId, led: Sequence[TopicPartition]) -> list[OpenTransaction]:
        """Ask for a few partitions at a time, for each may tell of thousands of producers."""
        from headrace.wire.messages import describe_producers as wire

        connection = await self._cluster.broker_connection(leader)
        found: list[OpenTransaction] = []
        for first in range(0, len(led), PARTITIONS_AT_A_TIME):
            asked: dict[str, list[int]] = {}
            for each in led[first : first + PARTITIONS_AT_A_TIME]:
                asked.setdefault(each.topic, []).append(each.partition)
            topics = tuple(wire.TopicRequest(name, tuple(indexes)) for name, indexes in asked.items())
            request = wire.DescribeProducersRequest(topics=topics)
            found += _open(leader, await self._request(connection, ApiKey.DESCRIBE_PRODUCERS, request))
        return found

    async def hanging(self, found: Iterable[OpenTransaction]) -> tuple[OpenTransaction, ...]:
        """Those that no coordinator will end: it has no such producer, or a transaction without that partition.

        One that ends meanwhile, or whose coordinator changes, is not among them. Raises HeadraceError where some
        coordinators are missing, for then nobody can tell.
        """
        left = await self._unknown(found)
        if not left:
            return ()
        now = await self.open_in({each.partition.topic for each in left})
        still_open = {each.key for each in now}
        return await self._unknown(each for each in left if each.key in still_open)

    async def _unknown(self, found: Iterable[OpenTransaction]) -> tuple[OpenTransaction, ...]:
        """Those that no coordinator knows now."""
        found = tuple(found)
        if not found:
            return ()
        state = (await self._cluster.metadata([STATE_TOPIC])).topics[STATE_TOPIC]
        missing = [each.index for each in state.partitions if each.leader == NO_LEADER]
        if missing:
            raise HeadraceError(
                f"Partition {missing[0]} of {STATE_TOPIC} has no leader, so nobody can tell which transactions hang: "
                "start its brokers first."
            )
        names = {each.producer_id: each.name for each in await self.list_all()}
        views: dict[int, TransactionView | None] = {}
        for producer_id in {each.producer_id for each in found} & set(names):
            views[producer_id] = await self.describe(names[producer_id])
        return tuple(each for each in found if not _is_known(each, views.get(each.producer_id)))

    async def abort_at(self, one: OpenTransaction) -> None:
        """Have the partition's leader write the marker that aborts this transaction, without the coordinator. It has to
        hang: where a coordinator still ended it, its other partitions might be committed."""
        from headrace.wire.messages import write_txn_markers as wire

        async def ask() -> None:
            connection = await self._cluster.broker_connection(one.leader)
            marker = wire.WritableTxnMarker(
                producer_id=one.producer_id,
                producer_epoch=one.producer_epoch,
                transaction_result=False,
                topics=(wire.WritableTxnMarkerTopic(one.partition.topic, (one.partition.partition,)),),
                coordinator_epoch=max(one.coordinator_epoch, 0),
            )
            response = await self._request(
                connection, ApiKey.WRITE_TXN_MARKERS, wire.WriteTxnMarkersRequest(markers=(marker,))
            )
            for answer in response.markers[0].topics:
                check(answer.partitions[0].error_code, f"Partition {one.partition.partition} of '{answer.name}'")

        await self._cluster.retried(ask)

    async def coordinator(self, name: str) -> tuple[Connection, BrokerId]:
        """The broker that coordinates this id now, and a connection to it. Raises ClientError."""
        from headrace.wire.messages import find_coordinator as wire

        request = wire.FindCoordinatorRequest(key_type=TRANSACTION_KEY, coordinator_keys=(name,))
        response = await self._cluster.ask_any(ApiKey.FIND_COORDINATOR, request, version=FIND_VERSION)
        (found,) = response.coordinators
        check(found.error_code, f"Transactional id '{name}'", found.error_message)
        broker = BrokerId(found.node_id)
        if not self._cluster.is_known(broker) and broker not in (await self._cluster.metadata(())).brokers:
            raise RefusedError(ErrorCode.COORDINATOR_NOT_AVAILABLE, f"Transactional id '{name}'")
        return await self._cluster.broker_connection(broker), broker

    async def _request(self, connection: Connection, key: ApiKey, message: object) -> Any:
        return await connection.request(key, message, timeout_ms=self._cluster.request_timeout_ms)


def _is_known(one: OpenTransaction, view: TransactionView | None) -> bool:
    """Whether the coordinator will end it."""
    return view is not None and view.producer_id == one.producer_id and one.partition in view.partitions


def _open(leader: BrokerId, response: Any) -> list[OpenTransaction]:
    """The open transactions of a DescribeProducersResponse. Raises RefusedError."""
    found = []
    for topic in response.topics:
        for partition in topic.partitions:
            named = TopicPartition(topic.name, partition.partition_index)
            check(partition.error_code, f"Partition {named.partition} of '{named.topic}'")
            found += [
                OpenTransaction(
                    partition=named,
                    leader=leader,
                    producer_id=each.producer_id,
                    producer_epoch=each.producer_epoch,
                    coordinator_epoch=each.coordinator_epoch,
                    start_offset=each.current_txn_start_offset,
                    last_ms=each.last_timestamp,
                )
                for each in partition.active_producers
                if each.current_txn_start_offset >= 0
            ]
    return found
