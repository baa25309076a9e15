"""Invariants of a quorum after every step of every member, and of the images made from it.

`watching` reports every step of the shipped core. The judge looks only at what changed.

Promises:
- A term has one leader, and a member gives one vote in it.
- Two logs that agree at an entry agree below it.
- A committed entry is on the disks of a quorum, and in the log of every later leader.
- All members commit, and show, the same.

Source: the Raft paper, figure 3.
"""

from __future__ import annotations

import traceback
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, Final
from unittest.mock import patch

from headrace.broker.cluster.driver import MetadataDriver
from headrace.broker.cluster.quorum.commit_log import RaftCommitLog
from headrace.metadata.image import MetadataImage
from headrace.raft.core import Raft
from headrace.raft.events import Event, Ready
from headrace.raft.membership import Membership, Peer
from headrace.raft.messages import Entry, VoteAnswer
from headrace.raft.state import Settings
from headrace.sim.cluster.world import address_of
from headrace.sim.process import CURRENT, Process

EVERYTHING: Final = 1 << 40
"""So many bytes that there is no bound."""
STEPS_PER_VALIDATION: Final = 32
"""Steps between two validations of a whole log, which take long."""


class Judge:
    """The judge, as the module says. `accuse(kind, sentence)` is called for a broken promise."""

    def __init__(self, accuse: Callable[[str, str], object], tell: Callable[[str], object]) -> None:
        self._accuse = accuse
        self._tell = tell
        self.on_vote: Callable[[Peer], object] = _nobody
        """Called with a member that has just given a vote, so that a fault can use the moment."""
        self.on_leader: Callable[[Peer], object] = _nobody
        """Called with a new leader."""
        self.on_commit: Callable[[Peer], object] = _nobody
        """Called with a leader that has committed something."""
        self._newest: dict[Peer, Raft] = {}
        """By member: its core when it was last seen, including those of dead processes."""
        self._votes: dict[tuple[Peer, int], Peer] = {}
        self.leaders: dict[int, Peer] = {}
        """Leaders by term, as they became known."""
        self._written: dict[tuple[int, int], tuple[Entry, int]] = {}
        """By index and term: the entry, and the term of the entry before it."""
        self.committed: list[Entry] = []
        """All committed entries that any member ever knew of."""
        self._committed_in: list[int] = []
        """Term of the member that knew each one first. A leader of an earlier term may lack it, if it learns late of
        its election."""
        self._known: dict[Raft, int] = {}
        """By core: the index up to which its commits were checked."""
        self._cores: dict[Process, Raft] = {}
        """Cores of the running processes."""
        self.memberships: dict[Peer, Membership] = {}
        """By member: the membership that it used when it was last seen, including dead ones."""
        self.images: dict[int, MetadataImage] = {}
        """By index: the image of the first member that showed it."""
        self._of_members: dict[Process, MetadataImage] = {}
        self._steps = 0

    def after(self, process: Process, core: Raft, ready: Ready) -> None:
        """A member took a step."""
        if self._cores.get(process) is not core:
            self._bury_the_dead()
            self._cores[process] = self._newest[core.me] = core
        self._steps += 1
        if self._steps % STEPS_PER_VALIDATION == 0:
            core.validate()
        if self.memberships.get(core.me) is not core.membership:
            self.memberships[core.me] = core.membership
        if core.leads and self.leaders.get(core.term) != core.me:
            self._on_elected(core)
        if ready.entries:
            self._log_matching(core, ready.entries)
        for message in ready.messages:
            if isinstance(message, VoteAnswer) and message.granted and not message.pre:
                self._one_vote(message)
        if core.log.commit_index > self._known.get(core, core.log.base_index):
            if core.leads:
                self._commitment(core)
            self._commits(core)

    def on_image(self, process: Process, image: MetadataImage) -> None:
        """A member shows this image from now on."""
        before = self._of_members.get(process)
        self._of_members[process] = image
        self._check_shown(process, before, image)

    def _check_shown(self, process: Process, before: MetadataImage | None, image: MetadataImage) -> None:
        if before is not None and before.index > image.index:
            self._accuse("image-went-back", f"{process.name} shows index {image.index} after {before.index}")
        first = self.images.setdefault(image.index, image)
        if first is not image and first != image:
            self._accuse("images-differ", f"{process.name} at index {image.index} shows {difference(first, image)}")

    def on_assertion(self, story: str) -> None:
        """An assertion of the core itself failed."""
        self._accuse("assertion", story)

    def apart(self) -> str | None:
        """A sentence about members whose images lag behind, when all should be equal. Removed members do not count."""
        running = [(process, image) for process, image in self._of_members.items() if process.alive]
        newest = max((image for _, image in running), key=lambda image: image.index, default=None)
        known = {address_of(node) for node in newest.brokers} if newest is not None else set()
        alive = {process.name: image.index for process, image in running if process.host in known}
        return None if len(set(alive.values())) <= 1 else f"brokers show different states: {alive}"

    def lacks_voters(self, wanted: int) -> str | None:
        """A sentence about members that could be voters and are not, when there are fewer than `wanted`. It uses the
        last leader's membership."""
        if not self.leaders or not self.images:
            return None
        members = self.memberships[self.leaders[max(self.leaders)]]
        image = self.images[max(self.images)]
        live = {Peer(broker.id, broker.directory_id) for broker in image.live_brokers()}
        able = sorted(peer.node for peer in members.learners & live if peer.node not in image.withheld)
        if len(members.voters) >= wanted or not able:
            return None
        return f"{len(members.voters)} of {wanted} voters, and {able} stay learners"

    def _bury_the_dead(self) -> None:
        for process in [each for each in self._cores if not each.alive]:
            self._known.pop(self._cores.pop(process), None)
            self._of_members.pop(process, None)

    def _on_elected(self, core: Raft) -> None:
        other = self.leaders.setdefault(core.term, core.me)
        self._tell(f"leads in term {core.term}")
        if other != core.me:
            self._accuse("election-safety", f"{_name(other)} and {_name(core.me)} both lead in term {core.term}")
        earlier = bisect_left(self._committed_in, core.term)
        self._holds(core, self.committed[:earlier])
        self.on_leader(core.me)

    def _one_vote(self, message: VoteAnswer) -> None:
        other = self._votes.setdefault((message.source, message.term), message.target)
        if other != message.target:
            both = f"{_name(other)} and {_name(message.target)}"
            self._accuse("one-vote", f"{_name(message.source)} votes in term {message.term} for {both}")

        self.on_vote(message.source)

    def _holds(self, core: Raft, entries: Iterable[Entry]) -> None:
        log = core.log
        for entry in entries:
            if entry.index >= log.base_index and log.term_at(entry.index) != entry.term:
                missing = f"entry {entry.index} of term {entry.term}, which is committed"
                self._accuse("leader-completeness", f"{_name(core.me)} leads in term {core.term} without {missing}")
                return

    def _log_matching(self, core: Raft, entries: Iterable[Entry]) -> None:
        for entry in entries:
            before = core.log.term_at(entry.index - 1)
            if before is None:
                continue
            found = self._written.setdefault((entry.index, entry.term), (entry, before))
            if found != (entry, before):
                self._accuse("log-matching", f"{_name(core.me)} has {(entry, before)}, another {found}")

    def _commitment(self, leader: Raft) -> None:
        """Check that the entry which a leader commits is on the disks of a quorum. A disk that was lost since then
        counts."""
        index, voters = leader.log.commit_index, leader.membership.voters
        term = leader.log.term_at(index)
        without = [_name(peer) for peer in sorted(voters) if not _has(self._newest.get(peer), index, term)]
        if len(voters) - len(without) < leader.membership.quorum:
            entry = f"entry {index} of term {term}"
            self._accuse("commitment", f"{_name(leader.me)} commits {entry}, which {', '.join(without)} lack")
        self.on_commit(leader.me)

    def _commits(self, core: Raft) -> None:
        log = core.log
        start = max(self._known.get(core, 0), log.base_index)
        for entry in log.read(start + 1, EVERYTHING)[: log.commit_index - start]:
            if entry.index <= len(self.committed):
                known = self.committed[entry.index - 1]
                if known != entry:
                    self._accuse("commits-differ", f"{_name(core.me)} committed {entry}, others {known}")
                continue
            if entry.index != len(self.committed) + 1:
                break  # entries below a snapshot were never reported
            self.committed.append(entry)
            self._committed_in.append(max(core.term, self._committed_in[-1] if self._committed_in else 0))
            for other in self._cores.values():
                if other.leads and other.term > core.term:
                    self._holds(other, [entry])
        self._known[core] = log.commit_index


