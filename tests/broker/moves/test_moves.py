"""A partition is handed over: its history lies in the store, and the new owner goes on where the old one ended."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from headrace.base.errors import StorageFailure
from headrace.base.ids import PartitionIndex, TopicPartition
from headrace.base.ports import Buffer, Objects
from headrace.broker.moves import handing_over
from headrace.broker.partitions.intake import earlier, overtaking, repacking
from headrace.broker.partitions.intake.gate import Gate
from headrace.broker.partitions.intake.repacking import RepackLine
from headrace.broker.partitions.partition import Partition
from headrace.broker.shards.coordinator import Coordinator
from headrace.controller.asks.history import DeleteHistory
from headrace.controller.asks.moves import FailTarget, FinishMove, ProveMove, SealMove
from headrace.controller.leaders import Election
from headrace.metadata import values
from headrace.net.client.admin import Admin
from headrace.net.client.cluster import Cluster as Client
from headrace.replica.sealing import packed
from headrace.storage.disk import LocalDisk
from headrace.storage.engine.logs import PartitionLog
from headrace.storage.objects import DirectoryObjects
from headrace.wire.batches import encode_batch
from headrace.wire.errors import ErrorCode
from headrace.wire.messages.elect_leaders import ElectLeadersRequest, TopicPartitions
from headrace.wire.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from headrace.wire.messages.offset_fetch import OffsetFetchRequest, OffsetFetchRequestTopic
from headrace.wire.messages.offset_for_leader_epoch import (
    OffsetForLeaderEpochRequest,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)
from headrace.wire.records import Record
from tests import loops
from tests.broker.data_path import batch, delete_records, fetch, produce, produce_request
from tests.broker.group_broker import until
from tests.broker.moving import A, B, C, Moving, moving
from tests.broker.replicas import release_later


def run(
    root: Path,
    work: Callable[[Moving], Awaitable[None]],
    objects: Objects | None = None,
    configs: dict[str, str] | None = None,
) -> None:
    async def whole() -> None:
        async with moving(root, objects=objects, configs=configs) as world:
            await work(world)

    loops.run(whole())


def test_the_new_owner_goes_on_where_the_old_one_ended_and_all_is_one_stream(tmp_path: Path) -> None:
    """Offsets 0 to 21 on A, a cursor at 13: the next write gets 22, and 14.. are read through history and the log."""

    async def work(world: Moving) -> None:
        await world.make()
        for number in range(22):
            assert await world.write(A, b"%d" % number) == number
        assert [at for at, _ in await world.read(A, 0, 14)] == list(range(14))
        await world.move(B)
        assert world.known(C).replicas == world.known(C).isr == (B,)
        assert (world.leading(B).log.log_start_offset, world.leading(B).start_offset) == (22, 0)
        assert await world.write(B, b"22") == 22
        assert await world.write(B, b"23") == 23
        assert await world.read(B, 14, 24) == [(at, b"%d" % at) for at in range(14, 24)]
        assert not world.has_log(A)
        refused = await produce(await world.client(A), "t", batch(b"stale"))
        assert refused.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER

    run(tmp_path, work)


def test_what_was_read_and_committed_by_groups_stays_when_their_own_topic_moves(tmp_path: Path) -> None:
    """It is compacted, and so it is copied; coordinators follow its leader."""

    async def work(world: Moving) -> None:
        await begin(world)

        async def commit(offset: int) -> int:
            partition = OffsetCommitRequestPartition(partition_index=0, committed_offset=offset)
            topic = OffsetCommitRequestTopic(name="t", partitions=(partition,))
            request = OffsetCommitRequest(group_id="g", topics=(topic,))
            answer = await world.ask_coordinator("g", 8, request)
            return int(answer.topics[0].partitions[0].error_code)

        async def committed() -> int:
            topic = OffsetFetchRequestTopic(name="t", partition_indexes=(0,))
            answer = await world.ask_coordinator("g", 5, OffsetFetchRequest(group_id="g", topics=(topic,)))
            return int(answer.topics[0].partitions[0].committed_offset)

        assert await commit(2) == 0
        for to in (A, B, C):
            await world.copy_all("__consumer_offsets", to)
            assert await committed() == 2
            assert await commit(2) == 0

    run(tmp_path, work)


def test_a_new_replica_has_all_that_groups_have_committed_though_earlier_versions_exported_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Coordinators read logs, not history."""
    configs = {"segment.bytes": "1024", "retention.ms": "-1"}
    monkeypatch.setattr(Coordinator, "_topic_configs", lambda _: configs)

    async def work(world: Moving) -> None:
        await begin(world)

        async def commit(group: str) -> None:
            partition = OffsetCommitRequestPartition(0, committed_offset=2, committed_metadata="m" * 600)
            topic = OffsetCommitRequestTopic(name="t", partitions=(partition,))
            answer = await world.ask_coordinator(group, 8, OffsetCommitRequest(group_id=group, topics=(topic,)))
            assert answer.topics[0].partitions[0].error_code == 0

        with monkeypatch.context() as patch:
            patch.setattr(values, "INTERNAL_TOPICS", frozenset())
            for group in ("first", *3 * ["second"]):
                await commit(group)
            image = world.cluster.image(A)
            key = TopicPartition(image.topic_ids["__consumer_offsets"], PartitionIndex(0))
            await until(lambda: world.cluster.image(A).durable(key).next_offset > 1)
        for to in (A, B, C):
            await world.copy_all("__consumer_offsets", to)
        role = world.partitions(C).role(key)
        assert role is not None
        assert (role.log.log_start_offset, role.history, role.is_exported) == (0, None, False)
        topic = OffsetFetchRequestTopic(name="t", partition_indexes=(0,))
        answer = await world.ask_coordinator("first", 5, OffsetFetchRequest(group_id="first", topics=(topic,)))
        assert answer.topics[0].partitions[0].committed_offset == 2

    run(tmp_path, work, configs={"offsets.topic.replication.factor": "1", "offsets.topic.num.partitions": "1"})


