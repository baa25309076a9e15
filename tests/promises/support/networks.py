"""Networks between real broker processes, in which each direction between two brokers can be cut.

Data into a cut is lost silently, as when a switch has died, until the cut is healed. Clients reach every broker, save
where a test cuts them off (CLIENTS). `Namespaces` has a network namespace for each broker and a bridge between them, so
the kernel's own TCP meets the cut. It needs root and the command `ip`. `Proxies` stands between the brokers on
loopback, and needs nothing. It holds back data in a cut direction, and identifies a client by the owner of its socket.
"""

from __future__ import annotations

import asyncio
import os
import random
import secrets
import subprocess
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Final, Self

from headrace.base.addresses import Address
from headrace.base.ids import BrokerId
from headrace.broker.home import identity
from headrace.broker.home.nodes import Node
from headrace.broker.home.ports import HeldPorts
from headrace.broker.system import system_random
from headrace.storage.disk import LocalDisk
from tools.servers.broker_cluster import BrokerCluster

CLIENTS: Final = 0
"""All processes that are no brokers, as an end of a direction."""
NOWHERE: Final = "02:00:00:00:00:01"
"""A hardware address that nobody has: what is sent there is lost."""


class Network(ABC):
    """Of some brokers. An async context manager; the brokers are to be gone before it ends."""

    def __init__(self, brokers: Sequence[int]) -> None:
        self.brokers = tuple(brokers)
        held = HeldPorts.free("127.0.0.1", len(brokers), random.Random())
        weakref.finalize(self, held.release)
        self.listens = {broker: Address("127.0.0.1", port) for broker, port in zip(brokers, held.numbers, strict=True)}
        """Where each broker is told to listen."""
        self.addresses = dict(self.listens)
        """Where each is reached by the others."""
        self.pid: Callable[[int], int | None] = lambda _: None
        """Of a broker's process."""

    def prefix(self, _: int) -> list[str]:
        """The start of a broker's command."""
        return []

    @abstractmethod
    async def cut(self, source: int, target: int) -> None:
        """Nothing that `source` sends reaches `target` any more. One of them may be CLIENTS."""

    async def isolate(self, broker: int) -> None:
        for other in self.brokers:
            if other != broker:
                await self.cut(broker, other)
                await self.cut(other, broker)

    @abstractmethod
    async def heal(self) -> None:
        """All is as it was."""

    @abstractmethod
    async def __aenter__(self) -> Self: ...

    @abstractmethod
    async def __aexit__(self, *_: object) -> None: ...


class Cluster(BrokerCluster):
    """Brokers that are born on such a network."""

    def __init__(self, directory: Path, network: Network, *options: str) -> None:
        self._network = network
        network.pid = self.pid
        super().__init__(directory, len(network.brokers), *options)

    def _born(self, count: int) -> list[Node]:
        addresses = {BrokerId(broker): (at.host, at.port) for broker, at in self._network.addresses.items()}
        nodes = []
        for made in identity.born(system_random(), addresses):
            data = self._directory / f"broker-{made.broker_id}"
            data.mkdir()
            identity.write(LocalDisk(), data, made)
            nodes.append(Node(id=made.broker_id, data=data, listen=self._network.addresses[made.broker_id]))
        assert len(nodes) == count
        return nodes

    def address(self, broker: int) -> Address:
        """Where clients reach it."""
        return self._network.listens[broker]

    def command(self, broker: int) -> list[str]:
        listen, advertised = self._network.listens[broker], self._network.addresses[broker]
        command = [str(listen) if part == str(advertised) else part for part in super().command(broker)]
        return [*self._network.prefix(broker), *command, "--advertise", str(advertised), "--insecure"]


