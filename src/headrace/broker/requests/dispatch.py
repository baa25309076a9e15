"""Takes a frame to its handler and back: header, version check, body, handler, response frame.

Promises:
- Only advertised APIs and versions are served. To an unknown version of ApiVersions the answer is the list, under
  UNSUPPORTED_VERSION (KIP-511). Any other unknown API or version closes the connection with one log line, as in Kafka.
- One metadata image serves the whole of one request.
- A bug of ours (a failed assertion) stops the broker; it is never hidden behind an answer.
- Until `open`, no client is served from an image that may be older than what it has seen elsewhere. It waits for a
  moment; then its connection is closed, and it asks another broker.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from types import GeneratorType
from typing import Any, Final, cast

from headrace.base.errors import CorruptData, HeadraceError
from headrace.base.limits import REQUEST_ELEMENTS_AT_ONCE_MAX, UNREADY_WAIT_MS_MAX
from headrace.broker.kit.deferred import Deferred, settled
from headrace.broker.requests.context import (
    Admitted,
    Handler,
    Offer,
    Refused,
    RequestContext,
    Services,
    Shortcut,
    Slices,
)
from headrace.broker.requests.metering import EXEMPT, Metered
from headrace.broker.requests.private import Private
from headrace.broker.requests.quotas import ClientUsage
from headrace.broker.requests.turns import names_very_much
from headrace.logs import get_logger
from headrace.net.server.listener import Answer, Connection, Later
from headrace.wire.apis import Api, ApiKey, api
from headrace.wire.headers import FIXED_BYTES, RequestHeader, decode_request_header, encode_key, encode_response_frame
from headrace.wire.messages.api_versions import ApiVersionsRequest
from headrace.wire.quirks import repaired

log = get_logger(__name__)

BEFORE_READY: Final = frozenset(
    {
        ApiKey.API_VERSIONS,
        ApiKey.ENVELOPE,
        ApiKey.DESCRIBE_CLUSTER,
        ApiKey.DESCRIBE_QUORUM,
        ApiKey.ADD_RAFT_VOTER,
        ApiKey.REMOVE_RAFT_VOTER,
    }
)
"""APIs that are answered at any time: brokers join a cluster and form its quorum through them, and operators see why
not."""


class Dispatcher:
    """Serves the frames of a listener. `offers`: the APIs that are served, each of which may be loaded when it is first
    requested. `private`: APIs that are not advertised, each given its frames whole. `on_bug` is called with a bug of
    ours, `on_response` with each response that is put together here."""

    def __init__(
        self,
        services: Services,
        offers: Mapping[int, Offer],
        *,
        on_bug: Callable[[BaseException], None],
        private: Mapping[int, Private] | None = None,
        on_response: Callable[[int, Any], None] | None = None,
    ) -> None:
        self._services = services
        self._offers = offers
        self._handlers: dict[int, Handler] = {}
        """Those of the offers that are loaded."""
        self._apis: dict[int, Api] = {}
        """The codecs of `_handlers`."""
        self._private = private or {}
        self._on_bug = on_bug
        self._on_response = on_response
        self._quotas = services.quotas
        self._authority = services.authority
        self._opened = asyncio.Event()
        self._shortcuts: dict[bytes, Shortcut] = {}
        """Shortcuts by the first bytes of a frame."""

    def open(self) -> None:
        """Serve clients from now on: the broker is ready."""
        self._opened.set()
        for key, offer in self._offers.items():
            if offer.is_loaded:
                self._first(key)

    def _first(self, key: int) -> Handler | None:
        """Return the handler of an API that is requested for the first time; None where it is not served. From the next
        request on it has its shortcuts."""
        offer = self._offers.get(key)
        if offer is None:
            return None
        handler = self._handlers[key] = offer.loaded()
        self._apis[key] = cast("Api", api(key))
        if self._opened.is_set():
            self._add_shortcuts(handler)
        return handler

    def _add_shortcuts(self, handler: Handler) -> None:
        if handler.shortcuts is not None:
            for version, shortcut in handler.shortcuts(self._services).items():
                self._shortcuts[encode_key(handler.key, version)] = shortcut

    def serve(self, frame: memoryview, connection: Connection) -> Answer | Later | None:
        """Serve one request frame. Raises CorruptData where it cannot be answered (the connection is then closed)."""
        shortcut = self._shortcuts.get(bytes(frame[:4]))
        usage = None
        if shortcut is not None and self._quotas.are_set:
            usage = self._usage(decode_request_header(frame)[0], connection)
        if shortcut is not None and usage is None:
            try:
                answer = shortcut(frame, connection)
            except Exception as error:
                self.failed(decode_request_header(frame)[0], error, connection)
                return None
            if isinstance(answer, Deferred):
                return Pending(self, decode_request_header(frame)[0], answer, connection, pipelined=False)
            if answer is not None:
                return answer
        private = self._private.get(int.from_bytes(frame[:2])) if len(frame) >= FIXED_BYTES else None
        if private is not None:
            return self._serve_private(private, frame, connection)
        header, body_at = decode_request_header(frame)
        handler = self._handlers.get(header.api_key) or self._first(header.api_key)
        if handler is None:
            raise CorruptData(f"API {header.api_key} is not served; ask for ApiVersions first")
        if header.api_key not in BEFORE_READY and not self._opened.is_set():
            waiting = self._once_open(bytes(frame), connection)
            return Pending(self, header, asyncio.ensure_future(waiting), connection, pipelined=False)
        lowest, highest = handler.versions
        if not lowest <= header.api_version <= highest:
            if header.api_key != ApiKey.API_VERSIONS:
                raise CorruptData(
                    f"{self._apis[header.api_key].name} version {header.api_version} is not served, "
                    f"only {lowest} to {highest}"
                )
            header = header._replace(api_version=0)
            request: Any = ApiVersionsRequest()
            context = self._context(header, connection, len(frame), unsupported=True)
        else:
            body = repaired(header.api_key, header.api_version, frame[body_at:])
            request = self._apis[header.api_key].decode_request(header.api_version, body)
            context = self._context(header, connection, len(frame), is_long=_is_long(frame, request))
        if shortcut is None and self._quotas.are_set:
            usage = self._usage(header, connection)
        if usage is not None:
            return self._handle_metered(usage, handler, header, request, context, connection)
        return self._handle(handler, header, request, context, connection)

    async def _once_open(self, frame: bytes, connection: Connection) -> Answer | None:
        """Return the answer, once clients are served. Where that takes too long, close the connection."""
        try:
            async with asyncio.timeout(UNREADY_WAIT_MS_MAX / 1000):
                await self._opened.wait()
        except TimeoutError:
            connection.end("this broker is not ready yet")
            return None
        answer = self.serve(memoryview(frame), connection)
        if answer is None or isinstance(answer, list):
            return answer
        over = asyncio.get_running_loop().create_future()
        answer.add_done_callback(lambda _: None if over.done() else over.set_result(None))
        try:
            await over
        except asyncio.CancelledError:
            answer.cancel()
            raise
        return answer.answer()

    def _serve_private(self, private: Private, frame: memoryview, connection: Connection) -> Answer | Later | None:
        try:
            return private(frame, connection, self._authority.rights(connection, int.from_bytes(frame[:2])))
        except CorruptData:
            raise
        except Exception as error:
            log.error("a frame of another broker failed: a bug of the broker, please report it", exc_info=error)
            connection.abort()
            self._on_bug(error)
            return None

    def _context(
        self,
        header: RequestHeader,
        connection: Connection,
        size: int,
        *,
        unsupported: bool = False,
        is_long: bool = False,
    ) -> RequestContext:
        return RequestContext(
            services=self._services,
            image=self._services.metadata.image,
            version=-1 if unsupported else header.api_version,
            client_id=header.client_id or "",
            client_host=connection.peer_host,
            listener=connection.listener_name,
            received_bytes=size,
            rights=self._authority.rights(connection, header.api_key),
            principal=connection.principal,
            is_long=is_long,
        )

    def _handle(
        self,
        handler: Handler,
        header: RequestHeader,
        request: Any,
        context: RequestContext,
        connection: Connection,
    ) -> Answer | Later | None:
        try:
            result = _result(handler, request, context)
            if isinstance(result, Deferred):
                return Foreseen(self, header, result, connection, pipelined=handler.pipelined)
            if not inspect.isawaitable(result):
                return self.encode(header, result)
        except CorruptData:
            raise
        except Exception as error:
            self.failed(header, error, connection)
            return None
        pipelined = handler.pipelined and not context.is_long
        return Pending(self, header, _future(result), connection, pipelined=pipelined)

    def _usage(self, header: RequestHeader, connection: Connection) -> ClientUsage | None:
        """Return the client's usage, where a quota holds for it."""
        if header.api_key in EXEMPT:
            return None
        return self._quotas.usage(connection.principal, header.client_id or "")

    def _handle_metered(
        self,
        usage: ClientUsage,
        handler: Handler,
        header: RequestHeader,
        request: Any,
        context: RequestContext,
        connection: Connection,
    ) -> Answer | Later | None:
        metered = Metered(
            usage,
            header,
            context.received_bytes,
            connection=connection,
            clock=self._services.clock,
            sessions=self._services.fetch_sessions,
            encode=self.encode,
        )
        try:
            result = _result(handler, metered.within_burst(request), context)
            if not isinstance(result, Deferred) and not inspect.isawaitable(result):
                return metered.answer(result)
        except CorruptData:
            raise
        except Exception as error:
            self.failed(header, error, connection)
            return None
        metered.pause()
        if inspect.iscoroutine(result):
            result = _awaited(metered.timed(result))
        return PendingMetered(self, header, _future(result), connection, metered)

    def encode(self, header: RequestHeader, response: Any) -> Answer | None:
        """Return the response as a frame; None where there is no response."""
        if response is None:
            return None
        if self._on_response is not None:
            self._on_response(header.api_key, response)
        return encode_response_frame(self._apis[header.api_key], header.api_version, header.correlation_id, response)

    def failed(self, header: RequestHeader, error: BaseException, connection: Connection) -> None:
        """End the connection, as a handler raised. A failure of disk or network is logged; anything else is a bug of
        ours, for no client can cause it, and stops the broker."""
        if isinstance(error, (HeadraceError, OSError)):
            log.warning("request failed", api=ApiKey(header.api_key).name, reason=str(error))
            connection.abort()
            return
        log.error(
            "request failed: a bug of the broker, please report it",
            api=ApiKey(header.api_key).name,
            version=header.api_version,
            client=connection.peer_host,
            exc_info=error,
        )
        connection.abort()
        if isinstance(error, AssertionError):
            self._on_bug(error)


