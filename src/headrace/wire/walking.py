"""Checks that the records of one batch can be read, without building any of them.

A broker runs this over every batch that a client sends, so it is a hot path. The usual forms are read inline. Runs of
records with one layout are compared column by column in C (slices of bytes with a stride). Its slow twin is
`records.unpack_records`: tests/wire/test_walking.py compares the two, and tests/interop/test_validation.py compares it
with Kafka.

Promises:
- Java's `DefaultRecord.readFrom` reads whatever this accepts.
- Its time is linear in the bytes, whatever they are.
- Bad bytes raise `CorruptData` and nothing else.

It is stricter than Kafka in two ways. Offset deltas must rise by one from 0 in uncompressed batches, too, and a length
below -1 is refused.
"""

from __future__ import annotations

from itertools import chain
from typing import Final, NamedTuple

from headrace.base.errors import CorruptData
from headrace.base.limits import RECORD_HEADERS_MAX
from headrace.base.ports import Buffer
from headrace.native import ROAD
from headrace.wire.codec import new
from headrace.wire.records import TIMESTAMP_MAX, TIMESTAMP_MIN, read_record, read_varint

NO_TIME: Final = -1
_LATEST: Final = 1 << 64
"""Above all timestamp deltas."""
UNLIMITED: Final = 1 << 62

RUN_MIN: Final = 8
"""Fewest records of one layout for which comparing columns pays."""
RUN_TRIED: Final = 16
"""Records that the search for a run compares after one that found none; after a run of n records, 4n more. So the time
stays linear."""
_DELTAS_OF_ONE_BYTE: Final = 64
_DELTAS_OF_TWO_BYTES: Final = 8_192
_DELTAS: Final = bytes(delta << 1 for delta in range(_DELTAS_OF_ONE_BYTE))
"""The varint of each offset delta, one byte each."""
_DELTAS_FIRST: Final = bytes(delta << 1 & 0x7F | 0x80 for delta in range(_DELTAS_OF_TWO_BYTES))
_DELTAS_SECOND: Final = bytes(delta << 1 >> 7 for delta in range(_DELTAS_OF_TWO_BYTES))
"""The first and second bytes of the varints of offset deltas that have two."""
_EVEN: Final = bytes(range(0, 0x80, 2))
"""One-byte varints of non-negative numbers."""
_EVEN_FIRST: Final = bytes(range(0x80, 0x100, 2))
"""First bytes of longer varints of such numbers."""
_UP_TO: Final = tuple(bytes(range(highest + 1)) for highest in range(256))


class Walked(NamedTuple):
    """A summary of the records of a batch. Times are in milliseconds since 1970."""

    oldest_timestamp: int
    """No record is older; all may be slightly newer."""
    newest_timestamp: int
    """The highest time; -1 where no record has a time, or all are before 1970."""
    all_keyed: bool
    """Each record has a key."""


UNWALKED: Final = Walked(NO_TIME, NO_TIME, True)
"""Stands for a batch whose records are not read: the broker's own, or where `headrace.validate.records` is false."""


