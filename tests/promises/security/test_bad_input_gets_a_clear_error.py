"""Promise 8: bad input gets a Kafka error, or a closed connection with one log line; nothing crashes, leaks or is lost.

Written on the wire by hand, against a broker process that must live through all of it.
"""

from __future__ import annotations

import random
import resource
import socket
import struct
import time
import zlib
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, suppress
from pathlib import Path
from typing import Any, Final
from uuid import UUID

import psutil
import pytest
from crc32c import crc32c

from headrace.wire.apis import ApiKey, api
from headrace.wire.batches import encode_batch
from headrace.wire.codec import NO_UUID
from headrace.wire.errors import ErrorCode
from headrace.wire.headers import decode_response_header, encode_request_frame, encode_request_header
from headrace.wire.messages.api_versions import ApiVersionsRequest
from headrace.wire.messages.create_topics import CreatableTopic, CreateTopicsRequest
from headrace.wire.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from headrace.wire.messages.metadata import MetadataRequest
from headrace.wire.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from headrace.wire.records import Record
from tools.servers.broker_process import BrokerProcess

TOPIC: Final = "fed"
ANSWER_TIMEOUT_S: Final = 150.0
MUTATIONS: Final = 400
MEMORY_GROWTH_BYTES_MAX: Final = 128 * 1024 * 1024
SEED: Final = 8
PRODUCE_VERSION: Final = 9
METADATA_VERSION: Final = 12
FETCH_VERSION: Final = 12
FETCH_BY_ID_VERSION: Final = 13
LATENCY_S_MAX: Final = 2.0
"""Far more than an answer takes, far less than waiting for the rude would: other work runs on this machine."""


class Line:
    """One connection that sends what it likes. `ask` gives the response's body, or None where the broker hung up."""

    def __init__(self, bootstrap: str) -> None:
        host, _, port = bootstrap.rpartition(":")
        self._socket = socket.create_connection((host, int(port)), timeout=ANSWER_TIMEOUT_S)
        self._file = self._socket.makefile("rb")

    def ask(self, data: bytes) -> bytes | None:
        try:
            self._socket.sendall(data)
            head = self._file.read(4)
            return self._file.read(struct.unpack(">i", head)[0]) if len(head) == 4 else None
        except (ConnectionError, BrokenPipeError):
            return None

    def finish(self, data: bytes) -> None:
        """Send, end the sending side, and wait until the broker has hung up too."""
        try:
            self._socket.sendall(data)
            self._socket.shutdown(socket.SHUT_WR)
            while self._file.read(65536):
                pass
        except (ConnectionError, BrokenPipeError, OSError):
            pass

    def close(self) -> None:
        self._file.close()
        self._socket.close()


@pytest.fixture(scope="module")
def fed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """One broker for all cases, with a topic of one partition: it must live through every one of them."""
    with BrokerProcess(tmp_path_factory.mktemp("bad-input")) as broker:
        line = Line(broker.bootstrap)
        topics = (CreatableTopic(name=TOPIC, num_partitions=1, replication_factor=1),)
        request = CreateTopicsRequest(topics=topics, timeout_ms=120_000)
        answer = line.ask(frame(ApiKey.CREATE_TOPICS, 5, request))
        assert response(ApiKey.CREATE_TOPICS, 5, answer).topics[0].error_code == ErrorCode.NONE
        line.close()
        yield broker


@pytest.fixture
def line(fed: BrokerProcess) -> Iterator[Line]:
    connection = Line(fed.bootstrap)
    yield connection
    connection.close()
    assert_it_serves(fed)


def frame(key: ApiKey, version: int, message: Any) -> bytes:
    """A correct frame, its length first."""
    known = api(key)
    assert known is not None
    return b"".join(map(bytes, encode_request_frame(known, version, 7, "tests", message)))