@contextmanager
def watching(judge: Judge, *, tick_ms: int, settings: Settings) -> Iterator[None]:
    """While it lasts, report every step of every core in a simulated process to the judge, and every image that it
    publishes. Times and sizes are set so that a short run has many elections and snapshots."""
    step, init_log = Raft.step, RaftCommitLog.__init__

    def watched(self: Raft, event: Event) -> Ready:
        process = CURRENT.get()
        try:
            ready = step(self, event)
            if process is not None:
                judge.after(process, self, ready)
        except AssertionError:
            judge.on_assertion(traceback.format_exc())
            raise
        return ready

    def quick(self: RaftCommitLog, **options: Any) -> None:
        init_log(self, **(options | {"tick_ms": tick_ms, "settings": settings}))

    with (
        patch.object(Raft, "step", watched),
        images_seen(judge),
        patch.object(RaftCommitLog, "__init__", quick),
    ):
        yield


@contextmanager
def images_seen(judge: Judge) -> Iterator[None]:
    """While it lasts, report every image that a broker in a simulated process publishes to the judge."""
    init = MetadataDriver.__init__

    def seen(self: MetadataDriver, *args: Any, **options: Any) -> None:
        init(self, *args, **options)
        process = CURRENT.get()
        if process is not None:
            self.subscribe(lambda delta: judge.on_image(process, delta.after))

    with patch.object(MetadataDriver, "__init__", seen):
        yield


def _has(core: Raft | None, index: int, term: int | None) -> bool:
    """Whether this entry is on the member's disk, or in its snapshot."""
    if core is None or core.log.durable_index < index:
        return False
    return index < core.log.base_index or core.log.term_at(index) == term


def _nobody(peer: Peer) -> None:
    """The default callback, which does nothing."""


def _name(peer: Peer) -> str:
    return f"{peer.node} ({str(peer.directory)[:8]})"


def difference(one: MetadataImage, other: MetadataImage) -> str:
    """The first part of an image that the other has otherwise, in words."""
    for name in MetadataImage.__slots__:
        if getattr(one, name) != getattr(other, name):
            return f"{name} {getattr(other, name)!r:.300}, another {getattr(one, name)!r:.300}"
    return "the same"
