"""The hot loop of `headrace.spark.read.repeats`, compiled by numba: it finds rows in a table of earlier ones.

Stays within its arrays. Rows are compared by SipHash-2-4 of 128 bits (Aumasson and Bernstein, 2012) over key, value and
all headers, under a secret key. So neither similar rows nor crafted ones collide.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from headrace.spark.read.kernel import compiled

EMPTY: Final = -1
"""Marks empty slots in `places`."""
USED: Final = 0
"""Index into `state`: the number of used slots."""

V0: Final = 0x736F6D6570736575
V1: Final = 0x646F72616E646F6D
V2: Final = 0x6C7967656E657261
V3: Final = 0x7465646279746573


@compiled
def _left(word: Any, bits: int) -> Any:
    return word << np.uint64(bits) | word >> np.uint64(64 - bits)


@compiled
def _round(v0: Any, v1: Any, v2: Any, v3: Any) -> Any:
    v0, v2 = v0 + v1, v2 + v3
    v1, v3 = _left(v1, 13) ^ v0, _left(v3, 16) ^ v2
    v0, v2 = _left(v0, 32) + v3, v2 + v1
    v1, v3 = _left(v1, 17) ^ v2, _left(v3, 21) ^ v0
    return v0, v1, _left(v2, 32), v3


@compiled
def begun(secret: Any) -> Any:
    """The state of an empty hash, under `secret`: two uint64."""
    first, second = secret[0], secret[1]
    v1 = second ^ np.uint64(V1) ^ np.uint64(0xEE)
    return first ^ np.uint64(V0), v1, first ^ np.uint64(V2), second ^ np.uint64(V3)


@compiled
def mixed(state: Any, word: Any) -> Any:
    """The state with eight more bytes."""
    v0, v1, v2, v3 = state
    v3 ^= word
    v0, v1, v2, v3 = _round(v0, v1, v2, v3)
    v0, v1, v2, v3 = _round(v0, v1, v2, v3)
    return v0 ^ word, v1, v2, v3


@compiled
def ended(state: Any, words: int) -> Any:
    """The hash of that many words."""
    v0, v1, v2, v3 = mixed(state, np.uint64(words) << np.uint64(59))
    v2 ^= np.uint64(0xEE)
    for _ in range(4):
        v0, v1, v2, v3 = _round(v0, v1, v2, v3)
    first = v0 ^ v1 ^ v2 ^ v3
    v1 ^= np.uint64(0xDD)
    for _ in range(4):
        v0, v1, v2, v3 = _round(v0, v1, v2, v3)
    return first, v0 ^ v1 ^ v2 ^ v3


@compiled
def _with_bytes(data: Any, at: int, length: int, state: Any) -> Any:
    """The state with a length (-1: null) and that many bytes, in whole words."""
    state = mixed(state, np.uint64(length + 1))
    place = np.uintp(at)
    left = length
    while left > 0:
        word = np.uint64(0)
        if left >= 8:
            for byte in range(8):
                word |= np.uint64(data[place + np.uintp(byte)]) << np.uint64(8 * byte)
        else:
            for byte in range(left):
                word |= np.uint64(data[place + np.uintp(byte)]) << np.uint64(8 * byte)
        state = mixed(state, word)
        place += np.uintp(8)
        left -= 8
    return state


@compiled
def _words(length: int) -> int:
    """The number of words that `_with_bytes` adds."""
    return 1 + (max(length, 0) + 7) // 8


@compiled
def _is_named(names: Any, at: int, length: int, name: Any) -> bool:
    if length != len(name):
        return False
    for byte in range(length):  # noqa: SIM110 - numba has no generators
        if names[np.uintp(at + byte)] != name[np.uintp(byte)]:
            return False
    return True


@compiled
def find(
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
    offsets: Any,
    begin: int,
    window: int,
    horizon: int,
    name: Any,
    secret: Any,
    first: Any,
    second: Any,
    places: Any,
    state: Any,
    repeated: Any,
) -> int:
    """Mark repeats in `repeated` from row `begin` on, and remember the rows, until the table is half full. Returns the
    next row.

    Only rows with a header called `name` are remembered and searched. Rows below `horizon` are not found. `first`,
    `second` and `places` are the table, whose size is a power of two.
    """
    mask = np.uint64(len(places) - 1)
    for row in range(begin, len(offsets)):
        marked = False
        for header in range(header_ends[row], header_ends[row + 1]):
            start = name_ends[header]
            marked = marked or _is_named(names, start, name_ends[header + 1] - start, name)
        repeated[row] = 0
        if not marked:
            continue
        if 2 * state[USED] >= len(places):
            return row
        length = key_ends[row + 1] - key_ends[row] if key_valid[row] else -1
        words = _words(length)
        hashed = _with_bytes(keys, key_ends[row], length, begun(secret))
        length = value_ends[row + 1] - value_ends[row] if value_valid[row] else -1
        words += _words(length)
        hashed = _with_bytes(values, value_ends[row], length, hashed)
        for header in range(header_ends[row], header_ends[row + 1]):
            length = name_ends[header + 1] - name_ends[header]
            words += _words(length)
            hashed = _with_bytes(names, name_ends[header], length, hashed)
            length = hvalue_ends[header + 1] - hvalue_ends[header] if hvalue_valid[header] else -1
            words += _words(length)
            hashed = _with_bytes(hvalues, hvalue_ends[header], length, hashed)
        a, b = ended(hashed, words)
        slot = a & mask
        while places[slot] != EMPTY and (first[slot] != a or second[slot] != b):
            slot = (slot + np.uint64(1)) & mask
        if places[slot] == EMPTY:
            first[slot], second[slot] = a, b
            state[USED] += 1
        elif places[slot] >= max(offsets[row] - window, horizon):
            repeated[row] = 1
        places[slot] = offsets[row]
    return len(offsets)


@compiled
def move(
    first: Any, second: Any, places: Any, oldest: int, new_first: Any, new_second: Any, new_places: Any, state: Any
) -> None:
    """Move entries at `oldest` or later into an empty, larger table."""
    mask = np.uint64(len(new_places) - 1)
    state[USED] = 0
    for old in range(len(places)):
        if places[old] >= oldest and places[old] != EMPTY:
            slot = first[old] & mask
            while new_places[slot] != EMPTY:
                slot = (slot + np.uint64(1)) & mask
            new_first[slot], new_second[slot], new_places[slot] = first[old], second[old], places[old]
            state[USED] += 1