def test_an_empty_partition_is_handed_over_too(tmp_path: Path) -> None:
    async def work(world: Moving) -> None:
        await world.make()
        await world.move(C)
        assert await world.write(C, b"first") == 0
        await world.move(A)
        assert await world.write(A, b"second") == 1
        assert await world.read(A, 0, 2) == [(0, b"first"), (1, b"second")]

    run(tmp_path, work)


def test_what_comes_back_after_many_moves_is_no_old_log(tmp_path: Path) -> None:
    """A -> B -> C -> A -> B, with restarts of all in between."""

    async def work(world: Moving) -> None:
        await world.make()
        written: list[bytes] = []
        owner = A
        for to in (B, C, A, B):
            for _ in range(3):
                written.append(b"%d" % len(written))
                assert await world.write(owner, written[-1]) == len(written) - 1
            await world.move(to)
            owner = to
        await world.stop(A, B, C)
        await world.cluster.start(A, B, C)
        assert await world.write(B, b"end") == len(written)
        assert await world.read(B, 0, len(written)) == list(enumerate(written))

    run(tmp_path, work)


async def first_of(*events: asyncio.Event) -> None:
    """Whichever of them is set first."""
    waiting = [asyncio.ensure_future(event.wait()) for event in events]
    await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
    for each in waiting:
        each.cancel()


async def begin(world: Moving, count: int = 3) -> list[bytes]:
    """'t', with some records on A."""
    await world.make()
    values = [b"%d" % number for number in range(count)]
    for number, value in enumerate(values):
        assert await world.write(A, value) == number
    return values


# before the seal


def test_a_seal_that_is_late_for_a_cancelled_move_is_refused_and_what_waited_is_written(tmp_path: Path) -> None:
    async def work(world: Moving) -> None:
        values = await begin(world)
        held = world.hold(A, SealMove)
        assert await world.ask(B) == 0
        await held.seen.wait()
        epoch, end = world.known(A).leader_epoch, world.leading(A).log.log_end_offset
        waiting = [world.writing(A, b"waits"), world.writing(A, b"waits too")]
        await until(lambda: len(world.leading(A).gate._waiting) == 2)
        assert world.leading(A).log.log_end_offset == end, "nothing is written while the outcome is not known"
        assert await world.ask(None) == 0
        answers = [await task for task in waiting]
        assert [answer.error_code for answer in answers] == [0, 0]
        assert sorted(answer.base_offset for answer in answers) == [3, 4]
        held.let_go()
        await until(lambda: not world.moves(A)._tasks)
        assert (world.known(A).leader, world.known(A).leader_epoch) == (A, epoch + 1)
        assert await world.write(A, b"after") == 5
        assert [value for _, value in await world.read(A, 0, 3)] == values

    run(tmp_path, work)


