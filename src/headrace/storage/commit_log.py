"""The port to the commit log: the one order of all changes of cluster state, whatever agrees on it.

Raft among the brokers is one implementation, and users of the port do not know which one they have. The cluster's state
changes in one way: the node that holds the newest epoch decides and appends, and every node replays committed entries.

Promises of each implementation:
- Entries have rising indexes, which leave no gap but where an entry says so. Two nodes never get different entries at
  one index.
- An entry is handed to the tail once it can never be lost or replaced, in order, each once.
- At most one node holds an epoch, and epochs only rise. Entries that are appended in an epoch that is over never count.

All of it is used from one event loop, and no call waits for a disk or another machine.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

from headrace.base.errors import HeadraceError
from headrace.base.ids import BrokerId, DirectoryId
from headrace.base.values import Value
from headrace.metadata.image import MetadataImage
from headrace.raft.membership import Change, Membership, MembershipRefusal, Peer


class EpochOver(HeadraceError):  # noqa: N818 - another node goes on
    """This node holds no epoch, or not any more."""


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Committed(Value):
    """One committed entry."""

    index: int
    epoch: int
    """The epoch in which it was appended."""
    data: bytes
    """Encoded events (`metadata.codec`). Empty: the entry changes no metadata, and only counts."""
    behind: int | None = None
    """The index of the entry before it; None: one less than its own."""


class Tail(Protocol):
    """The reader of the log: it replays entries, and has the image as of the last one."""

    @property
    def image(self) -> MetadataImage: ...

    @property
    def events_applied(self) -> int:
        """Events since the process began, for deciding when a snapshot is due."""

    def begin(self, image: MetadataImage, events: int) -> None:
        """Start from this image. Called once, before the others. `events`: how many were replayed for it."""

    def apply(self, entries: Iterable[Committed]) -> None:
        """Replay these entries, now or soon."""

    def restore(self, image: MetadataImage) -> None:
        """Replace everything by a snapshot, since the entries before it are gone."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class MemberStatus(Value):
    """One member. A node that does not lead knows only itself: the rest is -1."""

    peer: Peer
    is_voter: bool
    log_end: int
    """The index of the last entry that is durable there."""
    last_fetch_ms: int
    """When it was last heard from. The leader itself: now."""
    last_caught_up_ms: int
    """When it last held everything that the leader held."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class QuorumStatus(Value):
    """The quorum at one moment, as one member knows it."""

    leader: Peer | None
    epoch: int
    """Raft's term."""
    high_watermark: int
    """The index of the last committed entry that this node knows of."""
    members: tuple[MemberStatus, ...]


class CommitLog(Protocol):
    """See the module."""

    async def start(self, tail: Tail, changed: Callable[[], None], failed: Callable[[Exception], None]) -> None:
        """Recover, and hand everything to `tail` that is known to be committed.

        `changed` is called whenever `term`, `holds`, `leader` or `decided_to` may be another. `failed` is called once,
        when nothing can be committed here any more. Raises CorruptData, StorageFailure.
        """

    def halt(self, error: Callable[[], Exception]) -> None:
        """Hand over nothing more, from now on. Callers of `confirmed` that still wait get the error."""

    async def stop(self) -> None:
        """Wait for what is under way, and close. After a failure too."""

    @property
    def term(self) -> int:
        """The newest epoch that this node knows of."""

    @property
    def holds(self) -> bool:
        """Whether this node holds that epoch, and may append."""

    @property
    def decided_to(self) -> int | None:
        """The index up to which all earlier epochs have decided: a holder whose image is there knows everything. None:
        not known yet, or this node holds no epoch.
        """

    @property
    def leader(self) -> BrokerId | None:
        """The holder of the newest epoch, as far as this node knows."""

    def leader_before(self) -> tuple[BrokerId, DirectoryId, float] | None:
        """The last holder that was another node, by its directory, and the seconds since it was last heard here."""

    @property
    def is_alone(self) -> bool:
        """Whether no other node can ever hold an epoch as things are. Then nothing needs to be confirmed."""

    def append(self, epoch: int, after: int, entries: Sequence[bytes]) -> str | None:
        """Append entries behind the one at index `after`, all or none. Their outcome is seen in the tail. Returns why
        nothing was appended, or None. Where the epoch is over they may be lost, and `changed` is called.
        """

    async def confirmed(self) -> int:
        """Return an index such that an image there holds everything committed anywhere before this call, and that this
        node held its epoch after the call. Raises EpochOver.
        """

    def on_applied(self) -> None:
        """The tail has replayed entries: a snapshot may be due."""

    @property
    def quorum(self) -> Quorum | None:
        """None: the log is not kept by voters among the brokers."""


class Quorum(Protocol):
    """A commit log that brokers keep by voting: its members can be seen and changed."""

    @property
    def leader(self) -> Peer | None: ...

    @property
    def membership(self) -> Membership:
        """The newest membership in the log, committed or not."""

    @property
    def is_blank(self) -> bool:
        """Whether this node's log is empty, and waits for its first entries."""

    @property
    def patience_s(self) -> float:
        """How long a handed-over leadership may take, in seconds."""

    def status(self) -> QuorumStatus:
        """The members, and how far each has the log."""

    def change(self, change: Change) -> MembershipRefusal | None:
        """Append a change of the membership, as an entry without events. Returns why not, or None."""

    def transfer(self, target: Peer) -> MembershipRefusal | None:
        """Begin to hand the leadership over. Returns why not, or None."""

    def leader_died(self, peer: Peer, term: int) -> None:
        """The process of that term's leader is plainly dead, so that nobody waits for it."""
