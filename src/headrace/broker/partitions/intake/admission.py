"""Decides whether one batch of a client may be appended, by the batch and the partition's settings alone.

Promises: an admitted batch is exactly one, sound, a client's, and within the topic's rules; readers can read every
record of it. Pure: no clock, no state.
"""

from __future__ import annotations

from typing import Final, TypeAlias

from headrace.base.ports import Buffer
from headrace.broker.partitions.intake.validating import walked_or_refused
from headrace.broker.partitions.replica import WriteRefusal
from headrace.broker.partitions.settings import PartitionSettings
from headrace.wire.batches import (
    CONTROL,
    LENGTH_END,
    LOG_APPEND_TIME,
    TRANSACTIONAL,
    BatchHeader,
    CorruptBatch,
    InvalidBatch,
    check_batch,
    with_newest_time,
)
from headrace.wire.errors import ErrorCode
from headrace.wire.walking import UNWALKED, Walked

UNUSUAL: Final = CONTROL | TRANSACTIONAL | LOG_APPEND_TIME
"""Attributes of batches that a broker refuses, always or mostly, from clients."""
Admitted: TypeAlias = tuple[Buffer, BatchHeader]
"""The batch to append, and its header. Its highest time is that of its records."""


def admit(records: Buffer, settings: PartitionSettings, now_ms: int, walked: Walked | None) -> Admitted | WriteRefusal:
    """Return what to append of a batch, or the refusal. `walked`: the facts of its records, where they were checked.
    Otherwise they are checked here, however long that takes."""
    if len(records) > settings.max_message_bytes:
        return WriteRefusal(
            ErrorCode.MESSAGE_TOO_LARGE,
            f"The batch of {len(records)} bytes is over max.message.bytes={settings.max_message_bytes}.",
        )
    header = header_of(records, settings)
    if isinstance(header, WriteRefusal):
        return header
    if walked is None:
        checked = walked_or_refused(records, settings, now_ms)
        if isinstance(checked, WriteRefusal):
            return checked
        walked = checked
    if walked is UNWALKED:
        if problem := _time_problem(header, settings, now_ms):
            return WriteRefusal(ErrorCode.INVALID_TIMESTAMP, problem)
    elif header.max_timestamp != walked.newest_timestamp and settings.times is not None:
        return with_newest_time(records, header, walked.newest_timestamp)
    return records, header


def header_of(records: Buffer, settings: PartitionSettings) -> BatchHeader | WriteRefusal:
    """Return the header of exactly one batch, of any size, which is sound and a client's; or the refusal."""
    try:
        header = check_batch(records, 0, len(records))
    except InvalidBatch as error:
        return WriteRefusal(ErrorCode.INVALID_RECORD, str(error))
    except CorruptBatch as error:
        return WriteRefusal(ErrorCode.CORRUPT_MESSAGE, str(error))
    if LENGTH_END + header.batch_length != len(records):
        return WriteRefusal(ErrorCode.INVALID_RECORD, "A produce request carries exactly one batch per partition.")
    if header.base_offset != 0:
        return WriteRefusal(ErrorCode.INVALID_RECORD, f"A client's batch begins at offset 0, not {header.base_offset}.")
    if header.producer_id >= 0 and header.base_sequence < 0:
        return WriteRefusal(ErrorCode.INVALID_RECORD, "A batch of an idempotent producer has a sequence number.")
    if header.attributes & UNUSUAL and (refusal := _refusal_of_unusual(header, settings)):
        return refusal
    return header


def _time_problem(header: BatchHeader, settings: PartitionSettings, now_ms: int) -> str | None:
    """Return why the times of a batch are refused whose records are not looked at; None: they are not."""
    bounds = settings.times
    return bounds.problem(header.base_timestamp, header.max_timestamp, now_ms) if bounds is not None else None


def _refusal_of_unusual(header: BatchHeader, settings: PartitionSettings) -> WriteRefusal | None:
    if header.is_control:
        return WriteRefusal(ErrorCode.INVALID_RECORD, "Clients may not write control batches.")
    if header.is_transactional and header.producer_id < 0:
        return WriteRefusal(ErrorCode.INVALID_RECORD, "A batch of a transaction has a producer id.")
    if header.is_log_append_time and settings.times is not None:
        return WriteRefusal(ErrorCode.INVALID_TIMESTAMP, "Only a broker may say that a batch bears log append time.")
    return None
