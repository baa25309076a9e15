"""The keys of the model of a Redis server: Streams, hashes, sets and sorted sets, and the commands that read them."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from typing import Any, TypeAlias

from headrace.storage.redis.errors import refusal

Hash: TypeAlias = dict[bytes, bytes]


class Stream:
    """Entries whose ids are `<number>-0`, and the last id that was ever given."""

    def __init__(self) -> None:
        self.numbers: list[int] = []
        self.fields: list[tuple[bytes, ...]] = []
        self.last = 0

    def add(self, number: int, fields: tuple[bytes, ...]) -> None:
        if number <= self.last:
            raise refusal("ERR The ID specified in XADD is equal or smaller than the target stream top item")
        self.numbers.append(number)
        self.fields.append(fields)
        self.last = number

    def get(self, number: int) -> tuple[bytes, ...] | None:
        at = bisect_left(self.numbers, number)
        return self.fields[at] if at < len(self.numbers) and self.numbers[at] == number else None

    def above(self, number: int, count: int | None = None) -> list[tuple[int, tuple[bytes, ...]]]:
        at = bisect_right(self.numbers, number)
        return list(zip(self.numbers[at:], self.fields[at:], strict=True))[:count]

    def drop(self, number: int) -> None:
        """Remove this entry, if it is there."""
        at = bisect_left(self.numbers, number)
        if self.numbers[at : at + 1] == [number]:
            del self.numbers[at], self.fields[at]

    def drop_to(self, number: int) -> None:
        """Remove entries up to this number."""
        at = bisect_right(self.numbers, number)
        del self.numbers[:at], self.fields[:at]


class ModelKeys:
    """One server's keys. Values are a Stream, a dict (hash or sorted set) or a set."""

    def __init__(self) -> None:
        self.keys: dict[bytes, Any] = {}
        self._expires_ms: dict[bytes, int] = {}

    def expire(self, now_ms: int) -> None:
        """Remove the keys whose time is over."""
        for key in [key for key, until in self._expires_ms.items() if until <= now_ms]:
            self._unlink(key)

    def read(self, name: bytes, args: list[bytes]) -> Any:
        """The reply to a command that reads. Raises RedisRefused for any other."""
        match name, args:
            case b"PING", []:
                return b"PONG"
            case b"HGETALL", [key]:
                return dict(self._hash(key))
            case b"HGET", [key, field]:
                return self._hash(key).get(field)
            case b"HMGET", [key, *fields]:
                return [self._hash(key).get(field) for field in fields]
            case b"SMEMBERS", [key]:
                return set(self.keys.get(key, ()))
            case b"ZRANGE", [key, b"0", b"-1", b"WITHSCORES"]:
                return [[member, float(score)] for member, score in self._sorted(key)]
            case b"EXISTS", keys:
                return sum(key in self.keys for key in keys)
            case b"XLEN", [key]:
                return len(self._stream(key).numbers)
            case b"XRANGE", [key, low, high, *rest]:
                return _entries(_counted(self._between(key, low, high), rest))
            case b"XREVRANGE", [key, high, low, *rest]:
                return _entries(_counted(self._between(key, low, high)[::-1], rest))
            case b"XREAD", _:
                return self._xread(args)
        raise refusal(f"ERR unknown command '{name.decode()}' for the model")

    def _between(self, key: bytes, low: bytes, high: bytes) -> list[tuple[int, tuple[bytes, ...]]]:
        first = 0 if low == b"-" else int(low.lstrip(b"(").partition(b"-")[0]) + low.startswith(b"(")
        last = 2**63 if high == b"+" else int(high.lstrip(b"(").partition(b"-")[0]) - high.startswith(b"(")
        return [(number, fields) for number, fields in self._stream(key).above(first - 1) if number <= last]

    def _xread(self, args: list[bytes]) -> Any:
        """As a client sees it that does not block: None where nothing is there."""
        at = args.index(b"STREAMS")
        count = int(args[args.index(b"COUNT") + 1]) if b"COUNT" in args[:at] else None
        names = args[at + 1 :]
        keys, after = names[: len(names) // 2], names[len(names) // 2 :]
        found = {
            key: _entries(entries)
            for key, last in zip(keys, after, strict=True)
            if (entries := self._stream(key).above(int(last.partition(b"-")[0]), count))
        }
        return found or None

    # keys

    def _hash(self, key: bytes) -> Hash:
        found: Hash = self.keys.get(key, {})
        return found

    def _set(self, key: bytes, **fields: object) -> None:
        self.keys.setdefault(key, {}).update({name.encode(): as_bytes(value) for name, value in fields.items()})

    def _number(self, key: bytes, field: bytes, default: int = 0) -> int:
        return int(self._hash(key).get(field, default))

    def _unset(self, key: bytes, *fields: bytes) -> None:
        for field in fields:
            self._hash(key).pop(field, None)

    def _stream(self, key: bytes) -> Stream:
        found = self.keys.get(key)
        return found if isinstance(found, Stream) else Stream()

    def _add(self, key: bytes, number: int, *fields: bytes) -> None:
        self.keys.setdefault(key, Stream()).add(number, fields)

    def _unlink(self, *keys: bytes) -> None:
        for key in keys:
            self.keys.pop(key, None)
            self._expires_ms.pop(key, None)

    def _sorted(self, key: bytes) -> list[tuple[bytes, int]]:
        """Members of a sorted set with their scores, in the order of a server."""
        return sorted(self.keys.get(key, {}).items(), key=lambda item: (item[1], item[0]))

    def _rescore(self, key: bytes, kept: Iterator[tuple[bytes, int]], *added: tuple[bytes, int]) -> None:
        self.keys[key] = dict(kept) | dict(added)


def as_bytes(value: object) -> bytes:
    return bytes(value) if isinstance(value, bytes | bytearray | memoryview) else str(value).encode()


def _counted(entries: list[tuple[int, tuple[bytes, ...]]], rest: list[bytes]) -> list[tuple[int, tuple[bytes, ...]]]:
    return entries[: int(rest[1])] if rest else entries


def _entries(entries: list[tuple[int, tuple[bytes, ...]]]) -> list[list[Any]]:
    return [[b"%d-0" % number, list(fields)] for number, fields in entries]
