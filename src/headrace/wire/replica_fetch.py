"""Frames by which one broker copies what another leads: a private API, on the leader's ordinary listener.

A follower's frame begins with who it is, in the same bytes each time, so that a leader reads them once. Then it says
where it stands (`placed`: from there on it wants all that is appended), how far it has flushed since (`flushed`), and
what it copies no more; and whether it wants an answer: the next batches, as soon as there are any. Answers come in
order. `generation` is the follower's number for one placing of one partition, and in all that follows its name: what
was sent for an earlier placing is told by it. Kafka's Fetch (replica id, one fetch at a time) could say neither when a
log is flushed while a fetch waits, nor what is on its way already; decision 0020. Sans-IO. Promises: what is not such a
frame raises CorruptData and nothing else, and sets nothing aside beyond the frame's own size.
"""

from __future__ import annotations

import struct
import uuid
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from headrace.base.errors import CorruptData
from headrace.base.ids import (
    NO_EPOCH,
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
_WHO: Final = struct.Struct(">iqi")
"""Follower and its broker epoch, leader."""
_FRONT: Final = struct.Struct(">?iiii")
"""Whether an answer is wanted, its most bytes, and the counts of the rows."""
_PLACED: Final = struct.Struct(">16siiiqiqq")
_FLUSHED: Final = struct.Struct(">iqq")
_FORGOTTEN: Final = struct.Struct(">i")
_ANSWER_ROW: Final = struct.Struct(">ihqqiqqqi")
_DAMAGE: Final = struct.Struct(">qq")
"""Behind a row whose diverging epoch is `_DAMAGED`, and before its records."""
_DAMAGED: Final = -3
_LENGTH: Final = struct.Struct(">i")
_TEXT_LENGTH: Final = struct.Struct(">B")


class Who(NamedTuple):
    """Whose frame it is, and whom it takes the reader for."""

    cluster_id: ClusterId
    replica: BrokerId
    broker_epoch: BrokerEpoch
    leader: BrokerId


class Placed(NamedTuple):
    """A partition that the follower copies from `log_end` on."""

    key: TopicPartition
    generation: int
    leader_epoch: LeaderEpoch
    """That the follower follows."""
    log_end: Offset
    last_epoch: LeaderEpoch
    """Of the record before `log_end`, if only it is known; else -1."""
    flushed_end: Offset
    readable_from: Offset
    """Nothing that it lacks, or has damaged, is at it or above."""


class Flushed(NamedTuple):
    """Everything below `flushed_end` is durable there."""

    generation: int
    flushed_end: Offset
    readable_from: Offset


class ReplicaFetch(NamedTuple):
    """What a follower says."""

    wants_answer: bool
    bytes_max: int
    placed: Sequence[Placed] = ()
    flushed: Sequence[Flushed] = ()
    forgotten: Sequence[int] = ()
    """Generations."""


class Copied(NamedTuple):
    """What the leader says of one partition."""

    generation: int
    error: int
    high_watermark: Offset
    log_start: Offset
    """Of the leader's log; where the follower is out of its range: where a copy is to begin."""
    diverging_epoch: LeaderEpoch
    """-1: it does not diverge. Else the leader's largest epoch not above that of the follower's last batch; -2: it has
    none so old. Where the follower is to begin anew: that of the leader's record before, where it is known."""
    diverging_end: Offset
    gaps_below: Offset
    """Below it the leader's log was compacted: batches and records may be missing."""
    skip_to: Offset
    """The log's end, where compaction has left nothing before it; -1: batches follow."""
    damaged: tuple[Offset, Offset] | None
    """Between these (the second not among them) lies all that is known to be damaged of the leader's log; None: nothing
    is."""
    records: Buffer
    """Whole batches that follow on those sent before. Where a copy is to begin anew: a snapshot of the producers as of
    `log_start`, or nothing where none is known."""


def encode_who(who: Who) -> bytes:
    """How each of its frames begins, without the length."""
    cluster_id = who.cluster_id.encode()
    return b"".join((HEADER, _TEXT_LENGTH.pack(len(cluster_id)), cluster_id, _WHO.pack(*who[1:])))


def decode_who(frame: memoryview) -> tuple[Who, bytes]:
    """Of a frame without its length; and how the frames of the same begin. Raises CorruptData."""
    try:
        if bytes(frame[: len(HEADER)]) != HEADER:
            raise ValueError("its header is another one")
        (size,) = _TEXT_LENGTH.unpack_from(frame, len(HEADER))
        at = len(HEADER) + _TEXT_LENGTH.size + size
        cluster_id = str(frame[at - size : at], "utf-8")
        replica, broker_epoch, leader = _WHO.unpack_from(frame, at)
    except (ValueError, struct.error) as error:  # UnicodeDecodeError is a ValueError
        raise _no_request(error) from error
    who = Who(ClusterId(cluster_id), BrokerId(replica), BrokerEpoch(broker_epoch), BrokerId(leader))
    return who, bytes(frame[: at + _WHO.size])


def encode_request(who: bytes, request: ReplicaFetch) -> bytes:
    """The whole frame, its length first; `who`: as of `encode_who`."""
    wants_answer, bytes_max, placed, flushed, forgotten = request
    parts = [who, _FRONT.pack(wants_answer, bytes_max, len(placed), len(flushed), len(forgotten))]
    parts += [_PLACED.pack(key.topic_id.bytes, key.partition, *row) for key, *row in placed]
    parts += [_FLUSHED.pack(*row) for row in flushed]
    parts += map(_FORGOTTEN.pack, forgotten)
    return b"".join((_LENGTH.pack(sum(map(len, parts))), *parts))


def decode_request(frame: memoryview, at: int) -> ReplicaFetch:
    """A frame without its length, behind `at` bytes that say whose it is. Raises CorruptData."""
    try:
        wants_answer, bytes_max, placed, flushed, forgotten = _FRONT.unpack_from(frame, at)
        at += _FRONT.size
        flushed_at = at + placed * _PLACED.size
        forgotten_at = flushed_at + flushed * _FLUSHED.size
        if min(placed, flushed, forgotten) < 0 or forgotten_at + forgotten * _FORGOTTEN.size != len(frame):
            raise ValueError("its counts and its length do not agree")
        return ReplicaFetch(
            wants_answer,
            bytes_max,
            [_placed(*row) for row in _PLACED.iter_unpack(frame[at:flushed_at])] if placed else (),
            [new(Flushed, row) for row in _FLUSHED.iter_unpack(frame[flushed_at:forgotten_at])] if flushed else (),
            [generation for (generation,) in _FORGOTTEN.iter_unpack(frame[forgotten_at:])] if forgotten else (),
        )
    except (ValueError, struct.error) as error:
        raise _no_request(error) from error


def _no_request(error: Exception) -> CorruptData:
    return CorruptData(f"this is no frame of a broker that copies: {error}")


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
    key = TopicPartition(TopicId(uuid.UUID(bytes=topic_id)), PartitionIndex(partition))
    return new(Placed, (key, generation, epoch, log_end, last_epoch, flushed_end, readable_from))


def encode_answer(rows: Iterable[Copied]) -> list[Buffer]:
    """The whole frame, its length first; records are among the buffers as they are."""
    buffers: list[Buffer] = []
    head = bytearray(_LENGTH.size)
    size = 0
    for *fields, damaged, records in rows:
        if damaged is not None:
            assert fields[4] == NO_EPOCH, "what diverges is told of nothing else"
            fields[4] = _DAMAGED
        head += _ANSWER_ROW.pack(*fields, len(records))
        if damaged is not None:
            head += _DAMAGE.pack(*damaged)
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
            *fields, size = _ANSWER_ROW.unpack_from(frame, at)
            at += _ANSWER_ROW.size
            damaged = None
            if fields[4] == _DAMAGED:
                damaged, fields[4] = _DAMAGE.unpack_from(frame, at), NO_EPOCH
                at += _DAMAGE.size
            if not 0 <= size <= end - at:
                raise ValueError("it is cut off")
            rows.append(new(Copied, (*fields, damaged, frame[at : at + size])))
            at += size
    except (ValueError, struct.error) as error:
        raise CorruptData(f"this is no answer to a broker that copies: {error}") from error
    return rows
