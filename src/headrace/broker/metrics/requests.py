"""Counts requests, errors and times, between the listener and the dispatcher: only where metrics are asked for.

Promises: every answered request counts once, by API and version. The memory for that is bounded by the number of
advertised versions. It costs two or three microseconds for each request.
"""

from __future__ import annotations

import time
from bisect import bisect_left
from collections import Counter
from collections.abc import Mapping
from typing import Any, Final

from headrace.net.server.connection import Answer, Connection, Later, Serve
from headrace.wire.apis import ApiKey

BOUNDS_MS: Final = (1, 2, 5, 10, 25, 50, 100, 250, 500, 1000, 2500, 5000)
"""Upper bounds of the histogram's buckets; one more has no bound."""
OTHER_VERSION: Final = -1
"""Stands for all versions that are not served; only ApiVersions answers them."""


class Times:
    """The histogram of one API."""

    __slots__ = ("counts", "sum_ms")

    def __init__(self) -> None:
        self.counts = [0] * (len(BOUNDS_MS) + 1)
        self.sum_ms = 0.0


class _Count:
    """Requests of one API and version."""

    __slots__ = ("number", "times")

    def __init__(self, times: Times) -> None:
        self.number = 0
        self.times = times


class RequestCounts:
    """See the module. `served`: the advertised APIs, API key to its lowest and highest version."""

    def __init__(self, served: Mapping[int, tuple[int, int]]) -> None:
        self._served = served
        self._by_key: dict[bytes, _Count] = {}
        self._numbers: dict[tuple[int, int], _Count] = {}
        self.times: dict[int, Times] = {}
        """Times by API key."""
        self.errors: Counter[tuple[int, int]] = Counter()
        """Errors by API key and error code."""
        self.bytes_in = 0
        self.bytes_out = 0

    @property
    def numbers(self) -> Mapping[tuple[int, int], int]:
        """Requests by API key and version."""
        return {key: count.number for key, count in self._numbers.items()}

    def counted(self, serve: Serve) -> Serve:
        """Return a function that serves as `serve` does, and counts."""

        def count(frame: memoryview, connection: Connection) -> Answer | Later | None:
            began = time.perf_counter()
            self.bytes_in += len(frame)
            key = bytes(frame[:4])
            answer = serve(frame, connection)
            if answer is None or isinstance(answer, list):
                self.done(key, began, answer)
                return answer
            return _Timed(self, key, began, answer)

        return count

    def done(self, key: bytes, began: float, answer: Answer | None) -> None:
        """Count a request whose frame began with `key`, as it is answered."""
        if answer is not None:
            self.bytes_out += sum(map(len, answer))
        count = self._by_key.get(key)
        if count is None and (count := self._new(key)) is None:
            return
        took_ms = (time.perf_counter() - began) * 1000
        count.number += 1
        times = count.times
        times.counts[bisect_left(BOUNDS_MS, took_ms)] += 1
        times.sum_ms += took_ms

    def _new(self, key: bytes) -> _Count | None:
        """Return a new count; None for APIs between brokers."""
        api, version = int.from_bytes(key[:2], "big"), int.from_bytes(key[2:], "big", signed=True)
        served = self._served.get(api)
        if served is None:
            return None
        is_served = served[0] <= version <= served[1]
        named = (api, version if is_served else OTHER_VERSION)
        count = self._numbers.get(named)
        if count is None:
            count = self._numbers[named] = _Count(self.times.setdefault(api, Times()))
        if is_served:
            self._by_key[key] = count
        return count

    def on_response(self, api: int, response: Any) -> None:
        """Count the errors in a response, at any depth."""
        self._look(api, response)

    def _look(self, api: int, part: Any) -> None:
        names = getattr(part, "_fields", None)
        if names is None:
            for each in part:
                self._look(api, each)
            return
        for name, value in zip(names, part, strict=True):
            if name == "error_code":
                if value:
                    self.errors[api, value] += 1
            elif isinstance(value, tuple) and value and (hasattr(value, "_fields") or isinstance(value[0], tuple)):
                self._look(api, value)

    def on_error(self, api: int, error: int) -> None:
        """Count an error that a shortcut answers."""
        self.errors[api, error] += 1


class _Timed:
    """A `Later` that is counted as it is answered."""

    __slots__ = ("_began", "_counts", "_key", "_later", "add_done_callback", "cancel", "done", "pipelined")

    def __init__(self, counts: RequestCounts, key: bytes, began: float, later: Later) -> None:
        self._counts = counts
        self._key = key
        self._began = began
        self._later = later
        self.done = later.done
        self.cancel = later.cancel
        self.add_done_callback = later.add_done_callback
        self.pipelined = later.pipelined

    def answer(self) -> Answer | None:
        answer = self._later.answer()
        self._counts.done(self._key, self._began, answer)
        return answer


def api_name(key: int) -> str:
    """Return an API's name as in Kafka's metrics: Produce, Fetch, OffsetCommit."""
    return "".join(word.capitalize() for word in ApiKey(key).name.split("_"))
