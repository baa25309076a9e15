"""A leader: replicates its log, decides what is committed, and steps down when it hears from no quorum.

Promises:
- An entry is committed once it is durable on a quorum of voters and an entry of this term is, never by count alone.
- This member counts itself only for what is on its own disk.
- One membership change is under way at a time, and none before an entry of this term is committed.
- No voter is removed where the others could not decide.

It ends with its term, and so does all that it knew of others. Sources: the Raft paper, 5.3 and 5.4; Ongaro's thesis,
3.10, 4.1 and 6.4, and his correction of single-server change.
"""

from __future__ import annotations

from headrace.raft.events import Propose, ProposeChange, ReadAnswer
from headrace.raft.membership import Demote, Membership, MembershipRefusal, Peer, Promote, Remove
from headrace.raft.messages import (
    AppendAnswer,
    AppendRefusal,
    Entry,
    EntryKind,
    Heartbeat,
    HeartbeatAnswer,
    SnapshotAnswer,
    TimeoutNow,
)
from headrace.raft.progress import Mode, Progress
from headrace.raft.reads import Reads
from headrace.raft.sending import Sender
from headrace.raft.state import State


class Leadership:
    """Invariant: belongs to one term."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._sender = Sender(state)
        self._reads = Reads()
        self._round = 0
        self._ticks = 0
        self._committed_at_check = 0
        """The commit index at the last quorum check. A member whose log is shorter is behind."""
        self._transferee: Peer | None = None
        self._transfer_ticks = 0
        self._uncommitted_bytes = state.log.bytes_between(state.log.commit_index, state.log.last_index)

    def begin(self) -> None:
        """Open the term with an empty entry: its commit commits all entries of earlier terms."""
        self._state.leader = self._state.me
        self._sender.follow_membership()
        self._append(b"")
        self._sender.send_to_all()

    def end(self) -> None:
        """Answer every read that waits for this leadership with None."""
        self._state.reads += [ReadAnswer(context, None) for context in self._reads.contexts]

    @property
    def is_over(self) -> bool:
        """Whether a committed membership no longer has this voter."""
        members = self._state.log.members
        return not self._state.is_voter and members.current_index <= self._state.log.commit_index

    @property
    def has_committed_own(self) -> bool:
        """Whether an entry of this term is committed, so that this leader knows all committed entries."""
        log = self._state.log
        return log.term_at(log.commit_index) == self._state.term

    def progress_of(self, peer: Peer) -> Progress | None:
        return self._sender.progress.get(peer)

    def on_tick(self) -> bool:
        """Whether it still leads, that is, heard from a quorum within an election's timeout."""
        settings = self._state.settings
        self._ticks += 1
        if self._transferee is not None:
            self._transfer_ticks += 1
            if self._transfer_ticks >= settings.election_ticks:
                self._transferee = None
        if self._ticks % settings.election_ticks == 0 and not self._quorum_is_active():
            return False
        if self._ticks % settings.heartbeat_ticks == 0:
            self._begin_round()
        return True

    def _quorum_is_active(self) -> bool:
        active = {peer for peer, progress in self._sender.progress.items() if progress.active}
        for progress in self._sender.progress.values():
            progress.was_active, progress.active = progress.active, False
        self._committed_at_check = self._state.log.commit_index
        return self._state.membership.is_quorum(active | {self._state.me})

    def on_propose(self, event: Propose) -> MembershipRefusal | None:
        size = sum(map(len, event.data))
        if self._transferee is not None:
            return MembershipRefusal.TRANSFERRING
        if self._uncommitted_bytes and self._uncommitted_bytes + size > self._state.settings.uncommitted_bytes_max:
            return MembershipRefusal.TOO_MUCH_UNCOMMITTED
        for data in event.data:
            self._append(data)
        self._sender.send_to_all()
        return None

    def on_propose_change(self, event: ProposeChange) -> MembershipRefusal | None:
        membership = self._changed(event)
        if isinstance(membership, MembershipRefusal):
            return membership
        self._append(membership.encoded(), EntryKind.MEMBERSHIP)
        self._sender.follow_membership()
        if self._transferee not in membership.voters:
            self._transferee = None
        self._sender.send_to_all()
        self._advance_commit()  # a quorum may be smaller now
        return None

    def _changed(self, event: ProposeChange) -> Membership | MembershipRefusal:
        if self._transferee is not None:
            return MembershipRefusal.TRANSFERRING
        if not self._knows_commits:
            return MembershipRefusal.TERM_NOT_COMMITTED
        if self.change_is_pending:
            return MembershipRefusal.CHANGE_PENDING
        membership = self._state.membership.changed(event.change)
        if isinstance(event.change, Promote) and isinstance(membership, Membership):
            progress = self._sender.progress.get(event.change.peer)
            if progress is None or not progress.active or progress.match_index < self._state.log.commit_index:
                return MembershipRefusal.NOT_CAUGHT_UP
        if isinstance(event.change, Demote | Remove) and isinstance(membership, Membership):
            return self._with_live_quorum(membership)
        return membership

    def _with_live_quorum(self, membership: Membership) -> Membership | MembershipRefusal:
        """The membership with fewer voters, if the live ones of them are a quorum; otherwise the refusal. Without a
        quorum neither the change nor anything after it could be committed (etcd's strict reconfiguration check)."""
        live = {
            peer
            for peer, progress in self._sender.progress.items()
            if (progress.active or progress.was_active) and progress.match_index >= self._committed_at_check
        }
        state = self._state
        if membership.voters == state.membership.voters or membership.is_quorum(live | {state.me}):
            return membership
        return (
            MembershipRefusal.NOT_HEARD_YET
            if self._ticks < state.settings.election_ticks
            else MembershipRefusal.NO_LIVE_QUORUM
        )

    @property
    def _knows_commits(self) -> bool:
        """Otherwise a change by an earlier leader could be in force without any quorum of this leader's (Ongaro,
        2015)."""
        return self.has_committed_own

    @property
    def change_is_pending(self) -> bool:
        return self._state.log.members.current_index > self._state.log.commit_index

    def _append(self, data: bytes, kind: EntryKind = EntryKind.DATA) -> None:
        state = self._state
        state.log.append(Entry(state.term, state.log.last_index + 1, data, kind))
        self._uncommitted_bytes += len(data)

    def on_own_durable(self) -> None:
        """More of this member's own log is on its disk."""
        self._advance_commit()

    def on_append_answer(self, message: AppendAnswer) -> None:
        progress = self._heard_from(message.source)
        if progress is None:
            return
        assert message.match_index <= self._state.log.last_index, "a member holds no more than its leader sent"
        news = progress.on_match(message.match_index)
        catches_up = progress.mode is Mode.PROBE or (
            progress.mode is Mode.SNAPSHOT and progress.match_index >= self._state.log.base_index
        )
        if catches_up:
            progress.become_replicate()
        told = news and self._advance_commit()
        self._sender.send(message.source, even_empty=catches_up and not told)
        self._ask_to_stand(message.source)

    def on_append_refusal(self, message: AppendRefusal) -> None:
        progress = self._heard_from(message.source)
        if progress is None or progress.mode is Mode.SNAPSHOT:
            return
        stale_probe = progress.mode is Mode.PROBE and message.previous_index != progress.next_index - 1
        if stale_probe or message.previous_index <= progress.match_index:
            return
        agreed = self._state.log.last_of_terms_up_to(message.hint_term, message.hint_index)
        if message.hint_index < self._state.log.base_index:
            agreed = message.hint_index  # that entry is already in a snapshot, so send the snapshot
        progress.become_probe(min(agreed + 1, message.previous_index))
        self._sender.send(message.source)

    def on_snapshot_answer(self, message: SnapshotAnswer) -> None:
        if self._heard_from(message.source) is not None:
            self._sender.on_snapshot_answer(message)

    def on_heartbeat_answer(self, message: HeartbeatAnswer) -> None:
        progress = self._heard_from(message.source)
        if progress is None:
            return
        progress.round = max(progress.round, message.round)
        progress.probed = False
        if progress.mode is Mode.SNAPSHOT:
            self._sender.on_silent_round(message.source)
        elif progress.match_index < self._state.log.last_index:
            self._sender.send(message.source, even_empty=True)  # finds out whether messages were lost
        self._answer_reads()
        self._ask_to_stand(message.source)

    @property
    def sender(self) -> Sender:
        return self._sender

    def _heard_from(self, peer: Peer) -> Progress | None:
        progress = self._sender.progress.get(peer)
        if progress is not None:
            progress.active = True
        return progress

    def _advance_commit(self) -> bool:
        """Whether the commit index rose; if so, every member was sent the new one."""
        log, progress = self._state.log, self._sender.progress
        me = self._state.me
        reached = self._state.membership.reached(
            lambda peer: log.durable_index if peer == me else progress[peer].match_index
        )
        if not self._may_commit(reached):
            return False
        self._uncommitted_bytes -= log.bytes_between(log.commit_index, reached)
        log.commit(reached)
        self._sender.send_to_all(even_empty=True)
        for context in self._reads.take_early():
            self.on_read(context)
        return True

    def _may_commit(self, reached: int) -> bool:
        """Only an entry of the leader's own term is committed by count (Raft paper, figure 8)."""
        log = self._state.log
        return reached > log.commit_index and log.term_at(reached) == self._state.term

    def on_read(self, context: int) -> None:
        if not self.has_committed_own:
            self._reads.wait_for_term(context)
            return
        self._reads.confirm(context, round_=self._round + 1, index=self._state.log.commit_index)
        self._begin_round()
        self._answer_reads()

    @property
    def reads_waiting(self) -> int:
        return len(self._reads.contexts)

    def _begin_round(self) -> None:
        state = self._state
        self._round += 1
        for peer, progress in self._sender.progress.items():
            state.outbox.send(
                Heartbeat(
                    term=state.term,
                    source=state.me,
                    target=peer,
                    commit_index=min(progress.match_index, state.log.commit_index),
                    round=self._round,
                )
            )

    def _answer_reads(self) -> None:
        me, progress = self._state.me, self._sender.progress
        reached = self._state.membership.reached(lambda peer: self._round if peer == me else progress[peer].round)
        self._state.reads += self._reads.on_round(reached)

    def on_transfer(self, target: Peer) -> MembershipRefusal | None:
        """Hand the leadership over once the target has the whole log. Proposals are refused until then."""
        if target == self._state.me:
            return MembershipRefusal.ALREADY_SO
        if target not in self._state.membership.voters:
            return MembershipRefusal.NOT_A_MEMBER
        if target != self._transferee:
            self._transferee, self._transfer_ticks = target, 0
            self._sender.send(target)
            self._ask_to_stand(target)
        return None

    def _ask_to_stand(self, peer: Peer) -> None:
        state = self._state
        if peer == self._transferee and self._sender.progress[peer].match_index == state.log.last_index:
            state.outbox.send(TimeoutNow(term=state.term, source=state.me, target=peer))
