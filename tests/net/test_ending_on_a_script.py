"""The end of a transaction that takes a while: it is waited for, also by those who ask a cluster only twice."""

from __future__ import annotations

from typing import Any

import pytest

from headrace.net.client import transactions as module
from headrace.net.client.cluster import Cluster
from headrace.net.client.errors import RefusedError
from headrace.net.client.retry import Backoff
from headrace.net.client.transactions import Transactions
from headrace.wire.apis import ApiKey
from headrace.wire.errors import ErrorCode
from headrace.wire.headers import RequestHeader
from headrace.wire.messages import find_coordinator, init_producer_id, metadata
from tests.net.scripted_broker import ScriptedBroker, scripted_broker

TWICE = Backoff(attempts_max=2, first_ms=1, longest_ms=1)
ATTEMPTS = 6


def script(broker: ScriptedBroker, busy: int) -> None:
    """It coordinates all ids, and says so many times that the end is under way."""
    left = [ErrorCode.CONCURRENT_TRANSACTIONS] * busy

    def ended(*_: object) -> Any:
        return init_producer_id.InitProducerIdResponse(error_code=left.pop() if left else 0, producer_id=1)

    def found(_: RequestHeader, request: Any) -> Any:
        host, port = broker.address
        of_it = find_coordinator.Coordinator(key=request.coordinator_keys[0], node_id=1, host=host, port=port)
        return find_coordinator.FindCoordinatorResponse(coordinators=(of_it,))

    def known(*_: object) -> Any:
        host, port = broker.address
        return metadata.MetadataResponse(brokers=(metadata.MetadataResponseBroker(node_id=1, host=host, port=port),))

    broker.answers = {ApiKey.INIT_PRODUCER_ID: ended, ApiKey.FIND_COORDINATOR: found, ApiKey.METADATA: known}


@pytest.mark.parametrize("busy", [0, 1, ATTEMPTS - 1, ATTEMPTS])
async def test_an_end_that_is_under_way_is_waited_for(monkeypatch: pytest.MonkeyPatch, busy: int) -> None:
    monkeypatch.setattr(module, "ENDING", Backoff(attempts_max=ATTEMPTS, first_ms=1, longest_ms=1))
    async with scripted_broker({}) as broker:
        script(broker, busy)
        async with Cluster([broker.address], backoff=TWICE) as cluster:
            if busy < ATTEMPTS:
                await Transactions(cluster).end("teller")
            else:
                with pytest.raises(RefusedError, match="another operation on this transaction is still under way"):
                    await Transactions(cluster).end("teller")
        asked = [header for header, _ in broker.requests if header.api_key == ApiKey.INIT_PRODUCER_ID]
        assert len(asked) == min(busy + 1, ATTEMPTS)
