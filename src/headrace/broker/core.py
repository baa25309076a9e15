"""The base of every room of a broker: its configs, its identity, and the ports to the world."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from headrace.base.ids import BrokerEpoch, BrokerId, ClusterId, IncarnationId
from headrace.base.ports import Clock, Disk, Objects, Random
from headrace.base.values import Value
from headrace.broker.config import BrokerConfig
from headrace.broker.home.identity import Identity
from headrace.broker.kit.tasks import OnBug
from headrace.metadata.configs import ConfigValue, broker_value
from headrace.metadata.image import MetadataImage
from headrace.net.client.security.settings import ClientSecurity


@dataclass(slots=True)
class Incarnation:
    """This process, as a broker of its cluster."""

    id: IncarnationId
    epoch: BrokerEpoch
    """The broker epoch; -1 until this process has replayed its own registration."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class Core(Value):
    """See the module. One per broker."""

    config: BrokerConfig
    identity: Identity
    incarnation: Incarnation
    clock: Clock
    random: Random
    disk: Disk
    objects: Objects | None
    """The durable store; None: nothing is exported."""
    inter_broker_listener: str
    """The name of the listener by which brokers reach each other."""
    peer_security: ClientSecurity
    """Its steps before it asks another broker."""
    image: Callable[[], MetadataImage]
    """Returns the committed image."""
    on_bug: OnBug
    """Stops the broker, for a bug has shown itself."""

    @property
    def node(self) -> BrokerId:
        return self.config.broker_id

    @property
    def cluster_id(self) -> ClusterId:
        return self.identity.cluster_id

    def broker_epoch(self) -> BrokerEpoch:
        """Return the broker epoch of this process; -1: it is not registered yet."""
        return self.incarnation.epoch

    def number(self, key: str) -> int:
        """Return a number among the broker configs, as it is now."""
        return self._value(key).number()

    def text(self, key: str) -> str:
        """Return a text among the broker configs, as it is now."""
        return self._value(key).text()

    def flag(self, key: str) -> bool:
        """Return whether a broker config is on, as it is now."""
        return self._value(key).boolean()

    def _value(self, key: str) -> ConfigValue:
        return broker_value(self.image(), self.config.configs, key, node=self.node)
