"""The nouns that metadata events and the metadata image share. Promises: frozen, comparable, no behaviour of their own
beyond reading themselves."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import immutables

from headrace.base.addresses import Address
from headrace.base.ids import (
    BrokerEpoch,
    BrokerId,
    DirectoryId,
    IncarnationId,
    LeaderEpoch,
    Lineage,
    PartitionEpoch,
    PartitionIndex,
    TopicId,
)
from headrace.metadata.moves import Move

INTERNAL_TOPICS: Final = frozenset({"__consumer_offsets", "__transaction_state"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """Where a broker is reached: the address that it advertises, not the one that it binds."""

    listener: str
    host: str
    port: int

    @property
    def address(self) -> Address:
        return Address(self.host, self.port)


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionImage:
    """One partition as the cluster sees it.

    Invariants: `isr` is a subset of `replicas`, in replica order, and never empty; `leader` is a member of `isr` or
    NO_LEADER; both epochs only rise; `adding` and `removing` are replicas, and have no broker in common, nor all; where
    it has a `move` it has one replica: the source's before the seal, the target's after it.
    """

    index: PartitionIndex
    leader: BrokerId
    leader_epoch: LeaderEpoch
    partition_epoch: PartitionEpoch
    replicas: tuple[BrokerId, ...]
    isr: tuple[BrokerId, ...]
    kept_in: DirectoryId | None = None
    """The directory that alone holds what was acknowledged, once the last member of the ISR has come back with another
    one: only with it may that member lead again."""
    adding: tuple[BrokerId, ...] = ()
    """Replicas that a reassignment brings, and that have not all been in sync yet (KIP-455)."""
    removing: tuple[BrokerId, ...] = ()
    """Replicas that go once they are."""
    assignment_epoch: int = 0
    """The leader epoch that began with the last sealed hand-over, or recovery, 0 before the first: a log that is
    stamped with another one was left behind by an earlier owner."""
    recovered_epoch: int = 0
    """The leader epoch that began when it was last recovered from durable history alone, 0: it never was. A log that is
    stamped with an earlier assignment may hold what was acknowledged and is nowhere else: it never wins, and is never
    deleted."""
    is_unclean: bool = False
    """Its leader was elected uncleanly in this epoch: what is lost is given up, and where its log is not there, it goes
    on behind durable history."""
    move: Move | None = None
    """Its hand-over to another broker, while that is under way."""

    @property
    def is_sealed(self) -> bool:
        """Whether it is handed over, and the target may not write yet."""
        return self.move is not None and self.move.state is not None

    @property
    def left_by(self) -> BrokerId | None:
        """Who has sealed it, and keeps its log until the move is finished."""
        return self.move.source if self.move is not None and self.move.state is not None else None

    @property
    def is_recovered(self) -> bool:
        """Whether its assignment began with durable history alone, so that its first log begins behind that."""
        return 0 < self.recovered_epoch == self.assignment_epoch

    @property
    def is_reassigned(self) -> bool:
        """Whether a reassignment is under way."""
        return bool(self.adding or self.removing)

    @property
    def replication_factor(self) -> int:
        """How many replicas it has, or will have once it is reassigned."""
        return len(self.replicas) - len(self.removing)

    @property
    def settled_replicas(self) -> int:
        """How many replicas it has whatever becomes of its reassignment: fewer than its replication factor until those
        that are added are in sync."""
        return len(self.replicas) - max(len(self.adding), len(self.removing))


@dataclass(frozen=True, slots=True, kw_only=True)
class QuorumRecovery:
    """The last recovery of a quorum that was lost."""

    lineage: Lineage
    broker_id: BrokerId
    """Whose metadata the cluster went on with."""
    at_ms: int
    """Milliseconds since 1970."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerImage:
    """One registered broker, in its last incarnation."""

    id: BrokerId
    epoch: BrokerEpoch
    directory_id: DirectoryId
    endpoints: tuple[Endpoint, ...]
    rack: str | None
    fenced: bool
    incarnation: IncarnationId | None = None
    """The process that registered it last; None where an older version did."""

    def endpoint(self, listener: str) -> Endpoint | None:
        """Where it is reached by that listener's name; None where it has no such one."""
        return next((endpoint for endpoint in self.endpoints if endpoint.listener == listener), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicImage:
    """One topic. Invariant: `partitions[i].index == i`."""

    name: str
    id: TopicId
    partitions: tuple[PartitionImage, ...]
    configs: immutables.Map[str, str]
    """The topic's own; the defaults are in `headrace.metadata.configs`."""
    desired_replicas: int = 0
    """How many replicas each partition shall have, as brokers come (`controller.growth`); 0: as many as it has."""

    @property
    def replication_factor(self) -> int:
        """Of its first partition, and so of all but while they are reassigned."""
        return self.partitions[0].replication_factor

    @property
    def settled_replicas(self) -> int:
        """The fewest of any partition. Looks at them all."""
        return min((partition.settled_replicas for partition in self.partitions), default=0)

    @property
    def internal(self) -> bool:
        """Whether Kafka keeps it for itself (clients hide it by default)."""
        return self.name in INTERNAL_TOPICS
