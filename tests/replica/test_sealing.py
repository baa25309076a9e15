"""An owner's knowledge of its producers, as text."""

from __future__ import annotations

import zlib
from base64 import b64encode

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.base.errors import CorruptData
from headrace.base.limits import PRODUCER_SNAPSHOT_BYTES_MAX
from headrace.replica.sealing import packed, unpacked


@given(st.binary())
def test_it_is_unpacked_as_it_was_packed(snapshot: bytes) -> None:
    assert unpacked(packed(snapshot)) == snapshot


@given(st.text(max_size=40))
def test_whatever_else_is_corrupt_data(text: str) -> None:
    with pytest.raises(CorruptData):
        unpacked(text)


def test_no_more_is_unpacked_than_there_can_be() -> None:
    bomb = b64encode(zlib.compress(bytes(PRODUCER_SNAPSHOT_BYTES_MAX + 1))).decode()
    with pytest.raises(CorruptData):
        unpacked(bomb)


def test_what_is_cut_is_corrupt_data() -> None:
    with pytest.raises(CorruptData):
        unpacked(b64encode(zlib.compress(b"x" * 1000)[:-5]).decode())