@pytest.mark.parametrize("lost", [False, True], ids=["unanswered", "unknown"])
def test_an_owner_whose_seal_nobody_answers_writes_nothing_until_it_knows(tmp_path: Path, lost: bool) -> None:
    async def work(world: Moving) -> None:
        values = await begin(world)
        held = world.hold(A, SealMove, lost=lost)
        assert await world.ask(B) == 0
        await held.seen.wait()
        waiting = world.writing(A, b"waits")
        await until(lambda: len(world.leading(A).gate._waiting) == 1)
        if lost:
            await until(lambda: len(held._late) == 3)
        refused = world.leading(A).append(batch(b"not even so"), needs_isr=True)
        assert refused[0] is ErrorCode.NOT_LEADER_OR_FOLLOWER
        held.let_go()
        await world.until_owned(B)
        answer = await waiting
        assert answer.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
        assert await world.write(B, b"next") == 3
        assert await world.read(B, 0, 4) == list(enumerate([*values, b"next"]))

    run(tmp_path, work)


def test_a_producer_that_waited_is_told_who_leads_now_and_how_that_is_reached(tmp_path: Path) -> None:
    async def work(world: Moving) -> None:
        await begin(world)
        held = world.hold(A, SealMove)
        assert await world.ask(B) == 0
        await held.seen.wait()
        waiting = asyncio.ensure_future((await world.client(A)).ask(10, produce_request("t", batch(b"waits"))))
        await until(lambda: len(world.leading(A).gate._waiting) == 1)
        held.let_go()
        answer = await waiting
        (told,) = answer.responses[0].partition_responses
        assert told.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
        assert told.current_leader.leader_id == B
        assert told.current_leader.leader_epoch == world.known(A).leader_epoch
        (node,) = answer.node_endpoints
        assert (node.node_id, node.host, node.port) == (B, *world.cluster.address(B))

    run(tmp_path, work)


def test_an_owner_that_restarts_after_it_has_proposed_goes_on_in_an_epoch_of_its_own(tmp_path: Path) -> None:
    """The mark of the seal is on its disk; the proposal never came anywhere, and is refused where it comes late."""

    async def work(world: Moving) -> None:
        values = await begin(world)
        held = world.hold(A, SealMove)
        assert await world.ask(B) == 0
        await held.seen.wait()
        assert (world.cluster.data(A) / "logs" / "t-0" / "sealed.json").exists()
        epoch = world.known(B).leader_epoch
        await world.stop(A)
        assert (world.cluster.data(A) / "logs" / "t-0" / "sealed.json").exists()
        await world.cluster.start(A)
        await world.until_owned(B)
        assert world.known(B).leader_epoch > epoch + 1
        assert await world.write(B, b"next") == 3
        assert await world.read(B, 0, 4) == list(enumerate([*values, b"next"]))

    run(tmp_path, work)


def test_a_move_waits_for_a_target_that_is_down_and_goes_on_when_it_is_back(tmp_path: Path) -> None:
    async def work(world: Moving) -> None:
        await begin(world)
        await world.stop(B)
        assert await world.ask(B) == ErrorCode.INVALID_REPLICA_ASSIGNMENT
        await world.cluster.start(B)
        await world.fence(B)
        await world.cluster.agree()
        await world.until_unfenced(B)
        await world.move(B)
        assert await world.write(B, b"next") == 3

    run(tmp_path, work)


def test_a_move_whose_seal_is_refused_for_the_moment_is_tried_again(tmp_path: Path) -> None:
    async def work(world: Moving) -> None:
        values = await begin(world)
        held = world.hold(A, SealMove)
        assert await world.ask(B) == 0
        await held.seen.wait()
        epoch = world.known(A).leader_epoch
        await world.fence(B)
        held.let_go()
        await world.until(A, lambda known: known.leader_epoch > epoch)
        assert (move := world.known(A).move) is not None
        assert (move.target, world.known(A).leader) == (B, A)
        assert await world.write(A, b"meanwhile") == 3
        await world.until_unfenced(B)
        await world.until_owned(B)
        assert await world.read(B, 0, 4) == list(enumerate([*values, b"meanwhile"]))

    run(tmp_path, work)


