"""The consensus core of a cluster with one voter: what it has synced is committed.

Promises: an entry is committed once, in index order, and only after `Persisted` covers it; nothing of an earlier term
is committed before an entry of this core's own term is (as in Raft with more voters). Never does IO.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Self, assert_never

from headrace.base.ids import BrokerId
from headrace.raft.messages import NOTHING, Campaign, Entry, Event, HardState, Persisted, Propose, Ready


@dataclass(frozen=True, slots=True, kw_only=True)
class SoleVoter:
    """The state of the only voter.

    Invariants: `uncommitted` are the entries `commit_index + 1` to `last_index`, without a gap; `commit_index` never
    falls; terms never fall along the log.
    """

    node: BrokerId
    hard_state: HardState
    leads: bool
    """Whether it has won its own vote since it started."""
    commit_index: int
    last_index: int
    uncommitted: tuple[Entry, ...]

    @classmethod
    def recovered(cls, *, node: BrokerId, hard_state: HardState, snapshot_index: int, entries: Sequence[Entry]) -> Self:
        """As it stands after a restart: a follower that knows of no commit above its snapshot."""
        assert [entry.index for entry in entries] == list(range(snapshot_index + 1, snapshot_index + 1 + len(entries)))
        return cls(
            node=node,
            hard_state=hard_state,
            leads=False,
            commit_index=snapshot_index,
            last_index=snapshot_index + len(entries),
            uncommitted=tuple(entries),
        )

    def step(self, event: Event) -> tuple[SoleVoter, Ready]:
        match event:
            case Campaign():
                return self._on_campaign()
            case Propose(data=data):
                return self._on_propose(data)
            case Persisted(term=term, index=index):
                return self._on_persisted(term, index)
            case _:
                assert_never(event)

    def _on_campaign(self) -> tuple[SoleVoter, Ready]:
        """Vote for itself in a new term, win, and open the term with an empty entry."""
        state = HardState(self.hard_state.term + 1, self.node)
        elected = replace(self, hard_state=state, leads=True)
        elected, ready = elected._on_propose((b"",))
        return elected, replace(ready, hard_state=state)

    def _on_propose(self, data: tuple[bytes, ...]) -> tuple[SoleVoter, Ready]:
        assert self.leads, "only a leader is proposed to"
        term, first = self.hard_state.term, self.last_index + 1
        entries = tuple(Entry(term, first + at, item) for at, item in enumerate(data))
        appended = replace(self, last_index=self.last_index + len(entries), uncommitted=self.uncommitted + entries)
        return appended, Ready(entries=entries)

    def _on_persisted(self, term: int, index: int) -> tuple[SoleVoter, Ready]:
        assert index <= self.last_index, "synced more than was appended"
        if term != self.hard_state.term or index <= self.commit_index:
            return self, NOTHING
        count = index - self.commit_index
        committed = replace(self, commit_index=index, uncommitted=self.uncommitted[count:])
        return committed, Ready(committed=self.uncommitted[:count])
