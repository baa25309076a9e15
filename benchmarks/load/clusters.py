"""Three brokers that are measured as one: each on loopback, each a voter of the quorum and a host of partitions."""

from __future__ import annotations

import importlib.metadata
import signal
import subprocess
import sys
import threading
import weakref
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Final, Protocol

from benchmarks.load.kafka_peer import KafkaPeer
from benchmarks.load.rivals import Durability, Rival
from headrace.base.addresses import Address
from headrace.broker.home.nodes import Node, prepare
from headrace.broker.system import system_random
from headrace.storage.disk import LocalDisk

HEADRACE_CLUSTER: Final = "headrace-3"
HEADRACE_WITH_STORE: Final = "headrace-3-store"
KAFKA_CLUSTER: Final = "kafka-3"
START_TIMEOUT_S: Final = 60.0
STOP_TIMEOUT_S: Final = 30.0
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

    def terminate(self, node: int) -> None:
        """SIGTERM."""
        ...

    def await_end(self, node: int) -> None:
        """Until the process that was told to stop is gone."""
        ...

    def pause(self, node: int) -> None:
        """SIGSTOP."""
        ...

    def resume(self, node: int) -> None:
        """SIGCONT."""
        ...

    def restart(self, node: int) -> None:
        """Over what it left; on return it answers."""
        ...


class HeadraceCluster:
    """The processes of `headrace up --nodes 3`, with default settings; each is held here, to be killed."""

    def __init__(self, directory: Path, *, name: str = HEADRACE_CLUSTER, has_store: bool = False) -> None:
        directory.mkdir(parents=True)
        self.name: Final = name
        self.store = directory.resolve() / "store" if has_store else None
        """The directory where durable segments go; None: nothing is exported."""
        claim, nodes = prepare(LocalDisk(), directory, Address("127.0.0.1", 0), BROKERS, system_random())
        claim.directory.release()
        weakref.finalize(self, claim.ports.release)
        self._directory = directory
        self._nodes: dict[int, Node] = {int(node.id): node for node in nodes}
        self._running: dict[int, subprocess.Popen[str]] = {}

    @property
    def version(self) -> str:
        return importlib.metadata.version("headrace")

    @property
    def bootstrap(self) -> str:
        return ",".join(self.bootstraps.values())

    @property
    def bootstraps(self) -> Mapping[int, str]:
        return {node.id: str(node.listen) for node in self._nodes.values()}

    @property
    def pids(self) -> Sequence[int]:
        return [process.pid for process in self._running.values()]

    def topic_config(self, durability: Durability) -> Mapping[str, str]:
        return {"flush.policy": "fsync" if durability is Durability.FSYNC else "os"}

    def start(self) -> None:
        for node in self._nodes:
            self.launch(node)
        for node in self._nodes:
            self.await_ready(node)

    def stop(self) -> None:
        for process in self._running.values():
            process.terminate()
            try:
                process.wait(STOP_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self._running.clear()

    def kill(self, node: int) -> None:
        process = self._running.pop(node)
        process.kill()
        process.wait()

    def terminate(self, node: int) -> None:
        self._running[node].terminate()

    def await_end(self, node: int) -> None:
        self._running.pop(node).wait(STOP_TIMEOUT_S)

    def pause(self, node: int) -> None:
        self._running[node].send_signal(signal.SIGSTOP)

    def resume(self, node: int) -> None:
        self._running[node].send_signal(signal.SIGCONT)

    def restart(self, node: int) -> None:
        self.launch(node)
        self.await_ready(node)

    @property
    def running(self) -> Sequence[int]:
        """Nodes that were launched, and not ended."""
        return list(self._running)

    def pid(self, node: int) -> int:
        """Of the process that runs."""
        return self._running[node].pid

    def launch(self, node: int) -> None:
        """Start it, and wait for nothing."""
        known = self._nodes[node]
        others = ",".join(at for other, at in self.bootstraps.items() if other != node)
        command = [sys.executable, "-m", "headrace.cli.main", "broker", "--id", str(node), "--data", str(known.data)]
        command += ["--listen", str(known.listen), "--join", others]
        if self.store is not None:
            command += ["--durable", f"file://{self.store}"]
        with (self._directory / f"broker-{node}.log").open("ab") as log:
            self._running[node] = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )

    def await_ready(self, node: int, timeout_s: float = START_TIMEOUT_S) -> None:
        """Blocking, until it says that it is ready; it is killed where it does not within that time."""
        process = self._running[node]
        assert process.stdout is not None
        overdue = threading.Timer(timeout_s, process.kill)
        overdue.start()
        line = process.stdout.readline()
        overdue.cancel()
        if not line.startswith("ready "):
            log = self._directory / f"broker-{node}.log"
            raise AssertionError(f"broker {node} said {line!r}, not `ready HOST:PORT`:\n{log.read_text()[-3000:]}")


class KafkaCluster:
    """Three combined brokers and controllers (KRaft) with Kafka's default settings, but that deleted files go at
    once."""

    name: Final = KAFKA_CLUSTER

    def __init__(self, directory: Path) -> None:
        settings = (
            "log.segment.delete.delay.ms=100",
            f"offsets.topic.replication.factor={BROKERS}",
            f"transaction.state.log.replication.factor={BROKERS}",
            "transaction.state.log.min.isr=2",
        )
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

    def terminate(self, node: int) -> None:
        self._peers[node].send_signal(signal.SIGTERM)

    def await_end(self, node: int) -> None:
        self._peers[node].stop()

    def pause(self, node: int) -> None:
        self._peers[node].send_signal(signal.SIGSTOP)

    def resume(self, node: int) -> None:
        self._peers[node].send_signal(signal.SIGCONT)

    def restart(self, node: int) -> None:
        self._peers[node].start()


CLUSTERS: Final[Mapping[str, Callable[[Path], Rival]]] = {
    HEADRACE_CLUSTER: HeadraceCluster,
    HEADRACE_WITH_STORE: partial(HeadraceCluster, name=HEADRACE_WITH_STORE, has_store=True),
    KAFKA_CLUSTER: KafkaCluster,
}
