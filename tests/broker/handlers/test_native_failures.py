"""A bug of native code closes the connection that met it, and is told with its place. The broker goes on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from headrace.broker.handlers import plain_fetch, plain_produce
from headrace.wire.messages import fetch, produce
from tests.broker.group_broker import RawClient
from tests.broker.guarded import ROOT, TOPIC, guarded
from tests.broker.random_requests import BATCH

native = pytest.importorskip("headrace_native", reason="`make native` has not compiled it")


def writes() -> produce.ProduceRequest:
    data = produce.TopicProduceData(name=TOPIC, partition_data=(produce.PartitionProduceData(0, memoryview(BATCH)),))
    return produce.ProduceRequest(acks=-1, timeout_ms=10_000, topic_data=(data,))


def reads() -> fetch.FetchRequest:
    topics = (fetch.FetchTopic(topic=TOPIC, partitions=(fetch.FetchPartition(0, fetch_offset=0),)),)
    return fetch.FetchRequest(max_wait_ms=0, session_epoch=-1, topics=topics)


@pytest.mark.parametrize(
    ("module", "name", "version", "request_of"),
    [
        (plain_produce, "read_plain_produce", 9, writes),
        (plain_fetch, "read_plain_fetch", 12, reads),
        (plain_fetch, "write_plain_found", 12, reads),
    ],
)
async def test_a_panic_closes_one_connection(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, module: Any, name: str, version: int, request_of: Any
) -> None:
    async with (
        guarded(tmp_path / "data") as found,
        RawClient(found.address, host=ROOT) as first,
        RawClient(found.address, host=ROOT) as second,
    ):
        with monkeypatch.context() as planted, capture_logs() as logs:
            planted.setattr(module, name, lambda *_, **__: native.fail())
            with pytest.raises((ConnectionError, EOFError)):
                await first.ask(version, request_of())
        told = [each for each in logs if each["log_level"] == "error"]
        assert len(told) == 1
        assert "native code failed: panicked at src/panics.rs" in str(told[0]["exc_info"])
        await second.ask(version, request_of())