def test_the_first_record_may_come_between_copy_and_seal(tmp_path: Path) -> None:
    """The record that the target must read is exported while the owner stops. The owner continues in the same epoch
    until that is read."""

    async def work(world: Moving) -> None:
        await world.make()
        epoch, copy = world.known(A).leader_epoch, world.moves(A).owner._copy
        written: list[int] = []

        async def then_write(*which: Any) -> None:
            await copy(*which)
            if not written:
                written.append((await world.writing(A, b"first")).error_code)

        world.moves(A).owner._copy = then_write  # type: ignore[assignment,method-assign]  # the real one first
        proving, sealing = world.hold(B, ProveMove), world.hold(A, SealMove)
        assert await world.ask(B) == 0
        await first_of(proving.seen, sealing.seen)
        assert not sealing.seen.is_set(), "the target has read nothing yet"
        await until(lambda: world.key in world.moves(A).owner._vain)
        assert not sealing.seen.is_set()
        proving.let_go()
        sealing.let_go()
        await world.until_owned(B)
        assert written == [0]
        assert world.known(B).leader_epoch == epoch + 1, "nothing was refused"
        assert await world.read(B, 0, 1) == [(0, b"first")]

    run(tmp_path, work)


def test_an_owner_does_not_stop_before_the_target_has_anything_to_read(tmp_path: Path) -> None:
    """Data that was never exported is exported first, while the owner writes. It stops once, and not in vain."""

    async def work(world: Moving) -> None:
        await begin(world)
        owner, proving, in_vain = world.moves(A).owner, world.hold(B, ProveMove), asyncio.Event()
        put_off = owner._put_off

        def told(*which: Any) -> None:
            in_vain.set()
            put_off(*which)

        owner._put_off = told  # type: ignore[assignment,method-assign]  # the real one follows
        assert await world.ask(B) == 0
        await first_of(proving.seen, in_vain)
        assert not in_vain.is_set()
        proving.let_go()
        await world.until_owned(B)
        assert not in_vain.is_set()

    run(tmp_path, work)


