"""The trace contexts that clients put into the headers of records which they produce (W3C Trace Context).

Promises: only the first records of a request are looked at, and little is unpacked for them. Nothing is raised: the
handler refuses a request that cannot be read.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

from headrace.base.errors import CorruptData
from headrace.base.limits import TRACES_RECORDS_READ_MAX, TRACES_UNPACKED_BYTES_MAX
from headrace.wire.apis import ApiKey, api
from headrace.wire.batches import HEADER_BYTES, parse_header
from headrace.wire.codec import DecodeError
from headrace.wire.compression import Compression, decompress
from headrace.wire.headers import decode_request_header
from headrace.wire.plain_produce import read_plain_produce
from headrace.wire.records import Record, read_record

PARENT = "traceparent"
STATE = "tracestate"


def contexts_of(frame: memoryview) -> list[dict[str, str]]:
    """Return the headers of a produce request's first records that say to which trace they belong, each once."""
    found: list[dict[str, str]] = []
    try:
        for record in islice(_records(frame), TRACES_RECORDS_READ_MAX):
            context = _context(record)
            if PARENT in context and context not in found:
                found.append(context)
    except (CorruptData, DecodeError, ValueError, IndexError):
        pass
    return found


def _context(record: Record) -> dict[str, str]:
    return {
        name.lower(): value.decode("ascii", "replace")
        for name, value in record.headers
        if value is not None and name.lower() in (PARENT, STATE)
    }


def _records(frame: memoryview) -> Iterator[Record]:
    for batch in _batches(frame):
        header = parse_header(batch)
        packed = memoryview(batch)[HEADER_BYTES : header.size]
        if header.compression is Compression.NONE:
            packed = packed[:TRACES_UNPACKED_BYTES_MAX]
        data = bytes(decompress(header.compression, packed, TRACES_UNPACKED_BYTES_MAX))
        at = 0
        for _ in range(header.count):
            record, at = read_record(data, at, 0, 0)
            yield record


def _batches(frame: memoryview) -> Iterator[memoryview]:
    plain = read_plain_produce(frame)
    if plain is not None:
        yield from (batch for _, batches in plain.topics for _, batch in batches)
        return
    header, at = decode_request_header(frame)
    codec = api(ApiKey.PRODUCE)
    assert codec is not None
    request = codec.decode_request(header.api_version, frame[at:])
    for topic in request.topic_data:
        yield from (memoryview(each.records) for each in topic.partition_data if each.records)
