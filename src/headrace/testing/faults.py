"""Faults that a test orders of its broker: refusals, lost answers, slow ones, and answers of the test's own.

A fault holds for the next requests that it is about, as many as `times` says, and is then over. Faults of one API are
looked at in the order in which they were made. Requests that no fault is about are served as ever. Any thread may order
faults; the broker meets them on its loop.

Promises: a refused or dropped request changes nothing in the broker. One whose answer is lost was carried out.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from headrace.base.errors import UsageError
from headrace.base.values import Value
from headrace.wire.apis import Api, ApiKey, api
from headrace.wire.errors import ErrorCode
from headrace.wire.headers import RequestHeader, decode_request_header, encode_response_frame

if TYPE_CHECKING:
    from headrace.net.server.connection import Answer, Connection, Later, Serve

Control: TypeAlias = Callable[[Any], Any]
"""Is given a decoded request, as the classes of `headrace.wire.messages` have it, and returns the response, or None:
the broker is to serve it."""
_SESSION_IS_OVER: Final = ErrorCode.FETCH_SESSION_ID_NOT_FOUND


class _Kind(Enum):
    REFUSE = "refuse"
    DROP = "drop"
    LOSE = "lose"
    DELAY = "delay"
    CONTROL = "control"


@dataclass(slots=True, kw_only=True)
class Fault:
    """One order. `left`: how many requests it still holds for; None: all, until `cancel`."""

    kind: _Kind
    key: ApiKey
    left: int | None
    topic: str | None = None
    partition: int | None = None
    error: ErrorCode = ErrorCode.NONE
    seconds: float = 0.0
    control: Control | None = None
    met: int = 0
    """How many requests it has met."""

    def cancel(self) -> None:
        """It holds for no more requests."""
        self.left = 0

    @property
    def is_over(self) -> bool:
        return self.left == 0


class Faults:
    """The faults of one broker. `Faults.refuse("Produce", "NOT_LEADER_OR_FOLLOWER", topic="orders", partition=0)`."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._orders: dict[int, list[Fault]] = {}
        self._name_of: Callable[[Any], str | None] = lambda _: None

    # orders

    def refuse(
        self, api: str, error: str, *, topic: str | None = None, partition: int | None = None, times: int | None = 1
    ) -> Fault:
        """Answer the next `times` requests of this API with an error, by Kafka's names, and carry nothing of them out.
        `topic`, `partition`: only requests that name it. All else in such a request is refused with it. Raises
        UsageError."""
        code = getattr(ErrorCode, error.upper(), None)
        if not isinstance(code, ErrorCode):
            raise UsageError(f"Kafka has no error {error}: it has names such as NOT_LEADER_OR_FOLLOWER.")
        return self._order(
            Fault(kind=_Kind.REFUSE, key=_key(api), left=times, topic=topic, partition=partition, error=code)
        )

    def drop(self, api: str, *, topic: str | None = None, partition: int | None = None, times: int | None = 1) -> Fault:
        """Close the connection at the next requests: none of them is carried out. Arguments as in `refuse`."""
        return self._order(Fault(kind=_Kind.DROP, key=_key(api), left=times, topic=topic, partition=partition))

    def lose_answer(
        self, api: str, *, topic: str | None = None, partition: int | None = None, times: int | None = 1
    ) -> Fault:
        """Carry out the next requests, and close the connection in place of the answers: the client cannot know what
        became of them. Arguments as in `refuse`."""
        return self._order(Fault(kind=_Kind.LOSE, key=_key(api), left=times, topic=topic, partition=partition))

    def delay(
        self,
        api: str,
        seconds: float,
        *,
        topic: str | None = None,
        partition: int | None = None,
        times: int | None = 1,
    ) -> Fault:
        """Serve the next requests that much later. Arguments as in `refuse`."""
        return self._order(
            Fault(kind=_Kind.DELAY, key=_key(api), left=times, topic=topic, partition=partition, seconds=seconds)
        )

    def control(self, api: str, answer: Control, *, times: int | None = None) -> Fault:
        """Give requests of this API to the test's own function. It runs on the broker's loop and must not block. It
        returns the response, or None where the broker is to serve the request. An exception of it closes the
        connection and stays in the log."""
        return self._order(Fault(kind=_Kind.CONTROL, key=_key(api), left=times, control=answer))

    def clear(self) -> None:
        """End all faults."""
        with self._lock:
            for orders in self._orders.values():
                for fault in orders:
                    fault.cancel()
            self._orders.clear()

    def _order(self, fault: Fault) -> Fault:
        with self._lock:
            self._orders.setdefault(int(fault.key), []).append(fault)
        return fault

    # in the broker

    def before(self, serve: Serve, name_of: Callable[[Any], str | None]) -> Serve:
        """The faults before what serves the broker's listeners. `name_of` returns the name of a topic id."""
        self._name_of = name_of

        def faulty(frame: memoryview, connection: Connection) -> Answer | Later | None:
            if not self._orders:
                return serve(frame, connection)
            header, body_at = decode_request_header(frame)
            found = self._met(header, frame, body_at)
            return serve(frame, connection) if found is None else self._act(found, serve, frame, connection)

        return faulty

    def _met(self, header: RequestHeader, frame: memoryview, body_at: int) -> _Met | None:
        """The first fault that this request is about, counted."""
        orders, codec = self._orders.get(header.api_key), api(header.api_key)
        if not orders or codec is None:
            return None
        from headrace.testing.refusing import refusal

        request = codec.decode_request(header.api_version, frame[body_at:])
        with self._lock:
            orders[:] = [each for each in orders if not each.is_over]
            for fault in orders:
                if self._is_unseen(fault, request):
                    return _Met(fault, codec, header, request, response=_without_session(request))
                if not fault.is_over and self._is_about(fault, codec, request):
                    response = None
                    if fault.kind is _Kind.REFUSE:
                        response = refusal(codec, request, fault.error)
                    elif fault.control is not None and (response := fault.control(request)) is None:
                        continue
                    fault.met += 1
                    fault.left = None if fault.left is None else fault.left - 1
                    return _Met(fault, codec, header, request, response)
        return None

    def _is_unseen(self, fault: Fault, request: Any) -> bool:
        """Whether it is a Fetch in a session, which need not name its partitions. The client is to name them all."""
        return fault.key == ApiKey.FETCH and fault.topic is not None and request.session_epoch > 0

    def _is_about(self, fault: Fault, codec: Api, request: Any) -> bool:
        if fault.topic is None:
            return True
        from headrace.testing.refusing import named_partitions

        return any(
            self._name(topic) == fault.topic and fault.partition in (None, partition)
            for topic, partition in named_partitions(codec, request)
        )

    def _name(self, topic: Any) -> str | None:
        name = getattr(topic, "name", None) or getattr(topic, "topic", None)
        return name or self._name_of(getattr(topic, "topic_id", None))

    def _act(self, met: _Met, serve: Serve, frame: memoryview, connection: Connection) -> Answer | Later | None:
        if met.response is not None:
            if met.codec.key == ApiKey.PRODUCE and not met.request.acks:
                connection.end("a test refuses what wants no answer")
                return None
            return encode_response_frame(met.codec, met.header.api_version, met.header.correlation_id, met.response)
        if met.fault.kind is _Kind.DROP:
            connection.end("a test drops the request")
            return None
        work = _later(met.fault, serve, bytes(frame), connection)
        return _Awaited(asyncio.ensure_future(work))


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class _Met(Value):
    """A request that a fault is about."""

    fault: Fault
    codec: Api
    header: RequestHeader
    request: Any
    response: Any


