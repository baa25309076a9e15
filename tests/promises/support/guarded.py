"""A cluster of processes whose brokers let in nobody at the listener between them who does not log in over TLS.

Clients of the load have a plain listener of their own. The configs are one file, as an operator has it. It is read when
a broker starts, so brokers of different configs run side by side while they are restarted one after the other.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final

from headrace.base.addresses import Address
from headrace.base.properties import encode_properties
from tests.promises.support.records import Records
from tools.servers.broker_cluster import BrokerCluster
from tools.servers.server_process import port_held_for

HOST: Final = "127.0.0.1"
LISTENERS: Final = {
    "listener.security.protocol.map": "CLIENTS:PLAINTEXT,BROKERS:SASL_SSL",
    "inter.broker.listener.name": "BROKERS",
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
}


class GuardedCluster(BrokerCluster):
    """`address` and `bootstrap` are those of the clients' listener."""

    def __init__(self, directory: Path, count: int, *options: str) -> None:
        super().__init__(directory, count, *options)
        self._file = directory / "server.properties"
        self._clients = {broker: Address(HOST, port_held_for(self)) for broker in self.nodes}

    def configure(self, configs: Mapping[str, str]) -> None:
        """Brokers that start from now on have these."""
        self._file.write_text(encode_properties({**LISTENERS, **configs}))

    def address(self, broker: int) -> Address:
        return self._clients[broker]

    @property
    def bootstrap(self) -> str:
        return ",".join(map(str, self._clients.values()))

    def command(self, broker: int) -> list[str]:
        command = super().command(broker)
        at = command.index("--listen")
        listeners = f"listeners=CLIENTS://{self._clients[broker]},BROKERS://{self.nodes[broker].listen}"
        return [*command[:at], *command[at + 2 :], "--config-file", str(self._file), "--config", listeners]


async def restarted_in_turn(cluster: BrokerCluster, records: Records) -> None:
    """Every broker, one after the other, under load."""
    for broker in cluster.nodes:
        await records.acknowledged(1)
        assert await cluster.stop(broker) == [0]
        await records.acknowledged(1)
        await cluster.start(broker)
        await records.in_sync()
