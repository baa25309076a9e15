"""Committed entries become the image, and what is pending is told the truth: the parts alone."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from headrace.base.errors import CorruptData
from headrace.base.ids import BrokerId, ProducerId
from headrace.base.limits import APPLIED_PER_TURN_BYTES_MAX
from headrace.broker.cluster.quorum.applying import Applier
from headrace.broker.cluster.quorum.errors import NotController, OutcomeUnknown
from headrace.broker.cluster.quorum.pending import Pending
from headrace.metadata.codec import encode_events
from headrace.metadata.delta import ImageDelta
from headrace.metadata.events import ConfigChanged
from headrace.metadata.image import EMPTY_IMAGE
from headrace.storage.commit_log import Committed
from tests.broker.cluster.quorum_world import count_up


def entry(index: int, size: int = 10) -> Committed:
    event = ConfigChanged(broker_id=BrokerId(index), changes={"key": "v" * size})
    return Committed(index, 1, encode_events((event,)))


class Watched:
    """An applier, and what it told."""

    def __init__(self) -> None:
        self.indexes: list[int] = []
        self.failures: list[Exception] = []
        self.progress = asyncio.Event()
        self.applier = Applier(own=lambda entry: None, on_progress=self.progress.set, on_failure=self.failures.append)
        self.applier.subscribe(self.on_delta)

    def on_delta(self, delta: ImageDelta) -> None:
        self.indexes.append(delta.after.index)

    async def until(self, index: int) -> None:
        while self.applier.image.index < index and not self.failures:
            await self.progress.wait()
            self.progress.clear()


async def test_large_and_small_entries_are_applied_in_order() -> None:
    watched = Watched()
    large = APPLIED_PER_TURN_BYTES_MAX + 1
    watched.applier.apply([entry(index, large if index % 3 == 0 else 5_000) for index in range(1, 21)])
    assert watched.applier.image.index < 20, "not all in one turn"
    watched.applier.apply([entry(21)])
    await watched.until(21)
    assert watched.indexes == list(range(1, 22))
    assert set(watched.applier.image.broker_configs) == set(range(1, 22))


async def test_a_snapshot_overtakes_entries_that_still_wait() -> None:
    watched = Watched()
    watched.applier.apply([entry(1), entry(2, APPLIED_PER_TURN_BYTES_MAX + 1), entry(3), entry(4)])
    assert watched.indexes == [1]
    watched.applier.restore(replace(EMPTY_IMAGE, index=3, next_producer_id=ProducerId(7)))
    await watched.until(4)
    assert watched.failures == []
    assert watched.indexes == [1, 3, 4]
    assert watched.applier.image.next_producer_id == 7


async def test_an_entry_that_is_no_metadata_is_told_once_and_nothing_follows() -> None:
    watched = Watched()
    watched.applier.apply([Committed(1, 1, b"[]\n"), entry(2)])
    watched.applier.apply([entry(3)])
    assert [type(failure) for failure in watched.failures] == [CorruptData]
    assert watched.indexes == []


async def test_what_was_not_proposed_yet_is_known_not_to_have_been_done() -> None:
    """And what was proposed is not known at all."""
    pending = Pending(EMPTY_IMAGE, term=1)
    events = count_up(EMPTY_IMAGE).events
    proposed = pending.decide(events, b"1")
    assert pending.take_unproposed() == (b"1",)
    waiting = pending.decide(events, b"2")
    assert pending.image.index == 2
    pending.drop_all(OutcomeUnknown, lambda: NotController(None))
    with pytest.raises(OutcomeUnknown):
        await proposed
    with pytest.raises(NotController):
        await waiting


async def test_what_was_refused_is_taken_back_from_the_pending_image() -> None:
    pending = Pending(EMPTY_IMAGE, term=1)
    first = pending.decide(count_up(pending.image).events, b"1")
    assert pending.take_unproposed() == (b"1",)
    second = pending.decide(count_up(pending.image).events, b"2")
    assert pending.image.next_producer_id == 2
    pending.drop_last(len(pending.take_unproposed()), lambda: NotController(BrokerId(2)))
    assert (pending.image.next_producer_id, pending.image.index) == (1, 1)
    with pytest.raises(NotController):
        await second
    assert pending.last_done is first
    proposal = pending.take(1)
    assert proposal is not None
    assert pending.take(2) is None
