"""The hot loops of a write: partitions of rows, and rows into packed records, compiled by numba.

Stays within every array that it is given, provided that these are sound Arrow, as Spark's JVM makes it. `out` must have
the size that `headrace.spark.write.packing` computes. Numba checks no bounds, and offsets that fall or point past their
bytes are not detected. Never allocates and never raises. The slow twin is `headrace.spark.write.plainpacking`; the
tests hold the two equal byte for byte.

A record is (KIP-98): length, attributes, timestamp delta, offset delta, key, value, header count, headers; integers are
zigzag varints, length -1 is null. The partition of a key is that of the Java client (murmur2).
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from headrace.spark.read.kernel import compiled
from headrace.spark.write.packing import DIGITS, STICKY_ROW_BYTES
from headrace.wire.batches import HEADER_BYTES

# Columns of `table`, one row for each batch.
PARTITION, BEGIN, END, COUNT, BASE_TIME, MAX_TIME = range(6)
TABLE_WIDTH: Final = 6

M: Final = 0x5BD1E995
SEED: Final = 0x9747B28C
MASK: Final = 0xFFFFFFFF


@compiled
def _murmur2(data: Any, at: int, length: int) -> Any:
    """As the Java client's `Utils.murmur2`, in 32 bits that are kept in 64."""
    m, mask = np.uint64(M), np.uint64(MASK)
    h = np.uint64(SEED) ^ np.uint64(length)
    place = np.uintp(at)
    words = length // 4
    for _ in range(words):
        k = (
            np.uint64(data[place])
            | np.uint64(data[place + np.uintp(1)]) << np.uint64(8)
            | np.uint64(data[place + np.uintp(2)]) << np.uint64(16)
            | np.uint64(data[place + np.uintp(3)]) << np.uint64(24)
        )
        k = k * m & mask
        k ^= k >> np.uint64(24)
        k = k * m & mask
        h = (h * m & mask) ^ k
        place += np.uintp(4)
    rest = length - words * 4
    if rest > 0:
        tail = np.uint64(0)
        for byte in range(rest):
            tail |= np.uint64(data[place + np.uintp(byte)]) << np.uint64(8 * byte)
        h = (h ^ tail) * m & mask
    h = (h ^ h >> np.uint64(13)) * m & mask
    return h ^ h >> np.uint64(15)


