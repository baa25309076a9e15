"""Prepared transactions on a real broker: decided through the ledger, finished after a crash, and refused where off.

Readers are librdkafka's.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from confluent_kafka import OFFSET_END, TopicPartition
from confluent_kafka.admin import AdminClient

from headrace.base.addresses import Address
from headrace.base.errors import HeadraceError, UsageError
from headrace.base.ids import BrokerId
from headrace.cli import txn as headrace_txn
from headrace.net.client.admin import Admin
from headrace.net.client.cluster import Cluster
from headrace.net.client.errors import RefusedError
from headrace.net.client.partitioner import partition_of
from headrace.net.client.transactions import STATE_TOPIC
from headrace.net.client.two_phase import Prepared, TwoPhase
from headrace.spark import brokers as spark_brokers
from headrace.spark.brokers import Brokers, forget_brokers
from headrace.spark.write.exactly.commit import Batch, check_brokers, commit, give_up
from headrace.spark.write.exactly.driving import OutcomeForgotten, TransactionsLost, open_of
from headrace.spark.write.exactly.ledger import LOOK_BACK, ConcurrentWrite, Ledger
from headrace.spark.write.exactly.names import Abandoned, Decision, Finished, TaskName
from headrace.spark.write.exactly.topic import LEDGER
from headrace.wire.apis import ApiKey
from tests.promises.support.load import QUIET
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


def test_a_ledger_may_begin_above_where_a_driver_looks_first(made: World) -> None:
    """Somebody has had its old records deleted."""

    async def claim(cluster: Cluster) -> Decision | None:
        ledger = Ledger(cluster, "begins")
        below = await ledger.claim(Decision(1, "a", ()))
        await ledger.settle(confirm=True)
        return below.newest

    async def keep(cluster: Cluster, policy: str) -> int:
        await Admin(cluster).alter_topic_configs(LEDGER, set_={"cleanup.policy": policy})
        return partition_of(b"begins", len((await cluster.topic(LEDGER)).partitions))

    with Brokers(made.bootstrap) as brokers:
        assert brokers.ask(claim) is None
        assert brokers.ask(claim) == Decision(1, "a", ())
        partition = brokers.ask(lambda cluster: keep(cluster, "delete"))
        whole = TopicPartition(LEDGER, partition, OFFSET_END)
        admin = AdminClient({"bootstrap.servers": made.bootstrap, **QUIET})
        admin.delete_records([whole])[whole].result(60)
        assert brokers.ask(claim) is None
        brokers.ask(lambda cluster: keep(cluster, "compact"))


def test_a_ledger_that_has_lost_its_end_is_an_error(made: World) -> None:
    """As after an unclean election: its leader has none of the records where a driver looks first."""

    async def look(cluster: Cluster) -> None:
        ledger = Ledger(cluster, "lost")
        await ledger.claim(Decision(0, "a", ()))
        await ledger.settle(confirm=True)
        assert ledger._place is not None
        async with asyncio.timeout(150):
            await ledger._below(ledger._place, 10_000, b"lost", ())

    with Brokers(made.bootstrap) as brokers, pytest.raises(RefusedError, match="OFFSET_OUT_OF_RANGE"):
        brokers.ask(look)


def test_coordinators_are_asked_for_only_where_the_known_ones_fail(made: World) -> None:
    async def begin(cluster: Cluster) -> None:
        asked, ask_any = list[ApiKey](), cluster.ask_any

        async def told(key: ApiKey, message: Any, *, version: int | None = None) -> Any:
            asked.append(key)
            return await ask_any(key, message, version=version)

        with patch.object(cluster, "ask_any", told):
            two_phase = TwoPhase(cluster)
            view = await two_phase.know_coordinators()
            await two_phase.begin("known")
            assert ApiKey.FIND_COORDINATOR not in asked
            (broker,) = view.brokers.values()
            gone = replace(broker, id=BrokerId(broker.id + 1), address=Address("127.0.0.1", 1))
            cluster._view = replace(view, brokers={**view.brokers, gone.id: gone})
            state = view.topics[STATE_TOPIC]
            moved = tuple(replace(each, leader=gone.id) for each in state.partitions)
            cluster._topics[STATE_TOPIC] = replace(state, partitions=moved)
            await TwoPhase(cluster).begin("another")
            assert ApiKey.FIND_COORDINATOR in asked

    with Brokers(made.bootstrap) as brokers:
        brokers.ask(begin)


def test_a_driver_keeps_its_connections_until_a_commit_fails(made: World) -> None:
    made.create("kept", 1)
    forget_brokers()

    def winner(batch: int) -> tuple[Prepared]:
        return (prepare(made.bootstrap, "kept", TaskName("a", batch, 0, batch, "kept.q"), b"%d" % batch),)

    def kept() -> list[Brokers]:
        return [each.brokers for each in spark_brokers._kept]

    commit(made.bootstrap, Batch("kept.q", 0, "a"), winner(0))
    first = kept()
    commit(made.bootstrap, Batch("kept.q", 1, "a"), winner(1))
    assert kept() == first != []
    lost = winner(2)
    with Brokers(made.bootstrap) as brokers:
        brokers.ask(lambda cluster: TwoPhase(cluster).abort_all([lost[0].name]))
    with pytest.raises(TransactionsLost):
        commit(made.bootstrap, Batch("kept.q", 2, "a"), lost)
    assert kept() == []
    assert values(made, "kept") == [b"0", b"1"]


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
