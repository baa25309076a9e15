"""A follower knows the transactions of its leader's log: what is open, what was aborted, and what a cut takes back."""

from __future__ import annotations

from headrace.base.ids import Offset
from headrace.wire.batches import PREFIX, encode_batch
from headrace.wire.records import Record
from headrace.wire.transactions import AbortedTransaction, EndMarker, encode_marker
from tests.broker.partitions.test_following import copied


def at(base: int, raw: bytes) -> bytes:
    """The batch as it stands in the leader's log."""
    return PREFIX.pack(base, len(raw) - 12, 0) + raw[PREFIX.size :]


def data(base: int, producer: int, sequence: int) -> bytes:
    records = [Record(0, 1, b"k", b"v" * 100)]
    raw = encode_batch(records, producer_id=producer, producer_epoch=0, base_sequence=sequence, transactional=True)
    return at(base, raw)


def marker(base: int, producer: int, *, committed: bool = False) -> bytes:
    return at(base, encode_marker(producer, 0, EndMarker(committed, 0), timestamp=1))


async def test_a_copy_shows_committed_records_as_its_leader_does_and_a_cut_takes_back_what_it_removes() -> None:
    copy = copied()
    copy.append(data(0, 1, 0) + data(1, 2, 0) + marker(2, 1))
    copy.append(data(3, 1, 1) + marker(4, 2, committed=True))
    await copy._flusher.idle()
    index = copy.log.aborted
    assert index is not None
    seen = []
    for high_watermark in range(6):
        copy.on_marks(Offset(high_watermark), Offset(0))
        seen.append(copy.last_stable_offset)
    assert seen == [0, 0, 0, 1, 1, 3], "a marker counts once it is below the high watermark"
    aborted = AbortedTransaction(1, 0, 2, 1)
    assert copy.aborted.within(Offset(0), copy.log.read(Offset(0), 10_000, Offset(3), at_least_one=True)) == [aborted]
    copy.cut(Offset(2))
    assert dict(copy.producers.transactions.first_offsets) == {1: 0, 2: 1}
    assert not index.between(Offset(0), Offset(9))
    copy.append(marker(2, 1, committed=True) + marker(3, 2))
    assert index.between(Offset(0), Offset(9)) == [AbortedTransaction(2, 1, 3, 4)]
    await copy._flusher.idle()


async def test_a_copy_of_many_transactions_keeps_none_that_is_replicated() -> None:
    copy = copied()
    for number in range(0, 200, 2):
        copy.append(data(number, 1, number // 2) + marker(number + 1, 1, committed=True))
        await copy._flusher.idle()
        copy.on_marks(Offset(number + 2), Offset(0))
    assert len(copy.producers.transactions._ended) <= 2
