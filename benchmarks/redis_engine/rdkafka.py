"""The load of `benchmarks.redis_engine`: librdkafka by its own C functions (ctypes). No Python runs for a record.

It is the library that the package confluent-kafka brings. Producers have librdkafka's defaults: `acks=all`, not
idempotent, LINGER_MS. Their batches have BATCH_BYTES, though, which is the size of Java's producer, and at most
IN_FLIGHT of them are under way. An idempotent producer of librdkafka 2.16 has one batch of a partition in flight,
whatever it may have. It keeps a whole processor busy while it waits. The broker and Redis then lack it, so it has a
case of its own. A record's value is not copied into the client.
"""

from __future__ import annotations

import ctypes
import importlib.util
import time
from collections.abc import Mapping
from ctypes import POINTER, c_char_p, c_int, c_int32, c_int64, c_size_t, c_void_p
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

BATCH_BYTES: Final = 16 * 1024
LINGER_MS: Final = 5
IN_FLIGHT: Final = 5
"""Batches: the most that an idempotent producer may have."""
CALL_RECORDS: Final = 1_000
"""Records that one call sends or reads."""
QUEUED_MAX: Final = 100_000
"""Records that wait in a producer."""
PAUSE_S: Final = 0.001
TIMEOUT_MS: Final = 120_000

_PRODUCER, _CONSUMER = 0, 1
_BY_MESSAGE: Final = 0x8
"""RD_KAFKA_MSG_F_PARTITION: each message says its partition."""
_DELIVERED: Final = 0x1
"""RD_KAFKA_EVENT_DR."""
_TEXT_BYTES: Final = 512

PRODUCER: Final[Mapping[str, str]] = {
    "acks": "all",
    "max.in.flight": str(IN_FLIGHT),
    "linger.ms": str(LINGER_MS),
    "batch.size": str(BATCH_BYTES),
    "queue.buffering.max.messages": str(QUEUED_MAX),
    "log_level": "0",
}
IDEMPOTENT: Final[Mapping[str, str]] = {"enable.idempotence": "true"}
CONSUMER: Final[Mapping[str, str]] = {
    "queued.min.messages": "10000000",  # below it a consumer pauses for a second once it has read ahead so far
    "queued.max.messages.kbytes": "1000000",
    "log_level": "0",
}


class Message(ctypes.Structure):
    """rd_kafka_message_t."""

    _fields_ = (
        ("err", c_int),
        ("rkt", c_void_p),
        ("partition", c_int32),
        ("payload", c_void_p),
        ("len", c_size_t),
        ("key", c_void_p),
        ("key_len", c_size_t),
        ("offset", c_int64),
        ("private", c_void_p),
    )


_Messages: Final = POINTER(Message)
_FUNCTIONS: Final[Mapping[str, tuple[Any, tuple[Any, ...]]]] = {
    "conf_new": (c_void_p, ()),
    "conf_set": (c_int, (c_void_p, c_char_p, c_char_p, c_char_p, c_size_t)),
    "conf_set_events": (None, (c_void_p, c_int)),
    "new": (c_void_p, (c_int, c_void_p, c_char_p, c_size_t)),
    "destroy": (None, (c_void_p,)),
    "topic_new": (c_void_p, (c_void_p, c_char_p, c_void_p)),
    "topic_destroy": (None, (c_void_p,)),
    "produce_batch": (c_int, (c_void_p, c_int32, c_int, _Messages, c_int)),
    "flush": (c_int, (c_void_p, c_int)),
    "outq_len": (c_int, (c_void_p,)),
    "queue_get_main": (c_void_p, (c_void_p,)),
    "queue_poll": (c_void_p, (c_void_p, c_int)),
    "queue_destroy": (None, (c_void_p,)),
    "event_message_next": (_Messages, (c_void_p,)),
    "event_destroy": (None, (c_void_p,)),
    "message_latency": (c_int64, (_Messages,)),
    "consume_start": (c_int, (c_void_p, c_int32, c_int64)),
    "consume_batch": (c_int64, (c_void_p, c_int32, c_int, POINTER(c_void_p), c_size_t)),
    "consume_stop": (c_int, (c_void_p, c_int32)),
    "message_destroy": (None, (c_void_p,)),
}


@cache
def _library() -> Any:
    spec = importlib.util.find_spec("confluent_kafka")
    assert spec is not None, "the package confluent-kafka is installed"
    assert spec.origin is not None, "it is a package of files"
    (path,) = Path(spec.origin).parent.with_name("confluent_kafka.libs").glob("librdkafka-*.so*")
    found = ctypes.CDLL(str(path))
    for name, (result, arguments) in _FUNCTIONS.items():
        function = getattr(found, f"rd_kafka_{name}")
        function.restype, function.argtypes = result, arguments
    return found


