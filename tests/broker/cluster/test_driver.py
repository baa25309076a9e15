"""The driver of the spine: what it answers rests on committed state, whatever the disk does."""

from __future__ import annotations

import asyncio
import threading
import uuid
from collections.abc import Callable, Sequence
from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.base import limits
from headrace.base.errors import StorageFailure
from headrace.base.ids import BrokerEpoch, BrokerId, DirectoryId, ProducerId
from headrace.broker.cluster.driver import ChangeRefused, ChangeTooLarge, MetadataDriver, MetadataStopped
from headrace.broker.cluster.quorum import member
from headrace.broker.cluster.quorum.commit_log import metadata_on_raft
from headrace.broker.cluster.quorum.transport import NoTransport
from headrace.controller.decision import Decision
from headrace.metadata.codec import encode_events
from headrace.metadata.delta import ImageDelta
from headrace.metadata.events import MetadataEvent, ProducerIdsAllocated
from headrace.metadata.image import EMPTY_IMAGE, MetadataImage
from headrace.raft.membership import AddLearner, Peer
from headrace.raft.messages import Heartbeat, Message, SnapshotAnswer, TimeoutNow
from headrace.raft.state import Settings
from headrace.storage.disk import LocalDisk
from headrace.storage.raftlog.metadata_log import commit_log_as_json, load_image
from tests.metadata.histories import Entry, histories
from tests.storage.lossy_disk import LossyDisk
from tests.tiers import examples

DIRECTORY = Path("/metadata")
NODE = BrokerId(1)
ME = Peer(NODE, DirectoryId(uuid.UUID(int=1)))


def count_up(image: MetadataImage) -> Decision[int]:
    """One more than all before."""
    start = image.next_producer_id
    event = ProducerIdsAllocated(broker_id=NODE, broker_epoch=BrokerEpoch(1), start=start, end=ProducerId(start + 1))
    return Decision((event,), start)


def look(image: MetadataImage) -> Decision[int]:
    return Decision((), image.next_producer_id)


def commit(events: Sequence[MetadataEvent]) -> Callable[[MetadataImage], Decision[None]]:
    return lambda image: Decision(tuple(events), None)


class SlowDisk(LossyDisk):
    """Work in a worker thread waits until `go` is set; `waiting` says that it does."""

    def __init__(self) -> None:
        super().__init__(Random(1))
        self.go = threading.Event()
        self.go.set()
        self.waiting = threading.Event()
        self.syncs = 0

    def operation(self) -> None:
        if not self.go.is_set() and threading.current_thread() is not threading.main_thread():
            self.waiting.set()
            assert self.go.wait(60)
        self.syncs += 1


class Heard(NoTransport):
    """Gives what is said to it."""

    def attach(self, receive: Callable[[Message], None]) -> None:
        self.receive = receive


class Watcher:
    """Adds up the deltas that it is given."""

    def __init__(self, driver: MetadataDriver) -> None:
        self.driver = driver
        self.image = EMPTY_IMAGE
        self.deltas = 0
        driver.subscribe(self)

    def __call__(self, delta: ImageDelta) -> None:
        assert delta.before == self.image
        assert delta.after is self.driver.image, "the image is swapped before anyone is told"
        self.image = delta.after
        self.deltas += 1


def make(disk: Any, directory: Path = DIRECTORY, **rest: Any) -> MetadataDriver:
    return metadata_on_raft(disk=disk, directory=directory, me=ME, random=Random(1), **rest)


@pytest.fixture
def disk() -> SlowDisk:
    return SlowDisk()


async def test_a_decision_sees_every_decision_before_it(disk: SlowDisk) -> None:
    driver = make(disk)
    watcher = Watcher(driver)
    await driver.start()
    before = disk.syncs
    assert await asyncio.gather(*(driver.submit(count_up) for _ in range(100))) == list(range(100))
    assert disk.syncs - before < 20, "those that wait together are written together"
    assert watcher.image is driver.image
    assert watcher.deltas == 101
    await driver.stop()


async def test_an_answer_waits_for_the_state_that_it_rests_on(disk: SlowDisk) -> None:
    """Also a refusal, or a look: what it saw may be lost in a crash, and then it was never so."""
    driver = make(disk)
    await driver.start()
    disk.go.clear()
    first = asyncio.ensure_future(driver.submit(count_up))
    assert await asyncio.to_thread(disk.waiting.wait, 60)
    looker = asyncio.ensure_future(driver.submit(look))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert not looker.done()
    assert driver.image.next_producer_id == 0
    disk.go.set()
    assert await looker == 1
    assert first.done()
    assert await driver.submit(look) == 1, "with nothing under way it need not wait"
    await driver.stop()


