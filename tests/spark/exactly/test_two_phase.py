"""Prepared transactions on a real broker: decided through the ledger, finished after a crash, and refused where off.

Readers are librdkafka's.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace.base.errors import HeadraceError, UsageError
from headrace.cli import txn as headrace_txn
from headrace.net.client.cluster import Cluster
from headrace.net.client.two_phase import TwoPhase
from headrace.spark.brokers import Brokers
from headrace.spark.write.exactly.commit import Batch, check_brokers, commit, give_up
from headrace.spark.write.exactly.driving import OutcomeForgotten, open_of
from headrace.spark.write.exactly.ledger import LOOK_BACK, ConcurrentWrite, Ledger
from headrace.spark.write.exactly.names import Abandoned, Decision, Finished, TaskName
from tests.spark.exactly.dying_driver import prepare
from tests.spark.world import LOOK_EVERY_S, World, consumed, world

pytestmark = pytest.mark.timeout(180)
TWO_PHASE = {"transaction.two.phase.commit.enable": "true"}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with world(tmp_path_factory.mktemp("world"), **TWO_PHASE) as running:
        yield running


def values(made: World, topic: str) -> list[bytes | None]:
    return [row[6] for row in consumed(made.bootstrap, [topic])]


def still_open(made: World, query: str) -> list[TaskName]:
    with Brokers(made.bootstrap) as brokers:
        return brokers.ask(lambda cluster: open_of(cluster, query=query))


def decide(made: World, query: str, decision: Decision, *, confirm: bool) -> Decision | None:
    """Decide, and no more: the driver dies then."""

    async def claim(cluster: Cluster) -> Decision | None:
        ledger = Ledger(cluster, query)
        below = await ledger.claim(decision)
        await ledger.settle(confirm=confirm)
        return below.newest

    with Brokers(made.bootstrap) as brokers:
        return brokers.ask(claim)


def test_a_batch_is_committed_whole_and_losers_are_aborted(made: World) -> None:
    made.create("whole", 1)
    winners = tuple(
        prepare(made.bootstrap, "whole", TaskName("a", 0, task, 7, "whole.q"), b"%d" % task) for task in range(3)
    )
    prepare(made.bootstrap, "whole", TaskName("a", 0, 1, 9, "whole.q"), b"speculative")
    prepare(made.bootstrap, "whole", TaskName("0", 0, 0, 1, "whole.q"), b"of a run that was killed")
    assert values(made, "whole") == []
    commit(made.bootstrap, Batch("whole.q", 0, "a"), winners)
    assert sorted(each or b"" for each in values(made, "whole")) == [b"0", b"1", b"2"]
    assert still_open(made, "whole.q") == []


def test_a_decided_batch_is_finished_by_the_next_run_and_not_written_again(made: World) -> None:
    made.create("decided", 1)
    winners = tuple(
        prepare(made.bootstrap, "decided", TaskName("a", 4, task, 7, "q"), b"first %d" % task) for task in range(2)
    )
    assert decide(made, "q", Decision(4, "a", winners), confirm=True) is None
    assert values(made, "decided") == []
    again = prepare(made.bootstrap, "decided", TaskName("b", 4, 0, 1, "q"), b"again")
    commit(made.bootstrap, Batch("q", 4, "b"), (again,))
    assert values(made, "decided") == [b"first 0", b"first 1"]
    give_up(made.bootstrap, Batch("q", 4, "b"))
    assert values(made, "decided") == [b"first 0", b"first 1"]
    assert still_open(made, "q") == []


def test_an_undecided_batch_is_aborted_and_written_by_the_next_run(made: World) -> None:
    made.create("undecided", 1)
    first = prepare(made.bootstrap, "undecided", TaskName("a", 0, 0, 1, "u"), b"first")
    assert decide(made, "u", Decision(0, "a", (first,)), confirm=False) is None
    again = prepare(made.bootstrap, "undecided", TaskName("b", 0, 0, 1, "u"), b"again")
    commit(made.bootstrap, Batch("u", 0, "b"), (again,))
    assert values(made, "undecided") == [b"again"]
    with pytest.raises(HeadraceError, match="somebody else has aborted 1 of its transactions"):
        commit(made.bootstrap, Batch("u", 1, "a"), (first._replace(name=TaskName("a", 1, 0, 2, "u").text),))


def test_a_driver_that_was_replaced_cannot_decide(made: World) -> None:
    async def both(cluster: Cluster) -> None:
        old, new = Ledger(cluster, "two"), Ledger(cluster, "two")
        assert await old.claim(Decision(0, "a", ())) == (None, False, False)
        assert await new.claim(Decision(0, "b", ())) == (None, False, False)
        with pytest.raises(ConcurrentWrite, match="Another run of query 'two'"):
            await old.settle(confirm=True)
        await new.settle(confirm=True)
        await new.note(Finished(0, "b"))
        assert await old.claim(Abandoned(1, "a")) == (Decision(0, "b", ()), False, True)
        await old.settle(confirm=True)
        await new.note(Finished(0, "a"))  # of another decision
        assert await old.claim(Decision(1, "a", ())) == (Decision(0, "b", ()), True, False)

    with Brokers(made.bootstrap) as brokers:
        brokers.ask(both)


def test_the_last_decision_is_found_however_far_back_it_is(made: World) -> None:
    async def far(cluster: Cluster) -> None:
        ledger = Ledger(cluster, "far")
        await ledger.claim(Decision(7, "a", ()))
        await ledger.settle(confirm=True)
        for number in range(LOOK_BACK + 1):
            await ledger.note(Finished(number, "0"))
        assert await ledger.claim(Abandoned(8, "a")) == (Decision(7, "a", ()), False, False)
        await ledger.note(Finished(7, "a"))
        await ledger.settle(confirm=False)
        assert await ledger.claim(Abandoned(8, "a")) == (Decision(7, "a", ()), False, True)

    with Brokers(made.bootstrap) as brokers:
        brokers.ask(far)


def test_a_run_that_gives_up_is_found_by_its_name(made: World) -> None:
    made.create("given-up", 1)
    prepare(made.bootstrap, "given-up", TaskName("dead01", 3, 0, 1, "g"), b"never")
    other = prepare(made.bootstrap, "given-up", TaskName("beef", 3, 0, 1, "g"), b"kept")
    give_up(made.bootstrap, Batch(None, 3, "dead"))
    assert [name.run for name in still_open(made, "g")] == ["beef"]
    commit(made.bootstrap, Batch("g", 3, "beef"), (other,))
    assert values(made, "given-up") == [b"kept"]


def test_what_is_ended_without_a_decision_is_an_error(made: World) -> None:
    made.create("meddled", 1)
    won = prepare(made.bootstrap, "meddled", TaskName("a", 0, 0, 1, "m"), b"lost")

    async def meddle(cluster: Cluster) -> None:
        await TwoPhase(cluster).abort_all([won.name])

    with Brokers(made.bootstrap) as brokers:
        brokers.ask(meddle)
    with pytest.raises(HeadraceError, match="Batch 0 is not committed"):
        commit(made.bootstrap, Batch("m", 0, "a"), (won,))


def test_an_operator_ends_what_a_killed_write_left(made: World, capsys: pytest.CaptureFixture[str]) -> None:
    made.create("left", 1)
    left = [prepare(made.bootstrap, "left", TaskName("a", 0, task, 1, "left.q"), b"%d" % task) for task in range(2)]
    headrace_txn.commit(left[0].name, execute=True, bootstrap=made.bootstrap)
    headrace_txn.abort(left[1].name, execute=True, bootstrap=made.bootstrap)
    told = capsys.readouterr().out
    for done, one in zip(("committed", "aborted"), left, strict=True):
        assert f"{done} the transaction of {one.name} in 1 partitions\n" in told
    assert values(made, "left") == [b"0"]


def test_nobody_guesses_what_came_of_a_transaction_that_is_forgotten(tmp_path: Path) -> None:
    """Two batches, and the next runs after their ids have expired. The ledger knows that one is committed. Somebody has
    aborted the other one's transaction, so it must not be taken for written.
    """
    kept, torn = TaskName("a", 0, 0, 1, "kept"), TaskName("a", 0, 0, 1, "torn")
    with world(tmp_path, **TWO_PHASE) as before:
        before.create("old", 1)
        commit(before.bootstrap, Batch("kept", 0, "a"), (prepare(before.bootstrap, "old", kept, b"kept"),))
        lost = prepare(before.bootstrap, "old", torn, b"torn")
        decide(before, "torn", Decision(0, "a", (lost,)), confirm=True)
        headrace_txn.abort(torn.text, execute=True, bootstrap=before.bootstrap)
    quick = {"transactional.id.expiration.ms": "1", "transaction.remove.expired.transaction.cleanup.interval.ms": "20"}
    with world(tmp_path, **TWO_PHASE, **quick) as later, Brokers(later.bootstrap) as brokers:
        pause = threading.Event()
        while brokers.ask(lambda cluster: TwoPhase(cluster).describe([kept.text, torn.text])):
            pause.wait(LOOK_EVERY_S)
    with world(tmp_path, **TWO_PHASE) as after:
        for query in ("kept", "torn"):
            again = prepare(after.bootstrap, "old", TaskName("b", 0, 0, 1, query), b"again")
            if query == "kept":
                commit(after.bootstrap, Batch(query, 0, "b"), (again,))
            else:
                with pytest.raises(OutcomeForgotten, match="nobody can tell any more whether 1 of its transactions"):
                    commit(after.bootstrap, Batch(query, 0, "b"), (again,))
            assert still_open(after, query) == []
        assert values(after, "old") == [b"kept"]


def test_it_is_refused_where_two_phase_commit_is_off(tmp_path: Path) -> None:
    with (
        world(tmp_path) as off,
        Brokers(off.bootstrap) as brokers,
        pytest.raises(UsageError, match=r"set transaction\.two\.phase\.commit\.enable=true on each"),
    ):
        check_brokers(brokers)