def test_a_seal_waits_for_the_batch_that_is_being_recompressed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Or what comes behind it would be carried to the new owner before it."""
    go = threading.Event()
    go.set()
    real, over, propose = repacking._repack, RepackLine.over, Gate.propose

    async def work(world: Moving) -> None:
        loop, begun, waited, proposed = asyncio.get_running_loop(), *(asyncio.Event() for _ in range(3))

        def repack(*which: Any) -> Any:
            loop.call_soon_threadsafe(begun.set)
            assert go.wait(60)
            return real(*which)

        def watched(line: RepackLine) -> asyncio.Future[None] | None:
            found = over(line)
            if found is not None:
                waited.set()
            return found

        def proposes(gate: Gate) -> None:
            proposed.set()
            propose(gate)

        monkeypatch.setattr(repacking, "_repack", repack)
        monkeypatch.setattr(RepackLine, "over", watched)
        monkeypatch.setattr(Gate, "propose", proposes)
        await world.make(compression_type="gzip")
        assert await world.write(A, b"0") == 0
        go.clear()
        begun.clear()
        try:
            writing = world.writing(A, b"is being recompressed")
            await begun.wait()
            assert await world.ask(B) == 0
            await first_of(waited, proposed)
            assert not proposed.is_set()
        finally:
            go.set()
        await world.until_owned(B)
        assert (await writing).error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
        assert await world.write(B, b"1") == 1

    run(tmp_path, work)


def test_an_owner_that_stops_in_vain_writes_ten_times_as_long_and_gives_up_in_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(handing_over, "MOVE_SEALS_TRIED_MAX", 3)

    async def work(world: Moving) -> None:
        values = await begin(world)
        tried: list[tuple[float, float]] = []
        """From when to when it had stopped."""
        loop = asyncio.get_running_loop()

        async def fails(_: Partition) -> None:
            begun = loop.time()
            done = loop.create_future()
            loop.call_later(0.03, done.set_result, None)
            await done
            tried.append((begun, loop.time()))
            raise StorageFailure("it is slow")

        world.moves(A).owner._export_tail = fails  # type: ignore[assignment,method-assign]  # the store, as it is seen then
        assert await world.ask(B) == 0
        await until(lambda: world.moves(A).obstacle(world.key) == "it is slow")
        await world.until(A, lambda known: known.move is None)
        assert world.known(A).leader == A
        assert len(tried) == 3
        for (begun, over), (again, _) in pairwise(tried):
            assert again - over >= 10 * (over - begun)
        assert await world.write(A, b"next") == 3
        assert await world.read(A, 0, 4) == list(enumerate([*values, b"next"]))

    run(tmp_path, work)


# after the seal


def test_the_target_takes_nothing_before_the_move_is_finished_and_then_what_waited(tmp_path: Path) -> None:
    async def work(world: Moving) -> None:
        values = await begin(world)
        held = world.hold(B, FinishMove)
        assert await world.ask(B) == 0
        await held.seen.wait()
        waiting = world.writing(B, b"waits")
        await until(lambda: len(world.leading(B).gate._waiting) == 1)
        assert world.leading(B).append(batch(b"not even so"), needs_isr=True)[0] is ErrorCode.NOT_LEADER_OR_FOLLOWER
        assert world.leading(B).log.log_end_offset == 3
        assert world.has_log(A), "until the move is finished"
        assert await world.read(B, 0, 3) == list(enumerate(values)), "history can be read"
        held.let_go()
        answer = await waiting
        assert (answer.error_code, answer.base_offset) == (0, 3)
        await world.until_owned(B)
        assert not world.has_log(A)

    run(tmp_path, work)


def test_a_batch_that_waited_for_the_end_of_a_move_may_have_overtaken_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They were refused before the target knew of the partition, however long ago: it may write only now."""

    async def work(world: Moving) -> None:
        await world.make()

        async def send(to: int, sequence: int) -> tuple[int, int]:
            answer: Any = await produce(await world.client(to), "t", numbered([b"a"], sequence=sequence))
            return answer.error_code, answer.base_offset

        for number in range(8):
            assert await send(A, number) == (0, number)
        held = world.hold(B, FinishMove)
        monkeypatch.setattr(overtaking, "OVERTAKING_MS_MAX", 0)  # as if the store had taken that long
        assert await world.ask(B) == 0
        await held.seen.wait()
        assert world.leading(B).gate.takes_over
        monkeypatch.undo()
        waiting = asyncio.create_task(send(B, 9))
        await until(lambda: len(world.leading(B).gate._waiting) == 1)
        held.let_go()
        assert (await waiting)[0] == ErrorCode.NOT_LEADER_OR_FOLLOWER
        assert (await send(B, 1))[0] == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, (
            "it is long in the log, and leaves none out"
        )
        assert [await send(B, 8), await send(B, 9)] == [(0, 8), (0, 9)]

    run(tmp_path, work)


def test_an_owner_that_restarts_after_the_seal_opens_nothing_and_deletes_its_log_at_the_end(tmp_path: Path) -> None:
    async def work(world: Moving) -> None:
        await begin(world)
        held = world.hold(B, FinishMove)
        assert await world.ask(B) == 0
        await held.seen.wait()
        await world.stop(A)
        await world.cluster.start(A)
        assert world.partitions(A).role(world.key) is None
        assert world.has_log(A)
        refused = await produce(await world.client(A), "t", batch(b"stale"))
        assert refused.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
        held.let_go()
        await world.until_owned(B)
        assert not world.has_log(A)
        assert await world.write(B, b"next") == 3

    run(tmp_path, work)


def test_an_owner_that_is_away_when_the_move_is_finished_deletes_its_log_when_it_is_back(tmp_path: Path) -> None:
    async def work(world: Moving) -> None:
        await begin(world)
        held = world.hold(B, FinishMove)
        assert await world.ask(B) == 0
        await held.seen.wait()
        await world.stop(A)
        held.let_go()
        await world.until_owned(B)
        assert world.has_log(A)
        await world.cluster.start(A)
        await world.cluster.settled(A)
        assert not world.has_log(A)
        assert await world.write(B, b"next") == 3

    run(tmp_path, work)


