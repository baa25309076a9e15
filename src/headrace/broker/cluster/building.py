"""Builds the room of the cluster: the metadata, the way to the controller, and the controller's work on this broker.

The driver of the commit log is given: it recovers before anything else is built.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from headrace.base.addresses import Address
from headrace.base.ids import BrokerId
from headrace.base.values import Value
from headrace.broker.cluster.control import Control
from headrace.broker.cluster.controller_role import ControllerRole
from headrace.broker.cluster.controller_service import ControllerService
from headrace.broker.cluster.driver import MetadataDriver
from headrace.broker.cluster.elector import Elector
from headrace.broker.cluster.growing import Grower
from headrace.broker.cluster.membership import Membership
from headrace.broker.core import Core
from headrace.metadata.delta import ImageDelta
from headrace.net.peer.peers import Peers
from headrace.wire.ailments import State


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class Cluster(Value):
    """The cluster, as this broker takes part in it."""

    metadata: MetadataDriver
    peers: Peers
    controller: ControllerService
    role: ControllerRole
    control: Control

    def start(self) -> None:
        """Do the controller's work from now on, where this node is the controller."""
        self.role.start()

    def step_back(self) -> None:
        """Do none of the controller's work any more: the broker stops."""
        self.role.stop()

    async def stop(self) -> None:
        """Commit what was submitted, and close the commit log."""
        await self.control.stop()
        await self.metadata.stop()
        self.peers.stop()

    def address_of(self, broker: BrokerId) -> Address | None:
        """Return the address of a broker, where that is known."""
        return address_of(self.peers, broker)


def build_cluster(
    core: Core, metadata: MetadataDriver, peers: Peers, *, settled: Callable[[], Awaitable[None]]
) -> Cluster:
    """Build the room. `settled`: see `Control`."""
    controller = ControllerService(
        node=core.node,
        cluster_id=core.cluster_id,
        configs=core.config.configs,
        metadata=metadata,
        clock=core.clock,
        has_store=core.objects is not None,
        on_bug=core.on_bug,
    )
    peers.on_peer_dead(controller.on_peer_dead)
    elector = Elector(
        node=core.node,
        configs=core.config.configs,
        metadata=metadata,
        storeless=controller.storeless,
        on_bug=core.on_bug,
    )
    grower = Grower(metadata=metadata, on_bug=core.on_bug)
    return Cluster(
        metadata=metadata,
        peers=peers,
        controller=controller,
        role=ControllerRole(metadata, (controller, elector, grower)),
        control=Control(
            metadata=metadata,
            controller=controller,
            address_of=lambda broker: address_of(peers, broker),
            others=lambda: _others(core),
            settled=settled,
            security=core.peer_security,
        ),
    )


def build_membership(
    core: Core,
    cluster: Cluster,
    *,
    follow: Callable[[ImageDelta], None],
    on_contact: Callable[[bool], None],
    is_full: Callable[[], bool],
    states: Callable[[], Sequence[State]],
) -> Membership:
    """Build this broker's membership: once it registers, `follow` gets the image. See `Membership`."""
    return Membership(
        identity=core.identity,
        incarnation=core.incarnation,
        metadata=cluster.metadata,
        control=cluster.control,
        interval_s=core.number("broker.heartbeat.interval.ms") / 1000,
        session_s=core.number("broker.session.timeout.ms") / 1000,
        lag_max_s=core.number("replica.lag.time.max.ms") / 1000,
        on_contact=on_contact,
        follow=follow,
        is_full=is_full,
        states=states,
        now_ms=core.clock.now_ms,
        on_end=core.on_bug,
    )


def address_of(peers: Peers, broker: BrokerId) -> Address | None:
    """Return the address of a broker, where that is known."""
    known = peers.book.find(broker, 0)
    return None if known is None else Address(*known)


def _others(core: Core) -> list[Address]:
    """Return every known address of another broker, those to join first."""
    brokers = [broker for broker in core.image().brokers.values() if broker.id != core.node]
    registered = [broker.endpoint(core.inter_broker_listener) for broker in brokers]
    known = [*core.config.join, *(endpoint.address for endpoint in registered if endpoint is not None)]
    return list(dict.fromkeys(known))
