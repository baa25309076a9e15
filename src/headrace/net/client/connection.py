"""One client connection: requests are pipelined, answers are matched by correlation id, versions are negotiated.

Promises: every request ends, with its answer or with a ConnectionLostError, which is an AnswerLostError once it was
sent. Answers come in the order of the requests (Kafka's promise, checked). Never retries, never reconnects, never
guesses a version.
"""

from __future__ import annotations

import asyncio
import os
from collections import deque
from typing import Any, NamedTuple, cast

from headrace.base.addresses import Address
from headrace.base.limits import (
    CLIENT_CONNECT_TIMEOUT_MS,
    CLIENT_REQUEST_TIMEOUT_MS,
    CLIENT_REQUESTS_IN_FLIGHT_MAX,
    REQUEST_BYTES_MAX,
)
from headrace.net.client.errors import AnswerLostError, ConnectionLostError, UnsupportedError, check
from headrace.wire.apis import Api, ApiKey, api
from headrace.wire.codec import DecodeError
from headrace.wire.errors import ErrorCode
from headrace.wire.frames import FrameSplitter
from headrace.wire.headers import decode_response_header, encode_request_frame

CLIENT_SOFTWARE_NAME = "headrace"
CORRELATION_IDS = 1 << 31


class _Waiting(NamedTuple):
    """A request that was sent and is not yet answered."""

    api: Api
    version: int
    correlation_id: int
    answer: asyncio.Future[Any]


class Connection(asyncio.Protocol):
    """A connection to one broker. Make it with `connect`."""

    def __init__(self, address: Address, client_id: str) -> None:
        self.address = address
        self._client_id = client_id
        self._splitter = FrameSplitter(REQUEST_BYTES_MAX)
        self._waiting: deque[_Waiting] = deque()
        self._slots = asyncio.Semaphore(CLIENT_REQUESTS_IN_FLIGHT_MAX)
        self._next_correlation_id = 0
        self._transport: asyncio.Transport | None = None
        self._lost: ConnectionLostError | None = None
        self._may_write = asyncio.Event()
        self._may_write.set()
        self._closed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.versions: dict[int, tuple[int, int]] = {}

    # called by the event loop

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop's transports have its methods, not its type

    def data_received(self, data: bytes) -> None:
        try:
            for frame in self._splitter.feed(data):
                self._on_frame(memoryview(frame))
        except DecodeError as error:
            self._fail(ConnectionLostError(f"{self.address} sent bytes that are not Kafka's protocol: {error}"))

    def pause_writing(self) -> None:
        self._may_write.clear()

    def resume_writing(self) -> None:
        self._may_write.set()

    def eof_received(self) -> bool:
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        reason = f"broke ({exc})" if exc is not None else "was closed by the broker"
        self._fail(ConnectionLostError(f"The connection to {self.address} {reason}."))
        if not self._closed.done():
            self._closed.set_result(None)

    # called by the owner

    @property
    def is_open(self) -> bool:
        return self._lost is None and self._transport is not None

    def version(self, key: ApiKey, highest: int | None = None, *, lowest: int = 0) -> int:
        """The highest version that both sides speak, from `lowest` to `highest`. Raises UnsupportedError."""
        known = api(key)
        theirs = self.versions.get(key)
        if known is None or theirs is None:
            raise UnsupportedError(f"The broker at {self.address} does not offer {key.name}.")
        lowest = max(known.min_version, lowest)
        highest = known.max_version if highest is None else min(known.max_version, highest)
        if min(highest, theirs[1]) < max(lowest, theirs[0]):
            raise UnsupportedError(
                f"The broker at {self.address} offers {key.name} in versions {theirs[0]} to {theirs[1]}, "
                f"but this side speaks {lowest} to {highest}."
            )
        return min(highest, theirs[1])

    async def request(
        self,
        key: ApiKey,
        message: Any,
        *,
        version: int | None = None,
        timeout_ms: int = CLIENT_REQUEST_TIMEOUT_MS,
        answered: bool = True,
    ) -> Any:
        """Send one request and return its decoded answer (None at once where not `answered`, as for acks=0).

        `version` defaults to the highest in common. An answer that does not come in `timeout_ms` ends the connection:
        later answers could no longer be told apart. Raises ConnectionLostError (AnswerLostError once it was sent),
        UnsupportedError.
        """
        known = api(key)
        assert known is not None, key
        chosen = self.version(key) if version is None else version
        answer: asyncio.Future[Any] | None = None
        async with self._slots:
            try:
                async with asyncio.timeout(timeout_ms / 1000):
                    await self._may_write.wait()
                    answer = self._send(known, chosen, message, answered)
                    return None if answer is None else await answer
            except TimeoutError:
                text = f"{self.address} did not answer {key.name} within {timeout_ms} ms."
                self._fail(ConnectionLostError(text))
                raise (ConnectionLostError if answer is None else AnswerLostError)(text) from None

    async def writable(self) -> None:
        """Wait until the sent bytes are on their way, as far as can be known here, or the connection is lost."""
        await self._may_write.wait()

    def post(self, key: ApiKey, message: Any, *, version: int) -> asyncio.Future[Any]:
        """Send one request at once, so that requests leave in the order of the calls. The future has its decoded
        answer, or fails with AnswerLostError. Bounds nothing: see `writable`. Raises ConnectionLostError.
        """
        known = api(key)
        assert known is not None, key
        answer = self._send(known, version, message, answered=True)
        assert answer is not None
        return answer

    async def close(self) -> None:
        """Close the connection and wait until it is closed. Waiting requests fail. Idempotent."""
        self._fail(ConnectionLostError(f"The connection to {self.address} was closed by this client."), flush=True)
        if self._transport is not None:
            await asyncio.shield(self._closed)

    def abort(self) -> None:
        """End the connection at once. Waiting requests fail."""
        self._fail(ConnectionLostError(f"The connection to {self.address} was closed by this client."))

    # inner

    def _send(self, known: Api, version: int, message: Any, answered: bool) -> asyncio.Future[Any] | None:
        if self._lost is not None:
            raise ConnectionLostError(str(self._lost)) from self._lost
        assert self._transport is not None
        correlation_id = self._next_correlation_id
        self._next_correlation_id = (correlation_id + 1) % CORRELATION_IDS
        self._transport.writelines(encode_request_frame(known, version, correlation_id, self._client_id, message))
        if not answered:
            return None
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._waiting.append(_Waiting(known, version, correlation_id, answer))
        return answer

    def _on_frame(self, frame: memoryview) -> None:
        if not self._waiting:
            raise DecodeError("an answer to no request.")
        waiting = self._waiting[0]
        correlation_id, body_at = decode_response_header(waiting.api.key, waiting.version, frame)
        if correlation_id != waiting.correlation_id:
            raise DecodeError(f"answer {correlation_id} came where {waiting.correlation_id} was due.")
        body = frame[body_at:]
        if waiting.api.key == ApiKey.API_VERSIONS and int.from_bytes(body[:2], "big") == ErrorCode.UNSUPPORTED_VERSION:
            message = waiting.api.decode_response(0, body)  # KIP-511: this refusal is always in version 0
        else:
            message = waiting.api.decode_response(waiting.version, body)
        self._waiting.popleft()
        if not waiting.answer.done():
            waiting.answer.set_result(message)

    def _fail(self, error: ConnectionLostError, *, flush: bool = False) -> None:
        """End the connection. The first reason stands. With `flush`, sent bytes still go out (acks=0)."""
        if self._lost is not None:
            return
        self._lost = error
        self._may_write.set()
        if self._transport is not None:
            if flush and not self._waiting:
                self._transport.close()
            else:
                self._transport.abort()
        while self._waiting:
            answer = self._waiting.popleft().answer
            if not answer.done():
                answer.set_exception(AnswerLostError(str(error)))
                answer.exception()  # marked as seen: not every caller is still there