class Pending:
    """A `Later`: the pending answer of a handler, or of a shortcut (whose result is a frame already)."""

    __slots__ = ("_connection", "_dispatcher", "_future", "_header", "add_done_callback", "cancel", "done", "pipelined")

    def __init__(
        self,
        dispatcher: Dispatcher,
        header: RequestHeader,
        future: asyncio.Future[Any] | Deferred,
        connection: Connection,
        *,
        pipelined: bool,
    ) -> None:
        self._dispatcher = dispatcher
        self._header = header
        self._connection = connection
        self._future = future
        self.done = future.done
        self.cancel = future.cancel
        self.add_done_callback = future.add_done_callback
        self.pipelined = pipelined

    def answer(self) -> Answer | None:
        if self._future.cancelled():  # not by the end of the connection, which asks for no answer
            self._connection.abort()
            return None
        error = self._future.exception()
        if error is None:
            try:
                return self._encode(self._future.result())
            except Exception as mistake:
                error = mistake
        self._dispatcher.failed(self._header, error, self._connection)
        return None

    def _encode(self, result: Any) -> Answer | None:
        return result if isinstance(result, list) else self._dispatcher.encode(self._header, result)


def _is_long(frame: memoryview, request: Any) -> bool:
    """`RequestContext.is_long`. An element takes a byte at least."""
    return len(frame) > REQUEST_ELEMENTS_AT_ONCE_MAX and names_very_much(request)


