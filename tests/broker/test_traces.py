"""Spans of a broker's work reach a collector by OTLP; without an endpoint there is nothing of them."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from headrace.base.errors import CorruptData
from headrace.base.ids import BrokerId, ClusterId
from headrace.base.limits import TRACES_RECORDS_READ_MAX
from headrace.broker import traces
from headrace.broker.kit.deferred import Deferred
from headrace.broker.traces import Traces, no_span, open_traces, spans_of
from headrace.wire.apis import ApiKey, api
from headrace.wire.batches import encode_batch
from headrace.wire.compression import Compression
from headrace.wire.headers import encode_request_frame
from headrace.wire.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from headrace.wire.records import Record
from headrace.wire.replica_fetch import API_KEY as REPLICA_API
from tests import loops
from tests.broker.moving import A, B, C, moving
from tests.broker.test_parts import broker_on


class Collector:
    """Takes traces as a collector does, at `url`. `spans` has the broker of each."""

    def __init__(self) -> None:
        self.spans: list[tuple[str, Any]] = []
        collector = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                request = ExportTraceServiceRequest()
                request.ParseFromString(self.rfile.read(int(self.headers["Content-Length"])))
                collector.take(request)
                self.send_response(200)
                self.end_headers()

            def log_message(self, *_: object) -> None: ...

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}/v1/traces"
        self._thread = threading.Thread(target=self._server.serve_forever)
        self._thread.start()

    def take(self, request: ExportTraceServiceRequest) -> None:
        for resource in request.resource_spans:
            about = {each.key: each.value.string_value for each in resource.resource.attributes}
            for scope in resource.scope_spans:
                self.spans += [(about["service.instance.id"], span) for span in scope.spans]

    def named(self, name: str) -> list[tuple[str, Any]]:
        return [(node, span) for node, span in self.spans if span.name == name]

    def close(self) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


@pytest.fixture
def collector() -> Iterator[Collector]:
    made = Collector()
    try:
        yield made
    finally:
        made.close()


def test_requests_replication_seals_and_moves_have_spans(tmp_path: Path, collector: Collector) -> None:
    async def work() -> None:
        async with moving(tmp_path, configs={"traces.endpoint": collector.url}) as world:
            await world.make()
            await world.write(A, b"0")
            await world.move(B)
            await world.place(B, A, C)
            await world.write(B, b"1")
            assert len(await world.read(B, 0, 2)) == 2

    loops.run(work())
    assert {node for node, _ in collector.named("Produce")} == {"1", "2"}
    assert "2" in {node for node, _ in collector.named("Fetch")}
    assert "2" in {node for node, _ in collector.named("ReplicaFetch")}, "of the leader"
    moves = {span.span_id: span for node, span in collector.named("Move") if node == "1"}
    ((sealer, seal),) = collector.named("Seal")
    assert sealer == "1"
    step = moves[seal.parent_span_id]
    assert {"headrace.topic": "t"}.items() <= {each.key: each.value.string_value for each in step.attributes}.items()
    assert all(span.end_time_unix_nano >= span.start_time_unix_nano > 0 for _, span in collector.spans)


async def test_a_collector_that_is_away_holds_nothing_up(tmp_path: Path, collector: Collector) -> None:
    collector.close()
    broker = broker_on(tmp_path, **{"traces.endpoint": collector.url})
    async with broker:
        assert broker.parts.traces is not None
        with broker.parts.traces.span("Lost"):
            pass


@pytest.fixture
def memory() -> Iterator[tuple[Traces, InMemorySpanExporter]]:
    exporter = InMemorySpanExporter()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("opentelemetry.sdk.trace.export.BatchSpanProcessor", lambda to, **_: SimpleSpanProcessor(to))
        yield Traces(exporter, BrokerId(7), ClusterId("c")), exporter


class Ready(Deferred):
    """An answer, as handlers make them."""

    pipelined = False

    def __init__(self) -> None:
        super().__init__(None)

    def answer(self) -> Any:
        if (error := self.exception()) is not None:
            raise error
        return self.result()


class Caller:
    peer_host = "192.0.2.1"


def frame(key: int) -> memoryview:
    return memoryview(key.to_bytes(2, "big") + bytes(10))


@pytest.mark.parametrize("key", [ApiKey.PRODUCE, ApiKey.FETCH, REPLICA_API])
@pytest.mark.parametrize("ends", ["answered", "cancelled", "failed"])
def test_a_span_ends_when_its_answer_is_ready_however_that_is(
    memory: tuple[Traces, InMemorySpanExporter], key: int, ends: str
) -> None:
    made, exporter = memory
    later = Ready()
    caller: Any = Caller()
    answer: Any = made.traced(lambda *_: later)(frame(int(key)), caller)
    told: list[object] = []
    answer.add_done_callback(told.append)
    assert (answer.done(), answer.pipelined) == (False, False)
    assert exporter.get_finished_spans() == ()
    if ends == "answered":
        later.set_result([b"a"])
        assert answer.answer() == [b"a"]
    elif ends == "cancelled":
        answer.cancel()
    else:
        later.set_exception(OSError())
        with pytest.raises(OSError):  # noqa: PT011 - it has no words
            answer.answer()
    assert answer.done()
    assert told == [later]
    (span,) = exporter.get_finished_spans()
    assert span.name == traces.NAMES[bytes(frame(int(key))[:2])]
    assert span.attributes is not None
    assert span.attributes["client.address"] == "192.0.2.1"


def test_what_cannot_be_served_ends_its_span_and_other_requests_have_none(
    memory: tuple[Traces, InMemorySpanExporter],
) -> None:
    made, exporter = memory
    caller: Any = Caller()

    def refuse(*_: object) -> None:
        raise CorruptData("no")

    with pytest.raises(CorruptData):
        made.traced(refuse)(frame(int(ApiKey.METADATA)), caller)
    assert exporter.get_finished_spans() == ()
    with pytest.raises(CorruptData):
        made.traced(refuse)(frame(int(ApiKey.FETCH)), caller)
    (span,) = exporter.get_finished_spans()
    assert [event.name for event in span.events] == ["exception"]
    assert made.traced(lambda *_: None)(frame(int(ApiKey.PRODUCE)), caller) is None
    assert len(exporter.get_finished_spans()) == 2


TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
PARENTS = tuple(f"00-{TRACE}-{span:016x}-01" for span in range(1, 41))


def produce(
    *parents: str, version: int = 9, packed: Compression = Compression.NONE, txn: str | None = None
) -> memoryview:
    """The frame of a request with a record for each of these contexts; empty: it has none."""
    headers = [((("TraceParent", each.encode()), ("other", None)) if each else ()) for each in parents]
    records = [Record(at, 0, None, b"v" * 100, each) for at, each in enumerate(headers)]
    data = PartitionProduceData(index=0, records=encode_batch(records, compression=packed))
    request = ProduceRequest(
        transactional_id=txn, acks=-1, topic_data=(TopicProduceData(name="t", partition_data=(data,)),)
    )
    codec = api(ApiKey.PRODUCE)
    assert codec is not None
    return memoryview(b"".join(encode_request_frame(codec, version, 1, "c", request))[4:])


def traced(memory: tuple[Traces, InMemorySpanExporter], sent: memoryview) -> ReadableSpan:
    made, exporter = memory
    caller: Any = Caller()
    made.traced(lambda *_: None)(sent, caller)
    return exporter.get_finished_spans()[-1]


@pytest.mark.parametrize("packed", list(Compression))
@pytest.mark.parametrize(("version", "txn"), [(9, None), (3, None), (9, "a transaction")])
def test_a_produce_goes_on_with_the_trace_of_its_records(
    memory: tuple[Traces, InMemorySpanExporter], packed: Compression, version: int, txn: str | None
) -> None:
    span = traced(memory, produce("", PARENTS[0], PARENTS[0], version=version, packed=packed, txn=txn))
    assert span.parent is not None
    assert (f"{span.parent.trace_id:032x}", span.parent.span_id, span.parent.is_remote) == (TRACE, 1, True)
    assert span.context is not None
    assert f"{span.context.trace_id:032x}" == TRACE
    assert not span.links


def test_a_produce_of_several_traces_has_links_to_the_first_of_them(
    memory: tuple[Traces, InMemorySpanExporter],
) -> None:
    span = traced(memory, produce(*PARENTS))
    assert span.parent is None
    assert [link.context.span_id for link in span.links] == list(range(1, TRACES_RECORDS_READ_MAX + 1))


@pytest.mark.parametrize(
    "sent",
    [
        produce("", ""),
        produce("00-none-of-these-01"),
        produce("00-" + "0" * 32 + "-" + "0" * 16 + "-01"),
        produce(PARENTS[0])[:70],
        memoryview(int(ApiKey.PRODUCE).to_bytes(2, "big") + b"\xff" * 30),
        produce(*[PARENTS[0]] * 3000, packed=Compression.ZSTD),
    ],
    ids=["none", "no context", "zeros", "cut", "nonsense", "large"],
)
def test_a_request_without_a_context_that_can_be_read_begins_a_trace(
    memory: tuple[Traces, InMemorySpanExporter], sent: memoryview
) -> None:
    span = traced(memory, sent)
    assert (span.name, span.parent, list(span.links)) == ("Produce", None, [])


def test_a_client_that_samples_nothing_has_no_span(memory: tuple[Traces, InMemorySpanExporter]) -> None:
    made, exporter = memory
    caller: Any = Caller()
    made.traced(lambda *_: None)(produce(PARENTS[0][:-2] + "00"), caller)
    assert exporter.get_finished_spans() == ()


async def test_without_an_endpoint_requests_go_their_usual_way(tmp_path: Path) -> None:
    assert open_traces("", BrokerId(1), ClusterId("c")) is None
    assert spans_of(None) is no_span
    broker = broker_on(tmp_path)
    async with broker:
        requests = broker.parts.requests
        assert broker.parts.traces is None
        assert requests.listener.serve == requests.dispatcher.serve


def test_nothing_of_opentelemetry_is_loaded_without_an_endpoint() -> None:
    code = "import sys, headrace.broker.boot; sys.exit(any(name.startswith('opentelemetry') for name in sys.modules))"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)
