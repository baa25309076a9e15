"""What is kept of a log's end is what the file gives, or nothing; all of_all keep to their bound."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import accumulate

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.base.ids import Offset
from headrace.base.limits import NEWEST_BYTES_MAX
from headrace.storage.log.appending import Placed, place
from headrace.storage.log.newest import Newest, NewestOfAll
from headrace.wire.batches import Record, encode_batch, parse_header

THEN_MS = 1_700_000_000_000


def placed(base: int, *sizes: int) -> Placed:
    """One batch with values of these sizes."""
    data = encode_batch([Record(at, THEN_MS, None, bytes([base % 256]) * size, ()) for at, size in enumerate(sizes)])
    return place(data, [(0, parse_header(data))], base, 0)


def followed(of_all: NewestOfAll) -> Newest:
    newest = Newest(of_all)
    newest.follow()
    return newest


class Twin:
    """All batches that were appended, and the rule of a fetch over them, the plain way."""

    def __init__(self) -> None:
        self.batches: list[tuple[int, int, bytes]] = []

    def read(self, start: int, max_bytes: int, end: int, *, at_least_one: bool) -> bytes:
        given = b""
        for base, next_offset, data in self.batches:
            if base < start:
                continue
            if next_offset > end or (len(given) + len(data) > max_bytes and (given or not at_least_one)):
                break
            given += data
        return given


sizes = st.lists(st.integers(0, 3000), min_size=1, max_size=4)


@given(
    st.lists(sizes, min_size=1, max_size=30),
    st.lists(st.tuples(st.integers(0, 60), st.integers(0, 9000), st.integers(0, 90), st.booleans()), max_size=20),
)
def test_what_a_tail_gives_is_what_was_appended(
    appends: list[list[int]], reads: list[tuple[int, int, int, bool]]
) -> None:
    newest, twin, base = followed(NewestOfAll()), Twin(), 0
    for each in appends:
        batch = placed(base, *each)
        newest.add(batch, base)
        twin.batches.append((base, batch.end, b"".join(batch.buffers)))
        base = batch.end
    for start, max_bytes, end, at_least_one in reads:
        found = newest.read(start, max_bytes, end, at_least_one=at_least_one)
        if found is not None:
            assert bytes(found) == twin.read(start, max_bytes, end, at_least_one=at_least_one)
            assert found
    for first, _, _ in twin.batches:
        assert newest.read(first, 2**31, base, at_least_one=True) is not None, "nothing had to give way"


def test_a_log_whose_end_nobody_reads_keeps_nothing() -> None:
    of_all = NewestOfAll()
    newest = Newest(of_all)
    newest.add(placed(0, 10), 0)
    assert (newest.read(0, 1000, 1, at_least_one=True), of_all.size) == (None, 0)


def bases(batches: int, size: int) -> Iterator[tuple[int, Placed]]:
    return ((base, placed(base, size)) for base in range(batches))


def test_a_tail_that_is_read_no_more_is_dropped_and_comes_back_with_its_reader() -> None:
    of_all = NewestOfAll()
    newest = followed(of_all)
    for base, batch in bases(NEWEST_BYTES_MAX // 10_000 + 2, 10_000):
        newest.add(batch, base)
    assert (newest.size, of_all.size) == (0, 0)
    newest.add(placed(99, 5), 99)
    assert newest.size == 0
    newest.follow()
    newest.add(placed(100, 5), 100)
    assert newest.read(100, 1000, 101, at_least_one=True)


def test_a_tail_that_is_read_keeps_to_its_bound() -> None:
    of_all = NewestOfAll()
    newest = followed(of_all)
    for base, batch in bases(200, 10_000):
        newest.add(batch, base)
        assert newest.read(base, 1, base + 1, at_least_one=True)
        assert newest.size <= NEWEST_BYTES_MAX
        assert of_all.size == newest.size
    assert newest.size > NEWEST_BYTES_MAX - 10_200
    assert newest.read(0, 1000, 200, at_least_one=True) is None


@pytest.mark.parametrize("room", [20_000, 50_000])
def test_all_tails_together_keep_to_theirs_and_the_one_appended_to_last_stays(room: int) -> None:
    of_all = NewestOfAll(room)
    each = [followed(of_all) for _ in range(20)]
    for number, newest in enumerate(each):
        newest.add(placed(number, 4_000), number)
        assert of_all.size == sum(other.size for other in each) <= room
        assert newest.size
    kept = [newest.size > 0 for newest in each]
    assert kept == sorted(kept), "the oldest gave way"
    assert sum(kept) == room // placed(0, 4_000).size


def test_what_is_dropped_is_given_no_more_and_its_room_is_free() -> None:
    of_all = NewestOfAll()
    newest = followed(of_all)
    ends = list(accumulate([1] * 5))
    for end in ends:
        newest.add(placed(end - 1, 100), end - 1)
    newest.drop()
    assert (newest.size, of_all.size) == (0, 0)
    assert [newest.read(end - 1, 1000, 5, at_least_one=True) for end in ends] == [None] * 5
    newest.add(placed(5, 100), 5)
    assert newest.read(5, 1000, 6, at_least_one=True)


def test_several_batches_that_came_as_one_are_left_to_the_file() -> None:
    """A reader may see the first of them and not the second."""
    newest = followed(NewestOfAll())
    first = encode_batch([Record(0, THEN_MS, None, b"a", ())])
    header = parse_header(first)
    both = place(first + first, [(0, header), (len(first), header)], 0, 0)
    assert both.end == Offset(2)
    newest.add(both, 0)
    assert newest.read(0, 1000, 1, at_least_one=True) is None
