"""The network between the members, as the driver needs it. `headrace.net.peer.peers.Peers` is the real one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from headrace.base.ids import BrokerId, Lineage
from headrace.raft.messages import Message


class Transport(Protocol):
    """All on the event loop. No call waits, and none calls back into the driver before it returns."""

    @property
    def listener(self) -> str:
        """The name of the listener by which members reach each other."""

    def attach(self, receive: Callable[[Message], None]) -> None:
        """Give every message to `receive`."""

    def on_peer_dead(self, callback: Callable[[BrokerId], None]) -> None:
        """Call `callback` when a member's process is plainly dead."""

    def send(self, message: Message) -> None:
        """Send a message, which may be lost, and may come late."""

    def learn(self, node: BrokerId, host: str, port: int) -> None:
        """Note a member's address."""

    def forget(self, nodes: set[BrokerId]) -> None:
        """Forget these nodes, which are members no more."""

    def follow(self, lineage: Lineage) -> None:
        """Note the lineage of this member's log. Messages of another lineage are not passed on. Before this call it has
        none."""


class NoTransport:
    """The transport of the only member."""

    listener = "PLAINTEXT"

    def attach(self, receive: Callable[[Message], None]) -> None:
        """Does nothing: nobody sends."""

    def on_peer_dead(self, callback: Callable[[BrokerId], None]) -> None:
        """Does nothing: nobody dies."""

    def send(self, message: Message) -> None:
        """Does nothing: nobody listens."""

    def learn(self, node: BrokerId, host: str, port: int) -> None:
        """Does nothing: nobody is there."""

    def forget(self, nodes: set[BrokerId]) -> None:
        """Does nothing: nobody was there."""

    def follow(self, lineage: Lineage) -> None:
        """Does nothing: nobody asks."""
