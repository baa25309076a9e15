"""The port to an engine: opening and deleting logs, and flushing many together."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol

from headrace.base.ids import FIRST_OFFSET, NO_EPOCH, LeaderEpoch, Offset
from headrace.base.ports import Space
from headrace.storage.engine.files import LogDirectories, Upkeep
from headrace.storage.engine.flushing import FlushRound, FlushTicket
from headrace.storage.engine.identity import LogConfig, LogIdentity
from headrace.storage.engine.logs import PartitionLog
from headrace.storage.engine.medium import Medium
from headrace.wire.ailments import State


class LogOpening(Protocol):
    """A log that has been read, and still has to be made durable as it was found."""

    @property
    def must_sync(self) -> bool:
        """Whether `finish` waits for a disk or another machine."""

    def finish(self) -> PartitionLog:
        """Blocks; called once. Raises StorageFailure."""


class LogRemoval(Protocol):
    """The rest of a deleted log."""

    @property
    def name(self) -> str:
        """A name for operators. No other removal has it."""

    def some(self) -> bool:
        """Remove so little that no flush waits long for it. Returns whether nothing is left. Called in a worker thread,
        one call at a time. Raises OSError where nothing that remains can be removed; it may be tried again.
        """


class LogEngine(Protocol):
    """Keeps the logs of one broker. All calls block and belong in a worker thread, except `begin_round`, `begin_stop`,
    `states` and the properties.
    """

    @property
    def medium(self) -> Medium:
        """The words for what keeps the logs."""

    @property
    def copies(self) -> int:
        """Copies of each log that its store has by itself, as far as that is known: 1 for a disk."""

    @property
    def place(self) -> str:
        """Where the logs are kept, as clients are told: a directory, or an address without secrets."""

    def space(self) -> Space:
        """Room for records, as far as the engine's store says. Raises OSError where it does not."""

    def start(self) -> Sequence[LogRemoval]:
        """Called once, before any log is opened. Returns deletions that a stop or a crash cut short. Raises
        StorageFailure.
        """

    def begin_open(
        self,
        identity: LogIdentity,
        config: LogConfig,
        *,
        start: Offset = FIRST_OFFSET,
        leader_epoch: LeaderEpoch = NO_EPOCH,
    ) -> LogOpening:
        """Recover the partition's log, or begin an empty one at `start`. It is open after `LogOpening.finish`. This
        step uses the processor; the other waits, and many logs may wait at once.

        `leader_epoch`: the epoch in which this broker leads it; -1: it does not. Where other brokers reach the same
        records, no earlier epoch stores anything after this, so that the log's end is final.

        Records that were never flushed count if they are found, and are flushed before that. An empty log leaves
        nothing behind before its first append, unless an earlier log's records could be taken for its own. Contents of
        another topic's id are set aside. Where flushed records are gone, nothing is changed, and the log is
        `read_only`. Raises StampMismatch, Fenced, StorageFailure.
        """

    def begin_delete(self, identity: LogIdentity) -> LogRemoval | None:
        """Delete the partition's log, where it has this topic id; it must be closed. It is durably gone for this broker
        when this returns. Returns what is still to be removed, in this life of the broker or the next; None where
        nothing is.
        """

    def begin_round(self, tickets: Sequence[FlushTicket]) -> FlushRound:
        """Flush these tickets of the engine's own logs together, in its best way. Called on the loop; one round at a
        time.
        """

    def states(self) -> Iterator[State]:
        """Iterate over the problems that an operator should know of. Called on the loop."""

    @property
    def files(self) -> LogDirectories | None:
        """None: the logs are not kept in directories of this broker."""

    @property
    def upkeep(self) -> Upkeep | None:
        """None: there is no work behind the flushes."""

    def begin_stop(self) -> None:
        """The broker stops. From now on nobody waits long for a store that does not answer: flushes end with
        `Abandoned`, and logs are closed without their last appends. Called on the loop.
        """

    def close(self, *, clean: bool = True) -> None:
        """The last call, after every log was closed; `clean` as for the logs. Raises OSError."""