async def test_state_is_there_after_a_restart_and_the_index_rises(disk: SlowDisk) -> None:
    images: list[MetadataImage] = []
    for _ in range(3):
        driver = make(disk)
        watcher = Watcher(driver)
        await driver.start()
        assert watcher.image is driver.image
        assert driver.image.next_producer_id == len(images)
        await driver.submit(count_up)
        await driver.stop()
        images.append(driver.image)
    assert [image.index for image in images] == [2, 4, 6], "each start opens a term with an entry of its own"


async def test_a_failed_sync_stops_all_commits_and_says_so_once(disk: SlowDisk) -> None:
    fatal: list[Exception] = []
    driver = make(disk, on_fatal=fatal.append)
    watcher = Watcher(driver)
    await driver.start()
    await driver.submit(count_up)
    disk.fail_sync = True
    results = await asyncio.gather(*(driver.submit(count_up) for _ in range(3)), return_exceptions=True)
    assert all(isinstance(result, StorageFailure) for result in results)
    disk.fail_sync = False
    with pytest.raises(StorageFailure):
        await driver.submit(count_up)
    with pytest.raises(StorageFailure):
        await driver.submit(look)
    assert driver.image.next_producer_id == watcher.image.next_producer_id == 1
    assert len(fatal) == 1
    assert driver.failure is fatal[0]
    await driver.stop()


async def test_stopping_commits_what_was_submitted_and_then_takes_no_more(disk: SlowDisk) -> None:
    driver = make(disk)
    await driver.start()
    last = asyncio.ensure_future(driver.submit(count_up))
    await asyncio.sleep(0)
    await driver.stop()
    assert await last == 0
    assert load_image(disk, DIRECTORY) == driver.image
    with pytest.raises(MetadataStopped):
        await driver.submit(look)
    await driver.stop()


async def test_a_submitter_that_goes_away_undoes_nothing(disk: SlowDisk) -> None:
    driver = make(disk)
    await driver.start()
    disk.go.clear()
    gone = asyncio.ensure_future(driver.submit(count_up))
    assert await asyncio.to_thread(disk.waiting.wait, 60)
    gone.cancel()
    disk.go.set()
    assert await driver.submit(count_up) == 1
    await driver.stop()


async def test_a_decision_that_raises_harms_nobody_else(disk: SlowDisk) -> None:
    def bug(image: MetadataImage) -> Decision[None]:
        raise KeyError("bug")

    driver = make(disk)
    await driver.start()
    with pytest.raises(KeyError):
        await driver.submit(bug)
    assert await driver.submit(count_up) == 0
    await driver.stop()