class _Client:
    """One client and one topic. A context manager."""

    def __init__(self, kind: int, topic: str, options: Mapping[str, str], events: int = 0) -> None:
        self._c: Final = _library()
        text = ctypes.create_string_buffer(_TEXT_BYTES)
        settings = self._c.rd_kafka_conf_new()
        for key, value in options.items():
            failed = self._c.rd_kafka_conf_set(settings, key.encode(), value.encode(), text, _TEXT_BYTES)
            assert not failed, text.value.decode()
        if events:
            self._c.rd_kafka_conf_set_events(settings, events)
        self._client: Final = self._c.rd_kafka_new(kind, settings, text, _TEXT_BYTES)
        assert self._client, text.value.decode()
        self._topic: Final = self._c.rd_kafka_topic_new(self._client, topic.encode(), None)
        assert self._topic, topic

    def flush(self) -> None:
        """Wait until all records are acknowledged."""
        failed = self._c.rd_kafka_flush(self._client, TIMEOUT_MS)
        assert not failed, f"records are not acknowledged after {TIMEOUT_MS} ms"

    def close(self) -> None:
        self._c.rd_kafka_topic_destroy(self._topic)
        self._c.rd_kafka_destroy(self._client)


def write(
    bootstrap: str,
    topic: str,
    value: bytes,
    count: int,
    partitions: int = 1,
    options: Mapping[str, str] = MappingProxyType({}),
) -> float:
    """Send so many records, spread evenly; returns the seconds until the last is acknowledged. The first one, with
    which the client finds its way, is sent before that. The caller sees that they are all there: a record that fails is
    not told here."""
    client = _Client(_PRODUCER, topic, {**PRODUCER, **options, "bootstrap.servers": bootstrap})
    messages = (Message * CALL_RECORDS)()
    payload = ctypes.cast(c_char_p(value), c_void_p)
    for message in messages:
        message.payload, message.len = payload, len(value)
    assert client._c.rd_kafka_produce_batch(client._topic, 0, _BY_MESSAGE, messages, 1) == 1
    client.flush()
    started, sent = time.perf_counter(), 1
    while sent < count:
        if client._c.rd_kafka_outq_len(client._client) > QUEUED_MAX - CALL_RECORDS:
            time.sleep(PAUSE_S)
            continue
        some = min(CALL_RECORDS, count - sent)
        for at in range(some if partitions > 1 else 0):
            messages[at].partition = (sent + at) % partitions
        sent += client._c.rd_kafka_produce_batch(client._topic, 0, _BY_MESSAGE, messages, some)
    client.flush()
    seconds = time.perf_counter() - started
    client.close()
    return seconds


def read(bootstrap: str, topic: str, count: int) -> float:
    """Read so many records of partition 0 from its start; returns the seconds that they take at the pace of those
    behind the first ones."""
    client = _Client(_CONSUMER, topic, {**CONSUMER, "bootstrap.servers": bootstrap})
    destroy, found = client._c.rd_kafka_message_destroy, (c_void_p * CALL_RECORDS)()
    started, deadline = time.perf_counter(), time.perf_counter() + TIMEOUT_MS / 1000
    assert client._c.rd_kafka_consume_start(client._topic, 0, 0) == 0
    left, first = count, 0
    while left > 0:
        got = client._c.rd_kafka_consume_batch(client._topic, 0, 100, found, CALL_RECORDS)
        for at in range(got):
            destroy(found[at])
        left -= got
        if not first:
            first, started = got, time.perf_counter()
        assert time.perf_counter() < deadline, f"{left} records of {topic} are missing"
    seconds = (time.perf_counter() - started) * count / (count - first)
    client._c.rd_kafka_consume_stop(client._topic, 0)
    client.close()
    return seconds


def steady(bootstrap: str, topic: str, value: bytes, per_second: int, seconds: float) -> list[float]:
    """Send at a fixed rate, whatever is answered. Returns each record's latency in milliseconds, from the time at which
    it was due to its acknowledgement, in the order of the acknowledgements."""
    client = _Client(_PRODUCER, topic, {**PRODUCER, "bootstrap.servers": bootstrap}, _DELIVERED)
    queue, took = client._c.rd_kafka_queue_get_main(client._client), list[float]()
    messages, payload = (Message * CALL_RECORDS)(), ctypes.cast(c_char_p(value), c_void_p)

    def take(event: Any) -> None:
        while message := client._c.rd_kafka_event_message_next(event):
            assert not message[0].err, f"a record failed with {message[0].err}"
            took.append((client._c.rd_kafka_message_latency(message) + (message[0].private or 0)) / 1000)
        client._c.rd_kafka_event_destroy(event)

    count, sent, began = round(per_second * seconds), 0, time.perf_counter()
    deadline = began + seconds + TIMEOUT_MS / 1000
    while len(took) < count:
        now = time.perf_counter()
        assert now < deadline, f"{count - len(took)} records are not acknowledged"
        due = min(count, sent + CALL_RECORDS, int((now - began) * per_second))
        for at in range(due - sent):
            late_us = round(1e6 * (now - began - (sent + at) / per_second))
            messages[at].payload, messages[at].len, messages[at].private = payload, len(value), late_us
        if due > sent:
            sent += client._c.rd_kafka_produce_batch(client._topic, 0, 0, messages, due - sent)
        if event := client._c.rd_kafka_queue_poll(queue, 1):
            take(event)
    client._c.rd_kafka_queue_destroy(queue)
    client.close()
    return took
