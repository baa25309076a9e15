"""The protocol of an exactly-once write, in every order of steps: two runs, a zombie, crashes, late and lost answers.

A driver that is not scheduled again has crashed, so each state that is reached is also one after a crash. Commits and
aborts are steps of their own, one for each transaction.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.base.errors import CorruptData
from headrace.net.client.two_phase import Prepared
from headrace.spark.write.exactly import ending as core
from headrace.spark.write.exactly.ending import Ending
from headrace.spark.write.exactly.names import Abandoned, Decision, TaskName, pattern_of

QUERY = "q"


def named(run: str, batch: int, task: int, attempt: int = 0) -> Prepared:
    return Prepared(TaskName(run, batch, task, attempt, QUERY).text, 1, 0)


@dataclass(frozen=True, kw_only=True)
class Driver:
    ending: Ending
    effect: core.Effect
    done: frozenset[str] = frozenset()
    """Transactions of the effect that are ended."""
    unknown: frozenset[str] = frozenset()
    """Those of them whose coordinator had forgotten them."""
    is_fenced: bool = False

    @property
    def is_over(self) -> bool:
        return self.is_fenced or isinstance(self.effect, core.Done)

    def answered(self, event: core.Event) -> Driver:
        ending, effect = self.ending.step(event)
        return Driver(ending=ending, effect=effect)


@dataclass(frozen=True, kw_only=True)
class World:
    transactions: frozenset[tuple[str, str]] = frozenset()
    """Names, and how they stand: open, committed, aborted."""
    forgotten: frozenset[str] = frozenset()
    """Names of ended ones whose coordinator does not know them any more."""
    decided: tuple[Decision, ...] = ()
    finished: frozenset[Decision] = frozenset()
    abandoned: frozenset[Abandoned] = frozenset()
    holder: str | None = None
    """The driver whose claim may be confirmed."""
    drivers: frozenset[tuple[str, Driver]] = frozenset()

    def with_transaction(self, name: str, state: str) -> World:
        others = {each for each in self.transactions if each[0] != name}
        return replace(self, transactions=frozenset(others | {(name, state)}))

    def with_driver(self, name: str, driver: Driver) -> World:
        others = {each for each in self.drivers if each[0] != name}
        return replace(self, drivers=frozenset(others | {(name, driver)}))

    def started(self, name: str, ending: Ending) -> World:
        return self.with_driver(name, Driver(ending=ending, effect=ending.begin()))

    def names(self, state: str) -> frozenset[str]:
        return frozenset(name for name, each in self.transactions if each == state)


A = (named("a", 0, 0), named("a", 0, 1))
B = (named("b", 0, 0),)
C = (named("b", 1, 0),)
ZOMBIE = named("a", 0, 0, 9)
START = World().with_transaction(A[0].name, "open").with_transaction(A[1].name, "open")


@dataclass(frozen=True, kw_only=True)
class Story:
    """Events that may happen. No story has all, for that would be too many states."""

    gives_up: bool = False
    """Spark loses the answer of the first run's commit, or kills it, and calls abort."""
    zombie: bool = False
    """A late attempt of the first run begins to write."""
    loads: bool = False
    """A list of open transactions may lack some."""
    goes_on: bool = False
    """The second run writes one more batch."""
    meddles: bool = False
    """Somebody aborts a transaction of the first run."""
    forgets: bool = False
    """Its coordinator forgets how that one has ended."""


def next_worlds(world: World, story: Story) -> Iterator[World]:
    """All that can happen next."""
    drivers = dict(world.drivers)
    for name, driver in drivers.items():
        if not driver.is_over:
            yield from driven(world, name, driver, story)
    known = {name for name, _ in world.transactions}
    if "a" not in drivers:
        yield world.started("a", Ending(batch=0, run="a", winners=A))
    elif story.gives_up and "a gives up" not in drivers:
        yield world.started("a gives up", Ending(batch=0, run="a", winners=None))
    name = A[0].name
    if story.meddles and name in world.names("open"):
        yield world.with_transaction(name, "aborted")
    if story.forgets and name not in world.names("open"):
        yield replace(world, forgotten=frozenset([name]))
    if story.zombie and ZOMBIE.name not in known:
        yield world.with_transaction(ZOMBIE.name, "open")
    if B[0].name not in known:
        yield world.with_transaction(B[0].name, "open")
    elif "b" not in drivers:
        yield world.started("b", Ending(batch=0, run="b", winners=B))
    elif story.goes_on and isinstance(drivers["b"].effect, core.Done):
        if C[0].name not in known:
            yield world.with_transaction(C[0].name, "open")
        elif "b, batch 1" not in drivers:
            yield world.started("b, batch 1", Ending(batch=1, run="b", winners=C))


