"""OpenTelemetry traces, where `traces.endpoint` asks for them: spans of requests and of moves, sent by OTLP over HTTP.

Promises:
- Without an endpoint nothing of OpenTelemetry is loaded, and requests go the same way as before.
- A span ends when its work does, also where that fails or is cancelled. Only the loop makes spans.
- A collector that is slow or away holds nothing up: spans wait in a bounded queue, and are dropped beyond it.
- A Produce whose first records belong to one trace of their client is a part of it. Where they belong to several, its
  span has links to them. Nothing is unpacked for that without an endpoint.

Spans have the names of Kafka's APIs: Produce, Fetch. ReplicaFetch is a follower's wait for records, on the leader.
A move has a span for each of its steps, and within one of them is the span of the seal. Sampling follows
OpenTelemetry's own environment variables, such as OTEL_TRACES_SAMPLER.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Final

from headrace.base.errors import UsageError
from headrace.base.ids import BrokerId, ClusterId
from headrace.base.limits import TRACES_EXPORT_S_MAX, TRACES_QUEUED_SPANS_MAX
from headrace.net.server.connection import Answer, Connection, Later, Serve
from headrace.wire import own_apis
from headrace.wire.apis import ApiKey
from headrace.wire.trace_headers import contexts_of

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import SpanExporter
    from opentelemetry.trace import Span as OpenSpan
    from opentelemetry.trace import SpanContext

Span = Callable[..., AbstractContextManager[object]]
"""Opens a span for the block: its name, and its attributes by keyword."""
NAMES: Final = {
    int(key).to_bytes(2, "big"): name
    for key, name in ((ApiKey.PRODUCE, "Produce"), (ApiKey.FETCH, "Fetch"), (own_apis.REPLICA_FETCH, "ReplicaFetch"))
}
"""The requests that have spans, by the first bytes of their frames."""


def no_span(name: str, **attributes: str | int) -> AbstractContextManager[object]:
    """A `Span` where there are no traces."""
    return nullcontext()


class Traces:
    """There is one for each broker that has traces."""

    def __init__(self, exporter: SpanExporter, node: BrokerId, cluster_id: ClusterId) -> None:
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
        from opentelemetry.trace import SpanKind
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        about = {"service.name": "headrace", "service.instance.id": str(node), "headrace.cluster.id": str(cluster_id)}
        self._provider: TracerProvider = TracerProvider(resource=Resource.create(about), shutdown_on_exit=False)
        self._provider.add_span_processor(BatchSpanProcessor(exporter, max_queue_size=TRACES_QUEUED_SPANS_MAX))
        self._tracer = self._provider.get_tracer("headrace")
        self._kind = SpanKind.SERVER
        self._format = TraceContextTextMapPropagator()

    def span(self, name: str, **attributes: str | int) -> AbstractContextManager[object]:
        return self._tracer.start_as_current_span(name, attributes=attributes)

    def traced(self, serve: Serve) -> Serve:
        """Return a function that serves as `serve` does, with a span until the answer is taken."""

        def trace(frame: memoryview, connection: Connection) -> Answer | Later | None:
            name = NAMES.get(bytes(frame[:2]))
            if name is None:
                return serve(frame, connection)
            about: dict[str, str | int] = {
                "client.address": connection.peer_host,
                "messaging.message.body.size": len(frame),
            }
            span = self._started(name, contexts_of(frame) if name == "Produce" else (), about)
            try:
                answer = serve(frame, connection)
            except BaseException as error:
                span.record_exception(error)
                span.end()
                raise
            if answer is None or isinstance(answer, list):
                span.end()
                return answer
            return _Traced(answer, span)

        return trace

    def _started(self, name: str, given: Sequence[dict[str, str]], about: Mapping[str, str | int]) -> OpenSpan:
        """A span that goes on with the one trace that the client gave, or has links to the several."""
        from opentelemetry.trace import Link, NonRecordingSpan, set_span_in_context

        contexts = [context for each in given if (context := self._context(each)).is_valid]
        if len(contexts) == 1:
            parent = set_span_in_context(NonRecordingSpan(contexts[0]))
            return self._tracer.start_span(name, parent, kind=self._kind, attributes=about)
        links = [Link(each) for each in contexts]
        return self._tracer.start_span(name, kind=self._kind, attributes=about, links=links)

    def _context(self, headers: dict[str, str]) -> SpanContext:
        from opentelemetry.context import Context
        from opentelemetry.trace import get_current_span

        return get_current_span(self._format.extract(headers, Context())).get_span_context()

    async def stop(self) -> None:
        """Send what is left, for as long as the exporter tries."""
        await asyncio.get_running_loop().run_in_executor(None, self._provider.shutdown)


class _Traced:
    """A `Later` that ends a span as it is answered or cancelled."""

    __slots__ = ("_later", "_span", "add_done_callback", "done", "pipelined")

    def __init__(self, later: Later, span: OpenSpan) -> None:
        self._later = later
        self._span = span
        self.done = later.done
        self.add_done_callback = later.add_done_callback
        self.pipelined = later.pipelined

    def cancel(self) -> object:
        self._end()
        return self._later.cancel()

    def answer(self) -> Answer | None:
        try:
            return self._later.answer()
        finally:
            self._end()

    def _end(self) -> None:
        if self._span.is_recording():  # not ended yet
            self._span.end()


def open_traces(endpoint: str, node: BrokerId, cluster_id: ClusterId) -> Traces | None:
    """Return None where there is no endpoint. Raises UsageError where OpenTelemetry is not installed."""
    if not endpoint:
        return None
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    except ImportError as error:
        raise UsageError(
            "Traces need OpenTelemetry: pip install 'headrace[traces]', or leave out traces.endpoint."
        ) from error
    return Traces(OTLPSpanExporter(endpoint=endpoint, timeout=TRACES_EXPORT_S_MAX), node, cluster_id)


def spans_of(traces: Traces | None) -> Span:
    return no_span if traces is None else traces.span
