"""The writes of one partition's groups: records as pairs of bytes, and the error code of their outcome."""

from __future__ import annotations

from headrace.broker.shards.writes import Entry
from headrace.coordinators.groups import records
from headrace.coordinators.groups.commits import CommitWriter
from headrace.coordinators.groups.events import Append, OffsetCommitted
from headrace.wire.errors import ErrorCode


def entry(group_id: str, append: Append, commits: CommitWriter) -> Entry:
    """Return the records of `append` as bytes. Raises EncodeError where a record is too large."""
    write, encode = commits.write, records.encode
    pairs = [write(record) if isinstance(record, OffsetCommitted) else encode(record) for record in append.records]
    return Entry(group_id, append.write, pairs, append.producer)


def told_as(error: ErrorCode) -> ErrorCode:
    """Return the error for a group's client, from the outcome of an append, in codes that clients of groups know."""
    if error is ErrorCode.NONE:
        return error
    if error in (ErrorCode.NOT_ENOUGH_REPLICAS, ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND):
        return ErrorCode.COORDINATOR_NOT_AVAILABLE
    if error is ErrorCode.MESSAGE_TOO_LARGE:
        return ErrorCode.INVALID_COMMIT_OFFSET_SIZE
    if error in (ErrorCode.INVALID_TXN_STATE, ErrorCode.INVALID_PRODUCER_EPOCH):
        return error
    return ErrorCode.UNKNOWN_SERVER_ERROR
