"""Frames between members of the quorum: the sender, the addressee, the cluster, and messages, each with its length.

They arrive over the broker's ordinary listener, as requests of an API that is not advertised and has no answer.
Sans-IO. Promises: bytes that are no such frame raise CorruptData and nothing else; at most the frame's own size is
allocated.
"""

from __future__ import annotations

import struct
import uuid
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from headrace.base.addresses import Address
from headrace.base.errors import CorruptData
from headrace.base.ids import NO_LINEAGE, BrokerId, ClusterId, DirectoryId, Lineage
from headrace.base.limits import PEER_FRAME_BYTES_MAX, PEER_FRAME_MESSAGES_MAX
from headrace.base.values import Value
from headrace.raft.codec import decode_message, encode_message
from headrace.raft.membership import Peer
from headrace.raft.messages import Message
from headrace.wire import own_apis

API_KEY: Final = own_apis.PEERS
VERSION: Final = 0
HEADER: Final = struct.pack(">hhih", API_KEY, VERSION, 0, -1)
"""A request's header: key, version, correlation id, no client id."""
_LENGTH: Final = struct.Struct(">I")
_PEER: Final = struct.Struct(">i16s")
_PORT: Final = struct.Struct(">H")
_OF_LINEAGE: Final = "#"
"""The last of these separates cluster id and lineage. Without a lineage it stands only behind an id that has one."""


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Envelope(Value):
    """Everything in a frame except its messages."""

    cluster_id: ClusterId
    source: Peer
    target: Peer
    address: Address | None
    """Where the sender listens; None: it does not say."""
    lineage: Lineage = NO_LINEAGE
    """The lineage of the sender's log."""


def encode_frame(envelope: Envelope, messages: Iterable[bytes]) -> bytes:
    """The whole frame, its length first. `messages`: as encoded by `encode_message`."""
    host, port = envelope.address or ("", 0)
    parts = [
        HEADER,
        _text(_named(envelope)),
        _PEER.pack(envelope.source.node, envelope.source.directory.bytes),
        _PEER.pack(envelope.target.node, envelope.target.directory.bytes),
        _text(host),
        _PORT.pack(port),
    ]
    for message in messages:
        parts += (_LENGTH.pack(len(message)), message)
    size = sum(map(len, parts))
    return b"".join((_LENGTH.pack(size), *parts))


def decode_envelope(frame: memoryview) -> tuple[Envelope, int]:
    """The envelope of a frame (without its length), and the position where its messages begin. Raises CorruptData."""
    try:
        if bytes(frame[: len(HEADER)]) != HEADER:
            raise ValueError("its header is another one")
        named, at = _take_text(frame, len(HEADER))
        cluster_id, mark, lineage = named.rpartition(_OF_LINEAGE)
        if not mark:
            cluster_id, lineage = named, ""
        following = Lineage.parsed(lineage)
        source, at = _take_peer(frame, at)
        target, at = _take_peer(frame, at)
        host, at = _take_text(frame, at)
        (port,) = _PORT.unpack_from(frame, at)
    except (struct.error, IndexError, ValueError) as error:
        raise CorruptData(f"a frame between members is cut off or malformed: {error}") from error
    address = Address(host, port) if host and port else None
    return Envelope(ClusterId(cluster_id), source, target, address, following), at + _PORT.size


def decode_messages(frame: memoryview, at: int, envelope: Envelope) -> list[Message]:
    """The messages of a frame, from position `at`. Raises CorruptData."""
    if len(frame) > PEER_FRAME_BYTES_MAX:
        raise CorruptData(f"a frame between members has {len(frame)} bytes; at most {PEER_FRAME_BYTES_MAX} are taken")
    messages: list[Message] = []
    while at < len(frame):
        if len(frame) - at < _LENGTH.size or len(messages) >= PEER_FRAME_MESSAGES_MAX:
            raise CorruptData("a frame between members is cut off, or holds too many messages")
        (length,) = _LENGTH.unpack_from(frame, at)
        at += _LENGTH.size
        if length > len(frame) - at:
            raise CorruptData("a frame between members is cut off")
        messages.append(decode_message(frame[at : at + length], source=envelope.source, target=envelope.target))
        at += length
    return messages


def encoded(messages: Iterable[Message]) -> list[bytes]:
    return [encode_message(message) for message in messages]


def weight(message: Message) -> int:
    """The approximate size of the message in bytes."""
    size = 64
    for entry in getattr(message, "entries", ()):
        size += 16 + len(entry.data)
    return size + len(getattr(message, "data", b""))


def _named(envelope: Envelope) -> str:
    lineage = str(envelope.lineage)
    needs_mark = bool(lineage) or _OF_LINEAGE in envelope.cluster_id
    return f"{envelope.cluster_id}{_OF_LINEAGE}{lineage}" if needs_mark else envelope.cluster_id


def _text(text: str) -> bytes:
    data = text.encode()
    return bytes((len(data),)) + data


def _take_text(frame: memoryview, at: int) -> tuple[str, int]:
    end = at + 1 + frame[at]
    if end > len(frame):
        raise ValueError("a text is cut off")
    return str(frame[at + 1 : end], "utf-8"), end


def _take_peer(frame: memoryview, at: int) -> tuple[Peer, int]:
    node, directory = _PEER.unpack_from(frame, at)
    return Peer(BrokerId(node), DirectoryId(uuid.UUID(bytes=directory))), at + _PEER.size
