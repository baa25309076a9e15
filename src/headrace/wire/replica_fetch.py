"""Frames with which a follower copies partitions from their leader: a private API, on the leader's ordinary listener.

A follower's frame begins with the same bytes each time, which identify it (`Who`), so that a leader reads them once.
Then it has:
- `placed`: partitions and the log end offsets from which the follower wants everything that is appended;
- `flushed`: how far it has flushed each since then;
- `forgotten`: partitions that it no longer copies;
- whether it wants an answer: the next batches, as soon as there are any.

Answers come in order. `generation` is the follower's number for one placement of one partition and identifies it from
then on. So the follower recognises batches that were sent for an earlier placement.

Kafka's Fetch (replica id, one fetch at a time) cannot do this. It reports no flush while a fetch waits, and does not
say which batches are already on their way (decision 0020).

Promises: bytes that are not such a frame raise CorruptData and nothing else. Decoding allocates nothing beyond the
frame's own size. Sans-IO.
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
from headrace.wire import own_apis
from headrace.wire.codec import new

API_KEY: Final = own_apis.REPLICA_FETCH
VERSION: Final = 0
HEADER: Final = struct.pack(">hhih", API_KEY, VERSION, 0, -1)
"""A request's header: key, version, correlation id, no client id."""
_WHO: Final = struct.Struct(">iqi")
"""The follower and its broker epoch, and the leader."""
_FRONT: Final = struct.Struct(">?iiii")
"""Whether an answer is wanted, its maximum bytes, and the counts of the rows."""
_PLACED: Final = struct.Struct(">16siiiqiqq")
_FLUSHED: Final = struct.Struct(">iqq")
_FORGOTTEN: Final = struct.Struct(">i")
_ANSWER_ROW: Final = struct.Struct(">ihqqiqqqi")
_DAMAGE: Final = struct.Struct(">qq")
"""Follows a row whose diverging epoch is `_DAMAGED`, before its records."""
_DAMAGED: Final = -3
_LENGTH: Final = struct.Struct(">i")
_TEXT_LENGTH: Final = struct.Struct(">B")


class Who(NamedTuple):
    """The follower that sends a frame, and the leader that it is meant for."""

    cluster_id: ClusterId
    replica: BrokerId
    broker_epoch: BrokerEpoch
    leader: BrokerId


class Placed(NamedTuple):
    """A partition that the follower copies from `log_end` on."""

    key: TopicPartition
    generation: int
    leader_epoch: LeaderEpoch
    """Epoch of the leader that the follower follows."""
    log_end: Offset
    last_epoch: LeaderEpoch
    """Epoch of the record before `log_end`, if only it is known; else -1."""
    flushed_end: Offset
    readable_from: Offset
    """The follower's log lacks nothing at or above this offset, and nothing there is damaged."""


class Flushed(NamedTuple):
    """Everything below `flushed_end` is durable on the follower."""

    generation: int
    flushed_end: Offset
    readable_from: Offset


class ReplicaFetch(NamedTuple):
    """A follower's request."""

    wants_answer: bool
    bytes_max: int
    placed: Sequence[Placed] = ()
    flushed: Sequence[Flushed] = ()
    forgotten: Sequence[int] = ()
    """Generations of placements that have ended."""


class Copied(NamedTuple):
    """A leader's answer for one partition."""

    generation: int
    error: int
    high_watermark: Offset
    log_start: Offset
    """Start of the leader's log. Where the follower's offset is out of range, the copy must begin here."""
    diverging_epoch: LeaderEpoch
    """-1: the follower does not diverge. Otherwise the leader's largest epoch that is not above that of the follower's
    last batch; -2: it has none so old. Where the copy must begin again, the epoch of the leader's record before that,
    if known."""
    diverging_end: Offset
    gaps_below: Offset
    """Below this offset the leader's log was compacted, so batches and records may be missing."""
    skip_to: Offset
    """End of the leader's log where compaction left nothing before it; -1: batches follow."""
    damaged: tuple[Offset, Offset] | None
    """All known damage of the leader's log lies between these offsets, the second exclusive; None: there is none."""
    records: Buffer
    """Complete batches that follow those sent before. Where a copy must begin again: a snapshot of the producers as of
    `log_start`, empty where none is known."""


def encode_who(who: Who) -> bytes:
    """The start of each frame of this follower, without the length."""
    cluster_id = who.cluster_id.encode()
    return b"".join((HEADER, _TEXT_LENGTH.pack(len(cluster_id)), cluster_id, _WHO.pack(*who[1:])))


def decode_who(frame: memoryview) -> tuple[Who, bytes]:
    """The sender of a frame without its length, and the bytes that all its frames begin with. Raises CorruptData."""
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
    """The whole frame, its length first; `who` comes from `encode_who`."""
    wants_answer, bytes_max, placed, flushed, forgotten = request
    parts = [who, _FRONT.pack(wants_answer, bytes_max, len(placed), len(flushed), len(forgotten))]
    parts += [_PLACED.pack(key.topic_id.bytes, key.partition, *row) for key, *row in placed]
    parts += [_FLUSHED.pack(*row) for row in flushed]
    parts += map(_FORGOTTEN.pack, forgotten)
    return b"".join((_LENGTH.pack(sum(map(len, parts))), *parts))


def decode_request(frame: memoryview, at: int) -> ReplicaFetch:
    """Decode a frame without its length; its first `at` bytes identify the sender. Raises CorruptData."""
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
    """The whole frame, its length first. Records are among the buffers as they are."""
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
    """Decode a frame without its length. Records are views of it. Raises CorruptData."""
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
