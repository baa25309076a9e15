"""Builds the room of the replication: copies, their feeds, and the ISR."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any, TypeAlias

from headrace.base.values import Value
from headrace.broker.cluster.building import Cluster
from headrace.broker.core import Core
from headrace.broker.partitions.following import FollowerPartition
from headrace.broker.partitions.partitions import Partitions
from headrace.broker.replication.isr import IsrKeeper
from headrace.broker.replication.renewals import Renewals
from headrace.broker.replication.sessions import Followers
from headrace.broker.replication.sources import Copying, Me
from headrace.broker.replication.throttles import BrokerThrottle, Throttles
from headrace.storage.tier.beginnings import Beginning

ReadBeginning: TypeAlias = Callable[[FollowerPartition], Coroutine[Any, Any, Beginning | None]]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class Replication(Value):
    """The replication of this broker's partitions, as their leader and as a follower."""

    throttles: Throttles
    followers: Followers
    isr: IsrKeeper
    copying: Copying
    renewals: Renewals

    def start(self) -> None:
        self.isr.start()

    async def stop(self) -> None:
        await self.isr.stop()
        await self.renewals.stop()
        await self.copying.stop()


def build_replication(
    core: Core,
    cluster: Cluster,
    partitions: Partitions,
    beginning: ReadBeginning | None,
) -> Replication:
    """Build the room. `beginning`: see `Me`."""
    throttles = Throttles(node=core.node, configs=core.config.configs, image=core.image(), clock=core.clock)
    followers = Followers(
        cluster_id=core.cluster_id,
        node=core.node,
        partitions=partitions,
        image=core.image,
        clock=core.clock,
        throttle=throttles.leader,
        on_bug=core.on_bug,
    )
    copying = Copying(_me(core, cluster, throttles.follower, beginning))
    return Replication(
        throttles=throttles,
        followers=followers,
        isr=_isr_keeper(core, cluster, partitions, followers),
        copying=copying,
        renewals=Renewals(
            node=core.node,
            broker_epoch=core.broker_epoch,
            partitions=partitions,
            control=cluster.control,
            copy=copying.copy,
            on_bug=core.on_bug,
        ),
    )


def _me(core: Core, cluster: Cluster, throttle: BrokerThrottle, beginning: ReadBeginning | None) -> Me:
    return Me(
        cluster_id=core.cluster_id,
        node=core.node,
        broker_epoch=core.broker_epoch,
        address_of=cluster.address_of,
        throttle=throttle,
        on_dead=cluster.controller.on_peer_dead,
        on_bug=core.on_bug,
        beginning=beginning,
        security=core.peer_security,
    )


def _isr_keeper(core: Core, cluster: Cluster, partitions: Partitions, followers: Followers) -> IsrKeeper:
    return IsrKeeper(
        node=core.node,
        broker_epoch=core.broker_epoch,
        partitions=partitions,
        control=cluster.control,
        image=core.image,
        heard_at=followers.heard_at,
        clock=core.clock,
        lag_max_s=core.number("replica.lag.time.max.ms") / 1000,
        on_bug=core.on_bug,
    )
