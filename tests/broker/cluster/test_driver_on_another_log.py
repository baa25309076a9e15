"""The metadata's driver over a commit log that is not Raft's: it knows the port alone."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest

from headrace.base.ids import BrokerId, DirectoryId, ProducerId
from headrace.broker.cluster.driver import ChangeRefused, MetadataDriver, NotController, OutcomeUnknown
from headrace.metadata.image import EMPTY_IMAGE
from headrace.storage.commit_log import Committed, EpochOver, Tail
from tests.broker.cluster.quorum_world import count_up
from tests.broker.group_broker import until

ME, OTHER = BrokerId(1), BrokerId(2)


class SharedLog:
    """A log in memory, as one that several brokers reach. The test says when entries are committed, and who holds which
    epoch."""

    quorum = None
    is_alone = False

    def __init__(self) -> None:
        self.term, self.holds = 0, False
        self.leader: BrokerId | None = None
        self.entries: list[Committed] = []
        self.committed = 0
        self.refuses: str | None = None

    async def start(self, tail: Tail, changed: Callable[[], None], failed: Callable[[Exception], None]) -> None:
        self._tail, self._changed = tail, changed
        tail.begin(EMPTY_IMAGE, 0)

    def halt(self, error: Callable[[], Exception]) -> None:
        """Nothing waits here."""

    async def stop(self) -> None:
        """Nothing is open."""

    @property
    def decided_to(self) -> int | None:
        return self.committed if self.holds else None

    def leader_before(self) -> tuple[BrokerId, DirectoryId, float] | None:
        return None

    def append(self, epoch: int, after: int, entries: Sequence[bytes]) -> str | None:
        if self.refuses is not None:
            return self.refuses
        assert (epoch, after) == (self.term, len(self.entries)), "the store would refuse it"
        self.entries += [Committed(after + number, epoch, data) for number, data in enumerate(entries, 1)]
        return None

    async def confirmed(self) -> int:
        if not self.holds:
            raise EpochOver
        return self.committed

    def on_applied(self) -> None:
        """No snapshot is ever due."""

    # for the test

    def give(self, holder: BrokerId, term: int) -> None:
        self.term, self.leader, self.holds = term, holder, holder == ME
        self._changed()

    def commit(self) -> None:
        new = self.entries[self.committed :]
        self.committed = len(self.entries)
        self._tail.apply(new)

    def restore(self, index: int) -> None:
        """Another broker's entries up to `index` are seen in a snapshot only."""
        del self.entries[self.committed :]
        self.entries += [Committed(at, 0, b"") for at in range(self.committed + 1, index + 1)]
        self.committed = index
        self._tail.restore(replace(EMPTY_IMAGE, index=index, next_producer_id=ProducerId(7)))


async def started() -> tuple[SharedLog, MetadataDriver]:
    log = SharedLog()
    driver = MetadataDriver(log, me=ME)
    await driver.start()
    return log, driver


async def test_a_decision_is_told_once_its_entry_is_committed_and_confirmed() -> None:
    log, driver = await started()
    with pytest.raises(NotController):
        await driver.submit(count_up)
    log.give(ME, 3)
    assert driver.is_controller
    submitted = [asyncio.ensure_future(driver.submit(count_up)) for _ in range(3)]
    await until(lambda: len(log.entries) == 3)
    assert not any(each.done() for each in submitted)
    log.commit()
    assert await asyncio.gather(*submitted) == [0, 1, 2]
    assert driver.image.index == 3
    await driver.stop()


async def test_who_loses_its_epoch_does_not_know_what_became_of_its_entries() -> None:
    log, driver = await started()
    log.give(ME, 3)
    submitted = asyncio.ensure_future(driver.submit(count_up))
    await until(lambda: bool(log.entries))
    log.give(OTHER, 4)
    with pytest.raises(OutcomeUnknown):
        await submitted
    with pytest.raises(NotController) as refused:
        await driver.submit(count_up)
    assert refused.value.leader == OTHER
    log.commit()
    assert driver.image.index == 1, "it is replayed all the same"
    await driver.stop()


async def test_a_refused_entry_was_not_decided() -> None:
    log, driver = await started()
    log.give(ME, 3)
    log.refuses = "too much is under way"
    with pytest.raises(ChangeRefused, match="too much"):
        await driver.submit(count_up)
    log.refuses = None
    submitted = asyncio.ensure_future(driver.submit(count_up))
    await until(lambda: bool(log.entries))
    log.commit()
    assert await submitted == 0
    await driver.stop()


async def test_a_broker_that_fell_behind_decides_after_the_snapshot() -> None:
    log, driver = await started()
    log.restore(5)
    assert driver.image.index == 5
    log.give(ME, 9)
    submitted = asyncio.ensure_future(driver.submit(count_up))
    await until(lambda: len(log.entries) == 6)
    log.commit()
    assert await submitted == 7
    assert driver.image.index == 6
    await driver.stop()