@pytest.mark.parametrize("disk_lost", [False, True])
def test_a_target_that_restarts_before_the_move_is_finished_takes_it_over_then(tmp_path: Path, disk_lost: bool) -> None:
    async def work(world: Moving) -> None:
        values = await begin(world)
        held = world.hold(B, FinishMove)
        assert await world.ask(B) == 0
        await held.seen.wait()
        assert world.has_log(B)
        await world.stop_for_a_while(B, wipe=disk_lost)
        await world.until(A, lambda known: known.move is None)
        owner = world.known(A).leader
        await world.until_owned(owner)
        assert await world.write(owner, b"next") == 3
        assert await world.read(owner, 0, 4) == list(enumerate([*values, b"next"]))

    run(tmp_path, work)


def test_a_target_that_dies_after_the_seal_is_replaced_and_what_it_began_never_wins(tmp_path: Path) -> None:
    async def work(world: Moving) -> None:
        values = await begin(world)
        held = world.hold(B, FinishMove)
        assert await world.ask(B) == 0
        await held.seen.wait()
        await world.fence(B)
        await world.until_owned(C)
        held.let_go()  # late
        assert await world.write(C, b"3") == 3
        await until(lambda: not world.has_log(B))
        await world.until_unfenced(B)
        await world.move(B)
        assert await world.write(B, b"4") == 4
        await world.move(A)
        assert await world.read(A, 0, 5) == list(enumerate([*values, b"3", b"4"]))

    run(tmp_path, work)


def test_an_owner_that_is_aimed_at_again_before_it_has_closed_its_log_begins_another(tmp_path: Path) -> None:
    """The old log must not become the leader's log of the new assignment. A restart would find it to be of another
    assignment, and nothing of this one."""

    async def work(world: Moving) -> None:
        values = await begin(world)
        partitions, turn, quiet, waits = world.partitions(A), asyncio.Event(), asyncio.Event(), asyncio.Event()

        async def held_up(_: Sequence[PartitionLog]) -> None:
            waits.set()
            await quiet.wait()

        sealing, finishing = world.hold(A, SealMove), world.hold(B, FinishMove)
        try:
            assert await world.ask(B, through=C) == 0
            await sealing.seen.wait()
            partitions.work.add(partial(happened, turn), "a test's")
            world.cluster.brokers[A].parts.logs.assignments.try_again(world.key)  # it is looked at next
            sealing.let_go()
            await finishing.seen.wait()
            await world.until(A, lambda known: known.leader == B)
            release_later(world.cluster, A, held_up)
            turn.set()
            await waits.wait()
            assert await world.ask(A, through=C) == 0
            await world.until(A, lambda known: known.leader == A)
        finally:
            turn.set()
            quiet.set()
        finishing.let_go()  # late
        await world.until_owned(A)
        assert await world.write(A, b"next") == 3
        await world.stop_for_a_while(A, wipe=False)
        await world.until_unfenced(A)
        await until(lambda: isinstance(world.partitions(A).role(world.key), Partition))
        assert await world.read(A, 0, 4) == list(enumerate([*values, b"next"]))

    run(tmp_path, work)


async def happened(event: asyncio.Event) -> None:
    await event.wait()


def test_a_copy_to_which_nothing_was_ever_written_goes_on_after_a_restart(tmp_path: Path) -> None:
    """All that there is of it lies in durable history, and the copy becomes the only one."""

    async def work(world: Moving) -> None:
        values = await begin(world)
        await world.move(B)
        await world.place(B, C)
        await world.place(C)
        await world.stop(C)
        await world.cluster.start(C)
        await world.until(C, lambda known: known.leader == C)
        await world.cluster.settled(C)
        assert not world.partitions(C).offline
        assert await world.write(C, b"next") == 3
        assert await world.read(C, 0, 4) == list(enumerate([*values, b"next"]))

    run(tmp_path, work)


def test_a_target_that_cannot_open_its_log_is_tried_again_and_goes_on_once_it_can(tmp_path: Path) -> None:
    async def work(world: Moving) -> None:
        values = await begin(world)
        replacing = world.hold(B, FailTarget, lost=True)
        in_the_way = world.cluster.data(B) / "logs" / "t-0"
        in_the_way.write_bytes(b"")
        assert await world.ask(B) == 0
        await until(lambda: "t-0" in world.moves(B).obstacle(world.key))
        assert world.known(B).is_sealed
        in_the_way.unlink()
        await world.until_owned(B)
        replacing.let_go()
        assert await world.write(B, b"next") == 3
        assert await world.read(B, 0, 4) == list(enumerate([*values, b"next"]))

    run(tmp_path, work)