def response(key: ApiKey, version: int, answer: bytes | None) -> Any:
    assert answer is not None, "the broker hung up"
    correlation_id, at = decode_response_header(key, version, memoryview(answer))
    assert correlation_id == 7
    known = api(key)
    assert known is not None
    return known.decode_response(version, memoryview(answer)[at:])


def with_length(body: bytes) -> bytes:
    return struct.pack(">i", len(body)) + body


def produce(records: bytes, *, topic: str = TOPIC, partition: int = 0) -> bytes:
    data = (PartitionProduceData(index=partition, records=records),)
    topics = (TopicProduceData(name=topic, partition_data=data),)
    return frame(ApiKey.PRODUCE, PRODUCE_VERSION, ProduceRequest(acks=-1, timeout_ms=120_000, topic_data=topics))


def batch(value: bytes = b"good") -> bytearray:
    return bytearray(encode_batch([Record(0, 1_700_000_000_000, b"k", value, ())]))


def resealed(data: bytearray) -> None:
    """Make the CRC right again, so that only the lie is wrong."""
    data[17:21] = crc32c(bytes(data[21:])).to_bytes(4, "big")


def end_of_log(line: Line) -> int:
    """Where the next good batch lands, which tells how many were taken before it."""
    answer = response(ApiKey.PRODUCE, PRODUCE_VERSION, line.ask(produce(bytes(batch()))))
    partition = answer.responses[0].partition_responses[0]
    assert partition.error_code == ErrorCode.NONE
    return int(partition.base_offset)


def assert_it_serves(broker: BrokerProcess) -> None:
    """The process lives, a new connection is served, and the log tells of no bug."""
    assert psutil.pid_exists(broker.pid)
    connection = Line(broker.bootstrap)
    answer = connection.ask(frame(ApiKey.METADATA, METADATA_VERSION, MetadataRequest(topics=None)))
    assert TOPIC in [topic.name for topic in response(ApiKey.METADATA, METADATA_VERSION, answer).topics]
    connection.finish(b"")
    connection.close()
    assert "bug" not in broker.log.read_text()


HEADER: Final = encode_request_header(ApiKey.METADATA, METADATA_VERSION, 7, "tests")
HANGS_UP: Final = {
    "an HTTP request": b"GET / HTTP/1.1\r\n\r\n",
    "a negative length": struct.pack(">i", -5),
    "a length of no frame": struct.pack(">i", 0),
    "a length beyond the limit": struct.pack(">i", 2**31 - 1),
    "half a header": with_length(b"\x00\x03\x00"),
    "an API that nobody has": with_length(struct.pack(">hhih", 9999, 0, 7, -1)),
    "a version that is not served": with_length(struct.pack(">hhih", ApiKey.METADATA, 99, 7, -1)),
    "a negative version": with_length(struct.pack(">hhih", ApiKey.PRODUCE, -1, 7, -1)),
    "a body that is cut off": with_length(HEADER + b"\x05\x01"),
    "a list longer than its frame": with_length(HEADER + b"\xff\xff\xff\xff\x0f"),
    "bytes left over": with_length(HEADER + b"\x01\x00\x00\x00" + b"left over"),
    "a varint without end": with_length(HEADER + b"\xff" * 20),
}


@pytest.mark.parametrize("data", HANGS_UP.values(), ids=HANGS_UP.keys())
def test_what_is_no_request_ends_its_connection_with_one_log_line(fed: BrokerProcess, line: Line, data: bytes) -> None:
    before = fed.log.read_text().count("connection closed")
    assert line.ask(data) is None
    assert fed.log.read_text().count("connection closed") == before + 1


def test_a_version_of_api_versions_that_is_too_new_gets_the_list(line: Line) -> None:
    body = encode_request_header(ApiKey.API_VERSIONS, 3, 7, "tests").replace(
        b"\x00\x12\x00\x03", b"\x00\x12\x00\x63", 1
    )
    answer = response(ApiKey.API_VERSIONS, 0, line.ask(with_length(body + b"\x01\x01\x00")))
    assert answer.error_code == ErrorCode.UNSUPPORTED_VERSION
    assert ApiKey.API_VERSIONS in [known.api_key for known in answer.api_keys]
    again = line.ask(frame(ApiKey.API_VERSIONS, 0, ApiVersionsRequest()))
    assert response(ApiKey.API_VERSIONS, 0, again).error_code == ErrorCode.NONE


