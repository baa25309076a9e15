"""A cluster whose brokers are processes, so that a test can kill them, pause them, and cut the network between them.

`headrace.testing.cluster` is quicker, and its brokers stop cleanly. These die by SIGKILL and stand still by SIGSTOP.
They end with the test's process, however that ends.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from headrace.base.addresses import Address
from headrace.base.errors import HeadraceError, UsageError
from headrace.broker.home.nodes import Node, prepare
from headrace.broker.home.ports import HeldPorts
from headrace.storage.disk import LocalDisk
from headrace.testing.clients import Clients
from headrace.testing.relays import Relay, Relays
from headrace.testing.running import HOST, QUICK

START_SECONDS_MAX: Final = 120.0
STOP_SECONDS_MAX: Final = 120.0
LOG_BYTES_SHOWN: Final = 2_000
CLIENTS: Final = "CLIENTS"
BROKERS: Final = "BROKERS"
_LISTENERS: Final = {
    "listener.security.protocol.map": f"{CLIENTS}:PLAINTEXT,{BROKERS}:PLAINTEXT",
    "inter.broker.listener.name": BROKERS,
}


class ProcessCluster:
    """Brokers 1 to N, each a process, from `start` to `stop`. As a context manager it gives itself."""

    def __init__(self, brokers: int = 3, *, configs: Mapping[str, str] | None = None, data: Path | None = None) -> None:
        """`configs` and `data` as in `headrace.testing.cluster`. Clients come without login."""
        self._count = brokers
        self._configs = {**QUICK, **_LISTENERS, **(configs or {})}
        self._data = data
        self._nodes: dict[int, Node] = {}
        self._clients: dict[int, Address] = {}
        self._inside: dict[int, dict[str, Address]] = {}
        """Where each listener of a broker is behind its relay."""
        self._between: Relays | None = None
        self._for_clients: Relays | None = None
        self._running: dict[int, subprocess.Popen[bytes]] = {}
        self._paused: set[int] = set()
        self._over = ExitStack()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    @property
    def bootstrap(self) -> str:
        """`HOST:PORT,HOST:PORT,...` of all brokers, even dead ones: clients try one after the other."""
        return ",".join(str(address) for address in self._clients.values())

    @property
    def clients(self) -> Clients:
        """Settings for clients of others."""
        return Clients(bootstrap=self.bootstrap, login=None)

    @property
    def running(self) -> tuple[int, ...]:
        """The ids of the brokers that run; paused ones are among them."""
        return tuple(sorted(self._running))

    def log(self, broker: int) -> str:
        """Return what that broker has logged. Raises UsageError."""
        return self._log_file(self._known(broker)).read_text(errors="replace")

    # its life

    def start(self) -> None:
        """Start all, and wait until they serve. Raises HeadraceError where one cannot start."""
        try:
            self._prepare()
            self.start_brokers(*self._nodes)
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """End all brokers, cleanly where they run. Idempotent."""
        with suppress(HeadraceError):
            self.resume(*self._paused)
            self.mend()
            self.stop_brokers(*self.running)
        self.kill(*self.running)
        self._over.close()

    def _prepare(self) -> None:
        place = self._data
        if place is None:
            temporary = tempfile.TemporaryDirectory(prefix="headrace-test-", ignore_cleanup_errors=True)
            place = Path(self._over.enter_context(temporary))
        chance = random.SystemRandom()
        claim, nodes = prepare(LocalDisk(), place.resolve(), Address(HOST, 0), self._count, chance)
        self._over.callback(claim.release)
        ports = HeldPorts.free(HOST, 3 * self._count, chance)
        self._over.callback(ports.release)
        self._nodes = {int(node.id): node for node in nodes}
        numbers = iter(ports.numbers)
        for broker in self._nodes:
            self._clients[broker] = Address(HOST, next(numbers))
            self._inside[broker] = {name: Address(HOST, next(numbers)) for name in (CLIENTS, BROKERS)}
        between = {key: Relay(node.listen, self._inside[key][BROKERS]) for key, node in self._nodes.items()}
        clients = {key: Relay(at, self._inside[key][CLIENTS]) for key, at in self._clients.items()}
        self._between, self._for_clients = Relays(between, self._pid_of), Relays(clients, lambda _: None)
        for relays in self._all_relays:
            self._over.callback(relays.close)

    def _pid_of(self, broker: int) -> int | None:
        process = self._running.get(broker)
        return None if process is None else process.pid

    # its brokers

    def start_brokers(self, *brokers: int) -> None:
        """Start these together, by default all that do not run, and wait until they serve. Raises HeadraceError."""
        wanted = [self._known(each) for each in brokers or self._nodes if each not in self._running]
        for broker in wanted:
            for relays in self._all_relays:
                relays.open(broker)
            self._running[broker] = self._launch(self._nodes[broker])
        for broker in wanted:
            self._await_ready(broker)

    def stop_brokers(self, *brokers: int) -> None:
        """Stop these cleanly, one after the other (SIGTERM). Raises HeadraceError where one does not end."""
        for broker in map(self._known, brokers or self.running):
            if (process := self._running.get(broker)) is None:
                continue
            process.terminate()
            try:
                process.wait(STOP_SECONDS_MAX)
            except subprocess.TimeoutExpired:
                raise HeadraceError(f"Broker {broker} did not stop within {STOP_SECONDS_MAX:.0f} s.") from None
            self._gone(broker)

    def kill(self, *brokers: int) -> None:
        """Kill these (SIGKILL): nothing is flushed, and nobody is told."""
        for broker in map(self._known, brokers):
            if (process := self._running.get(broker)) is not None:
                process.kill()
                process.wait()
                self._gone(broker)

    def pause(self, *brokers: int) -> None:
        """Have these stand still (SIGSTOP): their connections stay open, and nothing is answered."""
        for broker in map(self._known, brokers):
            self._process(broker).send_signal(signal.SIGSTOP)
            self._paused.add(broker)

    def resume(self, *brokers: int) -> None:
        """Have these go on (SIGCONT); by default all that were paused."""
        for broker in [self._known(each) for each in brokers or self._paused]:
            self._process(broker).send_signal(signal.SIGCONT)
            self._paused.discard(broker)

    def cut(self, *brokers: int, clients: bool = True) -> None:
        """Cut these off from all other brokers, from each other, and from clients. Without `clients`, these still reach
        them. A client that knows no other broker then stays with one that can acknowledge nothing."""
        known = [self._known(each) for each in brokers]
        for relays in self._all_relays[: 2 if clients else 1]:
            relays.cut(*known)

    def mend(self, *brokers: int) -> None:
        """End the cut of these; by default all cuts."""
        known = [self._known(each) for each in brokers]
        for relays in self._all_relays:
            relays.mend(*known)

    def _gone(self, broker: int) -> None:
        process = self._running.pop(broker)
        self._paused.discard(broker)
        for end in (process.stdin, process.stdout):
            if end is not None:
                end.close()
        for relays in self._all_relays:
            relays.shut(broker)

    def _launch(self, node: Node) -> subprocess.Popen[bytes]:
        broker = int(node.id)
        configs = {
            **self._configs,
            "listeners": ",".join(f"{name}://{at}" for name, at in self._inside[broker].items()),
            "advertised.listeners": f"{CLIENTS}://{self._clients[broker]},{BROKERS}://{node.listen}",
        }
        others = ",".join(str(other.listen) for other in self._nodes.values() if other is not node)
        command = [sys.executable, "-m", "headrace.cli.main", "broker", "--id", str(broker), "--data", str(node.data)]
        command += ["--with-parent", *(["--join", others] if others else [])]
        command += [part for key, value in configs.items() for part in ("--config", f"{key}={value}")]
        with self._log_file(broker).open("ab") as log:
            return subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, env=dict(os.environ)
            )

    def _await_ready(self, broker: int) -> None:
        process = self._process(broker)
        assert process.stdout is not None
        overdue = threading.Timer(START_SECONDS_MAX, process.kill)
        overdue.start()
        line = process.stdout.readline()
        overdue.cancel()
        if not line.startswith(b"ready "):
            self.kill(broker)
            told = self.log(broker)[-LOG_BYTES_SHOWN:]
            raise HeadraceError(f"Broker {broker} did not serve. The end of its log says:\n{told}")

    def _log_file(self, broker: int) -> Path:
        return self._nodes[broker].data.parent / f"broker-{broker}.log"

    def _process(self, broker: int) -> subprocess.Popen[bytes]:
        if broker not in self._running:
            raise UsageError(f"Broker {broker} does not run.")
        return self._running[broker]

    def _known(self, broker: int) -> int:
        if broker not in self._nodes:
            raise UsageError(f"There is no broker {broker}: this cluster has 1 to {self._count}.")
        return broker

    @property
    def _all_relays(self) -> Sequence[Relays]:
        """Those between the brokers, then those of clients."""
        return [relays for relays in (self._between, self._for_clients) if relays is not None]
