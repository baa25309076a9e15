"""Records of transactional ids as `__transaction_state` holds them: Kafka's own keys and values, readable by its tools.

The value's form depends on the level of `transaction.version`: from TV1 on it is version 1, which has tagged fields.
Records of unknown kinds are skipped, as Kafka skips those of a newer release.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import groupby
from operator import attrgetter

from headrace.base.ids import NO_PRODUCER_ID, ProducerEpoch, ProducerId
from headrace.base.values import replaced
from headrace.coordinators.transactions.events import TransactionForgotten, TransactionRecord, TransactionStands
from headrace.coordinators.transactions.model import (
    NO_PRODUCER_EPOCH,
    Standing,
    TransactionState,
    TransactionVersion,
)
from headrace.coordinators.values import NamedPartition
from headrace.wire.codec import DecodeError
from headrace.wire.data import TRANSACTION_LOG_KEY, TRANSACTION_LOG_VALUE, key_type
from headrace.wire.messages.transaction_log_key import TransactionLogKey
from headrace.wire.messages.transaction_log_value import PartitionsSchema, TransactionLogValue


def encode(record: TransactionRecord, version: TransactionVersion) -> tuple[bytes, bytes | None]:
    """Encode to key and value; a missing value is a tombstone. Raises EncodeError where a name is too long for the
    record."""
    key = TRANSACTION_LOG_KEY.encode(TransactionLogKey(transactional_id=record.id))
    if isinstance(record, TransactionForgotten):
        return key, None
    return key, TRANSACTION_LOG_VALUE.encode(min(version, 1), _value(_held(record.standing, version)))


def decode(key: bytes, value: bytes | None) -> TransactionRecord | None:
    """The record under a key; None where it is of another kind. Raises DecodeError where it is damaged."""
    if key_type(key) != TRANSACTION_LOG_KEY.record_type:
        return None
    transactional_id = TRANSACTION_LOG_KEY.decode(key).transactional_id
    if value is None:
        return TransactionForgotten(transactional_id)
    _, read = TRANSACTION_LOG_VALUE.decode(value)
    return TransactionStands(transactional_id, _standing(read))


def _held(standing: Standing, version: TransactionVersion) -> Standing:
    """The standing without the fields that a record of this version lacks."""
    if version >= TransactionVersion.TV1:
        return standing
    return replaced(
        standing,
        previous_producer_id=NO_PRODUCER_ID,
        next_producer_id=NO_PRODUCER_ID,
        next_producer_epoch=NO_PRODUCER_EPOCH,
        client_version=TransactionVersion.TV0,
    )


def _value(standing: Standing) -> TransactionLogValue:
    empty = standing.state is TransactionState.EMPTY
    return TransactionLogValue(
        producer_id=standing.producer_id,
        previous_producer_id=standing.previous_producer_id,
        next_producer_id=standing.next_producer_id,
        producer_epoch=standing.producer_epoch,
        next_producer_epoch=standing.next_producer_epoch,
        transaction_timeout_ms=standing.timeout_ms,
        transaction_status=standing.state,
        transaction_partitions=None if empty else tuple(_by_topic(standing.partitions)),
        transaction_last_update_timestamp_ms=standing.updated_ms,
        transaction_start_timestamp_ms=standing.started_ms,
        client_transaction_version=standing.client_version,
    )


def _by_topic(partitions: Iterable[NamedPartition]) -> Iterable[PartitionsSchema]:
    for topic, group in groupby(sorted(partitions), key=attrgetter("topic")):
        yield PartitionsSchema(topic, tuple([each.partition for each in group]))


def _standing(read: TransactionLogValue) -> Standing:
    try:
        state = TransactionState(read.transaction_status)
        version = TransactionVersion(read.client_transaction_version)
    except ValueError as error:
        raise DecodeError(f"a transaction's record has an unknown value: {error}") from error
    partitions = () if state is TransactionState.EMPTY else (read.transaction_partitions or ())
    return Standing(
        producer_id=ProducerId(read.producer_id),
        producer_epoch=ProducerEpoch(read.producer_epoch),
        timeout_ms=read.transaction_timeout_ms,
        updated_ms=read.transaction_last_update_timestamp_ms,
        state=state,
        partitions=frozenset(NamedPartition(each.topic, index) for each in partitions for index in each.partition_ids),
        started_ms=read.transaction_start_timestamp_ms,
        previous_producer_id=ProducerId(read.previous_producer_id),
        next_producer_id=ProducerId(read.next_producer_id),
        next_producer_epoch=ProducerEpoch(read.next_producer_epoch),
        client_version=version,
    )
