"""Partitions whose only broker is gone for good go on elsewhere, behind what is durable of them (decision 0049)."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from headrace.base.errors import HeadraceError
from headrace.base.ids import NO_LEADER, BrokerId
from headrace.broker.partitions.partition import Partition
from headrace.controller.asks.history import RecoverPartitions
from headrace.controller.leaders import Election
from headrace.controller.recovery import Recovery, RecoveryWish
from headrace.net.client.durable import DurableLink
from headrace.storage.log.names import STRAY
from headrace.wire.errors import ErrorCode
from headrace.wire.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    ReassignablePartition,
    ReassignableTopic,
)
from headrace.wire.messages.elect_leaders import ElectLeadersRequest, TopicPartitions
from tests import loops
from tests.broker.clusters import BY_HAND, DEADLINE_S
from tests.broker.data_path import fetch, produce
from tests.broker.durable.test_behind_history import Failing
from tests.broker.group_broker import until
from tests.broker.moves.test_moves import numbered
from tests.broker.moving import A, B, C, Moving, moving
from tests.broker.tiered import objects_in

SIZE = 1_000
"""Of a value: each is a segment of its own."""
DURABLE = 5
"""Records that are exported before their owner goes; one more is acknowledged, and is not."""


def run(
    root: Path,
    work: Callable[[Moving], Awaitable[None]],
    objects: Any = None,
    configs: dict[str, str] | None = None,
) -> None:
    async def whole() -> None:
        async with moving(root, objects=objects, configs=configs) as world:
            await work(world)

    loops.run(whole())


def value(number: int, by: str = "") -> bytes:
    return f"{number}{by} ".encode().ljust(SIZE, b".")


async def send(world: Moving, to: int, number: int, by: str = "") -> tuple[int, int]:
    """The batch of this number of an idempotent producer: error and offset."""
    answer = await produce(await world.client(to), "t", numbered([value(number, by)], sequence=number))
    return answer.error_code, answer.base_offset


async def with_history(world: Moving) -> None:
    """On A, alone: records 0 to DURABLE of a producer, all but the last exported."""
    await world.make(A, segment_bytes="1024")
    for number in range(DURABLE + 1):
        assert await send(world, A, number) == (0, number)
    await exported(world, A, DURABLE)


async def exported(world: Moving, by: int, end: int) -> None:
    await until(lambda: (known := world.leading(by).history) is not None and known.next_offset >= end)


async def lose(world: Moving, broker: int) -> None:
    """It is stopped, and everybody else knows."""
    await world.stop(broker)
    for other in world.cluster.brokers:
        await world.until(other, lambda known: known.leader == NO_LEADER)


async def recover(world: Moving, to: int, *, execute: bool = True) -> dict[str, Any]:
    """As the command asks that broker."""
    async with DurableLink(world.cluster.address(to)) as link:
        answer = await link.recover("t", None, to, execute=execute)
    assert answer["has_store"]
    assert not answer["error"]
    return answer


async def until_led(world: Moving, by: int) -> None:
    async with asyncio.timeout(DEADLINE_S):
        await until(lambda: isinstance(world.partitions(by).role(world.key), Partition))
    assert world.known(by).replicas == world.known(by).isr == (by,)


async def recovered(world: Moving, to: int = B) -> None:
    """A is gone, and that broker has gone on."""
    await with_history(world)
    await lose(world, A)
    (one,) = (await recover(world, to))["partitions"]
    assert (one["refusal"], one["warning"], one["target"], one["end_offset"]) == ("", "", to, DURABLE - 1)
    await until_led(world, to)


async def assign(world: Moving, *replicas: int) -> int:
    """Have it copied to these; the error. It is not waited for."""
    wish = ReassignablePartition(0, replicas)
    request = AlterPartitionReassignmentsRequest(timeout_ms=120_000, topics=(ReassignableTopic("t", (wish,)),))
    response = await (await world.client(C)).ask(1, request)
    return int(response.responses[0].partitions[0].error_code)


async def elect_uncleanly(world: Moving) -> int:
    request = ElectLeadersRequest(Election.UNCLEAN, (TopicPartitions("t", (0,)),), 10_000)
    return int((await (await world.client(C)).ask(2, request)).error_code)


def strays(world: Moving, broker: int) -> list[Path]:
    return [path for path in (world.cluster.data(broker) / "logs").iterdir() if path.name.endswith(STRAY)]


def check_set_aside(world: Moving, broker: int) -> None:
    """With all that it ever acknowledged."""
    assert not world.has_log(broker)
    (stray,) = strays(world, broker)
    held = b"".join(path.read_bytes() for path in stray.glob("*.log"))
    assert value(DURABLE) in held


def test_another_goes_on_behind_history_and_all_is_one_stream(tmp_path: Path) -> None:
    """The writing producer sees neither a duplicate nor a gap below the frontier. Batches that only the old broker had
    are sent again, and written."""

    async def work(world: Moving) -> None:
        await with_history(world)
        await lose(world, A)
        before = world.known(B)
        told = await recover(world, B, execute=False)
        assert world.known(B) == before
        assert await recover(world, B) == told
        await until_led(world, B)
        now = world.known(B)
        assert now.leader_epoch == before.leader_epoch + 1
        assert now.is_unclean
        assert world.leading(B).log.log_start_offset == world.leading(B).log.log_end_offset == DURABLE
        assert await send(world, B, DURABLE - 1) == (0, DURABLE - 1), "sent again: it is in history"
        assert (await send(world, B, DURABLE + 1))[0] == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
        assert await send(world, B, DURABLE, "b") == (0, DURABLE), "the next that is lacking"
        assert await send(world, B, DURABLE + 1, "b") == (0, DURABLE + 1)
        stream = [*map(value, range(DURABLE)), value(DURABLE, "b"), value(DURABLE + 1, "b")]
        assert await world.read(B, 0, DURABLE + 2) == list(enumerate(stream))
        await exported(world, B, DURABLE + 1)
        await world.stop_for_a_while(B, wipe=False)
        await until_led(world, B)
        assert await send(world, B, DURABLE + 1) == (0, DURABLE + 1)
        assert await world.read(B, 0, DURABLE + 2) == list(enumerate(stream))

    run(tmp_path, work)


@pytest.mark.parametrize("is_killed", [False, True], ids=["stopped", "killed"])
def test_the_old_owner_comes_back_and_serves_nothing_and_its_log_is_kept(tmp_path: Path, is_killed: bool) -> None:
    """With what only the journal has of it, too."""

    async def work(world: Moving) -> None:
        await with_history(world)
        if is_killed:
            await world.fence(A)
            world.cluster.brokers[A]._failure = HeadraceError("a test's")  # nothing more is written
        await lose(world, A)
        await recover(world, B)
        await until_led(world, B)
        assert await send(world, B, DURABLE, "b") == (0, DURABLE)
        await world.cluster.start(A)
        await world.until_unfenced(A)
        await world.cluster.agree()
        await world.cluster.settled(A)
        check_set_aside(world, A)
        assert world.partitions(A).role(world.key) is None
        assert (await fetch(await world.client(A), "t", 0)).error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
        assert (await send(world, A, DURABLE + 1))[0] == ErrorCode.NOT_LEADER_OR_FOLLOWER
        await world.move(A)
        assert await send(world, A, DURABLE + 1, "c") == (0, DURABLE + 1)
        stream = [*map(value, range(DURABLE)), value(DURABLE, "b"), value(DURABLE + 1, "c")]
        assert await world.read(A, 0, DURABLE + 2) == list(enumerate(stream)), "the rows are B's"
        assert len(strays(world, A)) == 1

    run(tmp_path, work, configs=BY_HAND)


def test_a_broker_that_was_only_cut_off_keeps_what_it_had_aside(tmp_path: Path) -> None:
    """It lives, and hears of it as it hears of all else."""

    async def work(world: Moving) -> None:
        await with_history(world)
        await world.fence(A)
        await world.until(B, lambda known: known.leader == NO_LEADER)
        await recover(world, B)
        await until_led(world, B)
        await world.cluster.agree()
        await world.cluster.settled(A)
        check_set_aside(world, A)
        assert world.partitions(A).role(world.key) is None

    run(tmp_path, work, configs=BY_HAND)


@pytest.mark.parametrize("leads_alone", [False, True], ids=["copies", "is elected uncleanly"])
def test_an_old_log_is_no_copy_where_its_broker_is_a_replica_again_before_it_is_back(
    tmp_path: Path, leads_alone: bool
) -> None:
    """It is longer than the new owner's, and was acknowledged; what the new owner wrote in its place holds."""

    async def work(world: Moving) -> None:
        await recovered(world)
        assert await send(world, B, DURABLE, "b") == (0, DURABLE)
        assert await send(world, B, DURABLE + 1, "b") == (0, DURABLE + 1)
        await exported(world, B, DURABLE + 1)
        assert await assign(world, A, B) == 0
        if leads_alone:
            await world.stop(B)
            await world.until(C, lambda known: known.leader == NO_LEADER)
        await world.cluster.start(A)
        await world.cluster.agree()
        if leads_alone:
            assert await elect_uncleanly(world) == 0
            await world.until(A, lambda known: known.leader == A)
            await until(lambda: isinstance(world.partitions(A).role(world.key), Partition))
            end = DURABLE + 1
        else:
            for broker in (A, B, C):
                await world.until(broker, lambda known: known.isr == (A, B))
            await world.stop(B)
            await world.until(A, lambda known: known.leader == A)
            await until(lambda: isinstance(world.partitions(A).role(world.key), Partition))
            end = DURABLE + 2
        stream = [*map(value, range(DURABLE)), value(DURABLE, "b"), value(DURABLE + 1, "b")]
        assert await world.read(A, 0, end) == list(enumerate(stream[:end])), "the rows are B's"
        assert world.leading(A).log.log_end_offset == end
        (stray,) = strays(world, A)
        assert value(DURABLE) in b"".join(path.read_bytes() for path in stray.glob("*.log"))

    run(tmp_path, work)


