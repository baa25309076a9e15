"""Laws of the small parts, each against a dumb twin, and of the core of one voter."""

from __future__ import annotations

import sys
from itertools import chain, combinations, pairwise
from types import FrameType

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.base.ids import NO_LEADER
from headrace.raft.core import Raft
from headrace.raft.events import Campaign, Persisted, Propose
from headrace.raft.log import Log
from headrace.raft.membership import AddLearner, Change, Demote, Membership, MembershipRefusal, Peer, Promote, Remove
from headrace.raft.messages import (
    AppendRequest,
    Entry,
    EntryKind,
    HardState,
    Heartbeat,
    SnapshotMark,
    VoteAnswer,
    VoteRequest,
)
from headrace.raft.progress import Window
from tests.raft.member import NOBODY, peer
from tests.raft.script import Steady

ME = peer(1)
ALONE = Membership(frozenset((ME,)))
peers = st.builds(peer, st.integers(1, 5), st.integers(1, 2))
payloads = st.lists(st.binary(max_size=3), min_size=1, max_size=3).map(tuple)


def memberships() -> st.SearchStrategy[Membership]:
    def split(roles: dict[int, tuple[int, bool]]) -> Membership:
        of = {peer(node, life): votes for node, (life, votes) in roles.items()}
        return Membership(frozenset(p for p, v in of.items() if v), frozenset(p for p, v in of.items() if not v))

    return st.dictionaries(st.integers(1, 5), st.tuples(st.integers(1, 2), st.booleans()), min_size=1).map(split)


changes: st.SearchStrategy[Change] = st.one_of(
    st.builds(AddLearner, peers), st.builds(Promote, peers), st.builds(Demote, peers), st.builds(Remove, peers)
)


def _quorums(membership: Membership) -> list[frozenset[Peer]]:
    voters = sorted(membership.voters)
    subsets = chain.from_iterable(combinations(voters, size) for size in range(len(voters) + 1))
    return [frozenset(some) for some in subsets if 2 * len(some) > len(voters)]


@given(memberships(), changes)
def test_any_quorum_before_a_change_meets_any_quorum_after_it(before: Membership, change: Change) -> None:
    after = before.changed(change)
    if isinstance(after, MembershipRefusal) or not before.voters:
        return
    nodes = [member.node for member in after.members]
    assert len(nodes) == len(set(nodes)), "a node is a member once"
    assert len(before.voters ^ after.voters) <= 1
    assert all(one & other for one in _quorums(before) for other in _quorums(after))


@given(memberships())
def test_a_membership_reads_back(membership: Membership) -> None:
    assert Membership.decoded(membership.encoded()) == membership


@given(st.dictionaries(peers, st.integers(0, 9), min_size=1))
def test_what_a_quorum_has_reached(values: dict[Peer, int]) -> None:
    membership = Membership(frozenset(values))
    reached = membership.reached(values.__getitem__)
    holds = [value for value in range(10) if membership.is_quorum({p for p, v in values.items() if v >= value})]
    assert reached == max(holds)


def test_nobody_is_no_quorum() -> None:
    assert not NOBODY.is_quorum(set())
    assert not NOBODY.is_quorum({ME})


@given(st.lists(st.tuples(st.integers(0, 9), st.lists(st.integers(0, 2), max_size=4)), max_size=20), st.data())
def test_a_log_is_a_list_that_is_cut_where_a_leader_contradicts(
    steps: list[tuple[int, list[int]]], data: st.DataObject
) -> None:
    """Against a plain list of terms; writes end in between, and what is durable stays a prefix."""
    log, term, write = Log(SnapshotMark(0, 0, ALONE), []), 1, 0
    twin: list[int] = []
    disk: list[int] = []
    under_way: list[tuple[int, int, list[int]]] = []
    for at, more in steps:
        term += 1
        start = min(at, len(twin))
        if start < log.commit_index:
            continue
        terms = sorted(max(term - up, twin[start - 1] if start else 1) for up in more)
        log.merge([Entry(t, start + i, b"") for i, t in enumerate(terms, 1)])
        for i, t in enumerate(terms):
            if start + i < len(twin) and twin[start + i] != t:
                del twin[start + i :]
            if start + i >= len(twin):
                twin.append(t)
        unsaved = log.take_unsaved()
        if unsaved:
            write += 1
            log.on_write(write)
            under_way.append((write, unsaved[0].index, [entry.term for entry in unsaved]))
        ends = data.draw(st.booleans())
        if under_way and ends:
            number, first, saved = under_way.pop(0)
            disk[first - 1 :] = saved
            log.on_persisted(number)
        if data.draw(st.booleans()):
            log.commit(data.draw(st.integers(log.commit_index, log.last_index)))
            log.take_committed()
        log.validate()
        assert [log.term_at(i) for i in range(1, log.last_index + 1)] == twin
        assert disk[: log.durable_index] == twin[: log.durable_index], "what is durable is what is there"
        if log.handed_index and data.draw(st.booleans()):
            log.compact(data.draw(st.integers(1, log.handed_index)), keep=1)
            log.validate()
            for index in range(log.base_index + 1, log.last_index + 1):
                assert log.term_at(index) == twin[index - 1]
            twin_hint = [i for i in range(log.base_index + 1, log.last_index + 1) if twin[i - 1] <= term - 1]
            assert log.last_of_terms_up_to(term - 1, log.last_index) == max(twin_hint, default=log.base_index)
            return


