"""Frames by which one broker copies what another leads: a private API, on the leader's ordinary listener.

The follower's frame says where it stands (`placed`: from there on it wants all that is appended), how far it has
flushed since (`flushed`), and what it copies no more; and whether it wants an answer: the next batches, as soon as
there are any. Answers come in order. `generation` is the follower's number for one placing of one partition: what was
sent for an earlier one is told by it. Kafka's Fetch (replica id, one fetch at a time) could say neither when a log is
flushed while a fetch waits, nor what is on its way already; decision 0020. Sans-IO. Promises: what is not such a frame
raises CorruptData and nothing else, and sets nothing aside beyond the frame's own size.
"""

from __future__ import annotations

import struct
import uuid
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from headrace.base.errors import CorruptData
from headrace.base.ids import (
    BrokerEpoch,
    BrokerId,
    ClusterId,
    LeaderEpoch,
    Offset,
    PartitionIndex,
    TopicId,
    TopicPartition,
)
from headrace.base.ports import Buffer
from headrace.wire.codec import new

API_KEY: Final = 18_515
"""'HS': far above the keys that Kafka gives out."""
VERSION: Final = 0
HEADER: Final = struct.pack(">hhih", API_KEY, VERSION, 0, -1)
"""A request's header: key, version, correlation id, no client id."""
_FRONT: Final = struct.Struct(">iqi?iiii")
"""Follower and its broker epoch, leader, whether an answer is wanted, its most bytes, and the counts of the rows."""
_PLACED: Final = struct.Struct(">16siiiqiqq")
_FLUSHED: Final = struct.Struct(">16siiqq")
_FORGOTTEN: Final = struct.Struct(">16si")
_ANSWER_ROW: Final = struct.Struct(">16siihqqiqqqi")
_LENGTH: Final = struct.Struct(">i")
_TEXT_LENGTH: Final = struct.Struct(">B")


class Placed(NamedTuple):
    """A partition that the follower copies from `log_end` on."""

    key: TopicPartition
    generation: int
    leader_epoch: LeaderEpoch
    """That the follower follows."""
    log_end: Offset
    last_epoch: LeaderEpoch
    """Of its last batch; -1 where it has none."""
    flushed_end: Offset
    readable_from: Offset
    """Nothing that it lacks, or has damaged, is at it or above."""


class Flushed(NamedTuple):
    """Everything below `flushed_end` is durable there."""

    key: TopicPartition
    generation: int
    flushed_end: Offset
    readable_from: Offset


class ReplicaFetch(NamedTuple):
    """What a follower says."""

    cluster_id: ClusterId
    replica: BrokerId
    broker_epoch: BrokerEpoch
    leader: BrokerId
    wants_answer: bool
    bytes_max: int
    placed: Sequence[Placed] = ()
    flushed: Sequence[Flushed] = ()
    forgotten: Sequence[TopicPartition] = ()


class Copied(NamedTuple):
    """What the leader says of one partition."""

    key: TopicPartition
    generation: int
    error: int
    high_watermark: Offset
    log_start: Offset
    """Of the leader's log; where the follower is out of its range: where a copy is to begin."""
    diverging_epoch: LeaderEpoch
    """-1: it does not diverge. Else the leader's largest epoch not above that of the follower's last batch; -2: it has
    none so old."""
    diverging_end: Offset
    gaps_below: Offset
    """Below it the leader's log was compacted: batches and records may be missing."""
    skip_to: Offset
    """The log's end, where compaction has left nothing before it; -1: batches follow."""
    records: Buffer
    """Whole batches that follow on those sent before."""


def encode_request(request: ReplicaFetch) -> bytes:
    """The whole frame, its length first."""
    cluster_id = request.cluster_id.encode()
    parts = [
        HEADER,
        _TEXT_LENGTH.pack(len(cluster_id)),
        cluster_id,
        _FRONT.pack(
            request.replica,
            request.broker_epoch,
            request.leader,
            request.wants_answer,
            request.bytes_max,
            len(request.placed),
            len(request.flushed),
            len(request.forgotten),
        ),
    ]
    parts += [_PLACED.pack(row.key.topic_id.bytes, row.key.partition, *row[1:]) for row in request.placed]
    parts += [_FLUSHED.pack(row.key.topic_id.bytes, row.key.partition, *row[1:]) for row in request.flushed]
    for topic_id, partition in request.forgotten:
        parts.append(_FORGOTTEN.pack(topic_id.bytes, partition))
    return b"".join((_LENGTH.pack(sum(map(len, parts))), *parts))


