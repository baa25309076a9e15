"""The records of transactional ids, by law and against bytes written out by hand; and what is rebuilt from them.

tests/wire/test_java.py holds the codec of their values against Kafka's classes, and tests/interop their meaning."""

from __future__ import annotations

import contextlib
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.base.ids import ProducerEpoch, ProducerId
from headrace.base.values import replaced
from headrace.coordinators.transactions import records
from headrace.coordinators.transactions.events import TransactionForgotten, TransactionRecord, TransactionStands
from headrace.coordinators.transactions.model import Standing, TransactionState, TransactionVersion
from headrace.coordinators.transactions.replay import Replay
from headrace.coordinators.values import NamedPartition
from headrace.wire.codec import DecodeError, EncodeError
from tests.coordinators.transactions.world import TV0, TV1, TV2, at

texts = st.text(max_size=20)
int64s = st.integers(-(2**63), 2**63 - 1)
epochs = st.integers(-(2**15), 2**15 - 1).map(ProducerEpoch)
numbers = int64s.map(ProducerId)
standings = st.builds(
    Standing,
    producer_id=numbers,
    producer_epoch=epochs,
    timeout_ms=st.integers(-(2**31), 2**31 - 1),
    updated_ms=int64s,
    state=st.sampled_from(TransactionState),
    partitions=st.frozensets(st.builds(NamedPartition, texts, st.integers(0, 3)), max_size=5),
    started_ms=int64s,
    previous_producer_id=numbers,
    next_producer_id=numbers,
    next_producer_epoch=epochs,
    client_version=st.sampled_from((TV0, TV1, TV2)),
).map(lambda each: replaced(each, partitions=frozenset()) if each.state is TransactionState.EMPTY else each)
stands = st.builds(TransactionStands, texts, standings)


@given(stands | st.builds(TransactionForgotten, texts), st.sampled_from((TV1, TV2)))
def test_what_is_written_is_read(record: TransactionRecord, version: TransactionVersion) -> None:
    assert records.decode(*records.encode(record, version)) == record


@given(stands)
def test_an_early_record_lacks_what_came_later(record: TransactionStands) -> None:
    read = records.decode(*records.encode(record, TV0))
    without = Standing(producer_id=ProducerId(0), producer_epoch=ProducerEpoch(0), timeout_ms=0, updated_ms=0)
    expected = replaced(
        record.standing,
        previous_producer_id=without.previous_producer_id,
        next_producer_id=without.next_producer_id,
        next_producer_epoch=without.next_producer_epoch,
        client_version=without.client_version,
    )
    assert read == TransactionStands(record.id, expected)


@given(st.binary(max_size=40), st.none() | st.binary(max_size=60))
def test_any_bytes_are_read_or_refused(key: bytes, value: bytes | None) -> None:
    with contextlib.suppress(DecodeError):
        records.decode(key, value)


def test_a_name_that_no_record_holds_is_refused() -> None:
    with pytest.raises(EncodeError):
        records.encode(TransactionForgotten("t" * 40_000), TV2)


def standing(**changes: object) -> Standing:
    made = Standing(
        producer_id=ProducerId(42),
        producer_epoch=ProducerEpoch(3),
        timeout_ms=60_000,
        updated_ms=1_700_000_000_000,
        state=TransactionState.ONGOING,
        partitions=at("b1", "a0", "a2"),
        started_ms=1_600_000_000_000,
    )
    return replaced(made, **changes)  # type: ignore[arg-type]


def test_the_key_has_kafkas_bytes() -> None:
    key, value = records.encode(TransactionForgotten("id"), TV2)
    assert key == b"\0\0" + b"\0\2id"
    assert value is None


def test_an_early_value_has_kafkas_bytes() -> None:
    """Version 0: producer id, epoch, timeout, state, topics, times."""
    _, value = records.encode(TransactionStands("id", standing()), TV0)
    topics = b"".join(
        (
            struct.pack(">i", 2),
            struct.pack(">h1siii", 1, b"a", 2, 0, 2),
            struct.pack(">h1sii", 1, b"b", 1, 1),
        )
    )
    expected = struct.pack(">hqhib", 0, 42, 3, 60_000, 1) + topics
    assert value == expected + struct.pack(">qq", 1_700_000_000_000, 1_600_000_000_000)


def test_a_present_value_has_kafkas_bytes() -> None:
    """Version 1: compact, and the later fields are tagged."""
    full = standing(
        state=TransactionState.EMPTY,
        partitions=frozenset(),
        previous_producer_id=ProducerId(42),
        next_producer_id=ProducerId(43),
        next_producer_epoch=ProducerEpoch(9),
        client_version=TV2,
    )
    _, value = records.encode(TransactionStands("id", full), TV2)
    tags = b"\4" + b"\0\x08" + struct.pack(">q", 42) + b"\1\x08" + struct.pack(">q", 43) + b"\2\2\0\2" + b"\3\2\0\x09"
    expected = struct.pack(">hqhib", 1, 42, 3, 60_000, 0) + b"\0"
    assert value == expected + struct.pack(">qq", 1_700_000_000_000, 1_600_000_000_000) + tags


def test_the_last_record_of_each_id_counts() -> None:
    replay = Replay()
    for record in (
        TransactionStands("b", standing()),
        TransactionStands("a", standing()),
        TransactionStands("b", standing(producer_id=ProducerId(7))),
        TransactionStands("c", standing()),
        TransactionForgotten("c"),
    ):
        replay.apply(*records.encode(record, TV2))
    found = replay.transactions()
    assert list(found) == ["a", "b"]
    assert found["b"].standing == standing(producer_id=ProducerId(7))
    assert replay.passed_over == 0


def test_records_that_cannot_be_read_are_counted() -> None:
    replay = Replay()
    key, _ = records.encode(TransactionForgotten("t"), TV2)
    replay.apply(b"\0\5kind", b"\0\0")
    replay.apply(b"", b"")
    replay.apply(key, b"\0\1")
    assert not replay.is_empty
    assert not replay.transactions()
    assert replay.passed_over == 3
