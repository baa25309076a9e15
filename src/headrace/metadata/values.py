"""Values that metadata events and the metadata image share. Promises: frozen and comparable, with no behaviour beyond
reading themselves."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
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
from headrace.base.values import Value
from headrace.metadata.moves import Move

INTERNAL_TOPICS: Final = frozenset({"__consumer_offsets", "__transaction_state"})


class Engine(StrEnum):
    """The keeper of a cluster's partition logs, chosen at its birth."""

    LOCAL = "local"
    """Each replica has a log of its own, on its broker's disk."""
    REDIS = "redis"
    """One Redis has the only log of each partition, and every broker reaches it."""

    @property
    def shares_logs(self) -> bool:
        """Whether every broker reaches the log of every partition, so that any live broker may lead it."""
        return self is not Engine.LOCAL


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class Endpoint(Value):
    """The address that a broker advertises, not the one that it binds."""

    listener: str
    host: str
    port: int

    @property
    def address(self) -> Address:
        return Address(self.host, self.port)


def endpoint_at(endpoints: Iterable[Endpoint], listener: str) -> Endpoint | None:
    """The endpoint of that listener; None where there is none."""
    return next((endpoint for endpoint in endpoints if endpoint.listener == listener), None)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class PartitionImage(Value):
    """One partition as the cluster sees it.

    Invariants:
    - `isr` is a subset of `replicas`, in replica order, and never empty.
    - `leader` is a member of `isr` or NO_LEADER.
    - Both epochs only rise.
    - `adding` and `removing` are replicas, have no broker in common, and are not all of them.
    - With a `move` it has one replica: the source's before the seal, the target's after it.
    """

    index: PartitionIndex
    leader: BrokerId
    leader_epoch: LeaderEpoch
    partition_epoch: PartitionEpoch
    replicas: tuple[BrokerId, ...]
    isr: tuple[BrokerId, ...]
    kept_in: DirectoryId | None = None
    """The directory that alone holds all acknowledged records, after the last member of the ISR came back with another
    one. That member may lead again only with this directory."""
    adding: tuple[BrokerId, ...] = ()
    """Replicas that a reassignment adds, until all of them have been in sync (KIP-455)."""
    removing: tuple[BrokerId, ...] = ()
    """Replicas that are removed after that."""
    assignment_epoch: int = 0
    """The leader epoch that began with the last sealed hand-over or recovery; 0 before the first. A log stamped with
    another one was left behind by an earlier owner."""
    recovered_epoch: int = 0
    """The leader epoch that began when it was last recovered from durable history alone; 0: it never was. A log stamped
    with an earlier assignment may be the only one with some acknowledged records. It never wins, and is never
    deleted."""
    is_unclean: bool = False
    """Its leader was elected uncleanly in this epoch. Lost records are given up; a missing log begins behind durable
    history."""
    move: Move | None = None
    """Its hand-over to another broker, while one is under way."""

    @property
    def is_sealed(self) -> bool:
        """Whether it is handed over, and the target may not write yet."""
        return self.move is not None and self.move.state is not None

    @property
    def left_by(self) -> BrokerId | None:
        """The broker that sealed it, and keeps its log until the move is finished."""
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
        """Number of replicas, once a reassignment under way is done."""
        return len(self.replicas) - len(self.removing)

    @property
    def settled_replicas(self) -> int:
        """Number of replicas that it has whatever becomes of its reassignment. It is below the replication factor until
        the added ones are in sync."""
        return len(self.replicas) - max(len(self.adding), len(self.removing))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class QuorumRecovery(Value):
    """The last recovery of a lost quorum."""

    lineage: Lineage
    broker_id: BrokerId
    """The broker whose metadata the cluster continued with."""
    at_ms: int
    """Milliseconds since 1970."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class BrokerImage(Value):
    """One registered broker, in its latest incarnation."""

    id: BrokerId
    epoch: BrokerEpoch
    directory_id: DirectoryId
    endpoints: tuple[Endpoint, ...]
    rack: str | None
    fenced: bool
    incarnation: IncarnationId | None = None
    """The process that registered it last; None: an older version did."""
    level: int = 0
    """The highest feature level that its release knows, as far as it is known (`levels`)."""
    level_min: int = 0
    """The lowest one."""

    def endpoint(self, listener: str) -> Endpoint | None:
        """Its address on the listener of that name; None where it has no such listener."""
        return endpoint_at(self.endpoints, listener)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class TopicImage(Value):
    """One topic. Invariant: `partitions[i].index == i`."""

    name: str
    id: TopicId
    partitions: tuple[PartitionImage, ...]
    configs: immutables.Map[str, str]
    """The topic's own configs; the defaults are in `headrace.metadata.configs`."""
    desired_replicas: int = 0
    """Number of replicas that each partition gets as brokers join (`controller.growth`); 0: it keeps its number."""
    created_index: int = 0
    """The index of the entry that created it, where brokers share logs; otherwise 0. It orders topics of one name."""

    @property
    def replication_factor(self) -> int:
        """Replication factor of its first partition, and so of all that are not being reassigned."""
        return self.partitions[0].replication_factor

    @property
    def settled_replicas(self) -> int:
        """The fewest settled replicas of any partition. Looks at all of them."""
        return min((partition.settled_replicas for partition in self.partitions), default=0)

    @property
    def internal(self) -> bool:
        """Whether it is one of Kafka's internal topics, which clients hide by default."""
        return self.name in INTERNAL_TOPICS
