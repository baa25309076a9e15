"""Bugs to plant in the shipped quorum, one at a time, to show that simulated clusters find them.

Each is the effect of a plausible mistake in one function, and is removed at the end of the `with`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, cast
from unittest.mock import patch

from headrace.base.ids import NO_LEADER
from headrace.base.ports import Disk, File
from headrace.broker.cluster.driver import MetadataDriver
from headrace.broker.cluster.quorum import member
from headrace.broker.cluster.voters import Voters
from headrace.broker.home.identity import FILE_NAME
from headrace.controller.decision import Decision
from headrace.metadata.image import MetadataImage
from headrace.raft.core import Raft
from headrace.raft.leading import Leadership
from headrace.raft.membership import Membership
from headrace.raft.messages import AppendAnswer, Entry, HardState, Message, SnapshotMark
from headrace.sim.cluster.host import DATA, Host
from headrace.storage.raftlog import raft_log, snapshots
from headrace.storage.raftlog.raft_log import RaftLog, Recovery
from headrace.storage.raftlog.walframe import encode_frame


@contextmanager
def vote_not_persisted() -> Iterator[None]:
    """The term survives a restart, but not the vote."""
    opened = raft_log.open_commit_log

    def forgetful(disk: Disk, directory: Path, *, born: Membership) -> tuple[RaftLog, Recovery]:
        log, found = opened(disk, directory, born=born)
        return log, replace(found, hard_state=HardState(found.hard_state.term, NO_LEADER))

    with patch.object(member, "open_commit_log", forgetful):
        yield


@contextmanager
def answered_before_fsync() -> Iterator[None]:
    """A write counts once it is in the page cache; its sync comes later."""

    def append(self: RaftLog, hard_state: HardState | None, entries: Sequence[Entry]) -> None:
        frame, file = self._next_frame(hard_state, entries), self._file
        self._guarded(lambda: file.append([encode_frame(frame, file.size())]))

    def begin_append(
        self: RaftLog, hard_state: HardState | None, entries: Sequence[Entry], done: Callable[[None], object]
    ) -> None:
        append(self, hard_state, entries)
        asyncio.get_running_loop().call_soon(done, None)

    with patch.multiple(RaftLog, append=append, begin_append=begin_append):
        yield


@contextmanager
def older_term_committed_by_count() -> Iterator[None]:
    """An entry on a quorum is committed, whichever term it is of (Raft paper, figure 8)."""

    def may_commit(self: Leadership, reached: int) -> bool:
        return reached > self._state.log.commit_index

    with patch.object(Leadership, "_may_commit", may_commit):
        yield


@contextmanager
def stale_acknowledgement_counts() -> Iterator[None]:
    """An acknowledgement counts, whichever leadership it was sent to."""
    on_stale = Raft._on_stale

    def believe(self: Raft, message: Message) -> None:
        if isinstance(self._role, Leadership) and isinstance(message, AppendAnswer):
            self._role.on_append_answer(message)
        else:
            on_stale(self, message)

    with patch.object(Raft, "_on_stale", believe):
        yield


@contextmanager
def two_changes_pending() -> Iterator[None]:
    """A change of the membership does not wait for the previous one, in the core or before it."""
    init = Voters.__init__

    def impatient(self: Voters, *args: Any, **options: Any) -> None:
        init(self, *args, **options)
        self._joining = self._voting = cast("asyncio.Lock", _NoLock())

    with patch.object(Leadership, "change_is_pending", False), patch.object(Voters, "__init__", impatient):
        yield


class _NoLock:
    """A lock that lets everybody in."""

    def locked(self) -> bool:
        """False: nobody holds it."""
        return False

    async def __aenter__(self) -> None:
        """Enters at once."""

    async def __aexit__(self, *_: object) -> None:
        """Does nothing."""


@contextmanager
def wiped_voter_votes() -> Iterator[None]:
    """A voter that returns with an empty disk counts as the voter it was."""
    wipe = Host.wipe

    def same_directory(self: Host) -> None:
        identity = self.disk.durable_bytes(DATA / FILE_NAME)
        wipe(self)
        if identity is not None:
            self.disk.make_durable_file(DATA / FILE_NAME, identity)

    with patch.object(Host, "wipe", same_directory):
        yield


@contextmanager
def decides_on_the_committed_image() -> Iterator[None]:
    """Decisions that are not committed yet are ignored."""
    submit = MetadataDriver.submit

    async def blind(self: MetadataDriver, decide: Callable[[MetadataImage], Decision[Any]]) -> Any:
        return await submit(self, lambda pending: decide(self.image))

    with patch.object(MetadataDriver, "submit", blind):
        yield


@contextmanager
def grows_once() -> Iterator[None]:
    """Learners are promoted until there are enough voters once, and never again."""
    grow, grown = Voters.grow, set[int]()

    async def once(self: Voters) -> None:
        node = self._metadata.me
        if sum(member.is_voter for member in self._metadata.quorum().members) >= self._wanted:
            grown.add(node)
        if node not in grown:
            await grow(self)

    with patch.object(Voters, "grow", once):
        yield


class _Unsynced:
    """A disk whose files are not synced at once."""

    def __init__(self, disk: Disk) -> None:
        self._disk = disk

    def __getattr__(self, name: str) -> Any:
        return getattr(self._disk, name)

    def open(self, path: Path, *, create: bool = False) -> Any:
        return _UnsyncedFile(self._disk.open(path, create=create))


class _UnsyncedFile:
    def __init__(self, file: File) -> None:
        self._file = file

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)

    def sync(self) -> None:
        """Sync later."""


@contextmanager
def snapshot_renamed_before_fsync() -> Iterator[None]:
    """A snapshot is renamed first, and its contents are synced after that."""
    write, install = snapshots.write, snapshots.install

    def hasty_write(disk: Disk, temporary: Path, mark: SnapshotMark, lines: Iterable[bytes]) -> None:
        write(cast("Disk", _Unsynced(disk)), temporary, mark, lines)

    def hasty_install(disk: Disk, temporary: Path, final: Path) -> None:
        install(disk, temporary, final)
        file = disk.open(final)
        file.sync()
        file.close()

    with patch.object(snapshots, "write", hasty_write), patch.object(snapshots, "install", hasty_install):
        yield


CLUSTER_PLANTS: Final[dict[str, Callable[[], AbstractContextManager[None]]]] = {
    "vote-not-persisted": vote_not_persisted,
    "answered-before-fsync": answered_before_fsync,
    "older-term-committed-by-count": older_term_committed_by_count,
    "stale-acknowledgement-counts": stale_acknowledgement_counts,
    "two-changes-pending": two_changes_pending,
    "wiped-voter-votes": wiped_voter_votes,
    "grows-once": grows_once,
    "decides-on-the-committed-image": decides_on_the_committed_image,
    "snapshot-renamed-before-fsync": snapshot_renamed_before_fsync,
}