def damaged(change: Callable[[bytearray], None]) -> bytes:
    data = batch()
    change(data)
    return bytes(data)


def wrong_crc(data: bytearray) -> None:
    data[-1] ^= 1


def wrong_count(data: bytearray) -> None:
    data[57:61] = struct.pack(">i", 5)


def old_magic(data: bytearray) -> None:
    data[16] = 1


def wrong_length(data: bytearray) -> None:
    data[8:12] = struct.pack(">i", len(data) * 2)


def no_records(data: bytearray) -> None:
    data[23:27] = struct.pack(">i", -1)
    data[57:61] = struct.pack(">i", 0)
    resealed(data)


def more_offsets_than_records(data: bytearray) -> None:
    data[23:27] = struct.pack(">i", 1000)
    resealed(data)


def fewer_than_no_records(data: bytearray) -> None:
    data[23:27] = struct.pack(">i", -8)
    data[57:61] = struct.pack(">i", -7)
    resealed(data)


def an_unknown_codec(data: bytearray) -> None:
    data[22] |= 7
    resealed(data)


def negative_length(data: bytearray) -> None:
    data[8:12] = struct.pack(">i", -100)


REFUSED: Final = {
    "a count of none": (damaged(no_records), {ErrorCode.CORRUPT_MESSAGE, ErrorCode.INVALID_RECORD}),
    "a count below none": (damaged(fewer_than_no_records), {ErrorCode.CORRUPT_MESSAGE, ErrorCode.INVALID_RECORD}),
    "offsets without records": (
        damaged(more_offsets_than_records),
        {ErrorCode.CORRUPT_MESSAGE, ErrorCode.INVALID_RECORD},
    ),
    "a codec that nobody has": (damaged(an_unknown_codec), {ErrorCode.CORRUPT_MESSAGE}),
    "a length below nothing": (damaged(negative_length), {ErrorCode.CORRUPT_MESSAGE}),
    "bytes behind the batch": (bytes(batch()) + b"more", {ErrorCode.CORRUPT_MESSAGE, ErrorCode.INVALID_RECORD}),
    "a wrong CRC": (damaged(wrong_crc), {ErrorCode.CORRUPT_MESSAGE}),
    "a wrong count": (damaged(wrong_count), {ErrorCode.CORRUPT_MESSAGE, ErrorCode.INVALID_RECORD}),
    "an old format": (damaged(old_magic), {ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT, ErrorCode.INVALID_RECORD}),
    "a length beyond the request": (damaged(wrong_length), {ErrorCode.CORRUPT_MESSAGE}),
    "no batch at all": (zlib.compress(b"nothing like a batch of records" * 9), {ErrorCode.CORRUPT_MESSAGE}),
    "a batch beyond the topic's limit": (bytes(batch(b"x" * 2 * 1024 * 1024)), {ErrorCode.MESSAGE_TOO_LARGE}),
}


@pytest.mark.parametrize(("records", "errors"), REFUSED.values(), ids=REFUSED.keys())
def test_a_bad_batch_is_refused_and_nothing_of_it_kept(line: Line, records: bytes, errors: set[ErrorCode]) -> None:
    end = end_of_log(line)
    answer = response(ApiKey.PRODUCE, PRODUCE_VERSION, line.ask(produce(records)))
    assert answer.responses[0].partition_responses[0].error_code in errors
    assert end_of_log(line) == end + 1


