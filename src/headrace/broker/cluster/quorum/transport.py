"""What the driver needs of the network between the members. `headrace.net.peer.peers.Peers` is the real one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from headrace.base.ids import BrokerId, Lineage
from headrace.raft.messages import Message


class Transport(Protocol):
    """All on the event loop. No call waits, and none calls back into the driver before it returns."""

    def attach(self, receive: Callable[[Message], None]) -> None:
        """Have every message given to `receive`."""

    def on_peer_dead(self, callback: Callable[[BrokerId], None]) -> None:
        """Have it called when a member's process is plainly dead."""

    def send(self, message: Message) -> None:
        """It may be lost, and may come late."""

    def learn(self, node: BrokerId, host: str, port: int) -> None:
        """A member listens there."""

    def forget(self, nodes: set[BrokerId]) -> None:
        """These are members no more."""

    def follow(self, lineage: Lineage) -> None:
        """This member's log is of that lineage: nothing of another one is given to it. Before that call it has none."""


class NoTransport:
    """For the only member."""

    def attach(self, receive: Callable[[Message], None]) -> None:
        """Nobody speaks."""

    def on_peer_dead(self, callback: Callable[[BrokerId], None]) -> None:
        """Nobody dies."""

    def send(self, message: Message) -> None:
        """Nobody listens."""

    def learn(self, node: BrokerId, host: str, port: int) -> None:
        """Nobody is there."""

    def forget(self, nodes: set[BrokerId]) -> None:
        """Nobody was there."""

    def follow(self, lineage: Lineage) -> None:
        """Nobody asks."""
