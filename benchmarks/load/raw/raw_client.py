"""Cases with a client that costs next to nothing: requests encoded once, sent again and again over one socket."""

from __future__ import annotations

import socket
import statistics
import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from benchmarks.load.cases import MEGABYTE, About, Entrant, Figures, leaders, portion, topic_on
from benchmarks.load.rivals import Guarded, door_of
from headrace.base.properties import parse_properties
from headrace.security.jaas import read_jaas
from headrace.wire.apis import Api, ApiKey, api
from headrace.wire.batches import Record, encode_batch
from headrace.wire.headers import decode_response_header, encode_request_frame
from headrace.wire.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from headrace.wire.messages.sasl_authenticate import SaslAuthenticateRequest
from headrace.wire.messages.sasl_handshake import SaslHandshakeRequest

VERSION: Final = 9
LENGTH_BYTES: Final = 4
READ_BYTES: Final = 256 * 1024
TIMEOUT_S: Final = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Raw:
    """`requests` produce requests of one batch each, to the partitions in turn, with a fixed number in flight. The rate
    is requests per second, or the figure that `rate` names."""

    about: About
    requests: int
    records: int
    record_bytes: int
    in_flight: int
    partitions: int = 1
    rate: str = "requests_per_s"

    def run(self, entrant: Entrant) -> Figures:
        with (
            topic_on(entrant, self.about.name, self.partitions) as topic,
            connected(entrant, topic, self.partitions) as connection,
        ):
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            connection.settimeout(TIMEOUT_S)
            requests = [
                produce_frame(topic, [partition], self.records, self.record_bytes)
                for partition in range(self.partitions)
            ]
            latencies, seconds = self.load(connection, requests)
        cuts = statistics.quantiles(latencies, n=1000)
        megabytes = self.requests * self.records * self.record_bytes / MEGABYTE
        figures = {
            "requests_per_s": self.requests / seconds,
            "mb_per_s": megabytes / seconds,
            "latency_p50_ms": cuts[499] * 1000,
            "latency_p99_ms": cuts[989] * 1000,
            "latency_max_ms": max(latencies) * 1000,
        }
        return Figures(rate=figures[self.rate], others=figures, megabytes=megabytes)

    def scaled(self, factor: float) -> Raw:
        return replace(self, requests=portion(self.requests, factor))

    def load(self, connection: socket.socket, requests: Sequence[bytes]) -> tuple[list[float], float]:
        """Latencies, and all the time, in seconds."""
        latencies: list[float] = []
        sent_at: deque[float] = deque()
        received = bytearray()
        sent, begun = 0, time.perf_counter()
        while len(latencies) < self.requests:
            free = min(self.in_flight - len(sent_at), self.requests - sent)
            if free:
                sent_at.extend([time.perf_counter()] * free)
                connection.sendall(b"".join([requests[at % len(requests)] for at in range(sent, sent + free)]))
                sent += free
            received += connection.recv(READ_BYTES)
            at, now = 0, time.perf_counter()
            while len(received) - at >= LENGTH_BYTES:
                end = at + LENGTH_BYTES + int.from_bytes(received[at : at + LENGTH_BYTES], "big")
                if end > len(received):
                    break
                if not latencies or len(latencies) == self.requests - 1:
                    check_produced(bytes(received[at + LENGTH_BYTES : end]))
                latencies.append(now - sent_at.popleft())
                at = end
            del received[:at]
        return latencies, time.perf_counter() - begun


def connected(entrant: Entrant, topic: str, partitions: int) -> socket.socket:
    """To the one broker that leads all of the topic, by the way in for the load."""
    (address,) = leaders(entrant, topic, partitions)
    bootstrap, config = door_of(entrant.rival)
    host, _, port = (bootstrap if isinstance(entrant.rival, Guarded) else address).rpartition(":")
    connection = socket.create_connection((host, int(port)), TIMEOUT_S)
    if config is not None:
        _log_in(connection, parse_properties(config.read_text()))
    return connection


def _log_in(connection: socket.socket, config: Mapping[str, str]) -> None:
    """By PLAIN, in plain text."""
    options = read_jaas(config["sasl.jaas.config"]).options
    token = "\0".join(("", options["username"], options["password"])).encode()
    for codec, request in (
        (api(int(ApiKey.SASL_HANDSHAKE)), SaslHandshakeRequest(mechanism="PLAIN")),
        (api(int(ApiKey.SASL_AUTHENTICATE)), SaslAuthenticateRequest(auth_bytes=token)),
    ):
        assert codec is not None
        connection.sendall(b"".join(bytes(part) for part in encode_request_frame(codec, 1, 1, "raw", request)))
        left = int.from_bytes(connection.recv(LENGTH_BYTES, socket.MSG_WAITALL), "big")
        answer = memoryview(connection.recv(left, socket.MSG_WAITALL))
        _, at = decode_response_header(codec.key, 1, answer)
        assert codec.decode_response(1, answer[at:]).error_code == 0, "the load may come in"


def _produce() -> Api:
    found = api(int(ApiKey.PRODUCE))
    assert found is not None
    return found


def produce_frame(topic: str, partitions: Sequence[int], records: int, record_bytes: int) -> bytes:
    """A request at acks=all with one such batch for each of the partitions."""
    now_ms = time.time_ns() // 1_000_000
    return batch_frame(
        topic, partitions, encode_batch([Record(at, now_ms, None, bytes(record_bytes)) for at in range(records)])
    )


def batch_frame(topic: str, partitions: Sequence[int], batch: bytes) -> bytes:
    """A request at acks=all with this batch for each of the partitions."""
    each = tuple(PartitionProduceData(index=index, records=memoryview(batch)) for index in partitions)
    data = (TopicProduceData(name=topic, partition_data=each),)
    request = ProduceRequest(acks=-1, timeout_ms=30_000, topic_data=data)
    return b"".join(bytes(part) for part in encode_request_frame(_produce(), VERSION, 7, "raw", request))


def check_produced(frame: bytes | memoryview) -> None:
    """The answer to `produce_frame`, without its length."""
    _, at = decode_response_header(int(ApiKey.PRODUCE), VERSION, memoryview(frame))
    response = _produce().decode_response(VERSION, memoryview(frame)[at:])
    for answer in response.responses[0].partition_responses:
        assert answer.error_code == 0, (
            f"produce to partition {answer.index} was answered with error {answer.error_code}"
        )
