"""How fast the codecs of the hot paths are: `python -m benchmarks.micro.wire`.

Prints microseconds (best of five rounds) per message, and how many times slower the tests' plain codec encodes the
same message. Loopback to nothing: no socket, no file.
"""

from __future__ import annotations

import timeit
import uuid
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple

from headrace.wire.apis import Api, ApiKey, api
from headrace.wire.messages.fetch import (
    FetchableTopicResponse,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    PartitionData,
)
from headrace.wire.messages.metadata import (
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)
from headrace.wire.messages.produce import (
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
    TopicProduceResponse,
)
from tests.wire.schema import cases, slow_encode

TOPIC_ID = uuid.UUID(int=9)
BATCH = bytes(16_384)


class Subject(NamedTuple):
    what: str
    key: ApiKey
    version: int
    message: Any
    is_request: bool


def subjects() -> Iterator[Subject]:
    produce = ProduceRequest(acks=-1, timeout_ms=30_000, topic_data=(_produced(),))
    answer = PartitionProduceResponse(index=3, base_offset=123, log_start_offset=0)
    topic = TopicProduceResponse(name="flights", partition_responses=(answer,))
    fetched = tuple(PartitionData(partition_index=n, high_watermark=5, records=BATCH) for n in range(6))
    wanted = tuple(FetchPartition(partition=n, fetch_offset=5, partition_max_bytes=1 << 20) for n in range(6))
    yield Subject("Produce request, 1 partition", ApiKey.PRODUCE, 12, produce, True)
    yield Subject("Produce response, 1 partition", ApiKey.PRODUCE, 12, ProduceResponse(responses=(topic,)), False)
    topics = (FetchTopic(topic_id=TOPIC_ID, partitions=wanted),)
    yield Subject("Fetch request, 6 partitions", ApiKey.FETCH, 17, FetchRequest(max_wait_ms=500, topics=topics), True)
    responses = (FetchableTopicResponse(topic_id=TOPIC_ID, partitions=fetched),)
    yield Subject("Fetch response, 6 partitions", ApiKey.FETCH, 17, FetchResponse(responses=responses), False)
    yield Subject("Metadata response, 1000 x 6", ApiKey.METADATA, 12, _metadata(), False)


def _produced() -> TopicProduceData:
    return TopicProduceData(name="flights", partition_data=(PartitionProduceData(index=3, records=BATCH),))


def _metadata() -> MetadataResponse:
    partitions = tuple(
        MetadataResponsePartition(partition_index=n, leader_id=1 + n % 3, replica_nodes=(1, 2, 3), isr_nodes=(1, 2, 3))
        for n in range(6)
    )
    topics = tuple(
        MetadataResponseTopic(name=f"topic-{n:04}", topic_id=uuid.UUID(int=n + 1), partitions=partitions)
        for n in range(1000)
    )
    brokers = tuple(MetadataResponseBroker(node_id=n, host="localhost", port=9091 + n) for n in (1, 2, 3))
    return MetadataResponse(brokers=brokers, cluster_id="c" * 22, controller_id=1, topics=topics)


def best_us(function: Callable[[], object]) -> float:
    """Microseconds per call, best of five rounds of about 0.1 s."""
    once = timeit.timeit(function, number=3) / 3
    number = max(1, round(0.1 / once))
    return min(timeit.repeat(function, number=number, repeat=5)) / number * 1e6


def main() -> None:
    print(f"{'message':32}{'version':>8}{'encode us':>12}{'decode us':>12}{'plain / ours':>14}")
    slow = {str(case): case for case in cases()}
    for what, key, version, message, is_request in subjects():
        known = api(key)
        assert isinstance(known, Api)
        encode = known.encode_request if is_request else known.encode_response
        decode = known.decode_request if is_request else known.decode_response
        raw = memoryview(b"".join(encode(version, message)))
        encode_us = best_us(partial(encode, version, message))
        decode_us = best_us(partial(decode, version, raw))
        case = slow[f"{type(message).__name__}-v{version}"]
        plain_us = best_us(partial(slow_encode, case, message))
        print(f"{what:32}{version:8}{encode_us:12.2f}{decode_us:12.2f}{plain_us / encode_us:14.1f}")


if __name__ == "__main__":
    main()
