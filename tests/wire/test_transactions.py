"""Markers and aborted transactions as bytes: nothing is lost, and what is cut or of another kind is told."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.base.errors import CorruptData
from headrace.wire.batches import check_batch, emptied, encode_batch, parse_header
from headrace.wire.records import Record
from headrace.wire.transactions import (
    ABORTED,
    AbortedTransaction,
    EndMarker,
    decode_aborted,
    decode_marker,
    encode_aborted,
    encode_marker,
    marker_in,
)

markers = st.builds(EndMarker, st.booleans(), st.integers(0, 2**31 - 1))
offsets = st.integers(0, 2**62)
TIME = 1_700_000_000_000


@given(markers, st.integers(0, 2**62), st.integers(0, 2**15 - 1))
def test_a_marker_is_read_as_it_was_written(marker: EndMarker, producer: int, epoch: int) -> None:
    batch = encode_marker(producer, epoch, marker, timestamp=TIME)
    header = check_batch(batch)
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (producer, epoch, -1)
    assert header.is_control
    assert header.is_transactional
    assert marker_in(b"..." + batch, 3, header) == marker


@pytest.mark.parametrize(
    ("key", "value"), [(b"", b"\0" * 6), (b"\0\0\0", b"\0" * 6), (b"\0\0\0\1", b"\0\0\0"), (None, None)]
)
def test_a_cut_marker_is_damage(key: bytes | None, value: bytes | None) -> None:
    batch = encode_batch([Record(0, TIME, key, value)], producer_id=1, producer_epoch=0, control=True)
    with pytest.raises(CorruptData):
        decode_marker(batch)


def test_other_control_batches_and_emptied_ones_are_no_markers() -> None:
    marker = encode_marker(1, 0, EndMarker(True, 0), timestamp=TIME)
    leader_change = encode_batch([Record(0, TIME, b"\0\0\0\2", b"")], control=True)
    assert decode_marker(emptied(parse_header(marker))) is None
    assert decode_marker(leader_change) is None
    assert decode_marker(encode_batch([Record(0, TIME, b"\0\0\0\1", b"")])) is None


@given(st.lists(st.builds(AbortedTransaction, offsets, offsets, offsets, offsets), max_size=5), st.integers(0, 33))
def test_aborted_transactions_are_read_as_they_were_written(aborted: list[AbortedTransaction], more: int) -> None:
    """34 bytes each, as in Kafka; a cut entry does not count."""
    data = encode_aborted(aborted)
    assert len(data) == 34 * len(aborted)
    assert list(decode_aborted(data + b"\0" * more)) == aborted


def test_an_aborted_transaction_of_another_version_is_told() -> None:
    with pytest.raises(CorruptData):
        list(decode_aborted(ABORTED.pack(1, 1, 2, 3, 4)))