def test_a_truncation_brings_back_the_membership_before() -> None:
    log = Log(SnapshotMark(0, 0, ALONE), [])
    both = Membership(frozenset((ME, peer(2))))
    log.merge([Entry(1, 1, b"x"), Entry(1, 2, both.encoded(), EntryKind.MEMBERSHIP)])
    assert log.members.current == both
    assert log.members.at(1) == ALONE
    log.merge([Entry(2, 2, b"y")])
    assert log.members.current == ALONE


def test_a_window_is_bounded_by_messages_and_bytes() -> None:
    window = Window(messages_max=3, bytes_max=100)
    full = []
    for index, size in ((1, 60), (2, 60)):  # one may go beyond the bytes
        window.add(index, size)
        full.append(window.is_full)
    window.free(1)
    full.append(window.is_full)
    for index in (3, 4):
        window.add(index, 1)
        full.append(window.is_full)
    window.free(4)
    full.append(window.is_full)
    assert full == [False, True, False, False, True, False]


def alone(entries: list[Entry], hard_state: HardState, snapshot_index: int = 0) -> Raft:
    mark = SnapshotMark(snapshot_index, 1 if snapshot_index else 0, ALONE)
    return Raft.recovered(me=ME, hard_state=hard_state, snapshot=mark, entries=entries, random=Steady())


@given(st.integers(0, 5), st.integers(0, 3), st.lists(payloads | st.just(None), max_size=20))
def test_what_one_voter_has_persisted_is_committed_once_and_in_order(
    snapshot_index: int, recovered: int, steps: list[tuple[bytes, ...] | None]
) -> None:
    """A step is a proposal, or (None) the sync of all that was proposed so far."""
    old = [Entry(1, snapshot_index + at, b"old") for at in range(1, recovered + 1)]
    core = alone(old, HardState(1, ME.node), snapshot_index)
    ready = core.step(Campaign())
    assert ready.hard_state == HardState(2, ME.node)
    assert ready.entries == (), "it leads once its own vote is on the disk"
    assert ready.write is not None
    ready = core.step(Persisted(ready.write))
    assert core.leads
    appended, write = [*old, *ready.entries], ready.write
    committed: list[Entry] = []
    for step in [*steps, None, None]:
        if step is not None:
            ready = core.step(Propose(step))
            assert [entry.data for entry in ready.entries] == list(step)
            assert ready.committed == (), "nothing is committed before it is synced"
            appended += ready.entries
            write = ready.write
        else:
            assert write is not None
            committed += core.step(Persisted(write)).committed
            assert committed == appended
    assert [entry.index for entry in committed] == list(range(snapshot_index + 1, snapshot_index + 1 + len(committed)))
    assert all(one.term <= following.term for one, following in pairwise(committed))


def test_only_a_leader_is_proposed_to() -> None:
    assert alone([], HardState()).step(Propose((b"x",))).refusal is MembershipRefusal.NOT_LEADER


def test_a_vote_is_not_given_again_after_a_restart_not_even_to_the_same_node() -> None:
    """The disk remembers the node, not its directory: another one may have come back under that id."""
    voters = Membership(frozenset(peer(node) for node in (1, 2, 3)))
    core = Raft.recovered(
        me=ME, hard_state=HardState(5, peer(2).node), snapshot=SnapshotMark(0, 0, voters), entries=[], random=Steady()
    )
    request = VoteRequest(
        term=5, source=peer(2, life=2), target=ME, last_index=9, last_term=4, pre=False, transfer=False
    )
    (answer,) = core.step(request).messages
    assert isinstance(answer, VoteAnswer)
    assert not answer.granted


def test_an_answer_waits_for_the_write_that_it_rests_on_and_dies_with_its_term() -> None:
    voters = Membership(frozenset(peer(node) for node in (1, 2, 3)))
    core = Raft.recovered(
        me=ME, hard_state=HardState(1, NO_LEADER), snapshot=SnapshotMark(0, 0, voters), entries=[], random=Steady()
    )

    def append(term: int, entry: Entry, leader: Peer) -> AppendRequest:
        return AppendRequest(
            term=term, source=leader, target=ME, previous_index=0, previous_term=0, entries=(entry,), commit_index=0
        )

    first = core.step(append(1, Entry(1, 1, b"a"), peer(2)))
    assert first.messages == ()
    assert first.write is not None
    heartbeat = Heartbeat(term=1, source=peer(2), target=ME, commit_index=0, round=1)
    assert len(core.step(heartbeat).messages) == 1, "a heartbeat's answer rests on no entry"
    second = core.step(append(2, Entry(2, 1, b"b"), peer(3)))
    assert second.write == first.write + 1
    assert core.step(Persisted(first.write)).messages == (), "nobody says any more that entry 1 of term 1 is there"
    (answer,) = core.step(Persisted(second.write)).messages
    assert answer.target == peer(3)


@pytest.mark.parametrize("entries", [50_000])
def test_a_long_log_is_not_walked_for_a_step(entries: int) -> None:
    """As a count of calls, not as time: a step on a long log does what it does on a short one."""

    def calls(length: int) -> int:
        core = alone([Entry(1, at, b"x") for at in range(1, length + 1)], HardState(1, ME.node))
        core.step(Persisted(core.step(Persisted(core.step(Campaign()).write or 0)).write or 0))
        count = 0

        def profile(frame: FrameType, event: str, arg: object) -> None:
            nonlocal count
            count += "/headrace/" in frame.f_code.co_filename  # the garbage collector calls others at any time

        sys.setprofile(profile)
        try:
            core.step(Persisted(core.step(Propose((b"y",))).write or 0))
        finally:
            sys.setprofile(None)
        return count

    assert calls(entries) == calls(10) > 0
