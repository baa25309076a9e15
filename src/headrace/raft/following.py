"""A follower: takes what its term's leader sends, and notices when the leader is silent.

Promises:
- An append is answered once it is durable.
- Entries that a leader of this term does not contradict stay.
- A snapshot takes no commit back, and is taken in full or not at all.

Sources: the Raft paper, 5.3 and 7; etcd's raft for the hints.
"""

from __future__ import annotations

from dataclasses import dataclass

from headrace.raft.events import ChunkToWrite
from headrace.raft.messages import (
    AppendAnswer,
    AppendRefusal,
    AppendRequest,
    Heartbeat,
    HeartbeatAnswer,
    SnapshotAnswer,
    SnapshotChunk,
    SnapshotMark,
)
from headrace.raft.state import State


@dataclass(slots=True)
class _Receiving:
    """A snapshot whose bytes below `next_offset` have arrived, all from this term's leader."""

    mark: SnapshotMark
    next_offset: int = 0


class Follower:
    """Invariant: belongs to one term."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._silent_ticks = 0
        self._timeout_ticks = state.election_timeout()
        self._receiving: _Receiving | None = None

    @property
    def is_loyal(self) -> bool:
        """Whether it refuses votes because it heard from its leader recently and has not seen it dead since."""
        state = self._state
        heard = state.leader is not None and self._silent_ticks < state.settings.election_ticks
        return heard and state.disloyal_term != state.term

    def on_tick(self) -> bool:
        """Whether it is time to stand for election."""
        self._silent_ticks += 1
        if self._silent_ticks < self._timeout_ticks:
            return False
        self._silent_ticks, self._timeout_ticks = 0, self._state.election_timeout()
        self._state.leader = None
        return True

    def on_heard(self) -> None:
        """Called on a message from the leader, and when it gives a candidate its vote."""
        self._silent_ticks = 0

    def on_leader_died(self) -> None:
        self._timeout_ticks = min(self._timeout_ticks, self._silent_ticks + self._state.succession_timeout())

    def on_append(self, message: AppendRequest) -> None:
        state, log = self._state, self._state.log
        previous, entries = message.previous_index, message.entries
        end = previous + len(entries)
        if previous < log.commit_index:  # committed entries are equal in every leader's log
            entries = entries[log.commit_index - previous :]
            previous = log.commit_index
            end = max(end, previous)
        elif log.term_at(previous) != message.previous_term:
            state.outbox.send_after_state(self._refusal(message))
            return
        log.merge(entries)
        log.commit(min(message.commit_index, end))
        self._answer_match(message, end)

    def _refusal(self, message: AppendRequest) -> AppendRefusal:
        log = self._state.log
        hint = log.last_of_terms_up_to(message.previous_term, min(message.previous_index, log.last_index))
        term = log.term_at(hint)
        assert term is not None
        return AppendRefusal(
            term=self._state.term,
            source=self._state.me,
            target=message.source,
            previous_index=message.previous_index,
            hint_index=hint,
            hint_term=term,
        )

    def _answer_match(self, message: AppendRequest | SnapshotChunk, index: int) -> None:
        state = self._state
        answer = AppendAnswer(term=state.term, source=state.me, target=message.source, match_index=index)
        state.outbox.send_after_all(answer)

    def on_heartbeat(self, message: Heartbeat) -> None:
        state = self._state
        state.log.commit(min(message.commit_index, state.log.last_index))
        state.outbox.send_after_state(
            HeartbeatAnswer(term=state.term, source=state.me, target=message.source, round=message.round)
        )

    def on_chunk(self, message: SnapshotChunk) -> None:
        state, log, mark = self._state, self._state.log, message.mark
        if mark.index <= log.commit_index or log.term_at(mark.index) == mark.term:
            log.commit(mark.index)  # where the logs agree at its end, the snapshot holds nothing new
            self._receiving = None
            self._answer_match(message, mark.index)
            return
        if self._receiving is None or self._receiving.mark.index != mark.index:
            self._receiving = _Receiving(mark)
        receiving = self._receiving
        if message.offset == receiving.next_offset:
            receiving.next_offset += len(message.data)
            state.chunk = ChunkToWrite(mark, message.offset, message.data, message.last)
            if message.last:
                log.restore(mark)
                self._receiving = None
                self._answer_match(message, mark.index)
                return
        state.outbox.send_after_all(
            SnapshotAnswer(
                term=state.term,
                source=state.me,
                target=message.source,
                index=mark.index,
                offset=message.offset,
                next_offset=receiving.next_offset,
            )
        )
