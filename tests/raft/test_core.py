"""Single answers of a core: what it must refuse, and what it must not believe."""

from __future__ import annotations

from headrace.base.ids import NO_LEADER
from headrace.raft.core import Raft
from headrace.raft.events import Persisted, Ready
from headrace.raft.log import Log
from headrace.raft.membership import Membership
from headrace.raft.messages import (
    AppendRequest,
    Entry,
    EntryKind,
    HardState,
    Message,
    SnapshotAnswer,
    SnapshotChunk,
    SnapshotMark,
    VoteAnswer,
    VoteRequest,
)
from tests.raft.member import peer
from tests.raft.script import Steady

ME, OTHER = peer(1), peer(2)
THREE = Membership(frozenset(peer(node) for node in (1, 2, 3)))


def core(*terms: int, term: int = 5, snapshot: SnapshotMark | None = None) -> Raft:
    mark = snapshot or SnapshotMark(0, 0, THREE)
    entries = [Entry(t, mark.index + at, b"x") for at, t in enumerate(terms, 1)]
    state = HardState(term, NO_LEADER)
    return Raft.recovered(me=ME, hard_state=state, snapshot=mark, entries=entries, random=Steady())


def persisted(raft: Raft, ready: Ready) -> tuple[Message, ...]:
    """All that a step leads to be said."""
    later = raft.step(Persisted(ready.write)).messages if ready.write is not None else ()
    return ready.messages + later


def test_a_log_that_lacks_something_gets_no_vote_whoever_asked_for_the_election() -> None:
    """The pre-vote asks the same, so that only an election without one shows it."""
    for last_index, last_term, granted in ((3, 4, True), (9, 3, False), (2, 4, False), (1, 5, True)):
        raft = core(1, 4, 4)
        request = VoteRequest(
            term=6, source=OTHER, target=ME, last_index=last_index, last_term=last_term, pre=False, transfer=True
        )
        (answer,) = persisted(raft, raft.step(request))
        assert isinstance(answer, VoteAnswer)
        assert answer.granted is granted


def test_only_what_the_leader_has_shown_is_committed() -> None:
    raft = core(1, 1, 1)
    raft.step(
        AppendRequest(term=5, source=OTHER, target=ME, previous_index=1, previous_term=1, entries=(), commit_index=3)
    )
    assert raft.log.commit_index == 1, "entries 2 and 3 may be of a leader that lost them"


def test_what_is_for_an_earlier_directory_is_for_nobody() -> None:
    raft = core(1)
    request = VoteRequest(
        term=9, source=OTHER, target=peer(1, life=2), last_index=9, last_term=9, pre=False, transfer=False
    )
    assert raft.step(request) == Ready()
    assert raft.term == 5


def test_a_snapshot_has_the_membership_that_held_at_its_index() -> None:
    two = Membership(frozenset((ME, OTHER)))
    log = Log(SnapshotMark(0, 0, THREE), [Entry(1, 1, b"x"), Entry(1, 2, two.encoded(), EntryKind.MEMBERSHIP)])
    log.commit(2)
    log.take_committed()
    log.compact(1, keep=0)
    assert log.snapshot.membership == THREE
    log.compact(2, keep=0)
    assert log.snapshot.membership == two


def chunk(mark: SnapshotMark, offset: int, data: bytes, *, last: bool) -> SnapshotChunk:
    return SnapshotChunk(term=5, source=OTHER, target=ME, mark=mark, offset=offset, data=data, last=last)


def test_a_chunk_that_does_not_follow_is_not_written() -> None:
    raft, mark = core(1), SnapshotMark(9, 4, THREE)
    ready = raft.step(chunk(mark, 8, b"tail", last=True))
    assert ready.chunk is None
    (answer,) = persisted(raft, ready)
    assert isinstance(answer, SnapshotAnswer)
    assert (answer.offset, answer.next_offset) == (8, 0)
    assert raft.log.last_index == 1


def test_a_received_snapshot_counts_once_it_is_written() -> None:
    """Though the log that it takes the place of was longer, and durable."""
    raft, mark = core(1, 1, 1, 1, 1), SnapshotMark(3, 4, THREE)
    ready = raft.step(chunk(mark, 0, b"all", last=True))
    assert ready.chunk is not None
    assert ready.messages == ()
    assert raft.log.last_index == 3
    assert raft.log.durable_index < 3
    raft.log.validate()
    assert len(persisted(raft, ready)) == 1
    assert raft.log.durable_index == 3


def test_a_snapshot_takes_nothing_back() -> None:
    raft = core(4, 4, snapshot=SnapshotMark(7, 3, THREE))
    ready = raft.step(chunk(SnapshotMark(5, 2, THREE), 0, b"old", last=True))
    assert ready.chunk is None
    assert raft.log.last_index == 9


def test_who_asks_for_votes_is_the_leader_no_more() -> None:
    """Loyalty to it is no reason to refuse it: its process was restarted. For other candidates it still is."""
    raft = core(1, 4, 4)
    raft.step(
        AppendRequest(term=5, source=OTHER, target=ME, previous_index=3, previous_term=4, entries=(), commit_index=3)
    )
    for source, answered in ((peer(3), False), (peer(2, life=2), False), (OTHER, True)):
        request = VoteRequest(term=6, source=source, target=ME, last_index=3, last_term=4, pre=True, transfer=False)
        assert bool(persisted(raft, raft.step(request))) is answered