async def connect(
    address: Address, *, client_id: str = "headrace", timeout_ms: int = CLIENT_CONNECT_TIMEOUT_MS
) -> Connection:
    """Open a connection and negotiate versions. Raises ConnectionLostError, UnsupportedError."""
    loop = asyncio.get_running_loop()
    try:
        async with asyncio.timeout(timeout_ms / 1000):
            _, connection = await loop.create_connection(lambda: Connection(address, client_id), *address)
    except TimeoutError:
        raise ConnectionLostError(f"No answer from {address} within {timeout_ms} ms.") from None
    except OSError as error:
        raise ConnectionLostError(f"Cannot connect to {address}: {_reason(error)}.") from error
    try:
        await _negotiate(connection, timeout_ms)
    except BaseException:
        await connection.close()
        raise
    return connection


def _reason(error: OSError) -> str:
    """The system's own words where there are some: event loops word one failure differently."""
    if error.errno is not None and error.errno > 0:
        return os.strerror(error.errno)
    return error.strerror or str(error)


async def _negotiate(connection: Connection, timeout_ms: int) -> None:
    """Ask for the broker's versions with our highest version, and with a lower one where the broker does not know it
    (KIP-511).
    """
    from headrace import __version__
    from headrace.wire.messages.api_versions import ApiVersionsRequest

    known = api(ApiKey.API_VERSIONS)
    assert known is not None
    request = ApiVersionsRequest(client_software_name=CLIENT_SOFTWARE_NAME, client_software_version=__version__)
    version = known.max_version
    while True:
        response = await connection.request(ApiKey.API_VERSIONS, request, version=version, timeout_ms=timeout_ms)
        offered = {entry.api_key: (entry.min_version, entry.max_version) for entry in response.api_keys}
        if response.error_code != ErrorCode.UNSUPPORTED_VERSION or version == 0:
            break
        theirs = offered.get(ApiKey.API_VERSIONS, (0, 0))[1]
        version = theirs if 0 <= theirs < version else 0
    check(response.error_code, f"ApiVersions at {connection.address}")
    connection.versions = offered
