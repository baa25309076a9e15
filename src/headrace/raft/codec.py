"""Messages between members as bytes, big-endian.

Promises:
- `decode_message(encode_message(m)) == m`.
- Bytes that are not such a message raise CorruptData and nothing else. Decoding never reads past their end.
- A decoded message keeps no view of the bytes it came from.

The sender and the addressee stand outside (`net.peer.peers`), once for many messages.
"""

from __future__ import annotations

import struct
from typing import Final

from headrace.base.errors import CorruptData
from headrace.raft.membership import Membership, Peer
from headrace.raft.messages import (
    AppendAnswer,
    AppendRefusal,
    AppendRequest,
    Entry,
    EntryKind,
    Heartbeat,
    HeartbeatAnswer,
    Message,
    SnapshotAnswer,
    SnapshotChunk,
    SnapshotMark,
    Superseded,
    TimeoutNow,
    VoteAnswer,
    VoteRequest,
)

_HEAD: Final = struct.Struct(">BQ")  # kind, term
_VOTE_REQUEST: Final = struct.Struct(">QQBB")  # last index, last term, pre, transfer
_VOTE_ANSWER: Final = struct.Struct(">BB")  # granted, pre
_APPEND: Final = struct.Struct(">QQQI")  # previous index, previous term, commit index, number of entries
_ENTRY: Final = struct.Struct(">QBI")  # term, kind, length
_ONE: Final = struct.Struct(">Q")
_TWO: Final = struct.Struct(">QQ")
_THREE: Final = struct.Struct(">QQQ")
_CHUNK: Final = struct.Struct(">QQQBII")  # index, term, offset, last, length of the membership, length of the data

_KINDS: Final[dict[type[Message], int]] = {
    VoteRequest: 1,
    VoteAnswer: 2,
    AppendRequest: 3,
    AppendAnswer: 4,
    AppendRefusal: 5,
    Heartbeat: 6,
    HeartbeatAnswer: 7,
    SnapshotChunk: 8,
    SnapshotAnswer: 9,
    TimeoutNow: 10,
    Superseded: 11,
}


def encode_message(message: Message) -> bytes:
    head = _HEAD.pack(_KINDS[type(message)], message.term)
    match message:
        case Heartbeat():
            return head + _TWO.pack(message.commit_index, message.round)
        case HeartbeatAnswer():
            return head + _ONE.pack(message.round)
        case AppendRequest():
            return head + _append(message)
        case AppendAnswer():
            return head + _ONE.pack(message.match_index)
        case AppendRefusal():
            return head + _THREE.pack(message.previous_index, message.hint_index, message.hint_term)
        case VoteRequest():
            return head + _VOTE_REQUEST.pack(message.last_index, message.last_term, message.pre, message.transfer)
        case VoteAnswer():
            return head + _VOTE_ANSWER.pack(message.granted, message.pre)
        case SnapshotChunk(mark=mark):
            members, data = mark.membership.encoded(), message.data
            fixed = _CHUNK.pack(mark.index, mark.term, message.offset, message.last, len(members), len(data))
            return b"".join((head, fixed, members, data))
        case SnapshotAnswer():
            return head + _THREE.pack(message.index, message.offset, message.next_offset)
        case TimeoutNow() | Superseded():
            return head
        case _:
            raise AssertionError(message)


def _append(message: AppendRequest) -> bytes:
    entries = message.entries
    parts = [_APPEND.pack(message.previous_index, message.previous_term, message.commit_index, len(entries))]
    for entry in entries:
        parts += (_ENTRY.pack(entry.term, entry.kind, len(entry.data)), entry.data)
    return b"".join(parts)


