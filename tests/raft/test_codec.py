"""Messages between members: what is written is read, and nothing else is."""

from __future__ import annotations

from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.base.addresses import Address
from headrace.base.errors import CorruptData
from headrace.base.ids import NO_LINEAGE, ClusterId, Lineage
from headrace.net.peer.peerframes import Envelope, decode_envelope, decode_messages, encode_frame, encoded
from headrace.raft.codec import decode_message, encode_message
from headrace.raft.membership import Membership
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
from tests.raft.member import peer

numbers = st.integers(0, 2**63)
peers = st.integers(1, 9).map(peer)
memberships = st.lists(peers, min_size=1, unique=True).map(
    lambda found: Membership(frozenset(found[: len(found) // 2 + 1]), frozenset(found[len(found) // 2 + 1 :]))
)
ENDS = {"source": peer(1), "target": peer(2)}


@st.composite
def appends(draw: st.DrawFn) -> AppendRequest:
    previous = draw(numbers)
    terms = sorted(draw(st.lists(numbers, min_size=2, max_size=6)))
    entries = []
    for at, term in enumerate(terms[1:-1], 1):
        members = draw(st.none() | memberships)
        kind = EntryKind.DATA if members is None else EntryKind.MEMBERSHIP
        data = draw(st.binary(max_size=60)) if members is None else members.encoded()
        entries.append(Entry(term, previous + at, data, kind))
    return AppendRequest(
        term=terms[-1],
        previous_index=previous,
        previous_term=terms[0],
        entries=tuple(entries),
        commit_index=draw(numbers),
        **ENDS,
    )


@st.composite
def chunks(draw: st.DrawFn) -> SnapshotChunk:
    term, mark_term = sorted((draw(numbers), draw(numbers)), reverse=True)
    return SnapshotChunk(
        term=term,
        mark=SnapshotMark(draw(numbers), mark_term, draw(memberships)),
        offset=draw(numbers),
        data=draw(st.binary(max_size=80)),
        last=draw(st.booleans()),
        **ENDS,
    )


def of(kind: type[Message], **fields: st.SearchStrategy[object]) -> st.SearchStrategy[Message]:
    return st.builds(partial(kind, **ENDS), term=numbers, **fields)  # type: ignore[arg-type]


messages: st.SearchStrategy[Message] = st.one_of(
    appends(),
    chunks(),
    of(VoteRequest, last_index=numbers, last_term=numbers, pre=st.booleans(), transfer=st.booleans()),
    of(VoteAnswer, granted=st.booleans(), pre=st.booleans()),
    of(AppendAnswer, match_index=numbers),
    of(AppendRefusal, previous_index=numbers, hint_index=numbers, hint_term=numbers),
    of(Heartbeat, commit_index=numbers, round=numbers),
    of(HeartbeatAnswer, round=numbers),
    of(SnapshotAnswer, index=numbers, offset=numbers, next_offset=numbers),
    of(TimeoutNow),
    of(Superseded),
)


def decoded(data: bytes) -> Message:
    return decode_message(memoryview(data), **ENDS)


@given(messages)
def test_what_is_written_is_read(message: Message) -> None:
    assert decoded(encode_message(message)) == message


@given(messages, st.data())
def test_a_message_that_is_cut_or_longer_is_refused(message: Message, data: st.DataObject) -> None:
    whole = encode_message(message)
    with pytest.raises(CorruptData):
        decoded(whole[: data.draw(st.integers(0, len(whole) - 1))])
    with pytest.raises(CorruptData):
        decoded(whole + b"\0")


@given(messages, st.integers(0, 2**32), st.integers(1, 255))
def test_any_other_bytes_are_refused_or_another_message(message: Message, at: int, flip: int) -> None:
    data = bytearray(encode_message(message))
    data[at % len(data)] ^= flip
    try:
        decoded(bytes(data))
    except CorruptData:
        return


@given(st.binary(max_size=200))
def test_no_bytes_do_harm(data: bytes) -> None:
    for start in (b"", bytes((3,)), bytes((8,))):
        try:
            decoded(start + data)
        except CorruptData:
            continue


@pytest.mark.parametrize(
    "members",
    [b'{"voters":[["1","x"]],"learners":[]}', b'{"voters":[],"learners":[]}', b"[]", b"{", b'{"voters":[[1,7]]}'],
)
def test_a_membership_that_is_none_is_refused(members: bytes) -> None:
    message = AppendRequest(
        term=2,
        previous_index=0,
        previous_term=0,
        entries=(Entry(1, 1, members, EntryKind.MEMBERSHIP),),
        commit_index=0,
        **ENDS,
    )
    with pytest.raises(CorruptData):
        decoded(encode_message(message))


@pytest.mark.parametrize("terms", [(3, 2), (2, 9)])
def test_entries_whose_terms_cannot_be_are_refused(terms: tuple[int, int]) -> None:
    """Falling along the log, or above the leader's own."""
    entries = tuple(Entry(term, index, b"") for index, term in enumerate(terms, 1))
    message = AppendRequest(
        term=5, previous_index=0, previous_term=0, entries=entries, commit_index=0, source=peer(1), target=peer(2)
    )
    with pytest.raises(CorruptData):
        decoded(encode_message(message))


envelopes = st.builds(
    Envelope,
    st.text(max_size=30).map(ClusterId),
    st.just(peer(1)),
    st.just(peer(2)),
    st.none() | st.builds(Address, st.text(min_size=1, max_size=30), st.integers(1, 65535)),
    st.just(NO_LINEAGE) | st.builds(Lineage, st.integers(1, 99), st.text("0123456789abcdef", min_size=1, max_size=8)),
)


@given(envelopes, st.lists(messages, max_size=4))
def test_frames_carry_messages_and_who_speaks(envelope: Envelope, sent: list[Message]) -> None:
    frame = memoryview(encode_frame(envelope, encoded(sent)))
    assert int.from_bytes(frame[:4], "big") == len(frame) - 4
    found, at = decode_envelope(frame[4:])
    assert found == envelope
    assert decode_messages(frame[4:], at, found) == sent


@given(envelopes, st.lists(messages, max_size=2), st.data())
def test_a_frame_that_is_cut_or_changed_is_refused_or_another(
    envelope: Envelope, sent: list[Message], data: st.DataObject
) -> None:
    frame = bytearray(encode_frame(envelope, encoded(sent))[4:])
    if data.draw(st.booleans()):
        del frame[data.draw(st.integers(0, len(frame) - 1)) :]
    else:
        frame[data.draw(st.integers(0, len(frame) - 1))] ^= data.draw(st.integers(1, 255))
    try:
        found, at = decode_envelope(memoryview(bytes(frame)))
        decode_messages(memoryview(bytes(frame)), at, found)
    except CorruptData:
        return