class Namespaces(Network):
    def __init__(self, brokers: Sequence[int]) -> None:
        super().__init__(brokers)
        self._tag = f"hr{secrets.token_hex(3)}"
        subnet = f"198.18.{secrets.randbelow(256)}"  # for trials of networks (RFC 2544)
        self._here = f"{subnet}.254/24"
        self.listens = {broker: Address(f"{subnet}.{broker}", at.port) for broker, at in self.listens.items()}
        self.addresses = dict(self.listens)
        self._cut: set[tuple[int, int]] = set()

    @staticmethod
    def are_permitted() -> bool:
        name = f"hr{secrets.token_hex(3)}"
        try:
            _ip(f"netns add {name}")
            try:
                _ip(f"-n {name} link add name bridge type bridge")
                _ip(f"netns exec {name} true")
            finally:
                _ip(f"netns del {name}")
        except (OSError, subprocess.CalledProcessError):
            return False
        return True

    def prefix(self, broker: int) -> list[str]:
        return ["ip", "netns", "exec", self._name(broker)]

    def _name(self, broker: int) -> str:
        return f"{self._tag}-{broker}"

    async def cut(self, source: int, target: int) -> None:
        self._cut.add((source, target))
        _ip(self._neighbour("replace", source, target, f"lladdr {NOWHERE} nud permanent"))

    async def heal(self) -> None:
        for source, target in self._cut:
            _ip(self._neighbour("del", source, target))
        self._cut.clear()

    def _neighbour(self, change: str, source: int, target: int, more: str = "") -> str:
        host = self._here.partition("/")[0] if target == CLIENTS else self.listens[target].host
        place, device = ("", self._tag) if source == CLIENTS else (f"-n {self._name(source)} ", "eth0")
        return f"{place}neigh {change} {host} dev {device} {more}"

    async def __aenter__(self) -> Self:
        hub = f"{self._tag}-hub"
        _ip(f"netns add {hub}")
        _ip(f"-n {hub} link add name bridge type bridge")
        _ip(f"-n {hub} link set bridge up")
        for broker in self.brokers:
            name = self._name(broker)
            _ip(f"netns add {name}")
            _ip(f"link add name to{broker} netns {hub} type veth peer name eth0 netns {name}")
            _ip(f"-n {hub} link set to{broker} master bridge up")
            _ip(f"-n {name} addr add {self.listens[broker].host}/24 dev eth0")
            _ip(f"-n {name} link set eth0 up")
            _ip(f"-n {name} link set lo up")
        _ip(f"link add name to-here netns {hub} type veth peer name {self._tag}")
        _ip(f"-n {hub} link set to-here master bridge up")
        _ip(f"addr add {self._here} dev {self._tag}")
        _ip(f"link set {self._tag} up")
        return self

    async def __aexit__(self, *_: object) -> None:
        for name in (*map(self._name, self.brokers), f"{self._tag}-hub"):
            with suppress(subprocess.CalledProcessError):
                _ip(f"netns del {name}")


def _ip(arguments: str) -> None:
    subprocess.run(["ip", *arguments.split()], check=True, stdin=subprocess.DEVNULL, capture_output=True)


class Proxies(Network):
    """One before each broker; who connects is a broker, or nobody that is cut off."""

    def __init__(self, brokers: Sequence[int]) -> None:
        super().__init__(brokers)
        self._open: dict[tuple[int, int], asyncio.Event] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._servers: list[asyncio.Server] = []

    def _way(self, source: int | None, target: int | None) -> asyncio.Event:
        key = (source or 0, target or 0)
        if key not in self._open:
            self._open[key] = asyncio.Event()
            self._open[key].set()
        return self._open[key]

    async def cut(self, source: int, target: int) -> None:
        self._way(source, target).clear()

    async def heal(self) -> None:
        for way in self._open.values():
            way.set()

    async def __aenter__(self) -> Self:
        for broker in self.brokers:
            server = await asyncio.start_server(partial(self._serve, broker), "127.0.0.1", 0)
            self._servers.append(server)
            self.addresses[broker] = Address(*server.sockets[0].getsockname()[:2])
        return self

    async def __aexit__(self, *_: object) -> None:
        for server in self._servers:
            server.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _serve(self, target: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        source = self._whose(writer.get_extra_info("peername")[1])
        await self._way(source, target).wait()  # a connection is made by the first packet that gets there
        try:
            far_reader, far_writer = await asyncio.open_connection(*self.listens[target])
        except OSError:
            writer.transport.abort()
            return
        ways = (self._way(source, target), self._way(target, source))
        there = asyncio.ensure_future(_pass(reader, far_writer, ways[0]))
        back = asyncio.ensure_future(_pass(far_reader, writer, ways[1]))
        try:
            await asyncio.wait((there, back), return_when=asyncio.FIRST_COMPLETED)
        finally:
            for each in (there, back):
                each.cancel()
            await asyncio.gather(there, back, return_exceptions=True)
            writer.transport.abort()
            far_writer.transport.abort()

    def _whose(self, port: int) -> int | None:
        """The broker that has connected from this port."""
        inode = next((inode for local, inode in _sockets() if local == port), None)
        for broker in self.brokers:
            if inode is not None and (pid := self.pid(broker)) is not None and inode in _inodes(pid):
                return broker
        return None


async def _pass(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, way: asyncio.Event) -> None:
    with suppress(ConnectionError):
        while data := await reader.read(65_536):
            await way.wait()
            writer.write(data)
            await writer.drain()


def _sockets() -> Iterator[tuple[int, str]]:
    """The local port and the inode of each TCP socket of this machine."""
    for line in Path("/proc/net/tcp").read_text("ascii").splitlines()[1:]:
        fields = line.split()
        yield int(fields[1].rpartition(":")[2], 16), fields[9]


def _inodes(pid: int) -> set[str]:
    """Of the sockets of a process."""
    found = set()
    for path in Path(f"/proc/{pid}/fd").iterdir():
        with suppress(OSError):
            found.add(os.readlink(path).removeprefix("socket:[").removesuffix("]"))
    return found


def permitted() -> type[Network]:
    """The kernel's where that is permitted; HEADRACE_NETWORK=proxies forces the other."""
    forced = os.environ.get("HEADRACE_NETWORK") == "proxies"
    return Proxies if forced or not Namespaces.are_permitted() else Namespaces
