"""Chooses how the records of a client's batch are checked before it is appended: at once, in a worker, or not at all.

Every batch of a client is checked by default, so that none is acknowledged which a reader could not read (decision
0051). Compressed ones always are. Short batches are checked on the event loop, for that costs less than a thread's
turn; long ones by the `Repacker`. Pure: no clock, no loop.
"""

from __future__ import annotations

from struct import Struct
from typing import Final

from headrace.base.errors import CorruptData
from headrace.base.limits import (
    REPACKED_BATCH_BYTES_MAX,
    UNPACKED_ON_LOOP_BYTES_MAX,
    WALKED_ON_LOOP_BYTES_MAX,
    WALKED_ON_LOOP_HEADERS_MAX,
    WALKED_ON_LOOP_RECORDS_MAX,
)
from headrace.base.ports import Buffer
from headrace.broker.partitions.intake.repacking import Wanted
from headrace.broker.partitions.replica import WriteRefusal
from headrace.broker.partitions.settings import PartitionSettings
from headrace.wire.batches import COMPRESSION_MASK, HEADER_BYTES, CorruptBatch, walk_batch
from headrace.wire.compression import Compression
from headrace.wire.errors import ErrorCode
from headrace.wire.validation import Broken, broken_rules
from headrace.wire.walking import UNWALKED, Walked, walk_records

_ATTRIBUTES_TIME_AND_COUNT: Final = Struct(">21xh4xq22xi").unpack_from
_NONE: Final = int(Compression.NONE)
_PACKED_ON_LOOP_BYTES_MAX: Final = UNPACKED_ON_LOOP_BYTES_MAX // 4


def walked_at_once(records: Buffer, settings: PartitionSettings, now_ms: int) -> Walked | None:
    """Return the facts of a batch's records, or UNWALKED. None where they are unsound, break a rule, or take long to
    check, and where the batch is to be recompressed."""
    if len(records) < HEADER_BYTES:
        return None
    attributes, base_timestamp, count = _ATTRIBUTES_TIME_AND_COUNT(records)
    codec = attributes & COMPRESSION_MASK
    if settings.codec is not None and settings.codec != codec:
        return None
    try:
        if codec == _NONE:
            if not settings.checks_uncompressed:
                return UNWALKED
            if not 0 < count <= WALKED_ON_LOOP_RECORDS_MAX or len(records) > WALKED_ON_LOOP_BYTES_MAX:
                return None
            walked = walk_records(records[HEADER_BYTES:], count, base_timestamp, WALKED_ON_LOOP_HEADERS_MAX)
        elif not 0 < count <= WALKED_ON_LOOP_RECORDS_MAX or len(records) > _PACKED_ON_LOOP_BYTES_MAX:
            return None
        else:
            walked = walk_batch(records, limit=UNPACKED_ON_LOOP_BYTES_MAX, headers_max=WALKED_ON_LOOP_HEADERS_MAX)
    except CorruptData:
        return None
    oldest, newest, all_keyed = walked
    if settings.compact and not all_keyed:
        return None
    times = settings.times
    if times is not None and (now_ms - times.before_ms > oldest or newest > now_ms + times.after_ms):
        return None  # perhaps within bounds, which a worker finds out
    return walked


def wanted_of_worker(records: Buffer, settings: PartitionSettings, now_ms: int) -> Wanted | None:
    """Return a worker's task for a batch that was not checked at once; None: it has none, for it is refused as it
    is."""
    if len(records) < HEADER_BYTES:
        return None
    number = _ATTRIBUTES_TIME_AND_COUNT(records)[0] & COMPRESSION_MASK
    if number > Compression.ZSTD:
        return None
    codec = settings.codec if settings.codec is not None else Compression(number)
    if codec == number and len(records) > settings.max_message_bytes:
        return None  # recompressed it might be small enough
    if codec == number == Compression.NONE and not settings.checks_uncompressed:
        return None
    return Wanted(codec, settings.rules(now_ms), settings.codec_level)


def walked_or_refused(records: Buffer, settings: PartitionSettings, now_ms: int) -> Walked | WriteRefusal:
    """Return the facts of a batch's records, however long that takes; or the refusal of some."""
    if walked := walked_at_once(records, settings, now_ms):
        return walked
    try:
        walked = walk_batch(records, limit=REPACKED_BATCH_BYTES_MAX)
        broken = broken_rules(records, walked, settings.rules(now_ms), limit=REPACKED_BATCH_BYTES_MAX)
    except CorruptBatch as error:
        return WriteRefusal(ErrorCode.INVALID_RECORD, str(error))
    return refusal_of(broken) if broken else walked


def refusal_of(broken: Broken) -> WriteRefusal:
    return WriteRefusal(broken.error, broken.message, broken.faults)