def driven(world: World, name: str, driver: Driver, story: Story) -> Iterator[World]:
    """One step of a driver."""
    effect = driver.effect
    if isinstance(effect, core.Claim):
        newest = world.decided[-1] if world.decided else None
        is_abandoned = Abandoned(driver.ending.batch, driver.ending.run) in world.abandoned
        claimed = core.Claimed(newest, is_abandoned, newest in world.finished)
        yield replace(world, holder=name).with_driver(name, driver.answered(claimed))
    elif isinstance(effect, core.ListOpen):
        for listed in (world.names("open"), frozenset[str]())[: 2 if story.loads else 1]:
            yield world.with_driver(name, driver.answered(core.Listed(listed)))
    elif isinstance(effect, core.CheckOpen):
        lost = tuple(each for each in effect.names if each not in world.names("open"))
        yield world.with_driver(name, driver.answered(core.Checked(lost)))
    elif isinstance(effect, core.Confirm | core.Drop):
        if world.holder != name:
            yield world.with_driver(name, replace(driver, is_fenced=True))
            return
        if isinstance(effect, core.Confirm):
            own = driver.ending.own
            if own is not None:
                world = replace(world, decided=(*world.decided, own))
            else:
                mark = Abandoned(driver.ending.batch, driver.ending.run)
                world = replace(world, abandoned=world.abandoned | {mark})
        yield replace(world, holder=None).with_driver(name, driver.answered(core.Settled()))
    elif isinstance(effect, core.CommitAll):
        yield from ended(world, name, driver, [each.name for each in effect.transactions], "committed")
    elif isinstance(effect, core.Note):
        noted = replace(world, finished=world.finished | {effect.followed})
        yield noted.with_driver(name, driver.answered(core.Noted()))
    elif isinstance(effect, core.AbortAll):
        yield from ended(world, name, driver, list(effect.names), "aborted")


def ended(world: World, name: str, driver: Driver, names: list[str], state: str) -> Iterator[World]:
    left = [each for each in names if each not in driver.done]
    if not left:
        lost = tuple(each for each in names if each in world.names("aborted") and each not in driver.unknown)
        committed = core.Committed(lost, tuple(each for each in names if each in driver.unknown))
        yield world.with_driver(name, driver.answered(committed if state == "committed" else core.Aborted()))
    for each in left[:1]:
        after = world.with_transaction(each, state) if each in world.names("open") else world
        unknown = driver.unknown | ({each} & world.forgotten)
        yield after.with_driver(name, replace(driver, done=driver.done | {each}, unknown=unknown))


def check(world: World, story: Story) -> None:
    batches = [decision.batch for decision in world.decided]
    assert batches == sorted(set(batches)), "a batch is decided once, and in order"
    winners = {each.name for decision in world.decided for each in decision.winners}
    assert world.names("committed") <= winners, "nothing is committed without a decision"
    assert story.meddles or not world.names("aborted") & winners, "nothing that is named is aborted"
    for noted in world.finished:
        assert {each.name for each in noted.winners} <= world.names("committed"), "what is noted is true"
    for name, driver in world.drivers:
        if isinstance(driver.effect, core.Done) and driver.effect.followed is not None:
            lost, unknown = driver.effect.lost, driver.effect.unknown
            named_ones = {each.name for each in driver.effect.followed.winners}
            assert named_ones <= world.names("committed") | {*lost, *unknown}, "who is done has committed all"
            assert story.meddles or not lost, name
            assert {*lost} <= world.names("aborted"), "who tells of a loss is right"
            assert {*unknown} <= world.forgotten, "who cannot tell has asked"


def explored(story: Story) -> set[World]:
    seen, todo = {START}, [START]
    while todo:
        for world in next_worlds(todo.pop(), story):
            if world not in seen:
                seen.add(world)
                todo.append(world)
    return seen


