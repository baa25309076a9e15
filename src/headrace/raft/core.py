"""The consensus core of one member: events in, effects out.

Promises, in one term and so for ever:
- There is one leader.
- Logs that agree at an entry agree below it.
- A committed entry is in the log of every later leader.
- Members apply the same entries in the same order.

It never does IO. Time comes as ticks, randomness through a port. It changes in place, and only by `step` (decision
0016). Sources: Ongaro and Ousterhout, "In Search of an Understandable Consensus Algorithm"; Ongaro's thesis; etcd's
raft.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Self, TypeAlias, assert_never

from headrace.base import limits
from headrace.base.ports import Random
from headrace.raft.candidacy import Candidacy, Outcome
from headrace.raft.events import (
    Campaign,
    Event,
    LeaderDied,
    Persisted,
    Propose,
    ProposeChange,
    ReadIndex,
    Ready,
    SnapshotRead,
    SnapshotTaken,
    Tick,
    Transfer,
)
from headrace.raft.following import Follower
from headrace.raft.leading import Leadership
from headrace.raft.log import Log
from headrace.raft.membership import Membership, MembershipRefusal, Peer
from headrace.raft.messages import (
    AppendAnswer,
    AppendRefusal,
    AppendRequest,
    Entry,
    HardState,
    Heartbeat,
    HeartbeatAnswer,
    Message,
    SnapshotAnswer,
    SnapshotChunk,
    SnapshotMark,
    Superseded,
    TimeoutNow,
    VoteAnswer,
    VoteRequest,
)
from headrace.raft.state import Settings, State

Role: TypeAlias = Follower | Candidacy | Leadership
_FROM_LEADER = AppendRequest | Heartbeat | SnapshotChunk | TimeoutNow


class Raft:
    """One member of a quorum, voter or learner."""

    def __init__(self, state: State) -> None:
        """Use `recovered` instead."""
        self._state = state
        self._role: Role = Follower(state)

    @classmethod
    def recovered(
        cls,
        *,
        me: Peer,
        hard_state: HardState,
        snapshot: SnapshotMark,
        entries: Sequence[Entry],
        random: Random,
        settings: Settings | None = None,
    ) -> Self:
        """The member after a restart: a follower that knows of no commit above its snapshot. Without a snapshot,
        `snapshot` has index 0, term 0 and the initial voters of the cluster; a joining member has none."""
        log = Log(snapshot, entries)
        assert log.last_term <= hard_state.term, "the term is kept with the first entry of it"
        return cls(State(me=me, hard_state=hard_state, log=log, random=random, settings=settings or Settings()))

    @property
    def me(self) -> Peer:
        return self._state.me

    @property
    def term(self) -> int:
        return self._state.term

    @property
    def leader(self) -> Peer | None:
        """The leader of this term, as far as it is known."""
        return self._state.leader

    @property
    def leads(self) -> bool:
        return isinstance(self._role, Leadership)

    @property
    def has_committed_own(self) -> bool:
        """Whether it leads and has committed an entry of its own term. Until then it decides nothing."""
        return isinstance(self._role, Leadership) and self._role.has_committed_own

    @property
    def role(self) -> Role:
        """For tests and for `describe`; callers do not change it."""
        return self._role

    @property
    def log(self) -> Log:
        """For tests and for `describe`; callers do not change it."""
        return self._state.log

    @property
    def membership(self) -> Membership:
        """The newest membership in the log, committed or not."""
        return self._state.membership

    def step(self, event: Event) -> Ready:
        match event:
            case Message():
                self._on_message(event)
            case Tick():
                self._on_tick()
            case Persisted(write=write):
                self._on_persisted(write)
            case Campaign():
                self._campaign()
            case LeaderDied():
                self._on_leader_died(event)
            case SnapshotTaken(index=index):
                self._state.log.compact(index, self._state.settings.entries_kept)
            case SnapshotRead():
                if isinstance(self._role, Leadership):
                    self._role.sender.on_snapshot_read(event)
            case Propose() | ProposeChange() | Transfer() | ReadIndex():
                self._state.refusal = self._on_request(event)
            case _:
                assert_never(event)
        if isinstance(self._role, Leadership) and self._role.is_over:
            self._follow(self._state.term)
        return self._state.take_ready()

    def _on_request(self, event: Propose | ProposeChange | Transfer | ReadIndex) -> MembershipRefusal | None:
        """Handle a request that only a leader can serve. Returns the refusal, or None."""
        role = self._role
        if not isinstance(role, Leadership):
            return MembershipRefusal.NOT_LEADER
        match event:
            case Propose():
                return role.on_propose(event)
            case ProposeChange():
                return role.on_propose_change(event)
            case Transfer(target=target):
                return role.on_transfer(target)
            case ReadIndex(context=context):
                if role.reads_waiting >= limits.RAFT_READS_WAITING_MAX:
                    return MembershipRefusal.TOO_MUCH_UNCOMMITTED
                role.on_read(context)
                return None
            case _:
                assert_never(event)

    def _on_tick(self) -> None:
        match self._role:
            case Follower() as follower:
                if follower.on_tick():
                    self._campaign()
            case Candidacy() as candidacy:
                if candidacy.on_tick():
                    self._campaign()
            case Leadership() as leadership:
                if not leadership.on_tick():
                    self._follow(self._state.term)
            case _:
                assert_never(self._role)

    def _on_persisted(self, write: int) -> None:
        self._state.log.on_persisted(write)
        for message in self._state.outbox.on_persisted(write):
            if message.target == self._state.me:
                self._on_message(message)
            else:
                self._state.outbox.send(message)
        if isinstance(self._role, Leadership):
            self._role.on_own_durable()

    def _on_leader_died(self, event: LeaderDied) -> None:
        if event.term != self._state.term or event.leader == self._state.me:
            return
        self._state.disloyal_term = event.term
        if isinstance(self._role, Follower):
            self._role.on_leader_died()

    def _campaign(self, *, transfer: bool = False) -> None:
        if self.leads or not self._state.may_stand:
            return
        self._state.leader = None
        self._stand(pre=not transfer, transfer=transfer)

    def _stand(self, *, pre: bool, transfer: bool = False) -> None:
        self._role = candidacy = Candidacy(self._state, pre=pre, transfer=transfer)
        if candidacy.begin() is Outcome.WON:
            self._stand(pre=False)

    def _follow(self, term: int, leader: Peer | None = None) -> None:
        if isinstance(self._role, Leadership):
            self._role.end()
        if term > self._state.term:
            self._state.raise_term(term)
        self._state.leader = leader
        self._role = Follower(self._state)

    def _is_for_me(self, message: Message) -> bool:
        """False for a message to the disk that this broker had before."""
        return message.target == self._state.me

    def _on_message(self, message: Message) -> None:
        if not self._is_for_me(message):
            return
        if isinstance(message, VoteRequest):
            self._on_vote_request(message)
            return
        is_pre_grant = isinstance(message, VoteAnswer) and message.pre and message.granted
        if not is_pre_grant and message.term > self._state.term:
            self._follow(message.term)
        if not is_pre_grant and message.term < self._state.term:
            self._on_stale(message)
        elif isinstance(message, _FROM_LEADER):
            self._on_leaders_message(message)
        elif isinstance(message, VoteAnswer):
            self._on_vote_answer(message)
        elif isinstance(self._role, Leadership):
            self._on_answer(self._role, message)

    def _on_stale(self, message: Message) -> None:
        """Answer a leader of an earlier term, because perhaps nobody else would tell it that its term is over."""
        if isinstance(message, _FROM_LEADER):
            state = self._state
            state.outbox.send_after_state(Superseded(term=state.term, source=state.me, target=message.source))

    def _on_leaders_message(self, message: Message) -> None:
        assert not self.leads, "one leader in a term"
        if not isinstance(self._role, Follower):
            self._follow(self._state.term, message.source)
        follower = self._role
        assert isinstance(follower, Follower)
        assert self._state.leader in (None, message.source), "one leader in a term"
        self._state.leader = message.source
        follower.on_heard()
        match message:
            case AppendRequest():
                follower.on_append(message)
            case Heartbeat():
                follower.on_heartbeat(message)
            case SnapshotChunk():
                follower.on_chunk(message)
            case TimeoutNow():
                self._campaign(transfer=True)
            case _:
                raise AssertionError(message)

    def _on_answer(self, leadership: Leadership, message: Message) -> None:
        """Handle an acknowledgement of this term. Those of earlier terms were dropped before."""
        match message:
            case AppendAnswer():
                leadership.on_append_answer(message)
            case AppendRefusal():
                leadership.on_append_refusal(message)
            case HeartbeatAnswer():
                leadership.on_heartbeat_answer(message)
            case SnapshotAnswer():
                leadership.on_snapshot_answer(message)
            case Superseded():
                pass  # it says that an earlier term is over
            case _:
                raise AssertionError(message)

    def _on_vote_answer(self, message: VoteAnswer) -> None:
        candidacy = self._role
        if not isinstance(candidacy, Candidacy):
            return
        match candidacy.on_vote(message):
            case Outcome.WON if candidacy.pre:
                self._stand(pre=False)
            case Outcome.WON:
                self._role = leadership = Leadership(self._state)
                leadership.begin()
            case Outcome.LOST:
                self._follow(self._state.term)
            case Outcome.OPEN:
                pass

    def _on_vote_request(self, message: VoteRequest) -> None:
        state, role = self._state, self._role
        follows = isinstance(role, Follower) and role.is_loyal
        # a leader that asks for votes leads no more
        loyal = isinstance(role, Leadership) or (follows and message.source != state.leader)
        if loyal and not message.transfer:
            return  # members that were cut off, or removed, do not disturb the others
        up_to_date = state.log.is_up_to_date(message.last_index, message.last_term)
        if message.pre:
            granted = message.term > state.term and up_to_date
            self._answer_vote(message, message.term if granted else state.term, granted=granted)
            return
        if message.term > state.term:
            self._follow(message.term)
        granted = message.term == state.term and up_to_date and state.can_vote_for(message.source)
        if granted:
            state.give_vote(message.source)
            if isinstance(self._role, Follower):
                self._role.on_heard()
        self._answer_vote(message, state.term, granted=granted)

    def _answer_vote(self, request: VoteRequest, term: int, *, granted: bool) -> None:
        state = self._state
        state.outbox.send_after_state(
            VoteAnswer(term=term, source=state.me, target=request.source, granted=granted, pre=request.pre)
        )

    def validate(self) -> None:
        """Raises AssertionError where an invariant does not hold. Slow: for tests."""
        self._state.log.validate()
        if isinstance(self._role, Leadership):
            assert self._state.leader == self._state.me
            assert self._role.sender.progress.keys() == self._state.membership.members - {self._state.me}
            for progress in self._role.sender.progress.values():
                assert progress.match_index < progress.next_index <= self._state.log.last_index + 1
