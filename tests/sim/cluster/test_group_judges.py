"""The judges of groups see what is wrong, each kind of it, and nothing where all is right."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from uuid import UUID

import pytest

from headrace.sim.cluster.groups.history import Clear, Commit, Ledger, Look, Register, judge_offsets
from headrace.sim.cluster.groups.judge import ClassicJudge, ConsumerJudge
from headrace.sim.cluster.world import ClusterWorld
from headrace.sim.loop import VirtualLoop

TOPIC = UUID(int=1)
PLACE = Register("group", TOPIC, 0)
ONE, TWO = frozenset({(TOPIC, 0)}), frozenset({(TOPIC, 1)})


@pytest.fixture
def world() -> Iterator[ClusterWorld]:
    loop = VirtualLoop(random.Random(0))
    yield ClusterWorld(loop, 0)
    loop.workers.close()
    loop.close()


def kinds(world: ClusterWorld) -> list[str]:
    return [problem.kind for problem in world.problems]


# offsets


def looks(ledger: Ledger, *offsets: int) -> None:
    for offset in offsets:
        ledger.done("reader", Look(PLACE), ledger.now(), offset)


def test_offsets_that_follow_the_commits_are_right() -> None:
    ledger = Ledger()
    looks(ledger, -1)
    ledger.done("member", Commit(PLACE, 1), ledger.now())
    looks(ledger, 1)
    ledger.unknown("member", Commit(PLACE, 2), ledger.now())
    looks(ledger, 1, 2)
    ledger.done("admin", Clear(PLACE), ledger.now())
    looks(ledger, -1)
    assert not list(judge_offsets(ledger))


@pytest.mark.parametrize("seen", [(-1,), (2, 1), (3,), (2, -1)], ids=str)
def test_an_offset_that_is_lost_or_falls_back_or_was_never_committed_is_found(seen: tuple[int, ...]) -> None:
    ledger = Ledger()
    ledger.done("member", Commit(PLACE, 1), ledger.now())
    ledger.unknown("member", Commit(PLACE, 2), ledger.now())
    looks(ledger, *seen)
    assert [problem.kind for problem in judge_offsets(ledger)] == ["lost-commit"]


def test_what_was_cleared_does_not_come_back() -> None:
    ledger = Ledger()
    ledger.done("member", Commit(PLACE, 1), ledger.now())
    ledger.done("admin", Clear(PLACE), ledger.now())
    looks(ledger, 1)
    assert [problem.kind for problem in judge_offsets(ledger)] == ["lost-commit"]


def test_two_registers_have_nothing_to_do_with_each_other() -> None:
    ledger = Ledger()
    ledger.done("member", Commit(PLACE, 1), ledger.now())
    ledger.done("reader", Look(Register("group", UUID(int=2), 0)), ledger.now(), -1)
    assert not list(judge_offsets(ledger))


# classic groups


def share_twice(judge: ClassicJudge) -> None:
    judge.on_share(1, "a", 7, ONE)
    judge.on_share(1, "b", 7, ONE)


def share_anew(judge: ClassicJudge) -> None:
    judge.on_share(1, "a", 7, ONE)
    judge.on_share(1, "b", 8, TWO)


def change_a_share(judge: ClassicJudge) -> None:
    judge.on_share(1, "a", 7, ONE)
    judge.on_share(1, "a", 7, TWO)


def commit_late(judge: ClassicJudge) -> None:
    judge.on_share(2, "a", 7, ONE)
    judge.on_committed(1, judge.newest, "b")


@pytest.mark.parametrize(
    ("act", "kind"),
    [
        (share_twice, "two-owners"),
        (share_anew, "generation-given-twice"),
        (change_a_share, "generation-given-twice"),
        (commit_late, "zombie-commit"),
    ],
)
def test_what_a_classic_group_must_not_do_is_found(
    act: Callable[[ClassicJudge], None], kind: str, world: ClusterWorld
) -> None:
    act(ClassicJudge(world, "group", restarts=False))
    assert kinds(world) == [kind]


def test_a_classic_group_may_share_out_and_commit(world: ClusterWorld) -> None:
    judge = ClassicJudge(world, "group", restarts=False)
    judge.on_share(1, "a", 7, ONE)
    judge.on_share(1, "b", 7, TWO)
    before = judge.newest
    judge.on_share(2, "b", 8, ONE | TWO)
    judge.on_committed(1, before, "a")  # it had left before anybody knew of the next
    judge.on_committed(2, judge.newest, "b")
    assert not kinds(world)


# consumer groups


def test_a_partition_is_given_on_once_it_is_given_up_or_its_owner_is_silent_for_a_session(world: ClusterWorld) -> None:
    judge = ConsumerJudge(world, "group", lease_s=10.0)
    judge.on_told("a", 0.0, ONE | TWO)
    judge.on_sent("a", TWO)
    judge.on_told("b", 0.0, ONE)
    world.loop._now = 11.0
    judge.on_told("c", 10.5, TWO)
    assert not kinds(world)


def test_a_partition_that_somebody_has_is_not_to_be_given(world: ClusterWorld) -> None:
    judge = ConsumerJudge(world, "group", lease_s=10.0)
    judge.on_told("a", 0.0, ONE)
    judge.on_told("b", 0.0, ONE)
    assert kinds(world) == ["two-owners"]


def test_nobody_commits_for_what_another_reads(world: ClusterWorld) -> None:
    judge = ConsumerJudge(world, "group", lease_s=10.0)
    judge.on_told("b", 0.0, ONE)
    judge.on_committed("b", (TOPIC, 0), judge.others("b", (TOPIC, 0)))
    assert not kinds(world)
    judge.on_committed("a", (TOPIC, 0), judge.others("a", (TOPIC, 0)))
    assert kinds(world) == ["zombie-commit"]
