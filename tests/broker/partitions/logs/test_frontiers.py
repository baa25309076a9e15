"""A store that hangs is waited for by few: nobody else waits for them."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from headrace.base.errors import StorageFailure
from headrace.base.ids import FIRST_OFFSET, NO_EPOCH
from headrace.base.limits import FRONTIER_READS_AT_ONCE_MAX, FRONTIER_SILENCE_MS_MAX
from headrace.base.ports import ObjectMeta, ReadableObjects
from headrace.broker.partitions.logs import frontiers
from headrace.broker.partitions.logs.frontiers import Frontiers, Heard, Lane
from headrace.replica.producers import ProducerStates
from headrace.storage.tier.beginnings import Beginning
from tests import loops
from tests.broker.group_broker import until

BEGINNING = Beginning(FIRST_OFFSET, NO_EPOCH, ProducerStates())


class ByHand:
    """A clock."""

    def __init__(self) -> None:
        self.at = 0.0

    def now_ms(self) -> int:
        return 0

    def monotonic(self) -> float:
        return self.at


class Hanging:
    """A store."""

    def __init__(self) -> None:
        self.asked = 0
        self.answers = threading.Event()

    def get_range(self, key: str, start: int, length: int) -> bytes:
        self.asked += 1
        self.answers.wait()
        return b""

    def list(self, prefix: str) -> Iterator[ObjectMeta]:
        return iter(())


@pytest.fixture
def store() -> Iterator[Hanging]:
    made = Hanging()
    yield made
    made.answers.set()


def read(store: ReadableObjects) -> Beginning:
    store.get_range("", 0, 0)
    return BEGINNING


async def all_of(lane: Lane, count: int) -> list[Beginning | BaseException]:
    return await asyncio.gather(*(lane.run(read) for _ in range(count)), return_exceptions=True)


def test_few_wait_for_a_store_that_hangs_and_then_one_at_a_time(
    monkeypatch: pytest.MonkeyPatch, store: Hanging
) -> None:
    monkeypatch.setattr(frontiers, "FRONTIER_SILENCE_MS_MAX", 50)

    async def work() -> None:
        clock = ByHand()
        lane = Lane(store, clock, "test")
        found = await all_of(lane, 50)
        assert all(isinstance(each, StorageFailure) for each in found)
        assert store.asked == FRONTIER_READS_AT_ONCE_MAX
        told = [str(each) for each in found]
        assert told.count("the store has not answered for 50 ms") == FRONTIER_READS_AT_ONCE_MAX
        clock.at = 0.06
        tried = [str(each) for each in await all_of(lane, 9)]
        assert tried == ["the store has not answered for 50 ms", *8 * ["the store has not answered lately"]]
        store.answers.set()
        monkeypatch.undo()
        clock.at = 0.2
        assert await all_of(lane, 1) == [BEGINNING]
        assert await all_of(lane, 50) == 50 * [BEGINNING]
        lane.stop()

    loops.run(work())


def test_leaders_do_not_wait_for_copies(monkeypatch: pytest.MonkeyPatch, store: Hanging) -> None:
    async def work() -> None:
        made = Frontiers(store, ByHand())
        copies = [asyncio.ensure_future(made._copies.run(read)) for _ in range(50)]
        await until(lambda: store.asked == FRONTIER_READS_AT_ONCE_MAX)
        monkeypatch.setattr(frontiers, "read_beginning", lambda *_, **__: BEGINNING)
        assert await made.read(None) == BEGINNING  # type: ignore[arg-type]
        assert not any(each.done() for each in copies)
        store.answers.set()
        assert await asyncio.gather(*copies) == 50 * [BEGINNING]
        made.stop()

    loops.run(work())


def test_a_copy_whose_topic_is_gone_meanwhile_begins_nowhere(store: Hanging) -> None:
    async def work() -> None:
        made = Frontiers(store, ByHand())
        gone: Any = SimpleNamespace(history=None)
        assert await made.beginning(gone) is None
        made.stop()

    loops.run(work())


def test_a_listing_is_waited_for_as_long_as_its_pages_may_take(monkeypatch: pytest.MonkeyPatch, store: Hanging) -> None:
    heard = Heard(store, pages=7)
    waits: list[float] = []

    def listing(prefix: str) -> Iterator[ObjectMeta]:
        assert heard.patience == 7
        return iter([ObjectMeta(prefix, 0, 0)])

    monkeypatch.setattr(store, "list", listing)

    async def work() -> None:
        assert len(list(heard.list("k"))) == heard.patience == 1
        heard.patience, heard.answers = 7, 0

        async def wait(*_: object, timeout: float) -> None:
            waits.append(timeout)

        with monkeypatch.context() as patch:
            patch.setattr(asyncio, "wait", wait)
            await Lane(store, ByHand(), "test")._until_silent(asyncio.get_running_loop().create_future(), heard)

    loops.run(work())
    assert len(waits) == 7


def test_a_store_that_is_slow_is_waited_for(monkeypatch: pytest.MonkeyPatch, store: Hanging) -> None:
    """However long all of its answers take: each is in time."""
    heard = Heard(store)

    async def work() -> None:
        reading: asyncio.Future[Beginning] = asyncio.get_running_loop().create_future()

        async def wait(*_: object, timeout: float) -> None:
            assert timeout == FRONTIER_SILENCE_MS_MAX / 1000
            heard.answers += 1
            if heard.answers == 99:
                reading.set_result(BEGINNING)

        with monkeypatch.context() as patch:
            patch.setattr(asyncio, "wait", wait)
            await Lane(store, ByHand(), "test")._until_silent(reading, heard)
        assert reading.done()

    loops.run(work())
