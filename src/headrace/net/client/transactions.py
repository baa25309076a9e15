"""Transactional ids over the wire: how they stand, and the end of an open transaction by an administrator (KIP-664).

Each request goes to the id's own coordinator, which is looked up again before each try.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any, Final

from headrace.base.ids import BrokerId
from headrace.net.client.cluster import Cluster
from headrace.net.client.connection import Connection
from headrace.net.client.errors import RefusedError, check
from headrace.net.client.groups import FIND_VERSION, TopicPartition
from headrace.wire.apis import ApiKey
from headrace.wire.errors import ErrorCode

TRANSACTION_KEY: Final = 1
"""Of FindCoordinator."""
FENCING_TIMEOUT_MS: Final = 60_000
"""Of a producer that only ends what another one left open."""


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


class Transactions:
    """The transactional ids of one cluster. Keeps no state of its own."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    async def list_all(self) -> tuple[ListedTransaction, ...]:
        """All transactional ids of all brokers, by name."""
        from headrace.wire.messages import list_transactions as wire

        async def ask_one(broker: BrokerId) -> list[ListedTransaction]:
            connection = await self._cluster.broker_connection(broker)
            response = await self._request(connection, ApiKey.LIST_TRANSACTIONS, wire.ListTransactionsRequest())
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
            view = await self._cluster.metadata(())
            answers = await asyncio.gather(*(ask_one(broker) for broker in view.brokers))
            return tuple(sorted((each for answer in answers for each in answer), key=lambda each: each.name))

        return await self._cluster.retried(ask)

    async def describe(self, name: str) -> TransactionView | None:
        """How a transactional id stands; None where nobody has it."""
        from headrace.wire.messages import describe_transactions as wire

        async def ask() -> TransactionView | None:
            connection, coordinator = await self._coordinator(name)
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

        async def ask() -> None:
            connection, _ = await self._coordinator(name)
            request = wire.InitProducerIdRequest(transactional_id=name, transaction_timeout_ms=FENCING_TIMEOUT_MS)
            response = await self._request(connection, ApiKey.INIT_PRODUCER_ID, request)
            check(response.error_code, f"Transactional id '{name}'")

        await self._cluster.retried(ask)

    async def _coordinator(self, name: str) -> tuple[Connection, BrokerId]:
        from headrace.wire.messages import find_coordinator as wire

        request = wire.FindCoordinatorRequest(key_type=TRANSACTION_KEY, coordinator_keys=(name,))
        response = await self._cluster.ask_any(ApiKey.FIND_COORDINATOR, request, version=FIND_VERSION)
        (found,) = response.coordinators
        check(found.error_code, f"Transactional id '{name}'", found.error_message)
        broker = BrokerId(found.node_id)
        if broker not in (await self._cluster.metadata(())).brokers:
            raise RefusedError(ErrorCode.COORDINATOR_NOT_AVAILABLE, f"Transactional id '{name}'")
        return await self._cluster.broker_connection(broker), broker

    async def _request(self, connection: Connection, key: ApiKey, message: object) -> Any:
        return await connection.request(key, message, timeout_ms=self._cluster.request_timeout_ms)