def test_who_dies_before_it_has_made_its_log_begins_it_when_it_is_back(tmp_path: Path) -> None:
    async def work(world: Moving) -> None:
        await with_history(world)
        await lose(world, A)
        world.cluster.brokers[
            B
        ].parts.logs.assignments._is_closing = True  # nothing that the image asks for is done any more
        await recover(world, B)
        assert world.known(B).leader == B
        assert not world.has_log(B)
        await world.stop(B)
        await world.cluster.start(B)
        await until_led(world, B)
        assert not world.known(B).is_unclean
        assert await send(world, B, DURABLE - 1) == (0, DURABLE - 1)
        assert await send(world, B, DURABLE, "b") == (0, DURABLE)

    run(tmp_path, work)


def test_what_cannot_be_read_is_not_given_up(tmp_path: Path) -> None:
    store = Failing(objects_in(tmp_path))

    async def work(world: Moving) -> None:
        await with_history(world)
        await lose(world, A)
        before = world.known(B)
        store.is_down = True
        (one,) = (await recover(world, B))["partitions"]
        assert one["target"] == -1
        assert "Broker 2 cannot read durable history of t-0 (scripted: the store cannot be reached)" in one["refusal"]
        assert world.known(B) == before
        await world.cluster.start(A)
        store.is_down = False
        await until_led(world, A)
        assert await send(world, A, DURABLE) == (0, DURABLE), "nothing was lost"

    run(tmp_path, work, store)


