"""A Headrace cluster of processes, each started through the command line, to be killed and started again one by one."""

from __future__ import annotations

import asyncio
import random
import signal
import socket
import weakref
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, Final, Self

from headrace.base.addresses import Address
from headrace.base.ids import BrokerId
from headrace.broker.home.nodes import Node, prepare
from headrace.storage.disk import LocalDisk
from tools import engine_under_test, warm
from tools.servers.server_process import port_held_for

READY_TIMEOUT_S: Final = 120.0
STOP_TIMEOUT_S: Final = 60.0
TELLS_S: Final = 1.0
"""In which a broker that did not start tells where it stands (tools/warm.py)."""


class Forked:
    """A forked process (tools/warm.py) with the methods of `asyncio.subprocess.Process` that a cluster needs."""

    def __init__(self, process: warm.WarmProcess, stdout: asyncio.StreamReader, reading: asyncio.StreamWriter) -> None:
        self.pid = process.pid
        self.stdout = stdout
        self._process = process
        self._reading = reading

    @classmethod
    async def start(cls, arguments: Sequence[str], log: IO[bytes]) -> Self:
        """Its standard output is a socket. Of a pipe's file, uvloop closes the descriptor twice, and by then it may be
        another thread's."""
        reads, writes = socket.socketpair()
        with writes:
            process = warm.WarmProcess(arguments, stdout=writes.fileno(), stderr=log)
        process.stdout.close()
        return cls(process, *await asyncio.open_connection(sock=reads))

    async def wait(self) -> int:
        code = await asyncio.shield(asyncio.wrap_future(self._process.ended))
        self._reading.close()
        return code

    def send_signal(self, number: int) -> None:
        self._process.send_signal(number)

    def terminate(self) -> None:
        self._process.terminate()

    def kill(self) -> None:
        self._process.kill()


class BrokerCluster:
    """`headrace broker` for each directory of a cluster that is born here. Standard error goes to `broker-N.log`.

    Use as an async context manager: whatever still runs is killed at the end.
    """

    def __init__(
        self,
        directory: Path,
        count: int,
        *options: str,
        racks: Mapping[int, str] | None = None,
        redis: str | None = None,
    ) -> None:
        """`redis`: the URL of the Redis that has the logs; None: each broker's disk has its own."""
        self.redis = redis
        self._directory = directory
        self._options = options
        self._racks = racks or {}
        self.nodes: dict[int, Node] = {int(node.id): node for node in self._born(count)}
        self._running: dict[int, asyncio.subprocess.Process | Forked] = {}

    def _born(self, count: int) -> list[Node]:
        shared = self.redis is not None or engine_under_test.is_redis()
        address = Address("127.0.0.1", 0)
        claim, nodes = prepare(LocalDisk(), self._directory, address, count, random.SystemRandom(), shared=shared)
        claim.directory.release()
        weakref.finalize(self, claim.ports.release)
        return nodes

    def add(self) -> int:
        """One more, that will join the others when it is started: its id."""
        broker = max(self.nodes) + 1
        address = Address("127.0.0.1", port_held_for(self))
        data = self._directory / f"broker-{broker}"
        self.nodes[broker] = Node(id=BrokerId(broker), data=data, listen=address)
        return broker

    def address(self, broker: int) -> Address:
        return self.nodes[broker].listen

    @property
    def bootstrap(self) -> str:
        return ",".join(str(node.listen) for node in self.nodes.values())

    async def start(self, *brokers: int) -> None:
        """Start them together, until all are ready."""
        for broker in brokers:
            self._running[broker] = await self._spawn(broker)
        await asyncio.gather(*(self._ready(broker) for broker in brokers))

    async def launch(self, broker: int) -> int:
        """The exit code of a broker that is started, and is expected to stop by itself before it is ready."""
        self._running[broker] = await self._spawn(broker)
        return await self.over(broker)

    def command(self, broker: int) -> list[str]:
        """The command that starts it."""
        node = self.nodes[broker]
        others = ",".join(str(other.listen) for other in self.nodes.values() if other is not node)
        command = [*warm.COMMAND, "broker", "--id", str(broker), "--data", str(node.data)]
        rack = ["--rack", self._racks[broker]] if broker in self._racks else []
        join = ["--join", others] if others else []
        if engine_under_test.is_redis():
            join = engine_under_test.options(node.data)
        elif self.redis is not None:
            join = ["--engine", "redis", "--redis", self.redis]
        return [*command, "--listen", str(node.listen), *join, *rack, *self._options]

    async def _spawn(self, broker: int) -> asyncio.subprocess.Process | Forked:
        command = self.command(broker)
        plain = len(warm.COMMAND)
        with self.log(broker).open("ab") as log:
            if warm.is_on() and tuple(command[:plain]) == warm.COMMAND:
                return await Forked.start(command[plain:], log)
            return await asyncio.create_subprocess_exec(
                *command, stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE, stderr=log
            )

    async def _ready(self, broker: int) -> None:
        process = self._running[broker]
        assert process.stdout is not None
        line = b"nothing in time"
        try:
            async with asyncio.timeout(READY_TIMEOUT_S):
                line = await process.stdout.readline()
        finally:
            if not line.startswith(b"ready ") and isinstance(process, Forked):
                process.send_signal(signal.SIGUSR1)
                await asyncio.sleep(TELLS_S)
            assert line.startswith(b"ready "), f"broker {broker} said {line!r}:\n{self.log(broker).read_text()[-3000:]}"

    def pid(self, broker: int) -> int | None:
        """Of its process, where it runs."""
        process = self._running.get(broker)
        return None if process is None else process.pid

    def log(self, broker: int) -> Path:
        return self._directory / f"broker-{broker}.log"

    async def kill(self, *brokers: int) -> None:
        """SIGKILL, all of them before any is waited for."""
        killed = [self._running.pop(broker) for broker in brokers]
        for process in killed:
            with suppress(ProcessLookupError):  # it has ended by itself
                process.kill()
        for process in killed:
            await process.wait()

    def pause(self, broker: int) -> None:
        """SIGSTOP: it does nothing more, and nobody is told."""
        self._running[broker].send_signal(signal.SIGSTOP)

    def resume(self, broker: int) -> None:
        """SIGCONT: it goes on as if nothing had been."""
        self._running[broker].send_signal(signal.SIGCONT)

    async def over(self, broker: int) -> int:
        """The exit code of a broker that stops by itself."""
        async with asyncio.timeout(STOP_TIMEOUT_S):
            code = await self._running[broker].wait()
        del self._running[broker]
        return code

    async def stop(self, *brokers: int) -> list[int]:
        """SIGTERM, one after the other; their exit codes."""
        codes = []
        for broker in brokers:
            process = self._running[broker]
            process.terminate()
            async with asyncio.timeout(STOP_TIMEOUT_S):
                codes.append(await process.wait())
            del self._running[broker]
        return codes

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.kill(*self._running)