@pytest.mark.parametrize(("topic", "partition"), [("no-such-topic", 0), (TOPIC, 5), (TOPIC, -1), ("bad name!", 0)])
def test_an_unknown_partition_is_said_to_be_unknown(line: Line, topic: str, partition: int) -> None:
    answer = response(
        ApiKey.PRODUCE, PRODUCE_VERSION, line.ask(produce(bytes(batch()), topic=topic, partition=partition))
    )
    error = answer.responses[0].partition_responses[0].error_code
    assert error in (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.INVALID_TOPIC_EXCEPTION)


def fetch(offset: int, *, topic: UUID | None = None, wait_ms: int = 0) -> bytes:
    wanted = FetchPartition(partition=0, fetch_offset=offset, partition_max_bytes=2**31 - 1)
    topics = (FetchTopic(topic=TOPIC, topic_id=topic or NO_UUID, partitions=(wanted,)),)
    request = FetchRequest(max_wait_ms=wait_ms, min_bytes=1, topics=topics, session_epoch=-1)
    return frame(ApiKey.FETCH, FETCH_VERSION if topic is None else FETCH_BY_ID_VERSION, request)


@pytest.mark.parametrize("offset", [-1, -2, -(2**63), 10**12, 2**63 - 1])
def test_an_offset_out_of_range_is_said_to_be_so(line: Line, offset: int) -> None:
    end_of_log(line)
    answer = response(ApiKey.FETCH, FETCH_VERSION, line.ask(fetch(offset)))
    assert answer.responses[0].partitions[0].error_code == ErrorCode.OFFSET_OUT_OF_RANGE


def test_a_topic_id_that_nobody_has_is_unknown(line: Line) -> None:
    answer = response(ApiKey.FETCH, FETCH_BY_ID_VERSION, line.ask(fetch(0, topic=UUID(int=77))))
    assert answer.responses[0].partitions[0].error_code == ErrorCode.UNKNOWN_TOPIC_ID


def test_a_frame_of_tiny_elements_is_refused_before_it_takes_its_memory(fed: BrokerProcess, line: Line) -> None:
    """20 MB that would be a million topics: some 30 times as much memory, and a second of the event loop."""
    memory_before = psutil.Process(fed.pid).memory_info().rss
    topic = b"\0" * 16 + b"\0\0"
    data = with_length(HEADER + b"\xc1\x84\x3d" + topic * 1_000_000 + b"\0\0\0")
    assert line.ask(data) is None
    assert psutil.Process(fed.pid).memory_info().rss - memory_before < MEMORY_GROWTH_BYTES_MAX
    assert "its message may have only" in fed.log.read_text()


def slowest_answer_s(bootstrap: str, count: int = 50) -> float:
    """The slowest answer that a well-behaved client gets meanwhile."""
    connection = Line(bootstrap)
    worst = 0.0
    for _ in range(count):
        begun = time.monotonic()
        assert connection.ask(frame(ApiKey.METADATA, METADATA_VERSION, MetadataRequest(topics=()))) is not None
        worst = max(worst, time.monotonic() - begun)
    connection.close()
    return worst


def test_the_silent_the_slow_and_the_greedy_harm_nobody_else(tmp_path: Path) -> None:
    """Thousands that never speak, some that announce much and send little, some that ask for much and never read."""
    configs = ("--config", "queued.max.bytes=16777216", "--config", "connections.max.idle.ms=4000")
    resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
    count = min(10_000, resource.getrlimit(resource.RLIMIT_NOFILE)[0] - 1_000)
    with BrokerProcess(tmp_path, *configs) as broker:
        process, tries = psutil.Process(broker.pid), 1
        fill(broker.bootstrap)
        tasks_before = process.num_threads()
        while slowest_beside_the_rude_s(broker, process, count) >= LATENCY_S_MAX:
            tries += 1  # the machine may have stood still
        assert len(process.net_connections()) <= 2
        assert process.num_threads() <= tasks_before + 1
        lines = broker.log.read_text().count("connection closed")
        assert 0 < lines < 300 * tries
        assert "left_out" in broker.log.read_text()