async def test_what_was_decided_on_a_change_that_was_refused_is_decided_again(
    disk: SlowDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A large decision is encoded beside the loop, and what it rests on may be refused meanwhile."""
    refused = threading.Event()

    def encode_once_refused(events: Sequence[MetadataEvent]) -> bytes:
        assert len(events) < 300 or refused.wait(20)
        return encode_events(events)

    def count_up_at_length(image: MetadataImage) -> Decision[int]:
        decision = count_up(image)
        return Decision(decision.events * 300, decision.result)

    monkeypatch.setattr("headrace.broker.cluster.driver._INLINE_WEIGHT", 0)
    monkeypatch.setattr("headrace.broker.cluster.driver.encode_events", encode_once_refused)
    driver = make(disk, settings=Settings(uncommitted_bytes_max=200))
    await driver.start()
    disk.go.clear()
    first = asyncio.ensure_future(driver.submit(count_up))
    assert await asyncio.to_thread(disk.waiting.wait, 60)
    second, third = (asyncio.ensure_future(driver.submit(decide)) for decide in (count_up, count_up_at_length))
    with pytest.raises(ChangeRefused):
        await second
    disk.go.set()
    assert await first == 0
    refused.set()
    assert await third == 1, "the second was not made"
    assert driver.image.next_producer_id == 2
    await driver.stop()


async def test_many_small_events_are_encoded_in_turns_of_the_loop(disk: SlowDisk) -> None:
    """And what was decided meanwhile comes after them, as it was decided."""
    driver = make(disk)
    await driver.start()
    turns = 0

    def count_turns() -> None:
        nonlocal turns
        turns += 1
        loop.call_soon(count_turns)

    loop = asyncio.get_running_loop()
    many = asyncio.ensure_future(driver.submit(lambda image: Decision(count_up(image).events * 1_000, turns)))
    after = asyncio.ensure_future(driver.submit(lambda image: Decision(count_up(image).events, turns)))
    loop.call_soon(count_turns)
    begun, ended = await many, await after
    assert ended - begun >= 4, "a fifth of them in each"
    assert driver.image.next_producer_id == 2
    await driver.stop()


async def test_a_change_that_no_member_would_take_is_refused_before_it_is_in_the_log(
    disk: SlowDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert limits.METADATA_ENTRY_BYTES_MAX < limits.PEER_FRAME_BYTES_MAX
    monkeypatch.setattr(limits, "METADATA_ENTRY_BYTES_MAX", 1_000)
    driver = make(disk)
    await driver.start()
    with pytest.raises(ChangeTooLarge):
        await driver.submit(lambda image: Decision(count_up(image).events * 10, None))
    assert await driver.submit(count_up) == 0
    await driver.stop()


async def test_hostile_messages_stop_nobody(disk: SlowDisk) -> None:
    """A second leader in this one's term, a term after which there is none, a place that no file has."""
    driver = make(disk, transport=(transport := Heard()))
    await driver.start()
    other = Peer(BrokerId(2), DirectoryId(uuid.UUID(int=2)))
    await driver.change(AddLearner(other))
    ends = {"source": other, "target": ME}
    transport.receive(Heartbeat(term=driver.term, commit_index=9, round=1, **ends))
    transport.receive(TimeoutNow(term=driver.term, **ends))
    transport.receive(Heartbeat(term=2**64 - 1, commit_index=9, round=1, **ends))
    transport.receive(SnapshotAnswer(term=driver.term, index=0, offset=0, next_offset=2**64 - 1, **ends))
    assert driver.is_controller
    assert await driver.submit(count_up) == 0
    await driver.stop()


async def test_a_subscriber_that_raises_is_fatal(disk: SlowDisk) -> None:
    def bug(delta: ImageDelta) -> None:
        raise KeyError("bug")

    fatal: list[Exception] = []
    driver = make(disk, on_fatal=fatal.append)
    await driver.start()
    driver.subscribe(bug)
    with pytest.raises(StorageFailure):
        await driver.submit(count_up)
    assert [type(error) for error in fatal] == [KeyError]
    await driver.stop()


async def test_the_log_is_snapshotted_and_cut_while_commits_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(member, "METADATA_EVENTS_PER_SNAPSHOT", 50)
    directory = tmp_path / "metadata"
    for turn in range(3):
        driver = make(LocalDisk(), directory)
        await driver.start()
        assert driver.image.next_producer_id == turn * 400
        for _ in range(40):
            await asyncio.gather(*(driver.submit(count_up) for _ in range(10)))
        await driver.stop()
        assert load_image(LocalDisk(), directory) == driver.image
        assert len(list(directory.iterdir())) <= 3
        assert len(list(directory.glob("*.snapshot"))) == 1


async def test_a_failed_snapshot_is_fatal_too(disk: SlowDisk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(member, "METADATA_EVENTS_PER_SNAPSHOT", 1)
    failed = asyncio.Event()
    driver = make(disk, on_fatal=lambda error: failed.set())
    await driver.start()
    monkeypatch.setattr(disk, "rename", lambda source, target: (_ for _ in ()).throw(OSError(28, "No space left")))
    await driver.submit(count_up)
    async with asyncio.timeout(150):
        await failed.wait()
    with pytest.raises(StorageFailure):
        await driver.submit(count_up)
    await driver.stop()


@settings(max_examples=examples(30), deadline=None)
@given(histories(), st.integers(1, 4))
def test_any_history_is_replayed_from_the_disk_as_it_was_committed(entries: list[Entry], per_life: int) -> None:
    async def live(disk: LossyDisk) -> MetadataImage:
        image = EMPTY_IMAGE
        for at in range(0, len(entries), per_life):
            driver = make(disk)
            await driver.start()
            assert driver.image.topics == image.topics
            for entry in entries[at : at + per_life]:
                await driver.submit(commit(entry))
            await driver.stop()
            image = driver.image
        return image

    disk = LossyDisk(Random(1))
    image = asyncio.run(live(disk))
    assert load_image(disk, DIRECTORY) == image
    shown = list(commit_log_as_json(disk, DIRECTORY))
    assert [line["index"] for line in shown] == list(range(1, image.index + 1))
    assert sum(len(line["events"]) for line in shown) == sum(map(len, entries))
