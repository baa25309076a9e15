"""One partition that is copied, by itself: over a real log, on a disk in memory, with nobody to copy from."""

from __future__ import annotations

import asyncio
from copy import deepcopy
from dataclasses import replace
from typing import NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.base.ids import LAST_OFFSET, BrokerId, LeaderEpoch, Offset, PartitionIndex, TopicPartition
from headrace.base.limits import PRODUCER_BATCHES_CACHED
from headrace.broker.durable.history_keeper import bytes_above
from headrace.broker.partitions import bounds
from headrace.broker.partitions.flusher import Flusher
from headrace.broker.partitions.following import FollowerPartition
from headrace.broker.partitions.logs.opening import recover_producers
from headrace.broker.partitions.settings import PartitionSettings
from headrace.broker.system import SystemClock
from headrace.metadata.segments import PartitionCatalog
from headrace.replica.producers import ACCEPT, Duplicate, ProducerStates, Refuse, Verdict
from headrace.storage.engine.flushing import FlushTicket, Outcome
from headrace.storage.log.engine import LocalLogEngine
from headrace.storage.log.partition import LocalLog
from headrace.wire.batches import PREFIX, encode_batch, parse_header
from headrace.wire.errors import ErrorCode
from headrace.wire.records import Record
from tests.broker.local_logs import local
from tests.broker.partitions.no_events import NoEvents
from tests.broker.rooms import a_room
from tests.metadata.histories import descriptor
from tests.storage.log.log_world import IDENTITY, ROOT, SMALL, batch, new_disk, open_log
from tests.storage.log.memory_disk import MemoryDisk
from tests.tiers import examples

SETTINGS = PartitionSettings(
    max_message_bytes=1_000_000,
    min_insync_replicas=1,
    codec=None,
    times=None,
    durable=False,
    compact=False,
    delete=True,
    durable_lag_ms_max=-1,
)
KEY = TopicPartition(IDENTITY.topic_id, PartitionIndex(0))


def copied() -> FollowerPartition:
    """Empty, following broker 2 in epoch 0."""
    engine = LocalLogEngine(new_disk(), ROOT)
    engine.start()

    def no_bug(error: BaseException) -> None:
        raise AssertionError from error

    return FollowerPartition(
        node=BrokerId(1),
        is_in_sync=True,
        leader=BrokerId(2),
        leader_epoch=LeaderEpoch(0),
        high_watermark=Offset(0),
        open_again=lambda _: None,
        topic="orders",
        topic_partition=KEY,
        partition_log=engine.open(IDENTITY, replace(SMALL, retention_ms=0), start=Offset(0)),
        producers=ProducerStates(),
        settings=SETTINGS,
        flusher=Flusher(engine, no_bug),
        clock=SystemClock(),
        room=a_room(),
        is_internal=False,
        events=NoEvents(),
        has_store=False,
    )


def as_led(base: int, count: int = 1, epoch: int = 0, *, size: int = 10) -> bytes:
    """A batch as it stands in the leader's log."""
    raw = batch(count, size=size, seed=base)
    return PREFIX.pack(base, len(raw) - 12, epoch) + raw[PREFIX.size :]


async def test_nobody_deletes_from_a_log_that_is_being_cut() -> None:
    """A worker thread has it."""
    copy = copied()
    for base in range(10):
        copy.append(as_led(base, size=200))
    await copy._flusher.idle()
    copy.on_marks(Offset(10), Offset(0))
    assert len(copy.log.ranges()) > 2
    copy.is_changing = True
    copy.keep_house(2**62, producers_since_ms=0)
    assert copy.log.log_start_offset == 0
    copy.is_changing = False
    copy.keep_house(2**62, producers_since_ms=0)
    assert copy.log.log_start_offset > 0


async def test_nobody_writes_to_a_log_that_is_being_cut_though_there_is_room_for_what_it_holds() -> None:
    """A worker thread does, and twice would be a hole."""
    copy = copied()
    copy.append(as_led(0))
    held = copy.log.contents.held_size  # type: ignore[attr-defined]
    copy.is_changing = True
    copy.log.write_out = _nobody_writes  # type: ignore[method-assign]
    assert copy.go_on(), "it waits no more: who cuts it sees to that"
    assert copy.log.contents.held_size == held  # type: ignore[attr-defined]


def _nobody_writes() -> None:
    raise AssertionError


async def test_nobody_rolls_a_log_whose_role_is_over() -> None:
    """As who exported it would, and has waited for the store: a worker thread may have it, which cuts it."""
    copy = copied()
    copy.append(as_led(0))
    await copy._flusher.idle()
    copy.step_down(ErrorCode.NOT_LEADER_OR_FOLLOWER)
    copy.roll()
    assert not copy.log.needs_flush
    assert copy.open_since_ms is not None


