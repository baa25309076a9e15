"""The parts of a running broker: built room by room, started, and stopped in the reverse order of their start."""

from __future__ import annotations

import asyncio
import uuid
from dataclasses import dataclass

from headrace.base.ids import BrokerEpoch, IncarnationId
from headrace.base.ports import Clock, Disk, Objects, Random
from headrace.base.values import Value
from headrace.broker.cluster.building import build_cluster, build_membership
from headrace.broker.cluster.driver import MetadataDriver
from headrace.broker.cluster.membership import Membership
from headrace.broker.config import BrokerConfig
from headrace.broker.core import Core, Incarnation
from headrace.broker.durable.building import build_durable, build_store_readers
from headrace.broker.handlers import OFFERED
from headrace.broker.home.identity import Identity
from headrace.broker.kit.tasks import OnBug
from headrace.broker.metrics.building import Metrics, build_counts
from headrace.broker.moves.building import build_moves
from headrace.broker.partitions.building import Logs, build_logs
from headrace.broker.partitions.condition import Condition, Descriptors
from headrace.broker.partitions.intake.forwarding import Forwarder
from headrace.broker.partitions.partitions import Partitions
from headrace.broker.reactions import Reactions
from headrace.broker.replication.building import build_replication
from headrace.broker.requests.building import Others, Requests, build_quotas, build_requests
from headrace.broker.requests.private import Private, for_those_who_may
from headrace.broker.requests.quotas import ClientQuotas
from headrace.broker.traces import open_traces, spans_of
from headrace.broker.upkeep.building import build_upkeep
from headrace.metadata.access.acls import AclOperation
from headrace.metadata.delta import ImageDelta
from headrace.net.peer.peers import Peers
from headrace.storage.engine.engines import LogEngine
from headrace.storage.log.compaction.runners import CleaningRunner
from headrace.wire import own_apis


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class Ports(Value):
    """The world, as this broker reaches it."""

    clock: Clock
    random: Random
    disk: Disk
    objects: Objects | None
    """The durable store; None: nothing is exported."""
    cleaning: CleaningRunner | None
    """Runs the slow work of compaction; None: a worker thread does."""
    descriptors: Descriptors | None = None
    """Counts this process's file descriptors; None: nobody does."""


def core_of(config: BrokerConfig, ports: Ports, identity: Identity, metadata: MetadataDriver, on_bug: OnBug) -> Core:
    """Return what every room is built on."""
    incarnation = Incarnation(IncarnationId(uuid.UUID(int=ports.random.getrandbits(128), version=4)), BrokerEpoch(-1))
    return Core(
        config=config,
        identity=identity,
        incarnation=incarnation,
        clock=ports.clock,
        random=ports.random,
        disk=ports.disk,
        objects=ports.objects,
        inter_broker_listener=config.listeners().inter_broker,
        peer_security=config.peer_security(),
        image=lambda: metadata.image,
        on_bug=on_bug,
    )


