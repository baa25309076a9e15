"""State that every role of a member shares: its identity, its term and vote, its log, and its outbox.

Promises:
- A message that rests on a write comes out only once that write is on the disk, and never in a later term.
- The term never falls, and in one term only one vote is given.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Final

from headrace.base import limits
from headrace.base.ids import NO_LEADER
from headrace.base.ports import Random
from headrace.base.values import Value
from headrace.raft.events import ChunkToWrite, ReadAnswer, ReadSnapshot, Ready
from headrace.raft.log import Log
from headrace.raft.membership import Membership, MembershipRefusal, Peer
from headrace.raft.messages import Entry, HardState, Message


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class Settings(Value):
    """Times are in ticks; the driver decides how long a tick is."""

    election_ticks: int = 10
    """Silence of a leader after which voters no longer refuse other candidates. A voter stands for election after one
    to two times this. A leader that hears from no quorum for this long steps down."""
    heartbeat_ticks: int = 1
    append_bytes_max: int = limits.RAFT_APPEND_BYTES_MAX
    window_messages_max: int = limits.RAFT_WINDOW_MESSAGES_MAX
    window_bytes_max: int = limits.RAFT_WINDOW_BYTES_MAX
    uncommitted_bytes_max: int = limits.RAFT_UNCOMMITTED_BYTES_MAX
    entries_kept: int = limits.RAFT_ENTRIES_KEPT
    """Entries below a snapshot that stay in memory for followers that are slightly behind."""
    snapshot_patience_rounds: int = 8
    """Heartbeats that a member answers without answering the snapshot chunk before the chunk is sent again."""


class Outbox:
    """Messages, each held until the write that it rests on is durable.

    Invariant: numbers of writes rise by one; `durable <= written`.
    """

    def __init__(self) -> None:
        self.written = 0
        self.durable = 0
        self._state_write = 0
        """The last write that held a hard state."""
        self._now: list[Message] = []
        self._on_state: list[Message] = []
        self._on_all: list[Message] = []
        self._held: deque[tuple[int, Message]] = deque()

    def send(self, message: Message) -> None:
        """For messages of a leader: they may leave before anything of this step is on the disk."""
        self._now.append(message)

    def send_after_state(self, message: Message) -> None:
        """For messages that rest on the term and vote."""
        self._on_state.append(message)

    def send_after_all(self, message: Message) -> None:
        """For messages that rest on the term, the vote and the whole log."""
        self._on_all.append(message)

    def forget_held(self) -> None:
        """The term has moved on, so the messages held for it are dropped."""
        self._on_state.clear()
        self._on_all.clear()
        self._held.clear()

    def on_persisted(self, write: int) -> list[Message]:
        assert self.durable <= write <= self.written, "only what was given out is persisted"
        self.durable = write
        free = [message for needed, message in self._held if needed <= write]
        self._held = deque((needed, message) for needed, message in self._held if needed > write)
        return free

    def close_step(self, *, saves: bool, saves_state: bool) -> list[Message]:
        """End the step; the flags say whether it makes a write, and one with a hard state. Returns the messages that
        may leave."""
        self.written += saves
        if saves_state:
            self._state_write = self.written
        free = self._now
        for needed, messages in ((self._state_write, self._on_state), (self.written, self._on_all)):
            if needed <= self.durable:
                free += messages
            else:
                self._held.extend((needed, message) for message in messages)
        self._now, self._on_state, self._on_all = [], [], []
        return free


class State:
    """One member's memory. The roles read it and change it; `take_ready` returns the result of a step."""

    def __init__(self, *, me: Peer, hard_state: HardState, log: Log, random: Random, settings: Settings) -> None:
        self.me: Final = me
        self.settings: Final = settings
        self.log: Final = log
        self.term = hard_state.term
        self.vote = hard_state.vote
        self.voted_for: Peer | None = None
        """The peer, with its directory, that `vote` is for. A restart forgets it, and then that vote is not
        repeated."""
        self.leader: Peer | None = None
        """The leader that this member follows, or itself."""
        self.disloyal_term = -1
        """The term whose leader was seen dead. That leader is no reason to refuse a candidate."""
        self.outbox: Final = Outbox()
        self.chunk: ChunkToWrite | None = None
        self.reading: list[ReadSnapshot] = []
        self.reads: list[ReadAnswer] = []
        self.refusal: MembershipRefusal | None = None
        self._random = random
        self._saved = hard_state

    @property
    def membership(self) -> Membership:
        return self.log.members.current

    @property
    def is_voter(self) -> bool:
        return self.me in self.membership.voters

    @property
    def may_stand(self) -> bool:
        """Whether it may ask for votes: as a voter, or as one whose removal is in its log and perhaps not committed. In
        the second case it may be the only one that can be elected. It leads until the removal is committed, and does
        not count itself."""
        members = self.log.members
        return self.is_voter or (members.current_index > self.log.commit_index and self.me in members.before.voters)

    def raise_term(self, term: int) -> None:
        assert term > self.term, "the term never falls"
        self.term, self.vote, self.voted_for, self.leader = term, NO_LEADER, None, None
        self.outbox.forget_held()

    def give_vote(self, peer: Peer) -> None:
        assert self.voted_for == peer or self.vote == NO_LEADER, "one vote in a term"
        self.vote, self.voted_for = peer.node, peer

    def can_vote_for(self, peer: Peer) -> bool:
        return self.voted_for == peer or (self.vote == NO_LEADER and self.leader is None)

    def election_timeout(self) -> int:
        """A random number of ticks, drawn again each time so that two candidates do not collide again."""
        return self.settings.election_ticks + self._random.randrange(0, self.settings.election_ticks)

    def succession_timeout(self) -> int:
        """Ticks until an election when the leader is known to be dead."""
        return self._random.randrange(1, max(2, self.settings.election_ticks // 2))

    def take_ready(self) -> Ready:
        """The effects of this step."""
        state = HardState(self.term, self.vote)
        changed = state != self._saved
        self._saved = state
        entries: tuple[Entry, ...] = self.log.take_unsaved()
        saves = changed or bool(entries) or self.chunk is not None
        messages = self.outbox.close_step(saves=saves, saves_state=changed)
        if saves:
            self.log.on_write(self.outbox.written)
        committed = self.log.take_committed()
        ready = Ready(
            write=self.outbox.written if saves else None,
            hard_state=state if changed else None,
            chunk=self.chunk,
            entries=entries,
            messages=tuple(messages),
            committed=committed,
            reading=tuple(self.reading),
            reads=tuple(self.reads),
            refusal=self.refusal,
        )
        self.chunk, self.refusal = None, None
        self.reading.clear()
        self.reads.clear()
        return ready
