"""The snapshot of a partition's producers: nothing is forgotten, damage is found, and Kafka's are read."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.base.errors import CorruptData
from headrace.replica.producer_snapshots import ProducerEntry, RememberedBatch, decode_snapshot, encode_snapshot
from headrace.wire.batches import SEQUENCE_MAX


@st.composite
def batches(draw: st.DrawFn) -> RememberedBatch:
    base, delta = draw(st.integers(0, 2**60)), draw(st.integers(0, 1000))
    sequence = draw(st.integers(0, SEQUENCE_MAX))
    return RememberedBatch(
        sequence, (sequence + delta) & SEQUENCE_MAX, base, base + delta, draw(st.integers(-1, 2**60))
    )


numbers = st.integers(-1, 2**31 - 1)
places = (st.integers(0, 2**62), st.integers(0, 2**15 - 1))
entries = st.one_of(
    st.builds(
        ProducerEntry,
        *places,
        st.lists(batches(), min_size=1, max_size=5),
        coordinator_epoch=numbers,
        transaction_start=numbers,
        marked_ms=st.just(-1),
    ),
    st.builds(
        ProducerEntry,
        *places,
        st.just([]),
        coordinator_epoch=numbers,
        transaction_start=numbers,
        marked_ms=st.integers(-1, 2**60),
    ),
)


@given(st.lists(entries, max_size=5))
def test_a_snapshot_gives_back_what_was_put_in(producers: list[ProducerEntry]) -> None:
    assert decode_snapshot(encode_snapshot(producers)) == producers


@given(st.lists(entries, max_size=3), st.integers(0, 10**6), st.integers(0, 7))
def test_a_flipped_bit_or_a_cut_is_found(producers: list[ProducerEntry], where: int, bit: int) -> None:
    data = bytearray(encode_snapshot(producers))
    with pytest.raises(CorruptData):
        decode_snapshot(bytes(data[: where % len(data)]))
    data[where % len(data)] ^= 1 << bit
    with pytest.raises(CorruptData):
        decode_snapshot(bytes(data))


@given(st.binary(max_size=200))
def test_noise_is_no_snapshot(noise: bytes) -> None:
    with pytest.raises(CorruptData):
        decode_snapshot(noise)


def test_a_snapshot_of_kafkas_is_read() -> None:
    """kafka-storage 4.1.0, ProducerStateManager.takeSnapshot: one producer, records 5 to 7 at offsets 105 to 107."""
    kafkas = bytes.fromhex(
        "0001a3cc826000000001000000000000004d000300000007000000000000006b0000000200000000075bcd15ffffffffffffffffffffffff"
    )
    assert decode_snapshot(kafkas) == [ProducerEntry(77, 3, [RememberedBatch(5, 7, 105, 107, 123456789)])]
