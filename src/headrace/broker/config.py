"""The settings that a broker is started with. They have Kafka's names where Kafka has them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final

from headrace.base.addresses import Address
from headrace.base.ids import BrokerId
from headrace.base.values import Value
from headrace.broker.inter_broker import security_between_brokers
from headrace.broker.listeners import (
    INTER_BROKER_PROTOCOL,
    LISTENERS,
    Listeners,
    check_closed,
    check_named,
    read_listeners,
)
from headrace.broker.own_principal import AUTHORIZER, SUPER_USERS, check_own_rights, super_users
from headrace.net.client.security.settings import ClientSecurity

if TYPE_CHECKING:
    from headrace.storage.log.journal.journal import JournalSettings
    from headrace.storage.redis.links.address import RedisAddress

FIRST_BROKER: Final = BrokerId(1)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class BrokerConfig(Value):
    """The data directory and the addresses of a broker, and its static configs (`metadata.config_table`).

    `host` to `advertised_port` are the short form of one listener PLAINTEXT. They do not count where the configs have
    `listeners`.
    """

    data: Path
    host: str = "127.0.0.1"
    """The address to bind. By default nothing listens beyond loopback."""
    port: int = 9092
    """0: any free port."""
    advertised_host: str | None = None
    """The host that clients are told; None: the bound host."""
    advertised_port: int | None = None
    broker_id: BrokerId = FIRST_BROKER
    join: tuple[Address, ...] = ()
    """Brokers of the cluster to join, tried in turn. With any, an empty directory never makes a cluster of its own."""
    redis: RedisAddress | None = None
    """The Redis that has the logs and the metadata; None: this broker's disk has them."""
    rack: str | None = None
    configs: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Secrets are among them."""
    read_again: Callable[[], Mapping[str, str]] | None = field(default=None, repr=False)
    """Reads the configs once more, where they are in files. Blocking. Raises UsageError. None: they are in none."""
    report_metadata: bool = False
    """Whether the image is logged at DEBUG, at intervals."""
    journal: JournalSettings | None = None
    """None: as log.journal.max.bytes says."""

    def check_addresses(self) -> None:
        """Raises UsageError where the listeners cannot be as their configs say. That includes a client that would be
        told an impossible address, and a stranger who could do everything, where nobody has accepted that."""
        check_named(self.listeners(), self.configs)
        check_closed(self.listeners(), self.configs)
        self.peer_security()
        super_users(self.configs.get(SUPER_USERS, ""))
        if self.join:
            self.check_own_rights()

    def check_own_rights(self) -> str | None:
        """Raises UsageError where an authorizer is set, and other brokers would refuse this one. Returns what is to be
        said where that cannot be known. A broker without others may be anybody."""
        if not self.configs.get(AUTHORIZER, "").strip():
            return None
        return check_own_rights(self.configs, self.listeners().of_brokers, self.peer_security(has_others=True))

    def listeners(self) -> Listeners:
        """Return the listeners. Raises UsageError."""
        advertised = None
        if self.advertised_host is not None or self.advertised_port is not None:
            advertised = Address(self.advertised_host or self.host, self.advertised_port or 0)
        return read_listeners(self.configs, bound=Address(self.host, self.port), advertised=advertised)

    def peer_security(self, *, has_others: bool = False) -> ClientSecurity:
        """Return how this broker opens connections to others. `has_others`: there are some, beside those of `join`.
        Raises UsageError."""
        listener = self.listeners().of_brokers
        return security_between_brokers(self.configs, listener, has_others=has_others or bool(self.join))

    @property
    def described(self) -> Mapping[str, str]:
        """The static configs as they are described: with the listener of the short form."""
        name = self.configs.get(INTER_BROKER_PROTOCOL, "PLAINTEXT")
        return {LISTENERS: f"{name}://{Address(self.host, self.port)}", **self.configs}

    @property
    def is_told_as_loopback(self) -> bool:
        """Whether brokers on other machines would be told a loopback address, and so connect to their own machine."""
        advertised = self.listeners().of_brokers.advertised
        assert advertised is not None, "the listener between brokers is advertised"
        return advertised.is_loopback and any(not other.is_loopback for other in self.join)