def slowest_beside_the_rude_s(broker: BrokerProcess, process: psutil.Process, count: int) -> float:
    """The slowest answer while so many are rude, and once all of them are gone. The broker may have hung up before on
    some, where the machine stood still."""
    memory_before = process.memory_info().rss
    with ExitStack() as stack:
        rude = [stack.enter_context(closing(connected(broker.bootstrap))) for _ in range(count)]
        for greedy in rude[:10]:
            greedy.setblocking(False)
            with suppress(BlockingIOError, ConnectionError):
                greedy.send(fetch(0) * 500)
        for slow in rude[10:14]:
            with suppress(ConnectionError):
                slow.sendall(struct.pack(">i", 100 * 1024 * 1024) + b"\0\0\0")
        slowest = slowest_answer_s(broker.bootstrap)
        assert process.memory_info().rss - memory_before < 3 * MEMORY_GROWTH_BYTES_MAX
        assert sum(hung_up(each) for each in rude) == count
    return max(slowest, slowest_answer_s(broker.bootstrap))


def fill(bootstrap: str) -> None:
    """Some 10 MB to ask for."""
    connection = Line(bootstrap)
    request = CreateTopicsRequest(topics=(CreatableTopic(name=TOPIC, num_partitions=1, replication_factor=1),))
    connection.ask(frame(ApiKey.CREATE_TOPICS, 5, request))
    for _ in range(10):
        connection.ask(produce(bytes(batch(b"x" * 1_000_000))))
    connection.close()


def connected(bootstrap: str) -> socket.socket:
    host, _, port = bootstrap.rpartition(":")
    return socket.create_connection((host, int(port)), timeout=ANSWER_TIMEOUT_S)


def hung_up(connection: socket.socket) -> bool:
    """Read what there is to the end, which must come."""
    connection.settimeout(ANSWER_TIMEOUT_S)
    with suppress(ConnectionError):
        while connection.recv(1 << 20):
            pass
    return True


def test_damaged_requests_by_the_hundred_leave_no_trace(fed: BrokerProcess) -> None:
    """Correct frames with some bytes changed, cut or added: each is answered or its connection ended."""
    chance = random.Random(SEED)
    originals = [produce(bytes(batch())), frame(ApiKey.METADATA, METADATA_VERSION, MetadataRequest(topics=None))]
    memory_before = psutil.Process(fed.pid).memory_info().rss
    for _ in range(MUTATIONS):
        connection = Line(fed.bootstrap)
        connection.finish(_mutated(chance, bytearray(chance.choice(originals))))
        connection.close()
    assert_it_serves(fed)
    process = psutil.Process(fed.pid)
    assert process.memory_info().rss - memory_before < MEMORY_GROWTH_BYTES_MAX
    assert not [found for found in process.net_connections() if found.status == psutil.CONN_CLOSE_WAIT]


def _mutated(chance: random.Random, data: bytearray) -> bytes:
    for _ in range(chance.randint(1, 4)):
        at = chance.randrange(4, max(len(data), 5))
        match chance.randrange(3):
            case 0:
                data[at : at + 1] = chance.randbytes(1)
            case 1:
                del data[at : at + chance.randint(1, 8)]
            case _:
                data[at:at] = chance.randbytes(chance.randint(1, 8))
    return with_length(bytes(data[4:])) if chance.random() < 0.9 else bytes(data)


def test_what_was_good_among_the_bad_is_there_after_a_restart(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path) as broker:
        connection = Line(broker.bootstrap)
        request = CreateTopicsRequest(topics=(CreatableTopic(name=TOPIC, num_partitions=1, replication_factor=1),))
        connection.ask(frame(ApiKey.CREATE_TOPICS, 5, request))
        assert end_of_log(connection) == 0
        connection.ask(produce(damaged(wrong_crc)))
        assert end_of_log(connection) == 1
        connection.close()
        broker.kill()
        broker.start()
        connection = Line(broker.bootstrap)
        assert end_of_log(connection) == 2
        connection.close()
