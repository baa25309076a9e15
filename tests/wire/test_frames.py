"""The splitter: whatever way the bytes arrive, the frames are the same."""

from __future__ import annotations

import struct
import time
import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.wire.apis import DecodeError
from headrace.wire.frames import FrameSplitter

bodies = st.lists(st.binary(max_size=30), max_size=8)


def stream(frames: list[bytes]) -> bytes:
    return b"".join(struct.pack(">i", len(frame)) + frame for frame in frames)


def feed_in_steps(splitter: FrameSplitter, data: bytes, step: int) -> list[memoryview]:
    return [frame for at in range(0, len(data), step) for frame in splitter.feed(data[at : at + step])]


@given(bodies, st.lists(st.integers(1, 12), max_size=60), st.binary(max_size=3))
def test_any_cut_of_the_stream_gives_the_same_frames(frames: list[bytes], cuts: list[int], rest: bytes) -> None:
    data = stream(frames) + rest
    splitter = FrameSplitter()
    found: list[bytes] = []
    at = 0
    for cut in [*cuts, len(data)]:
        found += [bytes(frame) for frame in splitter.feed(data[at : at + cut])]
        at += cut
    assert found == frames
    assert splitter.pending_bytes == len(rest)


@given(bodies, st.binary(min_size=1, max_size=20))
def test_a_frame_that_is_not_whole_is_held_back(frames: list[bytes], last: bytes) -> None:
    splitter = FrameSplitter()
    data = stream([*frames, last])
    assert splitter.feed(data[:-1]) == frames
    assert splitter.pending_bytes == 4 + len(last) - 1
    assert splitter.feed(data[-1:]) == [last]
    assert splitter.pending_bytes == 0


def test_frames_whole_in_one_read_are_views_of_it() -> None:
    data = stream([b"one", b"", b"three"])
    assert all(frame.obj is data for frame in FrameSplitter().feed(data))


@pytest.mark.parametrize("size", [-1, -(2**31), 101])
@pytest.mark.parametrize("step", [1, 3, 4, 100])
def test_an_impossible_length_is_refused(size: int, step: int) -> None:
    data = stream([b"fine"]) + struct.pack(">i", size) + b"rest"
    splitter = FrameSplitter(max_bytes=100)
    with pytest.raises(DecodeError, match="at most 100"):
        feed_in_steps(splitter, data, step)


def test_a_claimed_length_sets_little_aside_before_its_bytes_come() -> None:
    splitter = FrameSplitter(max_bytes=2**30)
    tracemalloc.start()
    assert splitter.feed(struct.pack(">i", 2**30) + b"a little") == []
    assert splitter.feed(b"and a little more") == []
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 4 << 20


def test_a_large_frame_in_small_reads_costs_no_quadratic_copy() -> None:
    """16 MiB in 4 KiB reads: quadratic copying would move 32 GiB. The seconds are the processor's."""
    body = bytes(16 << 20)
    data = stream([body])
    splitter = FrameSplitter()
    begun = time.thread_time()
    found = feed_in_steps(splitter, data, 4096)
    assert time.thread_time() - begun < 2
    assert found == [body]
