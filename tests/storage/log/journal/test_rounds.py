"""The journal's format: what was written is read back; nothing torn, changed or made up by a client is."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.base.ids import Offset
from headrace.storage.log.journal.rounds import (
    ALIGNMENT,
    Entry,
    FoundRound,
    Head,
    LogKey,
    aligned,
    encode_round,
    rounds_in,
)

KEY = bytes(range(16))
numbers = st.integers(0, 2**63 - 1)
keys = st.builds(LogKey, st.text("abc-.é", min_size=1, max_size=40), st.binary(min_size=16, max_size=16), numbers)


@st.composite
def entries(draw: st.DrawFn) -> Entry:
    buffers = draw(st.lists(st.binary(max_size=300), min_size=1, max_size=3))
    base, end, size = draw(numbers), draw(numbers), sum(map(len, buffers))
    return Entry(draw(keys), draw(numbers), Offset(base), Offset(end), size, buffers)


heads = st.builds(Head, numbers, numbers, numbers)
rounds = st.tuples(heads, st.lists(entries(), max_size=4))


def written(*wanted: tuple[Head, list[Entry]]) -> bytes:
    """One behind the other, as in a file."""
    data = bytearray()
    for head, held in wanted:
        data += bytes(aligned(len(data)) - len(data)) + b"".join(encode_round(KEY, head, held))
    return bytes(data) + bytes(aligned(len(data)) - len(data))


def check_same(found: FoundRound, data: bytes, head: Head, held: list[Entry]) -> None:
    assert found.head == head
    assert len(found.entries) == len(held)
    for read, entry in zip(found.entries, held, strict=True):
        assert (read.key, read.lineage, read.base, read.end) == (entry.key, entry.lineage, entry.base, entry.end)
        assert data[read.position : read.position + read.size] == b"".join(entry.buffers)


@given(st.lists(rounds, max_size=4), st.integers(0, 2))
def test_what_was_written_is_read_back(wanted: list[tuple[Head, list[Entry]]], pages: int) -> None:
    data = written(*wanted) + bytes(pages * ALIGNMENT)
    found = list(rounds_in(KEY, data))
    assert len(found) == len(wanted)
    for each, (head, held) in zip(found, wanted, strict=True):
        check_same(each, data, head, held)
        assert each.stop % ALIGNMENT == 0


@given(rounds, rounds)
@settings(max_examples=15)
def test_no_torn_round_is_taken_and_what_follows_is(
    torn: tuple[Head, list[Entry]], after: tuple[Head, list[Entry]]
) -> None:
    whole = b"".join(encode_round(KEY, *torn))
    for kept in range(0, len(whole), 1 + len(whole) // 200):
        changed = whole[:kept] + bytes(byte ^ 0xA5 for byte in whole[kept:])
        data = changed + bytes(aligned(len(changed)) - len(changed)) + written(after)
        [found] = rounds_in(KEY, data)
        check_same(found, data, *after)
        assert list(rounds_in(KEY, whole[:kept])) == []


@given(rounds, st.data())
def test_no_changed_bit_goes_unseen(wanted: tuple[Head, list[Entry]], data: st.DataObject) -> None:
    whole = bytearray(b"".join(encode_round(KEY, *wanted)))
    whole[data.draw(st.integers(0, len(whole) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    assert list(rounds_in(KEY, bytes(whole))) == []


@given(rounds, st.binary(min_size=16, max_size=16))
def test_a_records_value_that_looks_like_a_round_is_not_taken(forged: tuple[Head, list[Entry]], key: bytes) -> None:
    """It may stand at a page of the file, where the round that held it is torn; its author does not know the key."""
    if key != KEY:
        page = b"".join(encode_round(key, *forged))
        assert list(rounds_in(KEY, bytes(ALIGNMENT) + page + bytes(aligned(len(page)) - len(page)))) == []


@given(rounds)
def test_a_round_inside_a_whole_round_is_not_taken(inner: tuple[Head, list[Entry]]) -> None:
    value = bytes(ALIGNMENT - 200) + b"".join(encode_round(KEY, *inner))
    for shift in range(0, 200, 7):
        outer = Entry(LogKey("a-0", KEY, 1), 0, Offset(0), Offset(1), shift + len(value), [bytes(shift) + value])
        data = written((Head(1, 1, 1), [outer]))
        assert [found.head.number for found in rounds_in(KEY, data)] == [1]
