"""What a topic asks of each record of a client's batch, and which records do not do so (Kafka's LogValidator, KIP-467).

Promises that the usual batch costs one comparison (`Rules.hold`), and that one which breaks a rule is read a second
time to name its records. Whether records can be read at all is `walking`'s to say.
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
    """One record that is refused, and why."""

    batch_index: int
    """Its place in the batch, from 0."""
    message: str


class Broken(NamedTuple):
    """The rules that some records break: INVALID_RECORD, or INVALID_TIMESTAMP where a time is among them."""

    error: ErrorCode
    message: str
    faults: tuple[RecordFault, ...]
    """The first RECORD_FAULTS_MAX."""


class Rules(NamedTuple):
    """What a topic asks of each record."""

    keyed: bool = False
    """It has a key, for the topic is compacted."""
    earliest_ms: int = TIMESTAMP_MIN
    latest_ms: int = TIMESTAMP_MAX
    """Its time lies between these (KIP-937); -1, no time, always does."""

    def hold(self, walked: Walked) -> bool:
        """Whether all records of a batch keep them. False also where only a second reading can tell."""
        if self.keyed and not walked.all_keyed:
            return False
        return self.earliest_ms <= walked.oldest_timestamp and walked.newest_timestamp <= self.latest_ms

    def fault(self, record: Record) -> tuple[ErrorCode, str] | None:
        """What is wrong with one record; None: nothing."""
        if self.keyed and record.key is None:
            return ErrorCode.INVALID_RECORD, "A compacted topic takes no record without a key."
        time = record.timestamp
        if time == NO_TIME or self.earliest_ms <= time <= self.latest_ms:
            return None
        bounds = f"[{self.earliest_ms}, {self.latest_ms}]"
        return ErrorCode.INVALID_TIMESTAMP, f"The record's time {time} is not within {bounds}."


NO_RULES: Final = Rules()


def broken_rules(batch: Buffer, walked: Walked, rules: Rules, *, limit: int) -> Broken | None:
    """Which rules records of a batch break that has been walked. Raises CorruptBatch where it unpacks to more than
    `limit` bytes."""
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