def walk_in_python(data: Buffer, count: int, base_timestamp: int, headers_max: int = UNLIMITED) -> Walked:
    """Check `count` records, at least one, which must end where `data` ends.

    Raises CorruptData, also where they have more than `headers_max` headers all together. The format is KIP-98's:
    length, attributes, timestamp delta, offset delta, key, value, headers; numbers are zigzag varints.
    """
    data = bytes(data)
    size, at, start, index = len(data), 0, 0, 0
    reach = _DELTAS_OF_TWO_BYTES if base_timestamp >= NO_TIME else 0
    oldest, newest, all_keyed = _LATEST, -_LATEST, True
    try:
        while index < count:
            start = at
            length = data[at]
            at += 1
            if length > 0x7F:
                second = data[at]
                at += 1
                length = length & 0x7F | (second & 0x7F) << 7
                if second > 0x7F:
                    third = data[at]
                    at += 1
                    length = length | third << 14 if third < 0x80 else 1
            end = at + (length >> 1)

            time_at = at + 1
            time = data[time_at]
            at += 2
            if time > 0x7F:
                second = data[at]
                at += 1
                time = time & 0x7F | second << 7
                if second > 0x7F:  # more than 8 s from the first record, as where old records are written again
                    delta, at = read_varint(data, time_at, 64)
                    time = delta << 1 if delta >= 0 else -2 * delta - 1

            offset_at = at
            offset = data[at]
            at += 1
            if offset > 0x7F:
                second = data[at]
                at += 1
                offset = offset & 0x7F | second << 7 if second < 0x80 else -1

            key_at = at
            key = data[at]
            at += 1
            if key > 0x7F:
                second = data[at]
                at += 1
                key = key & 0x7F | second << 7 if second < 0x80 else 3
            key_end = at
            if not key & 1:
                at += key >> 1

            value_at = at
            value = data[at]
            at += 1
            if value > 0x7F:
                second = data[at]
                at += 1
                value = value & 0x7F | (second & 0x7F) << 7
                if second > 0x7F:
                    third = data[at]
                    at += 1
                    value = value | third << 14 if third < 0x80 else 3
            value_end = at
            if not value & 1:
                at += value >> 1

            if (
                length & 1 or offset != index << 1 or (key & 1 and key != 1) or (value & 1 and value != 1) or end > size
            ):  # an unusual form, or wrong
                one = range(index, index + 1)
                known = (oldest, newest, all_keyed)
                at, headers_max, (oldest, newest, all_keyed) = _walk_slowly(data, start, one, headers_max, known)
                index += 1
                continue

            if at < end and data[at] == 0:
                at += 1
                has_no_headers = True
            else:
                at, headers_max = _past_headers(data, at, end, headers_max)
                has_no_headers = False
            if at != end:
                raise CorruptData(f"A record says {length >> 1} bytes and ends {end - at} off.")
            index += 1
            if key == 1:
                all_keyed = False
            time = time >> 1 if not time & 1 else ~(time >> 1)
            if time > newest:
                newest = time
            if time < oldest:
                oldest = time

            has_short_time = offset_at - time_at < 3
            if has_no_headers and has_short_time and count - index >= RUN_MIN <= reach and data[at] == data[start]:
                layout = _Layout(start, time_at, offset_at, key_at, key_end, value_at, value_end, end)
                run, time = _run(data, layout, index, min(count - index, reach))
                reach = RUN_TRIED + 4 * run
                if run:
                    index += run
                    at += run * (end - start)
                    oldest = min(oldest, 0)
                    newest = max(newest, time)
    except IndexError:  # cut, or the last records have unusual forms
        known, rest = (oldest, newest, all_keyed), range(index, count)
        at, headers_max, (oldest, newest, all_keyed) = _walk_slowly(data, start, rest, headers_max, known)
    if at != size:
        raise CorruptData(f"{size - at} bytes follow the last record.")
    if base_timestamp + newest > TIMESTAMP_MAX or base_timestamp + oldest < TIMESTAMP_MIN:
        raise CorruptData(f"Records have times from {base_timestamp + oldest} to {base_timestamp + newest}.")
    newest += base_timestamp
    return new(Walked, (base_timestamp + oldest, newest if newest > NO_TIME else NO_TIME, all_keyed))


def _walk_natively(data: Buffer, count: int, base_timestamp: int, headers_max: int = UNLIMITED) -> Walked:
    found = _native_walk(data, count, base_timestamp, headers_max, RECORD_HEADERS_MAX)
    return walk_in_python(data, count, base_timestamp, headers_max) if found is None else new(Walked, found)


if ROAD.native is not None:
    _native_walk = ROAD.native.walk_records
walk_records: Final = walk_in_python if ROAD.native is None else _walk_natively
"""`walk_in_python`, by the road that is taken."""