class Parts:
    """See the module. Each room is built with the rooms that it needs, and is given no others later."""

    def __init__(self, core: Core, ports: Ports, *, metadata: MetadataDriver, peers: Peers, engine: LogEngine) -> None:
        self.core = core
        self.traces = open_traces(core.text("traces.endpoint"), core.node, core.cluster_id)
        self.metadata = metadata
        self.peers = peers
        self.partitions = Partitions(node=core.node, engine=engine, on_bug=core.on_bug)
        self.cluster = build_cluster(core, metadata, peers, settled=self.partitions.settled)
        self.control = self.cluster.control
        self.readers = readers = build_store_readers(core)
        beginning = None if readers is None else readers.frontiers.beginning
        self.replication = build_replication(core, self.cluster, self.partitions, beginning)
        self.upkeep = build_upkeep(core, self.partitions)
        address_of = self.cluster.address_of
        self.forwarder = Forwarder(
            node=core.node,
            image=core.image,
            address_of=address_of,
            on_bug=core.on_bug,
            security=core.peer_security,
        )
        self.counts = build_counts(core, OFFERED)
        self.logs = self._build_logs(engine)
        self.durable = build_durable(core, self.cluster, self.partitions, readers)
        self.moves = build_moves(core, self.cluster, self.logs, self.durable, spans_of(self.traces))
        self.condition = self._build_condition(engine, ports.descriptors)
        quotas = build_quotas(core)
        self.membership = self._build_membership(quotas)
        self.requests = self._build_requests(quotas)
        self.metrics = self._build_metrics()

    def _build_logs(self, engine: LogEngine) -> Logs:
        events = Reactions(
            forwarder=self.forwarder,
            replication=self.replication,
            upkeep=self.upkeep,
            led_before=None if self.counts is None else self.counts.led_before,
        )
        return build_logs(
            self.core,
            engine,
            self.partitions,
            events,
            frontiers=None if self.readers is None else self.readers.frontiers,
            on_waiting=self.replication.isr.leave_full,
        )

    def _build_condition(self, engine: LogEngine, descriptors: Descriptors | None) -> Condition:
        return Condition(
            partitions=self.partitions,
            room=self.logs.room,
            sources=(engine.states, self.upkeep.cleaner.states, self.durable.states),
            damaged=self.replication.renewals.ailments,
            heard=lambda: self.cluster.controller.heard,
            image=lambda: self.cluster.metadata.image,
            descriptors=descriptors,
            on_bug=self.core.on_bug,
        )

    def _build_membership(self, quotas: ClientQuotas) -> Membership:
        """Build the membership. It hands changes of the image on. Liveness comes first: a broker that is fenced now is
        not proposed for an ISR that it has just left."""
        subscribers = (
            self.replication.throttles.on_delta,
            quotas.on_delta,
            self.replication.followers.on_delta,
            self.forwarder.on_delta,
            self.logs.assignments.on_delta,
            self.upkeep.cleaner.on_delta,
        )

        def follow(delta: ImageDelta) -> None:
            for subscriber in subscribers:
                subscriber(delta)

        return build_membership(
            self.core,
            self.cluster,
            follow=follow,
            on_contact=self.partitions.on_contact,
            is_full=lambda: self.logs.room.is_short,
            states=lambda: self.condition.states,
        )

    def _build_requests(self, quotas: ClientQuotas) -> Requests:
        others = Others(
            cluster=self.cluster,
            partitions=self.partitions,
            replication=self.replication,
            forwarder=self.forwarder,
            quotas=quotas,
            history=None if self.readers is None else self.readers.history,
            lease=self.membership.lease,
            traces=self.traces,
        )
        private: dict[int, Private] = {
            own_apis.PEERS: for_those_who_may(AclOperation.CLUSTER_ACTION, self.peers.serve),
            own_apis.REPLICA_FETCH: for_those_who_may(AclOperation.CLUSTER_ACTION, self.replication.followers.serve),
            own_apis.AILMENTS: for_those_who_may(AclOperation.DESCRIBE, self.condition.serve),
            own_apis.DURABLE: lambda frame, _, rights: self.durable.api.serve(frame, rights),
            own_apis.MOVES: for_those_who_may(
                AclOperation.ALTER, lambda frame, connection: self.moves.door.serve(frame, connection)
            ),
        }
        return build_requests(
            self.core, others, OFFERED, private, None if self.counts is None else self.counts.counting
        )

    def _build_metrics(self) -> Metrics | None:
        if self.counts is None:
            return None
        return Metrics(self.core, self.cluster, self.membership, self.logs, self.requests, self.condition, self.counts)

    # life

    async def start(self) -> None:
        """Begin the background work, once everything is recovered and registered. `Cluster.start` comes before. A taken
        address of the metrics is told before any work begins."""
        if self.metrics is not None:
            await self.metrics.start()
        self.logs.start()
        self.condition.start()
        self.replication.start()
        self.upkeep.start()
        self.durable.start()
        self.moves.start()

    async def stop(self, *, clean: bool = True) -> None:
        """Hand leadership to others, then stop every room in the reverse order of the starts. The listener was bound
        before the background work began. Not clean: write nothing more (see `Assignments.stop`)."""
        if clean:
            await self.membership.leave()
        self.cluster.step_back()
        self.logs.begin_stop()
        if self.metrics is not None:
            await self.metrics.stop()
        await self.moves.stop()
        await self.durable.stop()
        await self.upkeep.stop()
        await self.requests.stop()
        await self.replication.stop()
        self.condition.stop()
        await self.logs.stop(clean=clean)
        if self.readers is not None:
            self.readers.stop()
        await self.cluster.stop()
        if self.traces is not None:
            await self.traces.stop()
        await asyncio.sleep(0)