def _result(handler: Handler, request: Any, context: RequestContext) -> Any:
    """Return the response of the handler to what its client has the rights for, or a `Deferred` or awaitable of it."""
    return _in_turns(handler, request, context) if context.is_long else _begun(handler, request, context)


async def _in_turns(handler: Handler, request: Any, context: RequestContext) -> Any:
    """As `_result`, of a request that took a turn of the event loop to be read."""
    await asyncio.sleep(0)
    return await _settled(_begun(handler, request, context))


def _begun(handler: Handler, request: Any, context: RequestContext) -> Any:
    """As `_result`, of a request that is handled at once, as far as its handler can."""
    if not context.rights.are_bounded:
        return handler.handle(request, context)
    found = handler.access(request, context)
    if isinstance(found, GeneratorType):
        return _in_slices(found, handler, context)
    return _granted(cast("Admitted | Refused", found), handler, context)


async def _in_slices(slices: Slices, handler: Handler, context: RequestContext) -> Any:
    """As `_result`, of a request that is checked in slices. It is handled by the image that it was checked by: a later
    one may know a topic by an id that nobody has checked."""
    assert context.is_long or not handler.pipelined, "requests behind it must not overtake it"
    while True:
        try:
            wanted = next(slices)
        except StopIteration as stop:
            found = cast("Admitted | Refused", stop.value)
            break
        await (asyncio.sleep(0) if wanted is None else wanted)
    return await _settled(_granted(found, handler, context))


