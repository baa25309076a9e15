"""The cached end of a log equals its file, or is empty; all caches together keep to a bound."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from headrace.base.ids import Offset
from headrace.base.limits import NEWEST_BATCH_OVERHEAD_BYTES, NEWEST_BYTES_MAX, NEWEST_UNREAD_BYTES_MAX
from headrace.storage.engine.placing import Placed, place
from headrace.storage.log.reading.cache_budget import ReadCacheBudget
from headrace.storage.log.reading.newest import Newest
from headrace.wire.batches import Record, encode_batch, parse_header

THEN_MS = 1_700_000_000_000


def placed(base: int, *sizes: int) -> Placed:
    """One batch with values of these sizes."""
    data = encode_batch([Record(at, THEN_MS, None, bytes([base % 256]) * size, ()) for at, size in enumerate(sizes)])
    return place(data, [(0, parse_header(data))], base, 0)


def followed(room: ReadCacheBudget[int]) -> Newest:
    newest = Newest(room)
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
def test_what_is_given_is_what_was_appended(appends: list[list[int]], reads: list[tuple[int, int, int, bool]]) -> None:
    newest, twin, base = followed(ReadCacheBudget[int](NEWEST_BYTES_MAX)), Twin(), 0
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


def appended(newest: Newest, base: int, size: int) -> int:
    """The memory that this takes."""
    batch = placed(base, size)
    newest.add(batch, base)
    return batch.size + NEWEST_BATCH_OVERHEAD_BYTES


def test_of_a_log_whose_end_nobody_reads_nothing_is_kept() -> None:
    room = ReadCacheBudget[int](NEWEST_BYTES_MAX)
    newest = Newest(room)
    appended(newest, 0, 10)
    assert (newest.read(0, 1000, 1, at_least_one=True), len(newest), room.size) == (None, 0, 0)


def test_what_is_read_no_more_is_dropped_and_comes_back_with_its_reader() -> None:
    newest = followed(ReadCacheBudget[int](NEWEST_BYTES_MAX))
    for base in range(NEWEST_UNREAD_BYTES_MAX // 10_000 + 2):
        appended(newest, base, 10_000)
    assert len(newest) == 0
    appended(newest, 99, 5)
    assert len(newest) == 0
    newest.follow()
    appended(newest, 100, 5)
    assert newest.read(100, 1000, 101, at_least_one=True)


def test_what_is_read_is_kept_for_the_next_reader() -> None:
    newest = followed(ReadCacheBudget[int](NEWEST_BYTES_MAX))
    for base in range(3 * NEWEST_UNREAD_BYTES_MAX // 10_000):
        appended(newest, base, 10_000)
        assert newest.read(base, 1, base + 1, at_least_one=True)
    assert newest.read(0, 1, 1, at_least_one=True)


def test_all_together_keep_to_their_bound_and_what_came_first_gives_way() -> None:
    size = appended(followed(ReadCacheBudget[int](NEWEST_BYTES_MAX)), 0, 4_000)
    room = ReadCacheBudget[int](5 * size + 1)
    each = [followed(room) for _ in range(20)]
    for number, newest in enumerate(each):
        appended(newest, number, 4_000)
        assert room.size <= 5 * size
    assert [len(newest) for newest in each] == [0] * 15 + [1] * 5
    assert room.size == 5 * size


def test_what_is_dropped_is_given_no_more_and_its_room_comes_free_in_its_turn() -> None:
    size = appended(followed(ReadCacheBudget[int](NEWEST_BYTES_MAX)), 0, 100)
    room = ReadCacheBudget[int](10 * size)
    newest = followed(room)
    for base in range(5):
        appended(newest, base, 100)
    newest.drop()
    assert [newest.read(base, 1000, 5, at_least_one=True) for base in range(5)] == [None] * 5
    for round_ in range(1000):  # as a log does that is cut again and again
        appended(newest, round_ % 3, 100)
        newest.drop()
        assert room.size <= 10 * size
    assert len(room._kept) == 10


def test_a_batch_bigger_than_all_room_is_not_kept() -> None:
    room = ReadCacheBudget[int](1000)
    newest = followed(room)
    appended(newest, 0, 2000)
    assert (len(newest), room.size) == (0, 0)


def test_several_batches_that_came_as_one_are_left_to_the_file() -> None:
    """A reader may see the first of them and not the second."""
    newest = followed(ReadCacheBudget[int](NEWEST_BYTES_MAX))
    first = encode_batch([Record(0, THEN_MS, None, b"a", ())])
    header = parse_header(first)
    both = place(first + first, [(0, header), (len(first), header)], 0, 0)
    assert both.end == Offset(2)
    newest.add(both, 0)
    assert newest.read(0, 1000, 1, at_least_one=True) is None