def _walk_slowly(
    data: bytes, at: int, indexes: range, headers_max: int, known: tuple[int, int, bool]
) -> tuple[int, int, tuple[int, int, bool]]:
    """Read records of any form from `at` on. Returns where they end, how many more headers there may be, and the
    summary, `known` included. Raises CorruptData."""
    oldest, newest, all_keyed = known
    try:
        for index in indexes:
            record, at = read_record(data, at, 0, 0, min(headers_max, RECORD_HEADERS_MAX))
            if record.offset != index:
                raise CorruptData(f"Record {index} of a batch says offset delta {record.offset}.")
            headers_max -= len(record.headers)
            oldest, newest = min(oldest, record.timestamp), max(newest, record.timestamp)
            all_keyed = all_keyed and record.key is not None
    except IndexError as error:
        raise CorruptData("A record is cut.") from error
    return at, headers_max, (oldest, newest, all_keyed)


class _Layout(NamedTuple):
    """Where the fields of a record without headers lie."""

    start: int
    time_at: int
    offset_at: int
    key_at: int
    key_end: int
    """End of the key's length."""
    value_at: int
    value_end: int
    """End of the value's length."""
    end: int


def _run(data: bytes, layout: _Layout, index: int, most: int) -> tuple[int, int]:
    """The number of records behind this one with the same layout, at most `most`, and their highest timestamp delta.

    The first of them has offset delta `index`. Their lengths are equal, and their timestamp deltas not negative.
    """
    start, time_at, offset_at, key_at, key_end, value_at, value_end, end = layout
    stride = end - start
    most = min(most, (len(data) - end) // stride)
    most = min(most, (_DELTAS_OF_ONE_BYTE if key_at - offset_at == 1 else _DELTAS_OF_TWO_BYTES) - index)
    stop = end + most * stride
    columns = chain(range(start, time_at - 1), range(key_at, key_end), range(value_at, value_end), (end - 1,))
    for column in columns:
        if most < RUN_MIN:
            return 0, 0
        if differing := len(data[column + stride : stop : stride].lstrip(data[column : column + 1])):
            most -= differing
            stop -= differing * stride
    if most < RUN_MIN:
        return 0, 0
    if key_at - offset_at == 1:
        if data[offset_at + stride : stop : stride] != _DELTAS[index : index + most]:
            return 0, 0
    elif (
        data[offset_at + stride : stop : stride] != _DELTAS_FIRST[index : index + most]
        or data[offset_at + 1 + stride : stop : stride] != _DELTAS_SECOND[index : index + most]
    ):
        return 0, 0
    times = data[time_at + stride : stop : stride]
    if offset_at - time_at == 1:
        return (0, 0) if times.translate(None, _EVEN) else (most, _highest(times) >> 1)
    seconds = data[time_at + 1 + stride : stop : stride]
    if times.translate(None, _EVEN_FIRST) or not seconds.isascii():
        return 0, 0
    high = _highest(seconds)
    if high != seconds[0] or seconds.count(high) != most:
        times = bytes(first for first, second in zip(times, seconds, strict=True) if second == high)
    return most, (_highest(times) & 0x7F | high << 7) >> 1


def _highest(column: bytes) -> int:
    """The highest byte. Times mostly rise, so one comparison in C is usually enough."""
    last = column[-1]
    return last if not column.translate(None, _UP_TO[last]) else max(column)


def _past_headers(data: bytes, at: int, end: int, headers_max: int) -> tuple[int, int]:
    """The end of the headers whose count stands at `at`, in a record that ends at `end`, and how many more there may
    be. Raises CorruptData, or IndexError where `data` ends first."""
    count, at = read_varint(data, at)
    if not 0 <= count <= min(headers_max, RECORD_HEADERS_MAX, (end - at) // 2):
        raise CorruptData(f"A record has {count} headers.")
    for _ in range(count):
        length = data[at]
        at += 1
        if length > 0x7F or length & 1:
            length, at = read_varint(data, at - 1)
            if length < 0:
                raise CorruptData("A record header has no name.")
            length <<= 1
        at += length >> 1
        length = data[at]
        at += 1
        if length > 0x7F or length & 1:
            length, at = read_varint(data, at - 1)
            if length < -1:
                raise CorruptData(f"A field has length {length}.")
            length = max(length, 0) << 1
        at += length >> 1
    return at, headers_max - count