def _without_session(request: Any) -> Any:
    from headrace.wire.messages.fetch import FetchResponse

    assert request.session_epoch > 0
    return FetchResponse(error_code=_SESSION_IS_OVER)


async def _later(fault: Fault, serve: Serve, frame: bytes, connection: Connection) -> Answer | None:
    """The answer, after the delay. Where it is to be lost, the connection ends in its place."""
    if fault.kind is _Kind.DELAY:
        await asyncio.sleep(fault.seconds)
    answer = serve(memoryview(frame), connection)
    if answer is not None and not isinstance(answer, list):
        over = asyncio.get_running_loop().create_future()
        answer.add_done_callback(lambda _: None if over.done() else over.set_result(None))
        try:
            await over
        except asyncio.CancelledError:
            answer.cancel()
            raise
        answer = answer.answer()
    if fault.kind is _Kind.LOSE:
        connection.end("a test loses the answer")
        return None
    return answer


class _Awaited:
    """A `Later` of a task."""

    pipelined = False

    def __init__(self, task: asyncio.Task[Answer | None]) -> None:
        self._task = task
        self.done = task.done
        self.cancel = task.cancel
        self.add_done_callback = task.add_done_callback

    def answer(self) -> Answer | None:
        if self._task.cancelled():
            return None
        return self._task.result()


def _key(name: str) -> ApiKey:
    """The API of that name, as Kafka writes it: `Produce`, `ListOffsets`. Raises UsageError."""
    for key in ApiKey:
        found = api(int(key)) if key.name.replace("_", "").lower() == name.replace("_", "").lower() else None
        if found is not None:
            return key
    raise UsageError(f"There is no API {name}: it has names such as Produce, Fetch or OffsetCommit.")
