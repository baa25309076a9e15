"""Builds the room of transactions: the coordinator, the writer and the sender of markers, and the gate of produce.

The coordinator is there from the start, since this broker may lead partitions of its topic. The others are made, and
loaded, when a transaction first needs them. A broker that lasts has loaded them before (`broker.boot.load_ahead`).
"""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

from headrace.broker.transactions.service import TransactionService

if TYPE_CHECKING:
    from headrace.broker.cluster.building import Cluster
    from headrace.broker.core import Core
    from headrace.broker.groups.service import GroupService
    from headrace.broker.kit.lease import Lease
    from headrace.broker.partitions.partitions import Partitions
    from headrace.broker.transactions.gate import TransactionGate
    from headrace.broker.transactions.markers import MarkerSender
    from headrace.broker.transactions.marking import MarkerWriter
    from headrace.broker.transactions.shard import NewProducerId


class Transactions:
    """Transactions, as this broker takes part in them."""

    def __init__(
        self,
        core: Core,
        cluster: Cluster,
        partitions: Partitions,
        groups: GroupService,
        lease: Lease,
        *,
        new_producer_id: NewProducerId,
    ) -> None:
        """`new_producer_id` gives a producer id that nobody has."""
        self._core = core
        self._cluster = cluster
        self._partitions = partitions
        self._groups = groups
        self._lease = lease
        self.service = TransactionService(
            node=core.node,
            partitions=partitions,
            metadata=cluster.metadata,
            submit=cluster.control.submit,
            clock=core.clock,
            random=core.random,
            configs=core.config.configs,
            lease=lease,
            markers=lambda: self.sender,
            new_producer_id=new_producer_id,
            on_bug=core.on_bug,
        )

    @cached_property
    def writer(self) -> MarkerWriter:
        from headrace.broker.transactions.marking import MarkerWriter

        return MarkerWriter(image=self._core.image, partitions=self._partitions, groups=self._groups)

    @cached_property
    def sender(self) -> MarkerSender:
        from headrace.broker.transactions.markers import MarkerSender

        return MarkerSender(
            node=self._core.node,
            image=self._core.image,
            address_of=self._cluster.address_of,
            writer=self.writer,
            lease=self._lease,
            on_bug=self._core.on_bug,
            security=self._core.peer_security,
        )

    @cached_property
    def gate(self) -> TransactionGate:
        from headrace.broker.transactions.gate import TransactionGate

        return TransactionGate(
            node=self._core.node,
            service=self.service,
            groups=self._groups,
            address_of=self._cluster.address_of,
            verifies=lambda: self._core.text("transaction.partition.verification.enable") == "true",
            security=self._core.peer_security,
        )

    def begin_stop(self) -> None:
        """Accept nothing more."""
        self.service.begin_stop()

    async def stop(self) -> None:
        """End what is under way. Other brokers go on with decided transactions."""
        await self.service.stop()
        if "sender" in vars(self):
            await self.sender.stop()
        if "gate" in vars(self):
            await self.gate.stop()