@pytest.mark.parametrize(
    "story",
    [Story(gives_up=True), Story(zombie=True, loads=True, goes_on=True), Story(meddles=True, forgets=True)],
    ids=["gives-up", "late", "forgets"],
)
def test_each_row_is_there_once_whatever_happens_in_whatever_order(story: Story) -> None:
    worlds = explored(story)
    decided = set()
    for world in worlds:
        check(world, story)
        drivers = dict(world.drivers)
        last = drivers.get("b, batch 1" if story.goes_on else "b")
        if last is not None and isinstance(last.effect, core.Done) and last.effect.followed is not None:
            decided.add(world.decided[0].run)
            if last.effect.lost or last.effect.unknown:
                continue
            more = C if story.goes_on else ()
            assert world.names("committed") in ({*map(_name, A + more)}, {*map(_name, B + more)}), "one run's, whole"
    assert decided == {"a", "b"}, "either run may decide batch 0"


def _name(prepared: Prepared) -> str:
    return prepared.name


def test_the_next_batch_aborts_what_came_late() -> None:
    ending = Ending(batch=1, run="b", winners=C, newest=Decision(0, "a", A), phase=core.Phase.LISTING)
    ending, effect = ending.step(core.Listed(frozenset(map(_name, (*A[:1], *B, *C, ZOMBIE, named("b", 2, 0))))))
    assert effect == core.Confirm()
    ending, effect = ending.step(core.Settled())
    assert effect == core.CommitAll(A[:1] + C), "what the decision before has left open is committed"
    ending, effect = ending.step(core.Committed(()))
    assert effect == core.Note(Decision(1, "b", C))
    ending, effect = ending.step(core.Noted())
    assert effect == core.AbortAll(tuple(sorted(map(_name, (*B, ZOMBIE)))))


def test_a_batch_that_is_known_to_be_committed_is_asked_for_no_more() -> None:
    decided = Decision(0, "a", A)
    ending, effect = Ending(batch=0, run="b", winners=B).step(core.Claimed(decided, is_finished=True))
    ending, effect = ending.step(core.Listed(frozenset([B[0].name])))
    assert effect == core.Drop()
    ending, effect = ending.step(core.Settled())
    assert effect == core.CommitAll(()), "the coordinators may have forgotten them"
    ending, effect = ending.step(core.Committed(()))
    assert effect == core.AbortAll((B[0].name,))
    assert ending.step(core.Aborted())[1] == core.Done(decided, ())


def test_a_batch_whose_transactions_are_forgotten_is_not_taken_for_committed() -> None:
    decided, gone = Decision(0, "a", A), (A[1].name,)
    ending = Ending(batch=0, run="b", winners=B, newest=decided, followed=decided, phase=core.Phase.COMMITTING)
    ending, effect = ending.step(core.Committed((), gone))
    assert effect == core.AbortAll(()), "and nobody notes that it is carried out"
    assert ending.step(core.Aborted())[1] == core.Done(decided, (), gone)


def test_a_batch_whose_transactions_are_gone_is_not_decided() -> None:
    ending = Ending(batch=0, run="a", winners=A, phase=core.Phase.LISTING)
    ending, effect = ending.step(core.Listed(frozenset([A[0].name])))
    assert effect == core.CheckOpen((A[1].name,))
    ending, effect = ending.step(core.Checked((A[1].name,)))
    assert effect == core.Drop()
    ending, _ = ending.step(core.Settled())
    ending, effect = ending.step(core.Committed(()))
    assert effect == core.AbortAll((A[0].name,))
    assert ending.step(core.Aborted())[1] == core.Done(None, (A[1].name,))


texts = st.text(min_size=1, max_size=12)
numbers = st.integers(0, 2**40)


@given(texts, numbers, numbers, numbers)
def test_names_are_read_as_they_are_written(query: str, batch: int, task: int, attempt: int) -> None:
    import re

    name = TaskName("0af", batch, task, attempt, query)
    assert TaskName.parse(name.text) == name
    assert re.fullmatch(pattern_of(query=query, run="0af"), name.text, re.DOTALL)
    assert not re.fullmatch(pattern_of(query=query + "x"), name.text, re.DOTALL)
    decision = Decision(batch, "0af", (Prepared(name.text, 5, 6),))
    assert Decision.from_bytes(query, decision.to_bytes()) == decision


def test_a_foreign_name_or_record_is_none_of_ours() -> None:
    assert TaskName.parse("headrace-spark-ledger.q") is None
    with pytest.raises(CorruptData, match="The last decision of query 'q'"):
        Decision.from_bytes("q", b"{}")
