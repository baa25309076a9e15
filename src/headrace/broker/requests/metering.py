"""One request of a client that has quotas: its use is measured, and a client beyond its quota hears for how long it is
muted.

Promises:
- The answer is never held back; it says for how long the connection is then not read (KIP-219).
- A fetch that would exceed the quota is answered with no data, and none of it counts. Its session is as if it had not
  been read.
- A batch larger than its quota's whole burst is accepted, as soon as its client is within its quota. The client then
  waits for all of it.
- Requests of such a connection are served one at a time.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Coroutine, Generator
from typing import TYPE_CHECKING, Any, Final

from headrace.broker.requests.fetch_sessions import NO_SESSION, FetchSessions, PartitionKey
from headrace.net.server.connection import Answer, Connection
from headrace.wire.apis import ApiKey
from headrace.wire.codec import new
from headrace.wire.headers import RequestHeader
from headrace.wire.plain_fetch import TOPIC_ID_VERSION

if TYPE_CHECKING:
    from headrace.base.ports import Clock
    from headrace.broker.requests.quotas import ClientUsage
    from headrace.wire.messages.fetch import FetchResponse

EXEMPT: Final = frozenset({int(ApiKey.ENVELOPE)})
"""APIs between brokers, which no quota counts."""

Encode = Callable[[RequestHeader, Any], Answer | None]


class Metered:
    """See the module. Made as the request comes; `answer` is called once."""

    __slots__ = (
        "_begun_at",
        "_clock",
        "_connection",
        "_encode",
        "_header",
        "_request",
        "_sessions",
        "_size",
        "_spent_s",
        "_usage",
    )

    def __init__(
        self,
        usage: ClientUsage,
        header: RequestHeader,
        size: int,
        *,
        connection: Connection,
        clock: Clock,
        sessions: FetchSessions,
        encode: Encode,
    ) -> None:
        self._usage = usage
        self._header = header
        self._size = size
        self._connection = connection
        self._clock = clock
        self._sessions = sessions
        self._encode = encode
        self._request: Any = None
        self._begun_at = clock.monotonic()
        self._spent_s = 0.0

    def within_burst(self, request: Any) -> Any:
        """Return the request with a fetch's size cut to the quota's burst. A fetch of more could never be answered with
        data."""
        fetch = self._usage.fetch
        if self._header.api_key == ApiKey.FETCH and fetch is not None:
            request = request._replace(max_bytes=min(request.max_bytes, int(fetch.burst)))
        self._request = request
        return request

    def pause(self) -> None:
        """Stop the clock: the request waits, and the loop's time is for others."""
        self._spent_s += self._clock.monotonic() - self._begun_at

    def resume(self) -> None:
        """Go on with the clock: the request is worked on."""
        self._begun_at = self._clock.monotonic()

    @types.coroutine
    def timed(self, work: Coroutine[Any, Any, Any]) -> Generator[Any, Any, Any]:
        """Return what `work` returns. The clock runs while it is worked on, and not while it waits."""
        go_on: Callable[[Any], Any] = work.send
        given: Any = None
        while True:
            self.resume()
            try:
                awaited = go_on(given)
            except StopIteration as stop:
                return stop.value
            finally:
                self.pause()
            try:
                go_on, given = work.send, (yield awaited)
            except BaseException as error:
                go_on, given = work.throw, error

    def answer(self, response: Any) -> Answer | None:
        """Return the frame to write; None where there is no answer."""
        if self._header.api_key == ApiKey.FETCH:
            return self._answer_to_fetch(response)
        wait_ms = self._used_time()
        if self._header.api_key == ApiKey.PRODUCE and self._usage.produce is not None:
            wait_ms = max(wait_ms, self._usage.produce.record(self._size))
        self._throttle(wait_ms)
        return self._encode(self._header, _told(response, wait_ms))

    def _answer_to_fetch(self, response: FetchResponse) -> Answer | None:
        frame = self._encode(self._header, response)
        usage, size = self._usage.fetch, sum(map(len, frame or ()))
        wait_ms, is_lent = self._used_time(), False
        if usage is not None and size > usage.burst:
            is_lent = not usage.wait_ms
            wait_ms = max(wait_ms, usage.lend(size) if is_lent else usage.wait_ms)
        elif usage is not None:
            wait_ms = max(wait_ms, usage.record(size))
            if wait_ms:
                usage.take_back(size)
        if not wait_ms:
            return frame
        self._throttle(wait_ms)
        if not is_lent:
            response = self._nothing_of(response)
        return self._encode(self._header, _told(response, wait_ms))

    def _nothing_of(self, response: FetchResponse) -> FetchResponse:
        """Return the response without data. A session that has just begun is not mentioned: its client begins
        another."""
        if self._request.session_epoch <= 0:
            self._sessions.end(response.session_id)
            return response._replace(responses=(), session_id=NO_SESSION)
        by_id = self._header.api_version >= TOPIC_ID_VERSION
        self._sessions.forget_shown(
            response.session_id,
            (
                new(PartitionKey, (topic.topic_id if by_id else topic.topic, partition.partition_index))
                for topic in response.responses
                for partition in topic.partitions
            ),
        )
        return response._replace(responses=())

    def _used_time(self) -> int:
        """Return the milliseconds of throttling for the time of the event loop that the request took."""
        self.pause()
        return 0 if self._usage.request is None else self._usage.request.record(self._spent_s * 100)

    def _throttle(self, wait_ms: int) -> None:
        if wait_ms:
            self._connection.throttle(wait_ms)


def _told(response: Any, wait_ms: int) -> Any:
    """Return the response with its client's throttle time, where it has a field for it."""
    if wait_ms and "throttle_time_ms" in getattr(response, "_fields", ()):
        return response._replace(throttle_time_ms=wait_ms)
    return response
