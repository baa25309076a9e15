"""Builds the room of transactions: the coordinator, the writer and the sender of markers, and the gate of produce."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from headrace.broker.transactions.gate import TransactionGate
from headrace.broker.transactions.markers import MarkerSender
from headrace.broker.transactions.marking import MarkerWriter
from headrace.broker.transactions.service import TransactionService

if TYPE_CHECKING:
    from headrace.broker.cluster.building import Cluster
    from headrace.broker.core import Core
    from headrace.broker.groups.service import GroupService
    from headrace.broker.kit.lease import Lease
    from headrace.broker.partitions.partitions import Partitions
    from headrace.broker.transactions.shard import NewProducerId


@dataclass(frozen=True, slots=True, kw_only=True)
class Transactions:
    """Transactions, as this broker takes part in them."""

    service: TransactionService
    writer: MarkerWriter
    gate: TransactionGate
    sender: MarkerSender

    def begin_stop(self) -> None:
        """Accept nothing more."""
        self.service.begin_stop()

    async def stop(self) -> None:
        """End what is under way. Other brokers go on with decided transactions."""
        await self.service.stop()
        await self.sender.stop()
        await self.gate.stop()


def build_transactions(
    core: Core,
    cluster: Cluster,
    partitions: Partitions,
    groups: GroupService,
    lease: Lease,
    *,
    new_producer_id: NewProducerId,
) -> Transactions:
    """Build the room. `new_producer_id` gives a producer id that nobody has."""
    writer = MarkerWriter(image=core.image, partitions=partitions, groups=groups)
    sender = MarkerSender(
        node=core.node,
        image=core.image,
        address_of=cluster.address_of,
        writer=writer,
        lease=lease,
        on_bug=core.on_bug,
        security=core.peer_security,
    )
    service = TransactionService(
        node=core.node,
        partitions=partitions,
        metadata=cluster.metadata,
        submit=cluster.control.submit,
        clock=core.clock,
        random=core.random,
        configs=core.config.configs,
        lease=lease,
        markers=sender,
        new_producer_id=new_producer_id,
        on_bug=core.on_bug,
    )
    gate = TransactionGate(
        node=core.node,
        service=service,
        groups=groups,
        address_of=cluster.address_of,
        verifies=lambda: core.text("transaction.partition.verification.enable") == "true",
        security=core.peer_security,
    )
    return Transactions(service=service, writer=writer, gate=gate, sender=sender)
