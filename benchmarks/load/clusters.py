"""Three brokers that are measured as one: each on loopback, each a voter of the quorum and a host of partitions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final, Protocol

from benchmarks.load.kafka_peer import KafkaPeer
from benchmarks.load.rivals import Durability, Rival

KAFKA_CLUSTER: Final = "kafka-3"
BROKERS: Final = 3


class Cluster(Rival, Protocol):
    """A rival of several brokers, by their ids."""

    @property
    def bootstraps(self) -> Mapping[int, str]:
        """HOST:PORT of each broker."""
        ...

    def kill(self, node: int) -> None:
        """SIGKILL."""
        ...

    def restart(self, node: int) -> None:
        """Over what it left; on return it answers."""
        ...


class KafkaCluster:
    """Three combined brokers and controllers (KRaft) with Kafka's default settings, but that deleted files go at
    once."""

    name: Final = KAFKA_CLUSTER

    def __init__(self, directory: Path) -> None:
        settings = ("log.segment.delete.delay.ms=100",)
        self._peers = {
            node: KafkaPeer(directory / str(node), settings=settings, node=node) for node in range(1, BROKERS + 1)
        }
        quorum = {node: peer.controller_port for node, peer in self._peers.items()}
        for peer in self._peers.values():
            peer.quorum = quorum

    @property
    def version(self) -> str:
        return self._peers[1].version

    @property
    def bootstrap(self) -> str:
        return ",".join(self.bootstraps.values())

    @property
    def bootstraps(self) -> Mapping[int, str]:
        return {node: peer.bootstrap for node, peer in self._peers.items()}

    @property
    def pids(self) -> Sequence[int]:
        return [peer.pid for peer in self._peers.values()]

    def topic_config(self, durability: Durability) -> Mapping[str, str]:
        return {"flush.messages": "1"} if durability is Durability.FSYNC else {}

    def start(self) -> None:
        for peer in self._peers.values():
            peer.launch()
        for peer in self._peers.values():
            peer.wait_until_it_answers()

    def stop(self) -> None:
        for peer in self._peers.values():
            peer.stop()

    def kill(self, node: int) -> None:
        self._peers[node].kill()

    def restart(self, node: int) -> None:
        self._peers[node].start()
