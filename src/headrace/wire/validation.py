"""Rules of a topic for each record of a client's batch, and the records that break them (Kafka's LogValidator,
KIP-467).

Promises: the usual batch costs one comparison (`Rules.hold`). A batch that breaks a rule is read a second time to name
its records. Whether records can be read at all is decided by `walking`.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from headrace.base.limits import RECORD_FAULTS_MAX
from headrace.base.ports import Buffer
from headrace.wire.batches import parse_header, unpacked_records
from headrace.wire.errors import ErrorCode
from headrace.wire.records import TIMESTAMP_MAX, TIMESTAMP_MIN, Record, read_record
from headrace.wire.walking import NO_TIME, Walked


class RecordFault(NamedTuple):
    """One refused record and the reason."""

    batch_index: int
    """The record's position in the batch, from 0."""
    message: str


class Broken(NamedTuple):
    """The outcome for a batch with refused records: INVALID_TIMESTAMP where a time is among the faults, else
    INVALID_RECORD."""

    error: ErrorCode
    message: str
    faults: tuple[RecordFault, ...]
    """The first RECORD_FAULTS_MAX faults."""


class Rules(NamedTuple):
    """Rules of a topic for each record."""

    keyed: bool = False
    """The record must have a key, because the topic is compacted."""
    earliest_ms: int = TIMESTAMP_MIN
    latest_ms: int = TIMESTAMP_MAX
    """The record's time must lie between these (KIP-937); -1, no time, always passes."""

    def hold(self, walked: Walked) -> bool:
        """Whether all records of a batch obey the rules. False also where only a second reading can decide."""
        if self.keyed and not walked.all_keyed:
            return False
        return self.earliest_ms <= walked.oldest_timestamp and walked.newest_timestamp <= self.latest_ms

    def fault(self, record: Record) -> tuple[ErrorCode, str] | None:
        """The fault of one record; None: it has none."""
        if self.keyed and record.key is None:
            return ErrorCode.INVALID_RECORD, "A compacted topic takes no record without a key."
        time = record.timestamp
        if time == NO_TIME or self.earliest_ms <= time <= self.latest_ms:
            return None
        bounds = f"[{self.earliest_ms}, {self.latest_ms}]"
        return ErrorCode.INVALID_TIMESTAMP, f"The record's time {time} is not within {bounds}."


NO_RULES: Final = Rules()


def broken_rules(batch: Buffer, walked: Walked, rules: Rules, *, limit: int) -> Broken | None:
    """The rules that records of a walked batch break; None: they break none. Raises CorruptBatch where the batch
    unpacks to more than `limit` bytes."""
    if rules.hold(walked):
        return None
    header, at, number = parse_header(batch), 0, 0
    data = unpacked_records(batch, limit=limit)
    faults: list[RecordFault] = []
    error = ErrorCode.INVALID_RECORD
    for index in range(header.count):
        record, at = read_record(data, at, 0, header.base_timestamp)
        if (fault := rules.fault(record)) is None:
            continue
        number += 1
        if fault[0] is ErrorCode.INVALID_TIMESTAMP:
            error = fault[0]
        if number <= RECORD_FAULTS_MAX:
            faults.append(RecordFault(index, fault[1]))
    if not faults:
        return None
    return Broken(
        error, f"{number} of {header.count} records are refused. The first: {faults[0].message}", tuple(faults)
    )