@compiled
def assign(
    key_ends: Any,
    keys: Any,
    key_valid: Any,
    value_ends: Any,
    value_valid: Any,
    chosen: Any,
    count: int,
    turn: Any,
    out: Any,
) -> None:
    """The partition of each row among `count`: the chosen one (if not below 0), the key's, or the one whose turn it is.

    `turn`: int64, [the first partition, bytes of a turn, bytes of rows without a key so far].
    """
    for row in range(len(out)):
        if chosen[row] >= 0:
            out[row] = chosen[row]
        elif key_valid[row]:
            start = key_ends[row]
            hashed = _murmur2(keys, start, key_ends[row + 1] - start)
            out[row] = np.int64(hashed & np.uint64(0x7FFFFFFF)) % count
        else:
            out[row] = (turn[0] + turn[2] // turn[1]) % count
            length = value_ends[row + 1] - value_ends[row] if value_valid[row] else 0  # a null may have bytes
            turn[2] += length + STICKY_ROW_BYTES


@compiled
def group(partitions: Any, starts: Any, order: Any) -> None:
    """Orders rows by partition, stably. `starts` has one entry more than there are partitions, and begins as zeros."""
    for row in range(len(partitions)):
        starts[partitions[row] + 1] += 1
    for partition in range(1, len(starts)):
        starts[partition] += starts[partition - 1]
    for row in range(len(partitions)):
        partition = partitions[row]
        order[starts[partition]] = row
        starts[partition] += 1
    for partition in range(len(starts) - 1, 0, -1):
        starts[partition] = starts[partition - 1]
    starts[0] = 0


@compiled
def _size(value: int) -> int:
    """Bytes of a zigzag varint."""
    signed = np.int64(value)
    number = np.uint64((signed << np.int64(1)) ^ (signed >> np.int64(63)))
    size = 1
    while number >= np.uint64(0x80):
        number >>= np.uint64(7)
        size += 1
    return size


@compiled
def _put(out: Any, at: int, value: int) -> int:
    """Write a zigzag varint. Returns the position after it."""
    signed = np.int64(value)
    number = np.uint64((signed << np.int64(1)) ^ (signed >> np.int64(63)))
    while number >= np.uint64(0x80):
        out[np.uintp(at)] = np.uint8(number & np.uint64(0x7F) | np.uint64(0x80))
        number >>= np.uint64(7)
        at += 1
    out[np.uintp(at)] = np.uint8(number)
    return at + 1


@compiled
def _copy(source: Any, start: int, length: int, target: Any, at: int) -> int:
    """Copy bytes. Returns the position after them. Indexes are unsigned, as in `headrace.spark.read.kernel`."""
    first, into = np.uintp(start), np.uintp(at)
    for byte in range(np.uintp(length)):
        target[into + byte] = source[first + byte]
    return at + length


@compiled
def _put_bytes(source: Any, start: int, length: int, out: Any, at: int) -> int:
    """Write a length and that many bytes; -1 stands for null."""
    at = _put(out, at, length)
    return _copy(source, start, length, out, at) if length > 0 else at


@compiled
def _headers_size(first: int, last: int, name_ends: Any, hvalue_ends: Any, hvalue_valid: Any) -> int:
    size = 0
    for header in range(first, last):
        length = name_ends[header + 1] - name_ends[header]
        size += _size(length) + length
        length = hvalue_ends[header + 1] - hvalue_ends[header]
        size += _size(length) + length if hvalue_valid[header] else 1
    return size


@compiled
def _put_headers(
    first: int,
    last: int,
    name_ends: Any,
    names: Any,
    hvalue_ends: Any,
    hvalues: Any,
    hvalue_valid: Any,
    out: Any,
    at: int,
) -> int:
    for header in range(first, last):
        at = _put_bytes(names, name_ends[header], name_ends[header + 1] - name_ends[header], out, at)
        length = hvalue_ends[header + 1] - hvalue_ends[header] if hvalue_valid[header] else -1
        at = _put_bytes(hvalues, hvalue_ends[header], length, out, at)
    return at


@compiled
def _put_stamp(stamp: Any, position: int, out: Any, at: int) -> int:
    """Write the stamp, and the row's number in DIGITS decimal digits."""
    at = _copy(stamp, 0, len(stamp), out, at)
    for digit in range(DIGITS - 1, -1, -1):
        out[np.uintp(at + digit)] = np.uint8(48 + position % 10)
        position //= 10
    return at + DIGITS


@compiled
def pack(
    key_ends: Any,
    keys: Any,
    key_valid: Any,
    value_ends: Any,
    values: Any,
    value_valid: Any,
    times: Any,
    positions: Any,
    header_ends: Any,
    name_ends: Any,
    names: Any,
    hvalue_ends: Any,
    hvalues: Any,
    hvalue_valid: Any,
    partitions: Any,
    order: Any,
    stamp: Any,
    stamp_headers: int,
    limit: int,
    out: Any,
    table: Any,
) -> int:
    """Pack the rows in `order`, in which those of one partition are neighbours. Returns the number of batches.

    Each batch has HEADER_BYTES of room before its records. It is closed before header and records exceed `limit` bytes;
    a larger record forms a batch alone. `table` has one row for each batch, and room for as many as there are rows.
    """
    batch, at, begin, count = -1, 0, 0, 0
    base = np.int64(0)
    for place in range(len(order)):
        row = order[place]
        key_length = key_ends[row + 1] - key_ends[row] if key_valid[row] else -1
        value_length = value_ends[row + 1] - value_ends[row] if value_valid[row] else -1
        first, last = header_ends[row], header_ends[row + 1]
        fixed = 1 + _size(key_length) + max(key_length, 0) + _size(value_length) + max(value_length, 0)
        fixed += _size(last - first + stamp_headers)
        fixed += _headers_size(first, last, name_ends, hvalue_ends, hvalue_valid)
        if stamp_headers:
            fixed += len(stamp) + DIGITS
        body = fixed + _size(times[row] - base) + _size(count)
        is_full = count > 0 and at - begin + _size(body) + body > limit
        if batch < 0 or is_full or partitions[row] != table[batch, PARTITION]:
            batch += 1
            begin, count, base = at, 0, times[row]
            at += HEADER_BYTES
            body = fixed + 2
            table[batch, PARTITION], table[batch, BEGIN] = partitions[row], begin
            table[batch, BASE_TIME], table[batch, MAX_TIME] = base, base
        at = _put(out, at, body)
        out[np.uintp(at)] = 0
        at = _put(out, at + 1, times[row] - base)
        at = _put(out, at, count)
        at = _put_bytes(keys, key_ends[row], key_length, out, at)
        at = _put_bytes(values, value_ends[row], value_length, out, at)
        at = _put(out, at, last - first + stamp_headers)
        at = _put_headers(first, last, name_ends, names, hvalue_ends, hvalues, hvalue_valid, out, at)
        if stamp_headers:
            at = _put_stamp(stamp, positions[row], out, at)
        count += 1
        table[batch, COUNT], table[batch, END] = count, at
        table[batch, MAX_TIME] = max(table[batch, MAX_TIME], times[row])
    return batch + 1