def _granted(found: Admitted | Refused, handler: Handler, context: RequestContext) -> Any:
    """As `_result`, of a request that is checked."""
    if isinstance(found, Refused):
        return found.response
    result = handler.handle(found.request, found.context or context)
    if found.finish is None:
        return result
    if isinstance(result, Deferred) or inspect.isawaitable(result):
        return _finished(_future(result), found.finish)
    return found.finish(result)


async def _finished(result: asyncio.Future[Any] | Deferred, finish: Callable[[Any], Any]) -> Any:
    return finish(await _settled(result))


async def _settled(result: Any) -> Any:
    """Return the response of which this is a `Deferred` or awaitable, or which it is."""
    return await result if inspect.isawaitable(result) else await settled(result)


async def _awaited(work: Awaitable[Any]) -> Any:
    """A coroutine, which can be a task."""
    return await work


def _future(result: Any) -> asyncio.Future[Any] | Deferred:
    if isinstance(result, (asyncio.Future, Deferred)):
        return result
    return asyncio.ensure_future(cast("Coroutine[Any, Any, Any]", result))


class PendingMetered(Pending):
    """A `Later` whose client has quotas."""

    __slots__ = ("_metered",)

    def __init__(
        self,
        dispatcher: Dispatcher,
        header: RequestHeader,
        future: asyncio.Future[Any] | Deferred,
        connection: Connection,
        metered: Metered,
    ) -> None:
        super().__init__(dispatcher, header, future, connection, pipelined=False)
        self._metered = metered

    def _encode(self, result: Any) -> Answer | None:
        self._metered.resume()
        return self._metered.answer(result)


class Foreseen(Pending):
    """A `Later` whose answer is put together before it may be sent: there is time while the disk is at work."""

    __slots__ = ("_expected", "_frame")

    def __init__(
        self,
        dispatcher: Dispatcher,
        header: RequestHeader,
        deferred: Deferred,
        connection: Connection,
        *,
        pipelined: bool,
    ) -> None:
        super().__init__(dispatcher, header, deferred, connection, pipelined=pipelined)
        self._expected = deferred.expected
        self._frame = dispatcher.encode(header, deferred.expected)

    def answer(self) -> Answer | None:
        future = self._future
        if not future.cancelled() and future.exception() is None and future.result() is self._expected:
            return self._frame
        return super().answer()