def test_a_target_that_lives_and_cannot_open_its_log_at_all_is_replaced(tmp_path: Path) -> None:
    async def work(world: Moving) -> None:
        values = await begin(world)
        (world.cluster.data(B) / "logs" / "t-0").write_bytes(b"")
        assert await world.ask(B) == 0
        await world.until_owned(C)
        assert await world.write(C, b"next") == 3
        assert await world.read(C, 0, 4) == list(enumerate([*values, b"next"]))
        assert not world.has_log(A)

    run(tmp_path, work)


def test_an_owner_that_has_lost_its_disk_goes_on_behind_history_once_people_say_so(tmp_path: Path) -> None:
    """Records that only that disk had are lost then, and their offsets are given again. The writers to history are
    known."""

    async def work(world: Moving) -> None:
        async def send(to: int) -> tuple[int, int]:
            answer: Any = await produce(await world.client(to), "t", numbered([b"once"], sequence=0))
            return answer.error_code, answer.base_offset

        values = [*await begin(world), b"once"]
        assert await send(A) == (0, 3)
        await world.move(B)
        assert await world.write(B, b"lost") == 4
        await world.stop(B)
        world.cluster.wipe(B)
        await world.cluster.start(B, join=(world.cluster.address(A), world.cluster.address(C)))
        await world.until(A, lambda known: known.kept_in is not None)
        await world.cluster.agree()
        await world.cluster.settled(B)
        assert world.partitions(B).role(world.key) is None
        request = ElectLeadersRequest(Election.UNCLEAN, (TopicPartitions("t", (0,)),), 10_000)
        assert (await (await world.client(A)).ask(2, request)).error_code == 0
        await world.until(B, lambda known: known.leader == B)
        await world.cluster.settled(B)
        await until(lambda: isinstance(world.partitions(B).role(world.key), Partition))
        assert not world.partitions(B).offline
        skips = await produce(await world.client(B), "t", numbered([b"skips"], sequence=3))
        assert skips.error_code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, (
            "what it lacks is lost, and will not come again"
        )
        assert await send(B) == (0, 3), "sent again: it is in history"
        assert await world.write(B, b"next") == 4
        assert await world.read(B, 0, 5) == list(enumerate([*values, b"next"]))
        await world.stop_for_a_while(B, wipe=False)
        await world.until_owned(B)
        await until(lambda: isinstance(world.partitions(B).role(world.key), Partition))
        assert await send(B) == (0, 3)
        assert await world.read(B, 0, 5) == list(enumerate([*values, b"next"]))

    run(tmp_path, work)


# state that moves along


def numbered(values: list[bytes], *, sequence: int, producer: int = 7, epoch: int = 0) -> bytes:
    """A batch of an idempotent producer."""
    records = [Record(at, 1_700_000_000_000, None, value, ()) for at, value in enumerate(values)]
    return encode_batch(records, producer_id=producer, producer_epoch=epoch, base_sequence=sequence)


def test_the_producers_of_before_are_known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    on: list[threading.Thread] = []

    def packing(snapshot: bytes) -> str:
        on.append(threading.current_thread())
        return packed(snapshot)

    monkeypatch.setattr(handing_over, "packed", packing)

    async def work(world: Moving) -> None:
        await world.make()

        async def send(to: int, sequence: int) -> tuple[int, int]:
            answer: Any = await produce(await world.client(to), "t", numbered([b"a", b"b"], sequence=sequence))
            return answer.error_code, answer.base_offset

        for number in range(3):
            assert await send(A, 2 * number) == (0, 2 * number)
        await world.move(B)
        assert await send(B, 4) == (0, 4), "the last"
        assert await send(B, 2) == (0, 2), "one before it"
        assert (await send(B, 8))[0] == ErrorCode.NOT_LEADER_OR_FOLLOWER, "others may be carried yet"
        with monkeypatch.context() as patch:
            patch.setattr(earlier, "CARRIED_UNTIL_MS_MAX", 0)
            assert (await send(B, 8))[0] == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
        await world.stop(B)
        await world.cluster.start(B)
        assert await send(B, 4) == (0, 4), "also after a restart"
        assert await send(B, 6) == (0, 6)
        await world.move(C)
        assert await send(C, 4) == (0, 4)
        assert await send(C, 8) == (0, 8)
        assert len(on) == 2
        assert threading.current_thread() not in on, "it takes long, and all others would wait"

    run(tmp_path, work)


