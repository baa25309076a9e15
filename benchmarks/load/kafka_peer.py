"""One Apache Kafka broker on loopback, to measure and to prove tests against.

`with KafkaPeer(directory) as peer:` formats a combined broker and controller (KRaft) on free ports, waits until it
answers, and stops it on leaving. `python -m benchmarks.load.kafka_peer --dir DIR` does the same until standard input
ends or SIGTERM comes. Everything it writes lies in the directory it is given; it never touches another Kafka.
"""

from __future__ import annotations

import argparse
import signal
import socket
import subprocess
import sys
import time
import weakref
from collections.abc import Sequence
from pathlib import Path
from random import SystemRandom
from types import TracebackType
from typing import Final, Self

from headrace.broker.home.ports import HeldPorts
from tools import kafka_jars

NAME: Final = "kafka"
START_TIMEOUT_S: Final = 90.0
STOP_TIMEOUT_S: Final = 30.0
CLUSTER_ID: Final = "aGVhZHJhY2UtcGVlci1rYQ"
"""Any base64 UUID; the peer's directory is its own, so one id serves."""


class PeerError(RuntimeError):
    """Kafka did not start; the text says where its log lies."""


class KafkaPeer:
    """A Kafka broker process with its default settings (page cache, no fsync) unless `settings` says otherwise."""

    def __init__(
        self, directory: Path, *, name: str = NAME, settings: Sequence[str] = (), heap: str = "1g", node: int = 1
    ) -> None:
        self.name: Final = name
        self.directory = directory.resolve()
        self.node = node
        self._settings = list(settings)
        self._java = ["java", f"-Xmx{heap}", f"-Xms{heap}", "-cp", kafka_jars.class_path()]
        self._process: subprocess.Popen[bytes] | None = None
        held = HeldPorts.free("127.0.0.1", 2, SystemRandom())
        weakref.finalize(self, held.release)
        self._port, self.controller_port = held.numbers
        self.quorum = {node: self.controller_port}
        """The nodes that are controllers, each with its port: before the start, the same for all."""

    @property
    def bootstrap(self) -> str:
        return f"127.0.0.1:{self._port}"

    @property
    def pid(self) -> int:
        assert self._process is not None, "the peer is started before it is asked for its pid"
        return self._process.pid

    @property
    def pids(self) -> list[int]:
        return [self.pid]

    @property
    def version(self) -> str:
        return kafka_jars.kafka_version()

    @property
    def data(self) -> Path:
        return self.directory / "data"

    def start(self) -> None:
        self.launch()
        self.wait_until_it_answers()

    def launch(self) -> None:
        """Start it, and do not wait: of several, a majority has to run before one answers."""
        self.directory.mkdir(parents=True, exist_ok=True)
        config = self.directory / "server.properties"
        config.write_text("\n".join(self._properties()) + "\n")
        if not (self.data / "meta.properties").exists():
            self._format(config)
        with (self.directory / "kafka.log").open("ab") as log:
            command = [*self._java, "kafka.Kafka", str(config)]
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=self.directory
            )

    def send_signal(self, number: int) -> None:
        """To the broker's process."""
        assert self._process is not None, "the peer is started"
        self._process.send_signal(number)

    def kill(self) -> None:
        """SIGKILL: nothing of the process runs afterwards."""
        assert self._process is not None, "the peer is started before it is killed"
        self._process.kill()
        self._process.wait()
        self._process = None

    def stop(self) -> None:
        if self._process is None:
            return
        self._process.terminate()
        try:
            self._process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.stop()

    def _properties(self) -> list[str]:
        return [
            "process.roles=broker,controller",
            f"node.id={self.node}",
            f"controller.quorum.voters={','.join(f'{node}@127.0.0.1:{port}' for node, port in self.quorum.items())}",
            f"listeners=PLAINTEXT://127.0.0.1:{self._port},CONTROLLER://127.0.0.1:{self.controller_port}",
            f"advertised.listeners=PLAINTEXT://127.0.0.1:{self._port}",
            "controller.listener.names=CONTROLLER",
            "listener.security.protocol.map=CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT",
            "inter.broker.listener.name=PLAINTEXT",
            f"log.dirs={self.data}",
            "offsets.topic.replication.factor=1",
            "transaction.state.log.replication.factor=1",
            "transaction.state.log.min.isr=1",
            "share.coordinator.state.topic.replication.factor=1",
            "share.coordinator.state.topic.min.isr=1",
            "group.initial.rebalance.delay.ms=0",
            *self._settings,
        ]

    def _format(self, config: Path) -> None:
        command = [*self._java, "kafka.tools.StorageTool", "format", "-t", CLUSTER_ID, "-c", str(config)]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def wait_until_it_answers(self) -> None:
        """Raises PeerError."""
        process = self._process
        assert process is not None, "launched"
        deadline = time.monotonic() + START_TIMEOUT_S
        while not _answers(self._port):
            if process.poll() is not None or time.monotonic() > deadline:
                self.stop()
                raise PeerError(f"Kafka did not start; its log is {self.directory / 'kafka.log'}.")
            time.sleep(0.05)


def _answers(port: int) -> bool:
    with socket.socket() as probe:
        probe.settimeout(0.2)
        return probe.connect_ex(("127.0.0.1", port)) == 0


def main() -> int:
    parser = argparse.ArgumentParser(description="Run one Apache Kafka broker on loopback.")
    parser.add_argument("--dir", type=Path, required=True, help="where its data and log go")
    parser.add_argument("--heap", default="1g")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="a broker setting")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    with KafkaPeer(options.dir, settings=options.set, heap=options.heap) as peer:
        print("ready", peer.bootstrap, peer.pid, flush=True)
        sys.stdin.read()
    return 0


if __name__ == "__main__":
    sys.exit(main())