def decode_request(frame: memoryview) -> ReplicaFetch:
    """A frame without its length. Raises CorruptData."""
    try:
        if bytes(frame[: len(HEADER)]) != HEADER:
            raise ValueError("its header is another one")
        (size,) = _TEXT_LENGTH.unpack_from(frame, len(HEADER))
        at = len(HEADER) + _TEXT_LENGTH.size + size
        cluster_id = str(frame[at - size : at], "utf-8")
        replica, broker_epoch, leader, wants_answer, bytes_max, *counts = _FRONT.unpack_from(frame, at)
        at += _FRONT.size
        sizes = [count * row.size for count, row in zip(counts, (_PLACED, _FLUSHED, _FORGOTTEN), strict=True)]
        if min(counts) < 0 or at + sum(sizes) != len(frame):
            raise ValueError("its counts and its length do not agree")
        flushed_at, forgotten_at = at + sizes[0], at + sizes[0] + sizes[1]
        return ReplicaFetch(
            ClusterId(cluster_id),
            BrokerId(replica),
            BrokerEpoch(broker_epoch),
            BrokerId(leader),
            wants_answer,
            bytes_max,
            [_placed(*row) for row in _PLACED.iter_unpack(frame[at:flushed_at])],
            [new(Flushed, (_key(*row[:2]), *row[2:])) for row in _FLUSHED.iter_unpack(frame[flushed_at:forgotten_at])],
            [_key(*row) for row in _FORGOTTEN.iter_unpack(frame[forgotten_at:])],
        )
    except (ValueError, struct.error) as error:  # UnicodeDecodeError is a ValueError
        raise CorruptData(f"this is no frame of a broker that copies: {error}") from error


def _placed(
    topic_id: bytes,
    partition: int,
    generation: int,
    epoch: int,
    log_end: int,
    last_epoch: int,
    flushed_end: int,
    readable_from: int,
) -> Placed:
    if epoch < 0:
        raise ValueError(f"{epoch} is no leader epoch")
    if not 0 <= flushed_end <= log_end:
        raise ValueError(f"a log that ends at {log_end} cannot be flushed to {flushed_end}")
    if not 0 <= readable_from <= log_end:
        raise ValueError(f"a log that ends at {log_end} cannot be read from {readable_from} on")
    place = (_key(topic_id, partition), generation, epoch, log_end, last_epoch, flushed_end, readable_from)
    return new(Placed, place)


def _key(topic_id: bytes, partition: int) -> TopicPartition:
    return new(TopicPartition, (TopicId(uuid.UUID(bytes=topic_id)), PartitionIndex(partition)))


def encode_answer(rows: Iterable[Copied]) -> list[Buffer]:
    """The whole frame, its length first; records are among the buffers as they are."""
    buffers: list[Buffer] = []
    head = bytearray(_LENGTH.size)
    size = 0
    for key, generation, error, high_watermark, log_start, epoch, end, gaps_below, skip_to, records in rows:
        head += _ANSWER_ROW.pack(
            key.topic_id.bytes,
            key.partition,
            generation,
            error,
            high_watermark,
            log_start,
            epoch,
            end,
            gaps_below,
            skip_to,
            len(records),
        )
        if records:
            buffers += (head, records)
            size += len(head) + len(records)
            head = bytearray()
    if head:
        buffers.append(head)
        size += len(head)
    first = buffers[0]
    assert isinstance(first, bytearray)
    _LENGTH.pack_into(first, 0, size - _LENGTH.size)
    return buffers


def decode_answer(frame: memoryview) -> list[Copied]:
    """A frame without its length; records are views of it. Raises CorruptData."""
    rows: list[Copied] = []
    at, end = 0, len(frame)
    try:
        while at < end:
            topic_id, partition, *fields, size = _ANSWER_ROW.unpack_from(frame, at)
            at += _ANSWER_ROW.size
            if not 0 <= size <= end - at:
                raise ValueError("it is cut off")
            key = _key(topic_id, partition)
            rows.append(new(Copied, (key, *fields, frame[at : at + size])))
            at += size
    except (ValueError, struct.error) as error:
        raise CorruptData(f"this is no answer to a broker that copies: {error}") from error
    return rows