async def test_what_is_flushed_is_told_though_more_was_appended_meanwhile() -> None:
    """Where something always is, the leader would hear of nothing, and acknowledge nothing."""
    copy = copied()
    told: list[tuple[int, int]] = []
    copy.on_flushed = lambda copy: told.append((copy.log.flushed_end, copy.log.log_end_offset))
    ended = copy.finish_flush

    def append_meanwhile(ticket: FlushTicket, failure: Outcome) -> None:
        if copy.log.log_end_offset < 3:
            copy.append(as_led(copy.log.log_end_offset))
        ended(ticket, failure)

    copy.finish_flush = append_meanwhile  # type: ignore[method-assign]
    copy.append(as_led(0))
    await copy._flusher.idle()
    assert told == [(1, 2), (2, 3), (3, 3)]


async def test_a_copy_tells_how_far_it_is_behind_what_is_committed() -> None:
    copy = copied()
    copy.append(as_led(0, 3))
    await copy._flusher.idle()
    copy.on_marks(Offset(2), Offset(0))
    assert copy.offset_lag == 0
    copy.on_marks(Offset(8), Offset(0))
    assert copy.offset_lag == 5


def written_by(producer: int, base: int, sequence: int, *, epoch: int = 0, count: int = 1) -> bytes:
    """A batch of some 250 bytes, as it stands in the leader's log."""
    records = [Record(at, 1_700_000_000_000, None, b"." * (200 // count)) for at in range(count)]
    raw = encode_batch(records, producer_id=producer, producer_epoch=epoch, base_sequence=sequence)
    return PREFIX.pack(base, len(raw) - 12, 0) + raw[PREFIX.size :]


async def test_producers_are_still_known_once_retention_has_dropped_their_batches() -> None:
    """After a crash too: else what a producer sends again would be appended again."""
    copy = copied()
    copy.append(written_by(7, 0, 0))
    for base in range(1, 10):
        copy.append(written_by(8, base, base - 1))
    await copy._flusher.idle()
    copy.on_marks(Offset(10), Offset(0))
    copy.keep_house(2**62, producers_since_ms=0)
    await copy._flusher.idle()
    assert copy.log.log_start_offset > 0
    header = parse_header(written_by(7, 0, 0))
    recovered = recover_producers(copy.log, 1_700_000_000_000)
    assert isinstance(recovered.check(header), Duplicate)


async def test_producers_are_still_known_once_a_log_is_cut_whose_beginning_is_gone() -> None:
    """Their batches lie below the log's start, and the snapshots that tell of them are newer than the cut."""
    copy = copied()
    copy.append(written_by(7, 0, 0))
    for base in range(1, 10):
        copy.append(written_by(8, base, base - 1))
    await copy._flusher.idle()
    copy.on_marks(Offset(8), Offset(0))
    copy.keep_house(2**62, producers_since_ms=0)
    await copy._flusher.idle()
    assert 0 < copy.log.log_start_offset < 9
    copy.cut(Offset(9))
    copy.flush_soon()
    await copy._flusher.idle()
    for producers in (copy.producers, recover_producers(copy.log, 1_700_000_000_000)):
        assert isinstance(producers.check(parse_header(written_by(7, 0, 0))), Duplicate)
        assert isinstance(producers.check(parse_header(written_by(8, 8, 7))), Duplicate)
        assert producers.check(parse_header(written_by(8, 9, 8))) == ACCEPT, "it was cut"


class Writing(NamedTuple):
    """One batch of a producer, which may have a new epoch first."""

    producer: int
    is_bumped: bool
    records: int
    then: str
    """The event after it."""


writings = st.lists(
    st.builds(
        Writing,
        st.integers(7, 9),
        st.sampled_from([False, False, False, True]),
        st.sampled_from([1, 1, 2, 5]),
        st.sampled_from(["", "", "", "snapshot", "delete", "flush"]),
    ),
    min_size=1,
    max_size=30,
)


@given(writings, st.data())
@settings(max_examples=examples(300), deadline=None)
def test_who_is_known_after_a_cut_is_known_as_if_nothing_had_come_behind_it(
    plan: list[Writing], data: st.DataObject
) -> None:
    """Wherever the log begins by then, inside a batch too, and whichever snapshots are left; after a loss of power."""

    async def work() -> None:
        copy = copied()
        try:
            await cut_and_compare(copy, plan, data)
        finally:
            await copy._flusher.idle()

    asyncio.run(work())


async def cut_and_compare(copy: FollowerPartition, plan: list[Writing], data: st.DataObject) -> None:
    batches, epochs, sequences, base = list[bytes](), dict[int, int](), dict[int, int](), 0
    for writing in plan:
        producer = writing.producer
        if writing.is_bumped or producer not in epochs:
            epochs[producer], sequences[producer] = epochs.get(producer, -1) + 1, 0
        raw = written_by(producer, base, sequences[producer], epoch=epochs[producer], count=writing.records)
        sequences[producer] += writing.records
        batches.append(raw)
        copy.append(raw)
        if writing.then == "snapshot":
            copy.snapshot_producers()
        elif writing.then:
            await copy._flusher.idle()
            if writing.then == "delete":
                copy.on_marks(Offset(base), Offset(data.draw(st.integers(copy.log.log_start_offset, base))))
        base += writing.records
    end = data.draw(st.integers(copy.log.log_start_offset, base))
    is_cut = end < base
    is_flushed = data.draw(st.booleans()) or not is_cut
    if is_flushed:
        await copy._flusher.idle()
    kept = [raw for raw in batches if parse_header(raw).next_offset <= end]
    end = max(parse_header(kept[-1]).next_offset if kept else 0, copy.log.log_start_offset) if is_cut else end
    known, remembered = copy.producers.as_of(end).ids, copy.producers.remembered()
    wanted = ProducerStates()
    for raw in kept:
        wanted.on_appended(parse_header(raw), Offset(parse_header(raw).base_offset), 0)
    copy.cut(Offset(end))
    assert isinstance(copy.log, LocalLog)
    if not is_flushed or data.draw(st.booleans()):
        copy.flush_soon()
        await copy._flusher.idle()
    disk = deepcopy(local(copy.log).disk)
    assert isinstance(disk, MemoryDisk)
    disk.power_cut()
    again = open_log(disk, replace(SMALL, retention_ms=0))
    assert again.log_end_offset == end
    for producers in (copy.producers, recover_producers(again, 0)):
        assert known <= producers.ids or not is_cut
        for raw in batches:
            header = parse_header(raw)
            if header.producer_id in producers.ids:
                told, due = producers.check(header), wanted.check(header)
                is_lost = header.base_offset < again.log_start_offset and header.base_offset not in remembered
                assert told == due or is_same_batch(told, due) or (is_lost and isinstance(told, Refuse))
            elif header.producer_id in wanted.ids:
                since = [
                    each for each in map(parse_header, batches[len(kept) :]) if each.producer_id == header.producer_id
                ]
                assert len(since) >= PRODUCER_BATCHES_CACHED or since[-1].producer_epoch > 0, "nobody else is forgotten"


def is_same_batch(told: Verdict, due: Verdict) -> bool:
    """When it was appended is not known after a recovery."""
    return isinstance(told, Duplicate) and isinstance(due, Duplicate) and told[:2] == due[:2]


def history_to(*ends: int) -> PartitionCatalog:
    """Segments of 100 bytes each, exported in epoch 0."""
    catalog, start = PartitionCatalog.empty(KEY.topic_id, KEY.partition), 0
    for end in ends:
        catalog = catalog.published(descriptor(start, end - start, 0))
        start = end
    return catalog


async def test_of_a_segment_that_is_exported_in_part_the_rest_is_counted() -> None:
    copy = copied()
    for base in range(10):
        copy.append(as_led(base, size=200))
    copy.roll()
    await copy._flusher.idle()
    closed = local(copy.log).closed_segments()
    assert [segment.next_offset for segment in closed] == [2, 4, 6, 8, 10]
    size = copy.log.size_bytes
    assert bytes_above(copy.log, history_to(2, 4)) == size - closed[0].size - closed[1].size
    assert bytes_above(copy.log, history_to(2, 4, 5)) == size - closed[0].size - closed[1].size - 100
    assert bytes_above(copy.log, history_to(2, 4, 10)) == 0


async def test_a_durable_segment_that_ends_inside_one_of_the_log_is_not_counted_twice() -> None:
    """After a merge, or under another leader, they do not begin together. Retention keeps no less for it."""
    copy = copied()
    for base in range(10):
        copy.append(as_led(base, size=200))
    copy.roll()
    await copy._flusher.idle()
    closed = local(copy.log).closed_segments()
    size = copy.log.size_bytes
    for ends in ((3,), (2, 3), (1, 3)):  # of the second one, offset 2 is exported
        above = bytes_above(copy.log, history_to(*ends))
        assert above == size - closed[0].size - 100
        assert above == bytes_above(copy.log, history_to(2, 3))
    assert bytes_above(copy.log, history_to(4, 5)) == bytes_above(copy.log, history_to(2, 4, 5))
    assert bytes_above(copy.log, history_to(1, 9)) == size - sum(each.size for each in closed[:4]) - 100


async def test_what_is_not_what_was_exported_is_not_deleted_as_if_it_were() -> None:
    """The log goes on in a later epoch at an offset that the catalog has of an older one."""
    copy = copied()
    copy.has_store, copy.settings = True, replace(SETTINGS, durable=True)
    for base in range(10):
        copy.append(as_led(base, epoch=0 if base < 5 else 1, size=200))
    await copy._flusher.idle()
    copy.on_marks(Offset(10), Offset(0))
    copy.history = history_to(4)
    assert (copy.differs_from, bounds.deletable_end(copy)) == (None, 4)
    copy.history = history_to(5)
    assert (copy.differs_from, bounds.deletable_end(copy)) == (None, 5)
    copy.history = history_to(4, 8)
    assert (copy.differs_from, bounds.deletable_end(copy)) == (5, 5)
    copy.keep_house(2**62, producers_since_ms=0)
    assert copy.log.log_start_offset == 4
    copy.history = history_to(4, 5).published(descriptor(5, 3, 1))
    assert (copy.differs_from, bounds.deletable_end(copy)) == (None, 8), "exported in that epoch"


async def test_nothing_goes_of_a_copy_that_ends_within_a_durable_segment() -> None:
    """Nobody can tell yet whether the two are equal: the leader's log may have gone another way, in an older epoch."""
    copy = copied()
    copy.has_store, copy.settings = True, replace(SETTINGS, durable=True)
    for base in range(10):
        copy.append(as_led(base, epoch=3, size=200))
    await copy._flusher.idle()
    copy.on_marks(Offset(10), Offset(0))
    exported = replace(descriptor(0, 20, 4), last_epoch=LeaderEpoch(4))
    forked = PartitionCatalog.empty(KEY.topic_id, KEY.partition).published(exported)
    copy.history = forked
    assert bounds.deletable_end(copy) == 0
    copy.keep_house(2**62, producers_since_ms=0)
    assert copy.log.log_start_offset == 0
    for base in range(10, 30):
        copy.append(as_led(base, epoch=3, size=200))
    await copy._flusher.idle()
    copy.on_marks(Offset(30), Offset(0))
    assert (copy.differs_from, bounds.deletable_end(copy)) == (0, 0)


async def test_tombstones_stay_where_history_ended_also_when_all_of_it_is_deleted() -> None:
    """Its mirror, of which a broker that exports nothing may know nothing, has it perhaps for a while."""
    copy = copied()
    copy.has_store = True
    copy.history = history_to(4, 8)
    assert bounds.tombstones_kept_from(copy) == 4, "the mirror may lack the last segment"
    copy.history = copy.history.deleted(Offset(8), ())
    assert not copy.history.entries
    assert bounds.tombstones_kept_from(copy) == 8
    copy.history = PartitionCatalog.empty(*KEY)
    assert bounds.tombstones_kept_from(copy) == LAST_OFFSET


def history_of(*segments: tuple[int, int, int]) -> PartitionCatalog:
    """By offset, records, and the epoch in which both were written and exported."""
    catalog = PartitionCatalog.empty(*KEY)
    for start, records, epoch in segments:
        made = replace(descriptor(start, records, epoch), last_epoch=LeaderEpoch(epoch))
        catalog = catalog.published(made)
    return catalog


@pytest.mark.parametrize(
    ("epochs", "history", "cleanable"),
    [
        pytest.param([1] * 5 + [2] * 5, history_of((0, 5, 1), (5, 3, 2), (8, 4, 2)), 8, id="it only lags"),
        pytest.param([1] * 10, history_of((0, 5, 1), (5, 3, 2), (8, 4, 2)), 0, id="it was overtaken, as is seen"),
        pytest.param(
            [1] * 10, history_of((0, 5, 1), (5, 7, 2), (12, 4, 2)), 5, id="it was overtaken, where none tells"
        ),
        pytest.param([1] * 10, history_of((12, 5, 2), (17, 3, 2)), 0, id="history begins above it"),
        pytest.param([1] * 10, history_of((0, 5, 1), (5, 3, 1)), 5, id="it goes on behind history"),
    ],
)
async def test_a_copy_that_may_have_to_be_cut_is_not_compacted_there(
    epochs: list[int], history: PartitionCatalog, cleanable: int
) -> None:
    """Another was elected uncleanly, and went on otherwise from 5: a record that goes would replace one that stays."""
    copy = copied()
    copy.has_store, copy.settings = True, replace(SETTINGS, durable=True, compact=True)
    for base, epoch in enumerate(epochs):
        copy.append(as_led(base, epoch=epoch))
    await copy._flusher.idle()
    copy.on_marks(Offset(10), Offset(0))
    copy.on_history(history)
    assert copy.cleanable_end == cleanable