def decode_message(data: memoryview, *, source: Peer, target: Peer) -> Message:
    """The message that `data` encodes. Raises CorruptData, also where bytes are left over."""
    try:
        kind, term = _HEAD.unpack_from(data)
        message, end = _decode(kind, term, data, source, target)
    except (struct.error, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise CorruptData(f"a message between members is cut off or malformed: {error}") from error
    if end != len(data):
        raise CorruptData(f"a message between members ends at {end} of {len(data)} bytes")
    return message


def _decode(kind: int, term: int, data: memoryview, source: Peer, target: Peer) -> tuple[Message, int]:
    at = _HEAD.size
    match kind:
        case 1:
            last_index, last_term, pre, transfer = _VOTE_REQUEST.unpack_from(data, at)
            return VoteRequest(
                term=term,
                source=source,
                target=target,
                last_index=last_index,
                last_term=last_term,
                pre=bool(pre),
                transfer=bool(transfer),
            ), at + _VOTE_REQUEST.size
        case 2:
            granted, pre = _VOTE_ANSWER.unpack_from(data, at)
            answer = VoteAnswer(term=term, source=source, target=target, granted=bool(granted), pre=bool(pre))
            return answer, at + _VOTE_ANSWER.size
        case 3:
            return _decode_append(term, data, source, target)
        case 4:
            (match_index,) = _ONE.unpack_from(data, at)
            return AppendAnswer(term=term, source=source, target=target, match_index=match_index), at + _ONE.size
        case 5:
            previous, hint_index, hint_term = _THREE.unpack_from(data, at)
            return AppendRefusal(
                term=term,
                source=source,
                target=target,
                previous_index=previous,
                hint_index=hint_index,
                hint_term=hint_term,
            ), at + _THREE.size
        case 6:
            commit_index, round_ = _TWO.unpack_from(data, at)
            heartbeat = Heartbeat(term=term, source=source, target=target, commit_index=commit_index, round=round_)
            return heartbeat, at + _TWO.size
        case 7:
            (round_,) = _ONE.unpack_from(data, at)
            return HeartbeatAnswer(term=term, source=source, target=target, round=round_), at + _ONE.size
        case 8:
            return _decode_chunk(term, data, source, target)
        case 9:
            index, offset, following = _THREE.unpack_from(data, at)
            return SnapshotAnswer(
                term=term, source=source, target=target, index=index, offset=offset, next_offset=following
            ), at + _THREE.size
        case 10:
            return TimeoutNow(term=term, source=source, target=target), at
        case 11:
            return Superseded(term=term, source=source, target=target), at
        case _:
            raise ValueError(f"there is no message of kind {kind}")


def _decode_append(term: int, data: memoryview, source: Peer, target: Peer) -> tuple[Message, int]:
    previous_index, previous_term, commit_index, count = _APPEND.unpack_from(data, _HEAD.size)
    at = _HEAD.size + _APPEND.size
    if count > (len(data) - at) // _ENTRY.size:
        raise ValueError(f"{count} entries do not fit")
    entries, least = [], previous_term
    for index in range(previous_index + 1, previous_index + 1 + count):
        entry_term, kind, length = _ENTRY.unpack_from(data, at)
        at += _ENTRY.size
        if length > len(data) - at or not least <= entry_term <= term:
            raise ValueError(f"entry {index} is cut off, or of a term that cannot be there")
        least = entry_term
        entry = Entry(entry_term, index, bytes(data[at : at + length]), EntryKind(kind))
        if entry.kind is EntryKind.MEMBERSHIP:
            _check_membership(Membership.decoded(entry.data))
        entries.append(entry)
        at += length
    return AppendRequest(
        term=term,
        source=source,
        target=target,
        previous_index=previous_index,
        previous_term=previous_term,
        entries=tuple(entries),
        commit_index=commit_index,
    ), at


def _decode_chunk(term: int, data: memoryview, source: Peer, target: Peer) -> tuple[Message, int]:
    index, mark_term, offset, last, members, length = _CHUNK.unpack_from(data, _HEAD.size)
    at = _HEAD.size + _CHUNK.size
    end = at + members + length
    if end > len(data) or mark_term > term:
        raise ValueError("a chunk of a snapshot is cut off, or of a term that cannot be there")
    membership = Membership.decoded(bytes(data[at : at + members]))
    _check_membership(membership)
    return SnapshotChunk(
        term=term,
        source=source,
        target=target,
        mark=SnapshotMark(index, mark_term, membership),
        offset=offset,
        data=bytes(data[at + members : end]),
        last=bool(last),
    ), end


def _check_membership(membership: Membership) -> None:
    nodes = {member.node for member in membership.members}
    sane = all(type(node) is int for node in nodes) and len(nodes) == len(membership.members)
    if not membership.voters or not sane:
        raise ValueError("a membership has no voters, has a broker twice, or something that is no broker")
