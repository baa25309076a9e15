"""A second reader's reads from memory equal the log's files, whatever happens to them in between.

All caches keep to a bound, and a log with one reader has nothing cached.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.base.errors import CorruptData, HeadraceError
from headrace.base.ids import Offset
from headrace.base.limits import READ_AGAIN_BYTES_MAX, READ_AGAIN_STARTS_MAX
from headrace.storage.log.partition import LocalLog
from headrace.storage.log.reading import repeat_reads as keeping
from headrace.storage.log.reading.cache_budget import ReadCacheBudget
from headrace.storage.log.reading.repeat_reads import Question, RepeatReads
from tests.storage.log.compaction.test_log_compaction import CONFIG, World, read_from
from tests.storage.log.log_world import SMALL, Twin, batch, flush, new_disk, open_log
from tests.storage.log.memory_disk import MemoryDisk
from tests.storage.log.recovery.test_log_damage import flip
from tests.tiers import examples

PLENTY = 1 << 20


@pytest.fixture(autouse=True)
def small_answers() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(keeping, "READ_AGAIN_BYTES_MIN", 1)
        yield


def read(log: LocalLog, start: int, max_bytes: int = PLENTY, end: int | None = None) -> memoryview:
    return log.read(Offset(start), max_bytes, log.log_end_offset if end is None else Offset(end), at_least_one=True)


def kept(log: LocalLog) -> int:
    return len(log.contents.again)


def read_twice() -> tuple[MemoryDisk, Twin]:
    """A log of several segments, whose first was read by two."""
    disk = new_disk()
    twin = Twin(open_log(disk, SMALL))
    for number in range(20):
        twin.append(batch(2, seed=number))
    flush(twin.log)
    assert len(twin.log.contents.segments) > 2
    for _ in range(2):
        read(twin.log, 0)
    assert kept(twin.log) == 1
    return disk, twin


def test_the_third_reader_costs_no_read_of_the_file() -> None:
    disk, twin = read_twice()
    wanted, reads = read(open_log(disk, SMALL), 0), disk.reads
    assert read(twin.log, 0) == wanted == twin.bytes_from(0)[: len(wanted)]
    assert disk.reads == reads
    assert len(read(twin.log, 0, max_bytes=len(wanted) - 1)) < len(wanted), "no more than is asked for"
    assert read(twin.log, 0, end=2) == twin.stored[0].bytes, "no more than may be seen"


def test_one_reader_leaves_nothing() -> None:
    twin = Twin(open_log(new_disk(), SMALL))
    for number in range(20):
        twin.append(batch(2, seed=number))
    start = 0
    while start < twin.log.log_end_offset:
        read(twin.log, start)
        start += 2
    assert kept(twin.log) == 0


def test_the_end_of_the_log_is_read_again() -> None:
    _, twin = read_twice()
    last = twin.log.contents.segments[-1].base
    for _ in range(3):
        assert read(twin.log, last) == twin.bytes_from(last)
    twin.append(batch(1, seed=70))
    assert read(twin.log, last) == twin.bytes_from(last)


def test_who_asks_once_more_may_see_is_given_more() -> None:
    """Others were not to go on from there: what they were given is less than there is."""
    twin = Twin(open_log(new_disk(), SMALL))
    for number in range(20):
        twin.append(batch(2, seed=number))
    flush(twin.log)
    for _ in range(3):
        assert read(twin.log, 0, end=2) == twin.stored[0].bytes
    assert len(read(twin.log, 0)) > len(twin.stored[0].bytes)


def test_what_was_cut_off_while_it_was_read_is_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """Cuts are made in worker threads."""
    _, twin = read_twice()
    segment = twin.log.contents.segments[0]
    file = twin.log.contents._files.get(segment)
    whole = file.read

    def cut_meanwhile(offset: int, length: int) -> bytes:
        data = whole(offset, length)
        twin.log.contents._drop_read()
        return data

    twin.log.contents._drop_read()
    monkeypatch.setattr(file, "read", cut_meanwhile)
    for _ in range(3):
        read(twin.log, 0)
    assert kept(twin.log) == 0


def test_what_was_cut_off_is_not_given_for_what_takes_its_place() -> None:
    _, twin = read_twice()
    twin.log.copying.truncate_to(Offset(2))
    assert kept(twin.log) == 0
    del twin.stored[1:]
    for number in range(20, 30):
        twin.append(batch(2, seed=number))
    given = read(twin.log, 0)
    assert given == twin.bytes_from(0)[: len(given)]
    assert len(given) > len(twin.stored[0].bytes)


def test_what_compaction_took_away_is_given_no_more() -> None:
    world = World(open_log(disk := new_disk(), CONFIG), disk)
    for number in range(5):
        world.append([(b"a", b"%d" % number)])
    world.close_segment()
    world.append([(b"b", b"last")])
    for _ in range(3):
        assert next(iter(read_from(world.log, 0))) == 0
    assert kept(world.log)
    world.clean()
    assert list(read_from(world.log, 0)) == [4, 5]


def test_what_is_known_to_be_damaged_is_refused_as_by_the_file() -> None:
    disk, twin = read_twice()
    segment = twin.log.contents.segments[0]
    flip(disk, segment.path, 70)
    examination = twin.log.examining.begin_examination(Offset(segment.base))
    assert examination is not None
    examination.run()
    assert examination.end(done=True)
    with pytest.raises(CorruptData):
        read(twin.log, 0)


def test_what_was_deleted_is_forgotten_and_so_is_all_of_a_closed_log() -> None:
    _, twin = read_twice()
    twin.log.close()
    assert kept(twin.log) == 0


questions = st.tuples(st.just("read"), st.integers(0, 60), st.integers(1, 2000), st.integers(0, 60))
changes = st.one_of(
    questions,
    questions,
    st.tuples(st.just("append"), st.integers(1, 4), st.integers(0, 9), st.just(0)),
    st.tuples(st.just("cut"), st.integers(0, 60), st.just(0), st.just(0)),
)


@settings(max_examples=examples(150))
@given(st.lists(changes, max_size=60))
def test_every_reader_is_given_what_the_file_has(steps: list[tuple[str, int, int, int]]) -> None:
    twin = Twin(open_log(new_disk(), SMALL))
    for seed, (what, one, other, end) in enumerate(steps):
        log = twin.log
        if what == "append":
            twin.append(batch(one, seed=seed * 10 + other))
        elif what == "cut":
            if one < log.log_end_offset:
                flush(log)
                log.copying.truncate_to(Offset(one))
                twin.stored[:] = [each for each in twin.stored if each.last_offset < log.log_end_offset]
        elif one < log.log_end_offset:
            answers = [told(log, one, other, end) for _ in range(3)]
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(RepeatReads, "find", lambda *_: None)
                assert answers == [told(log, one, other, end)] * 3


def told(log: LocalLog, start: int, max_bytes: int, end: int) -> bytes | str:
    try:
        return bytes(read(log, start, max_bytes, min(end, log.log_end_offset)))
    except HeadraceError as error:
        return str(error)


def answer(again: RepeatReads, start: int, size: int = 100) -> None:
    again.add(start, size, memoryview(bytes(size)), start + 1, held=size)


def shared(room: ReadCacheBudget[Question]) -> RepeatReads:
    """Read by several."""
    again = RepeatReads(room)
    answer(again, -1, 1)
    answer(again, -1, 1)
    again.drop()
    return again


def test_all_together_keep_to_their_bound_and_what_came_first_gives_way() -> None:
    room = ReadCacheBudget[Question](500)
    each = [shared(room) for _ in range(20)]
    for start, again in enumerate(each):
        answer(again, start)
        assert room.size <= 500
    assert [len(again) for again in each] == [0] * 15 + [1] * 5


def test_who_reads_alone_again_leaves_nothing_after_a_while() -> None:
    again = shared(ReadCacheBudget[Question](READ_AGAIN_BYTES_MAX))
    for start in range(2 * READ_AGAIN_STARTS_MAX):
        answer(again, start)
    assert len(again) < READ_AGAIN_STARTS_MAX
    answer(again, 2 * READ_AGAIN_STARTS_MAX - 1)
    answer(again, 10_000)
    assert again.find(10_000, 100, 10_001)


def test_an_answer_is_for_its_question_and_for_no_earlier_end() -> None:
    again = shared(ReadCacheBudget[Question](READ_AGAIN_BYTES_MAX))
    answer(again, 5)
    assert again.find(5, 100, 6)
    assert [again.find(5, 100, 5), again.find(5, 99, 6), again.find(4, 100, 6)] == [None] * 3
