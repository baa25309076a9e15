"""The port to one partition's log, put together from what its callers ask for.

A log belongs to the event loop. No call blocks on a disk or on another machine, and no two calls run at once, except
where a method says otherwise. Only records below `flushed_end` count as durable. Abilities that not every engine has
are properties, which are None on the others; a caller asks once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from headrace.base.errors import StorageFailure
from headrace.base.ids import LAST_OFFSET, LeaderEpoch, Offset
from headrace.storage.engine.aborted import AbortedIndex
from headrace.storage.engine.appending import Appending
from headrace.storage.engine.cleaning import Cleanable
from headrace.storage.engine.copying import Copying
from headrace.storage.engine.cutting import Beginning, Retention
from headrace.storage.engine.faults import Damage
from headrace.storage.engine.files import Examinable, LogFiles
from headrace.storage.engine.flushing import Flushing, Storing
from headrace.storage.engine.identity import LogConfig, LogIdentity
from headrace.storage.engine.reading import LookingUp, Reading


class LogState(Protocol):
    """A log, as it is and as it is configured."""

    @property
    def identity(self) -> LogIdentity: ...

    @property
    def config(self) -> LogConfig: ...

    def reconfigure(self, config: LogConfig) -> None:
        """The config holds from the next append on."""

    @property
    def log_start_offset(self) -> Offset:
        """First readable offset. May lie inside a batch."""

    @property
    def log_end_offset(self) -> Offset:
        """Base offset of the next append."""

    @property
    def size_bytes(self) -> int: ...

    @property
    def failed(self) -> bool:
        """The log accepts no append any more, as after a failed disk; flushed records can still be read."""

    on_failed: Callable[[StorageFailure], object] | None
    """Called on the loop, with the reason, when background work makes the log fail, or finds it `Abandoned`."""

    @property
    def copies(self) -> int:
        """Copies that the store makes by itself, this one included, as far as it says; 1: it makes none."""

    @property
    def lacks_room(self) -> bool:
        """The last write found no room. Earlier appends stay in the log and stay readable. The next `write_out` or
        flush that finds room writes them.
        """

    @property
    def read_only(self) -> str | None:
        """A sentence where the records flushed last are gone; None otherwise. Then nothing may be appended, and the
        log's true end is unknown: `log_end_offset` is the end of the remaining records. The log counts as `failed`.
        """

    @property
    def damages(self) -> Sequence[Damage]:
        """Ranges of offsets that cannot be read any more, in order. A read inside one raises DamagedRange. A read below
        one ends before it.
        """

    @property
    def gaps_below(self) -> Offset:
        """Batches or records may be missing below this offset, because compaction ran. 0: compaction never ran."""

    @property
    def knows_gaps(self) -> bool:
        """False: the note of the gaps was damaged, and `gaps_below` is the worst that it can have said. Nothing may be
        deleted because of it.
        """

    def close(self, *, clean: bool = True) -> None:
        """Blocks; called in a worker thread. `clean` flushes everything, so that the next open has nothing to check."""


class Remembering(Protocol):
    """A log, as it keeps what its leader knows beside the records."""

    def write_producer_snapshot(self, data: bytes, offset: Offset) -> None:
        """Keep the producers' state as of `offset` (the log's end). It is durable with the next flush."""

    def latest_producer_snapshot(self, end: Offset = LAST_OFFSET) -> tuple[Offset, bytes] | None:
        """The newest producer snapshot as of `end` or before. Blocks. Called in a worker thread, before the log is
        appended to.
        """

    @property
    def sealed_in(self) -> LeaderEpoch | None:
        """The leader epoch in which the log was about to be handed over, as `mark_sealed` recorded it. None: no
        epoch.
        """

    def mark_sealed(self, epoch: LeaderEpoch) -> None:
        """Durably record that nothing is appended in that leader epoch any more. Blocks; any thread may call it. Raises
        OSError.
        """

    def forget_seal(self) -> None:
        """The result of the handover is known. The mark is removed with the next flush."""


class PartitionLog(LogState, Appending, Reading, LookingUp, Flushing, Retention, Beginning, Remembering, Protocol):
    """One partition's batches, in any engine."""

    @property
    def is_open_to_native(self) -> bool:
        """Whether the native road may append to it: it is a `LocalLog`. That road reads and changes its attributes."""

    @property
    def storing(self) -> Storing | None:
        """None: what was appended `at_once` is stored when `append` returns."""

    @property
    def copying(self) -> Copying | None:
        """None: brokers share the records, and nothing is copied between them."""

    @property
    def aborted(self) -> AbortedIndex | None:
        """None: the engine does not take transactions."""

    @property
    def cleaning(self) -> Cleanable | None:
        """None: the engine does not compact."""

    @property
    def examining(self) -> Examinable | None:
        """None: the engine has no files in which to look for damage."""

    @property
    def files(self) -> LogFiles | None:
        """None: the log is not kept in files."""
