"""All leaders from which this broker copies. A broker that copies nothing loads no more than this."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, NamedTuple

from headrace.base.addresses import Address
from headrace.base.ids import BrokerEpoch, BrokerId, ClusterId, TopicPartition
from headrace.broker.kit.tasks import OnBug
from headrace.broker.partitions.following import FollowerPartition
from headrace.broker.replication.throttles import BrokerThrottle
from headrace.net.client.security.settings import PLAIN, ClientSecurity
from headrace.storage.tier.beginnings import Beginning

if TYPE_CHECKING:
    from headrace.broker.replication.copying import Source


class Me(NamedTuple):
    """The copying broker, and the functions that copying needs."""

    cluster_id: ClusterId
    node: BrokerId
    broker_epoch: Callable[[], BrokerEpoch]
    address_of: Callable[[BrokerId], Address | None]
    """The address of a broker, where that is known."""
    throttle: BrokerThrottle
    """Limits the copying of partitions that are not in sync."""
    on_dead: Callable[[BrokerId], None]
    """Called with a leader whose process is plainly dead: its connection broke, and it refuses another one."""
    on_bug: OnBug
    beginning: Callable[[FollowerPartition], Coroutine[Any, Any, Beginning | None]] | None = None
    """Reads where an empty copy may begin, as durable history has the records before; None: there is no store."""
    security: ClientSecurity = PLAIN
    """Of connections to leaders."""


class Copying:
    """All sources of this broker."""

    def __init__(self, me: Me) -> None:
        self._me = me
        self._sources: dict[BrokerId, Source] = {}
        self._of: dict[TopicPartition, BrokerId] = {}
        self._stopped = False

    def copy(self, partition: FollowerPartition) -> None:
        """Copy the partition from its present leader, in its present epoch. Does nothing once stopped: then logs are
        about to be closed."""
        if self._stopped:
            return
        key = partition.topic_partition
        self.drop(key)
        source = self._sources.get(partition.leader)
        if source is None:
            from headrace.broker.replication.copying import Source

            source = self._sources[partition.leader] = Source(self._me, partition.leader)
        self._of[key] = partition.leader
        source.add(partition)

    def drop(self, key: TopicPartition) -> None:
        """Stop copying it."""
        leader = self._of.pop(key, None)
        if leader is not None:
            self._sources[leader].drop(key)

    async def stop(self) -> None:
        self._stopped = True
        self._of.clear()
        await asyncio.gather(*(source.stop() for source in self._sources.values()))
