"""Members of a quorum for tests: each a driver, its disk and a listener of its own, on any loop."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable, Sequence
from pathlib import Path
from random import Random
from typing import Any

from headrace.base.addresses import Address
from headrace.base.ids import BrokerEpoch, BrokerId, ClusterId, DirectoryId, ProducerId
from headrace.broker.cluster.driver import ChangeRefused, NotController, OutcomeUnknown
from headrace.broker.cluster.quorum.commit_log import metadata_on_raft
from headrace.controller.decision import Decision
from headrace.metadata.delta import ImageDelta
from headrace.metadata.events import ProducerIdsAllocated
from headrace.metadata.image import EMPTY_IMAGE, MetadataImage
from headrace.net.peer.peers import Peers
from headrace.net.server.listener import Listener
from headrace.raft.membership import Membership, Peer
from headrace.raft.messages import Message

CLUSTER = ClusterId("q" * 22)
HOST = "127.0.0.1"
TURNS = 10
"""Of the loop, in which what was accepted is made a connection."""


def peer(node: int, life: int = 1) -> Peer:
    return Peer(BrokerId(node), DirectoryId(uuid.UUID(int=node * 1000 + life)))


def count_up(image: MetadataImage) -> Decision[int]:
    """One more than all before."""
    start = image.next_producer_id
    event = ProducerIdsAllocated(
        broker_id=BrokerId(1), broker_epoch=BrokerEpoch(1), start=start, end=ProducerId(start + 1)
    )
    return Decision((event,), start)


def look(image: MetadataImage) -> Decision[int]:
    return Decision((), image.next_producer_id)


class News:
    """Something has changed on one of the members."""

    def __init__(self) -> None:
        self._event = asyncio.Event()

    def tell(self) -> None:
        self._event.set()
        self._event = asyncio.Event()

    async def next(self) -> None:
        await self._event.wait()


class Link(Peers):
    """The shipped transport, but for what is cut."""

    def __init__(self, me: Peer, cut: set[tuple[int, int]], cluster_id: ClusterId = CLUSTER) -> None:
        super().__init__(me=me, cluster_id=cluster_id)
        self._cut = cut

    def send(self, message: Message) -> None:
        if (message.source.node, message.target.node) not in self._cut:
            super().send(message)


class Node:
    """One process. `ports`: where everyone listens, shared by all."""

    def __init__(
        self,
        me: Peer,
        *,
        voters: Membership,
        disk: Any,
        directory: Path,
        ports: dict[int, int],
        cut: set[tuple[int, int]],
        random: Random,
        news: News,
        **rest: Any,
    ) -> None:
        self.me = me
        self.ports = ports
        self.peers = Link(me, cut)
        self.listener = Listener(self.peers.serve)
        self.fatal: list[Exception] = []
        self.dead: list[int] = []
        self.roles: list[bool] = []
        self.image = EMPTY_IMAGE
        self.driver = metadata_on_raft(
            disk=disk,
            directory=directory,
            me=me,
            random=random,
            voters=voters,
            transport=self.peers,
            on_fatal=self.fatal.append,
            **rest,
        )
        self.driver.subscribe(self._on_delta)
        self.driver.on_controller(self._on_role)
        self.news = news
        self.peers.on_peer_dead(self.dead.append)

    def _on_delta(self, delta: ImageDelta) -> None:
        assert delta.before == self.image, "deltas add up"
        self.image = delta.after
        self.news.tell()

    def _on_role(self, active: bool) -> None:
        self.roles.append(active)
        self.news.tell()

    async def start(self) -> None:
        port = await self.listener.bind(HOST, self.ports.get(self.me.node, 0))
        self.ports[self.me.node] = port
        self.peers.address = Address(HOST, port)
        for node, known in self.ports.items():
            self.peers.learn(BrokerId(node), HOST, known)
        await self.listener.accept()
        await self.driver.start()

    async def stop(self) -> None:
        await self.driver.stop()
        self.peers.stop()
        await self.listener.stop(grace_s=0)


async def stop_all(nodes: Sequence[Node]) -> None:
    """Nobody connects any more by the time that the first stops to listen: Python 3.11 leaves open, with a warning,
    what was accepted right before that, and nobody makes."""
    for node in nodes:
        await node.driver.stop()
    for node in nodes:
        node.peers.stop()
    for _ in range(TURNS):
        await asyncio.sleep(0)
    for node in nodes:
        await node.listener.stop(grace_s=0)


async def submit(nodes: Sequence[Node], decide: Callable[[MetadataImage], Decision[Any]] = count_up) -> Any:
    """Through whoever is the controller, as a client does that tries again."""
    while True:
        for node in nodes:
            try:
                return await node.driver.submit(decide)
            except (NotController, OutcomeUnknown, ChangeRefused):
                continue
        await nodes[0].news.next()


async def controller(nodes: Sequence[Node]) -> Node:
    """Wait until one of them is."""
    while True:
        for node in nodes:
            if node.driver.is_controller:
                return node
        await nodes[0].news.next()


async def equal(nodes: Sequence[Node], at_least: int = 0) -> None:
    """Wait until all have the same image."""
    while True:
        images = [node.driver.image for node in nodes]
        if all(image == images[0] and image.index >= at_least for image in images):
            return
        await nodes[0].news.next()
