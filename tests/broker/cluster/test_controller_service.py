"""The active controller's answers to brokers, asked directly; its clock is the test's."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any
from unittest.mock import AsyncMock

import pytest

from headrace.base.errors import StorageFailure
from headrace.base.ids import NO_LEADER, BrokerEpoch, BrokerId, ClusterId, DirectoryId, IncarnationId, TopicId
from headrace.broker.cluster import driver as metadata_driver
from headrace.broker.cluster.controller_role import ControllerRole
from headrace.broker.cluster.controller_service import ControllerService
from headrace.broker.cluster.driver import MetadataDriver
from headrace.broker.cluster.quorum.errors import NotController
from headrace.broker.kit.tasks import started
from headrace.controller.asks.brokers import Heartbeat, RegisterBroker
from headrace.controller.asks.topics import CreateTopics
from headrace.controller.decision import Refusal
from headrace.controller.sessions import HASTY_FENCINGS_MAX
from headrace.controller.topics import NewTopic
from headrace.metadata.events import BrokerFenced
from headrace.metadata.values import Endpoint
from headrace.raft.membership import Peer
from headrace.wire.errors import ErrorCode
from tests.broker.cluster.test_driver import DIRECTORY, NODE, SlowDisk, make
from tests.broker.group_broker import until

CLUSTER = ClusterId("c")


class SetClock:
    """It stands until it is set."""

    def __init__(self) -> None:
        self.seconds = 1_000.0

    def now_ms(self) -> int:
        return int(self.seconds * 1000)

    def monotonic(self) -> float:
        return self.seconds


@asynccontextmanager
async def controller(clock: SetClock, **rest: Any) -> AsyncIterator[tuple[ControllerService, MetadataDriver, SlowDisk]]:
    """Of the only voter."""

    def on_bug(error: BaseException) -> None:
        raise AssertionError from error

    disk = SlowDisk()
    metadata = make(disk, DIRECTORY, **rest)
    await metadata.start()
    made = ControllerService(node=NODE, cluster_id=CLUSTER, configs={}, metadata=metadata, clock=clock, on_bug=on_bug)
    role = ControllerRole(metadata, [made])
    role.start()
    try:
        yield made, metadata, disk
    finally:
        role.stop()
        await metadata.stop()


def registration(broker: BrokerId, directory: int, incarnation: int, port: int = 9) -> RegisterBroker:
    return RegisterBroker(
        cluster_id=CLUSTER,
        broker_id=broker,
        directory_id=DirectoryId(uuid.UUID(int=directory)),
        incarnation=IncarnationId(uuid.UUID(int=incarnation)),
        endpoints=(Endpoint(listener="PLAINTEXT", host="h", port=port),),
    )


async def test_nobody_takes_the_place_of_the_controller_s_own_broker() -> None:
    """It is there, however long ago it said so: else a second process under its id takes its vote from it."""
    clock = SetClock()
    async with controller(clock) as (asked, metadata, _):
        epoch = await asked.answer(registration(NODE, directory=1, incarnation=1))
        assert isinstance(epoch, int)
        clock.seconds += 1_000
        await asyncio.sleep(0)
        answer = await asked.answer(registration(NODE, directory=2, incarnation=2))
        assert isinstance(answer, Refusal)
        assert answer.code is ErrorCode.DUPLICATE_BROKER_REGISTRATION
        assert metadata.image.brokers[NODE].epoch == epoch
        assert metadata.membership.members == {Peer(NODE, DirectoryId(uuid.UUID(int=1)))}


async def test_a_change_of_the_quorum_that_may_yet_be_made_is_not_called_not_made() -> None:
    """Its entry went out to others before this disk failed."""
    async with controller(SetClock()) as (asked, _, disk):
        assert isinstance(await asked.answer(registration(NODE, directory=1, incarnation=1)), int)
        disk.fail_sync = True
        with pytest.raises(StorageFailure):
            await asked.answer(registration(BrokerId(2), directory=2, incarnation=2))


@pytest.mark.parametrize(
    "ask",
    [
        registration(BrokerId(2**31), directory=2, incarnation=2),
        registration(BrokerId(-1), directory=2, incarnation=2),
        registration(BrokerId(2), directory=2, incarnation=2, port=2**40),
        replace(registration(BrokerId(2), directory=2, incarnation=2), rack="r" * 256),
    ],
)
async def test_what_no_client_could_be_told_is_not_registered(ask: RegisterBroker) -> None:
    """Else every answer to Metadata would fail, on all brokers, after restarts too."""
    async with controller(SetClock()) as (asked, metadata, _):
        await asked.answer(registration(NODE, directory=1, incarnation=1))
        answer = await asked.answer(ask)
        assert isinstance(answer, Refusal)
        assert answer.code is ErrorCode.INVALID_REQUEST
        assert set(metadata.image.brokers) == {NODE}
        assert len(metadata.membership.members) == 1


async def test_the_only_broker_comes_back_to_more_than_goes_into_one_entry(monkeypatch: pytest.MonkeyPatch) -> None:
    """Killed, and not missed by anybody: what it led has a new epoch before it is unfenced, and then it leads again."""
    monkeypatch.setattr("headrace.broker.cluster.transitions.SETTLED_PER_ENTRY_MAX", 3)
    monkeypatch.setattr("headrace.broker.cluster.transitions.SETTLED_PER_SLICE_MAX", 3)
    monkeypatch.setattr("headrace.broker.cluster.transitions.SETTLED_ALONE_MAX", 5)
    async with controller(SetClock()) as (asked, metadata, _):
        await asked.answer(registration(NODE, directory=1, incarnation=1))
        topic = NewTopic(topic_id=TopicId(uuid.UUID(int=5)), name="t", partitions=8, replication_factor=1, configs={})
        await asked.answer(CreateTopics(topics=(topic,)))
        epoch = await asked.answer(registration(NODE, directory=1, incarnation=2))
        (partitions,) = (topic.partitions for topic in metadata.image.topics.values())
        assert {(part.leader, part.leader_epoch) for part in partitions} == {(NO_LEADER, 1)}
        assert await asked.answer(Heartbeat(broker_id=NODE, broker_epoch=epoch, ready=True)) is True
        (partitions,) = (topic.partitions for topic in metadata.image.topics.values())
        assert {(part.leader, part.leader_epoch) for part in partitions} == {(NODE, 2)}


async def test_a_death_that_two_connections_tell_of_counts_once() -> None:
    """A broker that was fenced at once too often must wait for its session."""
    async with controller(SetClock()) as (asked, metadata, _):
        await asked.answer(registration(NODE, directory=1, incarnation=1))
        other = BrokerId(2)
        epoch = await asked.answer(registration(other, directory=2, incarnation=2))
        for _ in range(HASTY_FENCINGS_MAX):
            assert await asked.answer(Heartbeat(broker_id=other, broker_epoch=epoch, ready=True)) is True
            asked.on_peer_dead(other)
            asked.on_peer_dead(other)
            await until(lambda: metadata.image.brokers[other].fenced)


@pytest.mark.parametrize("seconds", [0.5, 100.0])
async def test_a_death_that_was_seen_long_before_it_was_the_controller_is_old_news(seconds: float) -> None:
    """A port that refused once may be that of a broker that has lived on."""
    clock = SetClock()
    async with controller(clock) as (asked, metadata, _):
        await asked.answer(registration(NODE, directory=1, incarnation=1))
        other = BrokerId(2)
        epoch = await asked.answer(registration(other, directory=2, incarnation=2))
        assert await asked.answer(Heartbeat(broker_id=other, broker_epoch=epoch, ready=True)) is True
        asked.end()  # another is the controller
        asked.on_peer_dead(other)
        clock.seconds += seconds
        asked.begin()
        assert list(asked._hasty) == ([other] if seconds < 1 else [])
        if seconds < 1:
            await until(lambda: metadata.image.brokers[other].fenced)
        else:
            assert await asked.answer(Heartbeat(broker_id=other, broker_epoch=epoch, ready=True)) is True
            assert not metadata.image.brokers[other].fenced


async def test_a_death_whose_fencing_failed_is_told_to_the_next_leadership(monkeypatch: pytest.MonkeyPatch) -> None:
    """The process is as dead as before, and no connection breaks a second time."""
    async with controller(SetClock()) as (asked, metadata, _):
        await _two_more(asked)
        with monkeypatch.context() as patch:
            patch.setattr(asked._settling, "fence", AsyncMock(side_effect=NotController(None)))
            asked.on_peer_dead(BrokerId(2))
            await until(lambda: not asked._hasty)
        assert not metadata.image.brokers[BrokerId(2)].fenced
        asked.end()
        asked.begin()
        await until(lambda: metadata.image.brokers[BrokerId(2)].fenced)
        assert not metadata.image.brokers[BrokerId(3)].fenced


async def _two_more(asked: ControllerService) -> dict[BrokerId, BrokerEpoch]:
    """This node's own broker, and two more that live."""
    await asked.answer(registration(NODE, directory=1, incarnation=1))
    epochs = {BrokerId(n): await asked.answer(registration(BrokerId(n), directory=n, incarnation=n)) for n in (2, 3)}
    for each in epochs:
        assert await asked.answer(beat(each, epochs)) is True
    return epochs