def test_where_an_epoch_of_an_earlier_owner_ended_is_told(tmp_path: Path) -> None:
    async def work(world: Moving) -> None:
        await begin(world)
        first = world.known(A).leader_epoch
        await world.move(B)
        second = world.known(B).leader_epoch
        assert await world.write(B, b"3") == 3
        await world.move(C)
        assert await world.write(C, b"4") == 4
        ends = {}
        for epoch in (first, second, world.known(C).leader_epoch):
            wanted = OffsetForLeaderPartition(partition=0, leader_epoch=epoch)
            request = OffsetForLeaderEpochRequest(
                replica_id=-1, topics=(OffsetForLeaderTopic(topic="t", partitions=(wanted,)),)
            )
            (answer,) = (await (await world.client(C)).ask(4, request)).topics[0].partitions
            ends[answer.leader_epoch] = answer.end_offset
        assert ends == {first: 3, second: 4, world.known(C).leader_epoch: 5}

    run(tmp_path, work)


def test_what_was_deleted_before_the_first_export_stays_deleted(tmp_path: Path) -> None:
    async def work(world: Moving) -> None:
        await world.make(durable_enable="false")
        await world.write(A, b"0", b"1", b"2", b"3")
        (deleted,) = await delete_records(await world.client(A), "t", [2])
        assert deleted.error_code == 0
        world.hold(A, DeleteHistory)  # a crash could come before any later request
        async with Client(world.cluster.bootstrap) as client:
            await Admin(client).alter_topic_configs("t", set_={"durable.enable": "true"}, delete=[])
        await world.move(B)
        assert world.leading(B).start_offset == 2
        refused = await fetch(await world.client(B), "t", 1)
        assert refused.error_code == ErrorCode.OFFSET_OUT_OF_RANGE
        assert [at for at, _ in await world.read(B, 2, 4)] == [2, 3]

    run(tmp_path, work)


# a store that fails


class Flaky(DirectoryObjects):
    """Takes nothing while it is `out`."""

    def __init__(self, root: Path) -> None:
        super().__init__(LocalDisk(), root)
        self.out = False
        self.refused = 0

    def put(self, key: str, data: Buffer, *, if_absent: bool = True) -> bool:
        if self.out:
            self.refused += 1
            raise StorageFailure("it is out")
        return super().put(key, data, if_absent=if_absent)


def test_an_owner_serves_while_the_store_is_out_and_hands_over_when_it_is_back(tmp_path: Path) -> None:
    store = Flaky(tmp_path / "store")

    async def work(world: Moving) -> None:
        values = await begin(world)
        store.out = True
        assert await world.ask(B) == 0
        await until(lambda: store.refused > 0)
        values.append(b"meanwhile")
        assert await world.write(A, values[-1]) == 3
        assert "it is out" in world.moves(A).obstacle(world.key)
        store.out = False
        await world.until_owned(B)
        assert await world.read(B, 0, 4) == list(enumerate(values))

    run(tmp_path, work, store)


def test_a_store_that_goes_out_between_copy_and_seal_leaves_the_owner_writing(tmp_path: Path) -> None:
    store = Flaky(tmp_path / "store")

    async def work(world: Moving) -> None:
        values = await begin(world)
        proving = world.hold(B, ProveMove)
        assert await world.ask(B) == 0
        await proving.seen.wait()
        values.append(b"the tail")
        assert await world.write(A, values[-1]) == 3
        store.out = True
        proving.let_go()
        await until(lambda: store.refused > 0)
        values.append(b"meanwhile")
        assert await world.write(A, values[-1]) == 4
        store.out = False
        await world.until_owned(B)
        assert await world.read(B, 0, 5) == list(enumerate(values))

    run(tmp_path, work, store)
