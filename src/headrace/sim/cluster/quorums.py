"""The shipped quorum without the rest of the broker as the program of the hosts: driver, commit log, transport,
listener.

Without partitions, sessions and Kafka clients a run is cheaper, and has many times the elections.
"""

from __future__ import annotations

import asyncio
import random
import uuid
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Final, TypeVar

from headrace.base.addresses import Address
from headrace.base.errors import StorageFailure
from headrace.base.ids import BrokerId, ClusterId, DirectoryId
from headrace.broker.cluster.driver import ChangeRefused, MetadataDriver, MetadataStopped, NotController, OutcomeUnknown
from headrace.broker.cluster.quorum.commit_log import metadata_on_raft
from headrace.net.peer.peers import Peers
from headrace.net.server.listener import Listener
from headrace.raft.membership import Membership, Peer
from headrace.sim.clock import SimClock
from headrace.sim.cluster.host import DATA, Gone, Host, Program
from headrace.sim.cluster.world import PORT, address_of
from headrace.sim.disk import Mount

T = TypeVar("T")

CLUSTER: Final = ClusterId("q" * 22)


def peer_of(node: int) -> Peer:
    """The member on a host. Disks are not lost here, so each has one directory."""
    return Peer(BrokerId(node), DirectoryId(uuid.UUID(int=node)))


class QuorumProgram:
    """One process of a member."""

    def __init__(
        self,
        host: Host,
        *,
        nodes: Sequence[int],
        voters: Membership,
        clock: SimClock,
        disk: Mount,
        chance: random.Random,
    ) -> None:
        self._host = host
        self._nodes = nodes
        self._voters = voters
        self._clock = clock
        self._disk = disk
        self._chance = chance
        self._peers = Peers(me=peer_of(host.node), cluster_id=CLUSTER)
        self._listener = Listener(self._peers.serve)
        self._failure: asyncio.Future[Exception] = host.world.loop.create_future()
        self.driver: MetadataDriver

    async def start(self) -> None:
        self.driver = metadata_on_raft(
            disk=self._disk,
            directory=DATA / "metadata",
            me=self._peers.me,
            random=self._chance,
            voters=self._voters,
            transport=self._peers,
            clock=self._clock,
            on_fatal=self._failure.set_result,
        )
        for node in self._nodes:
            self._peers.learn(BrokerId(node), address_of(node), PORT)
        self._peers.address = Address(self._host.address, PORT)
        await self._listener.bind(self._host.address, PORT)
        await self.driver.start()
        await self._listener.accept()

    async def over(self) -> Exception | None:
        return await self._failure

    async def stop(self) -> None:
        await self.driver.stop()
        self._peers.stop()
        await self._listener.stop(grace_s=0)


class QuorumPrograms:
    """Makes members. `nodes` are all hosts, of which the first `born` are the voters at the start."""

    def __init__(self, nodes: Sequence[int], born: int) -> None:
        self._nodes = nodes
        self._born = Membership(frozenset(map(peer_of, nodes[:born])))

    @staticmethod
    def birth(hosts: Sequence[Host]) -> None:
        """Make their data directories, as the writer of a broker's identity does."""
        for host in hosts:
            host.disk.make_durable_directory(DATA)

    def make(self, host: Host, *, clock: SimClock, disk: Mount, chance: random.Random) -> Program:
        voters = self._born if peer_of(host.node) in self._born.voters else Membership()
        return QuorumProgram(host, nodes=self._nodes, voters=voters, clock=clock, disk=disk, chance=chance)


def driver_of(host: Host) -> MetadataDriver | None:
    """The driver of a host that serves and is not paused."""
    program = host.program if host.serves and not host.is_paused else None
    return program.driver if isinstance(program, QuorumProgram) else None


async def asked(
    host: Host, work: Callable[[MetadataDriver], Coroutine[Any, Any, T]], seconds_max: float
) -> T | Exception | None:
    """A host's answer, or the error; None where it does not answer in time, or dies."""
    driver, process = driver_of(host), host.process
    if driver is None or process is None:
        return NotController(None)

    async def outcome() -> T | Exception:
        try:
            return await work(driver)
        except (NotController, OutcomeUnknown, ChangeRefused, MetadataStopped, StorageFailure) as refused:
            return refused

    try:
        async with asyncio.timeout(seconds_max):
            return await host.within(process, outcome())
    except (Gone, TimeoutError):
        return None