def beat(broker: BrokerId, epochs: dict[BrokerId, BrokerEpoch]) -> Heartbeat:
    return Heartbeat(broker_id=broker, broker_epoch=epochs[broker], ready=True)


async def test_a_heartbeat_is_answered_by_what_was_decided_before_it_came() -> None:
    """Else a broker has a lease across its own fencing, which is on its way to the disk."""
    async with controller(SetClock()) as (asked, metadata, disk):
        epochs = await _two_more(asked)
        disk.go.clear()
        disk.waiting.clear()
        asked.on_peer_dead(BrokerId(2))
        assert await asyncio.to_thread(disk.waiting.wait, 60)
        assert not metadata.image.brokers[BrokerId(2)].fenced, "it is decided, and not committed"
        heartbeat = asyncio.ensure_future(asked.answer(beat(BrokerId(2), epochs)))
        for _ in range(5):
            await asyncio.sleep(0)
        disk.go.set()
        assert await heartbeat is False


async def test_a_heartbeat_is_answered_by_what_was_being_written_down_when_it_came(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The fencing of a broker that leads much is encoded in many turns of the loop."""
    encode, at_it, go = metadata_driver._encode, asyncio.Event(), asyncio.Event()

    async def slowly(events: Any) -> bytes:
        if any(isinstance(event, BrokerFenced) for event in events):
            at_it.set()
            await go.wait()
        return await encode(events)

    monkeypatch.setattr(metadata_driver, "_encode", slowly)
    async with controller(SetClock()) as (asked, _, __):
        epochs = await _two_more(asked)
        asked.on_peer_dead(BrokerId(2))
        await at_it.wait()
        heartbeat = asyncio.ensure_future(asked.answer(beat(BrokerId(2), epochs)))
        for _ in range(5):
            await asyncio.sleep(0)
        go.set()
        assert await heartbeat is False


async def test_who_is_heard_while_another_is_fenced_for_silence_is_not_fenced(monkeypatch: pytest.MonkeyPatch) -> None:
    """Both were silent when the controller looked; by the heartbeat one has a lease."""
    clock = SetClock()
    async with controller(clock) as (asked, metadata, disk):
        epochs = await _two_more(asked)
        assert asked._sessions is not None
        fenced, looked = set[BrokerId](), asyncio.Event()
        metadata.subscribe(lambda delta: fenced.update(b.id for b in delta.after.brokers.values() if b.fenced))
        monkeypatch.setattr(asked._settling, "go_on", AsyncMock(side_effect=looked.set))
        disk.go.clear()
        disk.waiting.clear()
        for _ in range(6):  # in steps, for one would be a pause of this node's own
            clock.seconds += asked._session_s / 3
            over = asked._sessions.tick(metadata.image, clock.monotonic())
        assert {broker for broker, _ in over} == {BrokerId(2), BrokerId(3)}
        started(asked._tick(asked._sessions), "one more look", lambda error: None)
        assert await asyncio.to_thread(disk.waiting.wait, 60)
        heartbeat = asyncio.ensure_future(asked.answer(beat(BrokerId(3), epochs)))
        for _ in range(5):
            await asyncio.sleep(0)
        disk.go.set()
        assert await heartbeat is True
        await looked.wait()
        assert fenced == {BrokerId(2)}
