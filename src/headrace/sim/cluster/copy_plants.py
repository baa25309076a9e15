"""Bugs to plant in replicas behind durable history, one at a time, to show that simulated clusters find them.

Each is the effect of a plausible mistake in one function, and is removed at the end of the `with`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from typing import Any, Final
from unittest.mock import patch

from headrace.base.ids import NO_EPOCH
from headrace.broker.partitions import assigned
from headrace.broker.partitions.following import FollowerPartition
from headrace.broker.partitions.logs import frontiers
from headrace.broker.partitions.logs.frontiers import Frontiers
from headrace.controller import recovery
from headrace.metadata.events import MetadataEvent, ReplicasChanged
from headrace.metadata.segments import PartitionCatalog
from headrace.replica.follower import Position
from headrace.replica.producers import ProducerStates
from headrace.storage.tier import frontier
from headrace.storage.tier.beginnings import Beginning, NotTold


@contextmanager
def copy_is_not_compared() -> Iterator[None]:
    """An empty copy does not report the epoch before its start. It begins at the frontier, though its leader has
    another history there."""
    position: Any = FollowerPartition.__dict__["position"]

    def silent(self: FollowerPartition) -> Position:
        known: Position = position.fget(self)
        return known._replace(last_epoch=NO_EPOCH) if self.is_empty else known

    with patch.object(FollowerPartition, "position", property(silent)):
        yield


@contextmanager
def gives_way_without_the_store() -> Iterator[None]:
    """A leader whose log ends below history begins behind it with the producers that it knows, without reading the
    store."""

    async def unread(self: Frontiers, catalog: PartitionCatalog) -> Beginning:
        raise NotTold("nobody has looked")

    with patch.object(Frontiers, "read", unread):
        yield


@contextmanager
def producers_of_the_footer_are_not_taken() -> Iterator[None]:
    """A log that begins behind history knows no producers."""
    read_beginning = frontier.read_beginning

    def forgets(*args: Any, **options: Any) -> Beginning:
        return read_beginning(*args, **options)._replace(producers=ProducerStates())

    with patch.object(frontiers, "read_beginning", forgets):
        yield


@contextmanager
def durable_history_does_not_win() -> Iterator[None]:
    """A leader continues at the end of its log, though history goes further."""
    with patch.object(assigned, "wins", lambda *_: False):
        yield


@contextmanager
def recovery_begins_no_assignment() -> Iterator[None]:
    """Continuing behind history alone begins a new leader epoch and nothing else. So an old log of a returning broker
    counts as a log of the same assignment."""
    recovered = recovery._recovered

    def unnumbered(*args: Any) -> list[MetadataEvent]:
        events = recovered(*args)
        return [replace(each, recovered_epoch=0) if isinstance(each, ReplicasChanged) else each for each in events]

    with patch.object(recovery, "_recovered", unnumbered):
        yield


COPY_PLANTS: Final[dict[str, Callable[[], AbstractContextManager[None]]]] = {
    "copy-is-not-compared": copy_is_not_compared,
    "gives-way-without-the-store": gives_way_without_the_store,
    "producers-of-the-footer-are-not-taken": producers_of_the_footer_are_not_taken,
    "durable-history-does-not-win": durable_history_does_not_win,
    "recovery-begins-no-assignment": recovery_begins_no_assignment,
}
"""Found by the copies' part of a seed (`copies.run.run_copies`)."""
