"""Bugs to plant in the shipped broker, one at a time, to show that the simulator finds them.

Each is what a plausible mistake in one function would do, and is taken out again at the end of the `with`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any, Final, cast
from unittest.mock import patch

from headrace.base.ids import Offset
from headrace.base.ports import Buffer, Disk
from headrace.broker.parking import Commit
from headrace.broker.partition import Partition
from headrace.storage.log import scan
from headrace.storage.log.flush import Ticket
from headrace.wire.batches import BatchHeader, parse_header
from headrace.wire.errors import ErrorCode


@contextmanager
def acknowledge_before_fsync() -> Iterator[None]:
    """acks=all is answered once the batch is in the page cache; the flush comes when it comes."""

    def park_commit(self: Partition, end: Offset, waiter: Commit) -> None:
        waiter.on_outcome(ErrorCode.NONE)

    with patch.object(Partition, "park_commit", park_commit):
        yield


class _Forgetful:
    """A disk, but for one thing."""

    def __init__(self, disk: Disk) -> None:
        self._disk = disk

    def __getattr__(self, name: str) -> Any:
        return getattr(self._disk, name)

    def sync_directory(self, path: Path) -> None:
        """Forgotten."""


@contextmanager
def no_directory_fsync() -> Iterator[None]:
    """A flush syncs the contents of new files, and forgets that their names need it too."""
    sync = Ticket.sync

    def forgetful_sync(self: Ticket) -> None:
        self._disk = cast("Disk", _Forgetful(self._disk))
        sync(self)

    with patch.object(Ticket, "sync", forgetful_sync):
        yield


@contextmanager
def recovery_accepts_a_bad_batch() -> Iterator[None]:
    """Recovery believes a batch's header and does not look at its CRC."""

    def believe(buffer: Buffer, at: int = 0, end: int | None = None, *, compacted: bool = False) -> BatchHeader:
        return parse_header(buffer, at)

    with patch.object(scan, "check_batch", believe):
        yield


PLANTS: Final[dict[str, Callable[[], AbstractContextManager[None]]]] = {
    "acknowledge-before-fsync": acknowledge_before_fsync,
    "no-directory-fsync": no_directory_fsync,
    "recovery-accepts-a-bad-batch": recovery_accepts_a_bad_batch,
}
