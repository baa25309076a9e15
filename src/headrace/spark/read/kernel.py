"""The hot loop of reads: decodes records of a decompressed batch into columns, compiled by numba.

Stays within every array that it is given, whatever the bytes are. Numba checks no bounds, so each access below is
guarded by a comparison. The slow twin is `headrace.spark.read.plain`; the tests hold the two equal on good and on bad
bytes. Never allocates and never raises: it returns a status. Measured (docs/decisions/0008): twenty times the twin's
speed.

A record is (KIP-98): length, attributes, timestamp delta, offset delta, key, value, header count, headers; integers are
zigzag varints, length -1 is null.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, TypeVar, cast

import numpy as np
from numba import njit

from headrace.base.limits import RECORD_HEADERS_MAX

# Results of `fill`.
DONE: Final = 0
"""All records of the batch are in the columns."""
FULL: Final = 1
"""The next record does not fit in the columns: take them away, or enlarge them, and call again."""
CUT: Final = 2
BAD_HEADERS: Final = 3
BAD_OFFSET: Final = 4
BAD_TIMESTAMP: Final = 5
TRAILING: Final = 6

REASONS: Final = {
    CUT: "A field does not fit in its record, or the record in its batch.",
    BAD_HEADERS: "A record's header count or header name is impossible.",
    BAD_OFFSET: "A record's offset does not rise within its batch.",
    BAD_TIMESTAMP: "A record's timestamp is out of the range of Spark's.",
    TRAILING: "There are bytes after the batch's last record.",
}

# Indexes into `state`: the positions reached in the columns and the batch.
ROW, KEY_AT, VALUE_AT, HEADER_AT, NAME_AT, HVALUE_AT, AT, INDEX, LAST_DELTA = range(9)
STATE_SIZE: Final = 9

# Indexes into `batch`: fields of the batch's header, and the wanted offsets (end exclusive).
COUNT, MAX_DELTA, BASE_OFFSET, BASE_TIMESTAMP, MAX_TIMESTAMP, APPEND_TIME, FIRST, NEXT = range(8)
BATCH_SIZE: Final = 8

# Bits of `wants`.
WANT_KEY, WANT_VALUE, WANT_TIMESTAMP, WANT_HEADERS = 1, 2, 4, 8

TIMESTAMP_MS_MAX: Final = 9_223_372_036_854_775
"""The largest value that fits in 64 bits as microseconds."""

OPTIONS: Final[dict[str, Any]] = {"cache": True, "nogil": True, "error_model": "numpy", "_nrt": False}
"""`_nrt` False: references to arguments are not counted. Counting them for each field of each record took three
quarters of the time.
"""

F = TypeVar("F", bound=Callable[..., Any])


def compiled(function: F) -> F:
    """Compiled at its first call, and kept on disk beside the source (or in numba's cache directory).

    The function may make no array, nor anything else that counts its references.
    """
    return cast("F", njit(**OPTIONS)(function))


@compiled
def _varint(data: Any, at: int, end: int) -> Any:
    """Zigzag varint of at most 64 bits at `at`: (value, position after it). Position -1 where it is bad."""
    if at >= end:
        return np.int64(0), np.int64(-1)
    byte = np.uint64(data[np.uintp(at)])
    at += 1
    value = byte & np.uint64(0x7F)
    shift = np.uint64(7)
    while byte >= np.uint64(0x80):
        if at >= end or shift > np.uint64(63):
            return np.int64(0), np.int64(-1)
        byte = np.uint64(data[np.uintp(at)])
        at += 1
        if shift == np.uint64(63) and byte > np.uint64(1):
            return np.int64(0), np.int64(-1)
        value |= (byte & np.uint64(0x7F)) << shift
        shift += np.uint64(7)
    return np.int64(value >> np.uint64(1)) ^ -np.int64(value & np.uint64(1)), np.int64(at)


@compiled
def _copy(source: Any, start: int, length: int, target: Any, at: int) -> None:
    """Copy bytes. Indexes are unsigned: signed ones may count from the end, and that test costs forty times the
    copy.
    """
    first, into = np.uintp(start), np.uintp(at)
    for byte in range(np.uintp(length)):
        target[into + byte] = source[first + byte]


@compiled
def _skip_headers(data: Any, at: int, end: int, count: int) -> Any:
    """The position after `count` headers, and the bytes of their names and values; -1 where they are bad."""
    names = np.int64(0)
    values = np.int64(0)
    for _ in range(count):
        length, at = _varint(data, at, end)
        if at < 0 or length < 0 or length > end - at:
            return np.int64(-1), names, values
        names += length
        length, at = _varint(data, at + length, end)
        if at < 0 or length < -1 or length > end - at:
            return np.int64(-1), names, values
        if length > 0:
            values += length
            at += length
    return at, names, values


@compiled
def _copy_headers(
    data: Any,
    at: int,
    end: int,
    count: int,
    state: Any,
    name_ends: Any,
    names: Any,
    hvalue_ends: Any,
    hvalues: Any,
    hvalue_valid: Any,
) -> None:
    """Copy headers that `_skip_headers` found good and for which there is room."""
    header, name_at, value_at = state[HEADER_AT], state[NAME_AT], state[HVALUE_AT]
    for _ in range(count):
        length, at = _varint(data, at, end)
        _copy(data, at, length, names, name_at)
        name_at += length
        length, at = _varint(data, at + length, end)
        hvalue_valid[header] = length >= 0
        if length > 0:
            _copy(data, at, length, hvalues, value_at)
            value_at += length
            at += length
        header += 1
        name_ends[header] = name_at
        hvalue_ends[header] = value_at
    state[HEADER_AT], state[NAME_AT], state[HVALUE_AT] = header, name_at, value_at


@compiled
def fill(
    data: Any,
    batch: Any,
    wants: int,
    state: Any,
    offsets: Any,
    timestamps: Any,
    timestamp_types: Any,
    key_ends: Any,
    keys: Any,
    key_valid: Any,
    value_ends: Any,
    values: Any,
    value_valid: Any,
    header_ends: Any,
    name_ends: Any,
    names: Any,
    hvalue_ends: Any,
    hvalues: Any,
    hvalue_valid: Any,
) -> int:
    """Continue with a batch's records at ``state[AT]`` until they are done, or the columns are full. Returns the
    status.

    `data`: uint8, the decompressed records. `*_ends`: int32 with one element more than rows or headers, the first 0.
    `timestamps`: int64, microseconds. `*_valid`: uint8, 0 for null. ``state[AT, INDEX, LAST_DELTA]`` start at 0, 0, -1.
    On an error ``state[INDEX]`` is the record's number, and the filled rows are invalid.
    """
    size = len(data)
    count, max_delta, base_offset, base_timestamp = (
        batch[COUNT],
        batch[MAX_DELTA],
        batch[BASE_OFFSET],
        batch[BASE_TIMESTAMP],
    )
    append_time = batch[APPEND_TIME]
    if wants & WANT_TIMESTAMP:
        fixed = batch[MAX_TIMESTAMP] if append_time else base_timestamp
        if fixed > TIMESTAMP_MS_MAX or fixed < -TIMESTAMP_MS_MAX:
            return BAD_TIMESTAMP
    while state[INDEX] < count:
        length, at = _varint(data, state[AT], size)
        if at < 0 or length < 1 or length > size - at:
            return CUT
        end = at + length
        timestamp_delta, at = _varint(data, at + 1, end)
        if at < 0:
            return CUT
        delta, at = _varint(data, at, end)
        if at < 0:
            return CUT
        if delta <= state[LAST_DELTA] or delta > max_delta:
            return BAD_OFFSET
        key_length, key_start = _varint(data, at, end)
        if key_start < 0 or key_length < -1 or key_length > end - key_start:
            return CUT
        value_length, value_start = _varint(data, key_start + max(key_length, 0), end)
        if value_start < 0 or value_length < -1 or value_length > end - value_start:
            return CUT
        header_count, headers_start = _varint(data, value_start + max(value_length, 0), end)
        if headers_start < 0:
            return CUT
        if header_count < 0 or header_count > min(RECORD_HEADERS_MAX, (end - headers_start) // 2):
            return BAD_HEADERS
        headers_end, name_bytes, hvalue_bytes = _skip_headers(data, headers_start, end, header_count)
        if headers_end != end:
            return CUT
        offset = base_offset + delta
        if batch[FIRST] <= offset < batch[NEXT]:
            row = state[ROW]
            if row >= len(offsets):
                return FULL
            if wants & WANT_KEY and state[KEY_AT] + key_length > len(keys):
                return FULL
            if wants & WANT_VALUE and state[VALUE_AT] + value_length > len(values):
                return FULL
            if wants & WANT_HEADERS and (
                state[HEADER_AT] + header_count > len(hvalue_valid)
                or state[NAME_AT] + name_bytes > len(names)
                or state[HVALUE_AT] + hvalue_bytes > len(hvalues)
            ):
                return FULL
            if wants & WANT_TIMESTAMP:
                if append_time:
                    timestamp = batch[MAX_TIMESTAMP]
                else:
                    if timestamp_delta > 2 * TIMESTAMP_MS_MAX or timestamp_delta < -2 * TIMESTAMP_MS_MAX:
                        return BAD_TIMESTAMP
                    timestamp = base_timestamp + timestamp_delta
                    if timestamp > TIMESTAMP_MS_MAX or timestamp < -TIMESTAMP_MS_MAX:
                        return BAD_TIMESTAMP
                timestamps[row] = timestamp * 1000
            offsets[row] = offset
            timestamp_types[row] = append_time
            if wants & WANT_KEY:
                key_valid[row] = key_length >= 0
                if key_length > 0:
                    _copy(data, key_start, key_length, keys, state[KEY_AT])
                    state[KEY_AT] += key_length
                key_ends[row + 1] = state[KEY_AT]
            if wants & WANT_VALUE:
                value_valid[row] = value_length >= 0
                if value_length > 0:
                    _copy(data, value_start, value_length, values, state[VALUE_AT])
                    state[VALUE_AT] += value_length
                value_ends[row + 1] = state[VALUE_AT]
            if wants & WANT_HEADERS:
                _copy_headers(
                    data,
                    headers_start,
                    end,
                    header_count,
                    state,
                    name_ends,
                    names,
                    hvalue_ends,
                    hvalues,
                    hvalue_valid,
                )
                header_ends[row + 1] = state[HEADER_AT]
            state[ROW] = row + 1
        state[AT] = end
        state[INDEX] += 1
        state[LAST_DELTA] = delta
    return DONE if state[AT] == size else TRAILING