def test_where_the_store_goes_out_meanwhile_it_is_waited_for(tmp_path: Path) -> None:
    store = Failing(objects_in(tmp_path))

    async def work(world: Moving) -> None:
        await with_history(world)
        await lose(world, A)
        store.is_down = True
        control = world.cluster.brokers[B].parts.control
        done = await control.submit(RecoverPartitions(wish=RecoveryWish(topic="t", to=BrokerId(B))))
        assert isinstance(done, Recovery)
        await world.cluster.settled(B)
        assert not isinstance(world.partitions(B).role(world.key), Partition)
        assert (await send(world, B, DURABLE, "b"))[0] == ErrorCode.NOT_LEADER_OR_FOLLOWER
        store.is_down = False
        await until_led(world, B)
        assert await send(world, B, DURABLE, "b") == (0, DURABLE)

    run(tmp_path, work, store)


def test_a_target_that_is_gone_too_is_followed_by_another(tmp_path: Path) -> None:
    async def work(world: Moving) -> None:
        await recovered(world)
        assert await send(world, B, DURABLE, "b") == (0, DURABLE)
        assert await send(world, B, DURABLE + 1, "b") == (0, DURABLE + 1)
        await exported(world, B, DURABLE + 1)
        await world.cluster.start(A)  # for the quorum
        await lose(world, B)
        (one,) = (await recover(world, C))["partitions"]
        assert (one["refusal"], one["end_offset"]) == ("", DURABLE)
        await until_led(world, C)
        assert await send(world, C, DURABLE, "b") == (0, DURABLE)
        assert await send(world, C, DURABLE + 1, "c") == (0, DURABLE + 1)
        stream = [*map(value, range(DURABLE)), value(DURABLE, "b"), value(DURABLE + 1, "c")]
        assert await world.read(C, 0, DURABLE + 2) == list(enumerate(stream))

    run(tmp_path, work)
