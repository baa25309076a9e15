"""Examines one durable segment: bytes, batches, epochs, times and producers' sequences. Runs in the workers.

Promises that every byte is proven (SHA-256, CRC32C of batches and of each batch, footer). Whether epochs and sequences
continue is only visible beside the neighbouring segments. The finding holds the values needed for that comparison.
Imports no Spark.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa

from headrace.base.errors import CorruptData
from headrace.base.limits import AUDIT_PROBLEMS_MAX
from headrace.base.ports import Objects
from headrace.metadata.segments import SegmentDescriptor
from headrace.storage.tier.blocks import read_footer
from headrace.storage.tier.format import SegmentFooter, decode_footer
from headrace.storage.tier.marked import TransactionCheck
from headrace.storage.tier.packed import batches_of
from headrace.storage.tier.reader import check_object
from headrace.wire.batches import DELETE_HORIZON, SEQUENCE_MAX, BatchHeader

DAY_MS: Final = 86_400_000
FINDING_SQL: Final = "topic string, partition int, start_offset bigint, finding string"
FINDING_SCHEMA: Final = pa.schema(
    [("topic", pa.string()), ("partition", pa.int32()), ("start_offset", pa.int64()), ("finding", pa.string())]
)


class Sequences(NamedTuple):
    """Sequence numbers of one producer in one segment: where they begin, and where they end."""

    first_epoch: int
    first: int
    last_epoch: int
    last: int


class Examined(NamedTuple):
    """One segment to examine."""

    topic: str
    partition: int
    segment: SegmentDescriptor
    before: SegmentDescriptor | None = None
    """The segment before it."""


@dataclass(slots=True)
class Finding:
    """The result for one segment."""

    problems: list[str] = field(default_factory=list)
    """The first AUDIT_PROBLEMS_MAX problems."""
    wrong: int = 0
    """Number of all problems."""
    whole: bool = True
    """Whether its batches could be read, so that the fields below are known."""
    records: int = 0
    batches: int = 0
    bytes: int = 0
    packed: dict[str, int] = field(default_factory=dict)
    """Number of batches by codec."""
    first_ms: int = -1
    last_ms: int = -1
    days: dict[int, int] = field(default_factory=dict)
    """Number of records by day since 1970 (UTC)."""
    first_epoch: int = -1
    last_epoch: int = -1
    producers: dict[int, Sequences] = field(default_factory=dict)
    thinned: bool = False
    """Compaction has removed records: their producers' sequences cannot be checked."""

    def tell(self, problem: str) -> None:
        self.wrong += 1
        if len(self.problems) < AUDIT_PROBLEMS_MAX:
            self.problems.append(problem)

    def to_json(self) -> str:
        known = {name: getattr(self, name) for name in Finding.__slots__}
        return json.dumps(known)

    @classmethod
    def from_json(cls, text: str) -> Finding:
        known = json.loads(text)
        known["days"] = {int(day): count for day, count in known["days"].items()}
        known["producers"] = {int(pid): Sequences(*each) for pid, each in known["producers"].items()}
        return cls(**known)


def examined(objects: Objects, found: Iterable[Examined]) -> Iterator[Any]:
    """A RecordBatch of FINDING_SCHEMA for each segment. Raises StorageFailure where the store cannot be read at all."""
    for topic, partition, segment, before in found:
        finding = examine(segment, objects, before)
        row = {
            "topic": topic,
            "partition": partition,
            "start_offset": int(segment.start_offset),
            "finding": finding.to_json(),
        }
        yield pa.RecordBatch.from_pylist([row], schema=FINDING_SCHEMA)


def examine(segment: SegmentDescriptor, objects: Objects, before: SegmentDescriptor | None = None) -> Finding:
    """`before`: the segment before it, of which the footer alone is read, and only where there are transactions."""
    finding = Finding(bytes=segment.object_bytes)
    try:
        body = objects.get(segment.key)
        found = check_object(segment, body)
    except (CorruptData, FileNotFoundError) as error:
        finding.whole = False
        finding.tell(f"object '{segment.key}': {str(error).rstrip('.')}")
        return finding
    headers = [header for _, header in found]
    _transactions(finding, segment, body, headers, lambda: None if before is None else read_footer(objects, before))
    finding.records, finding.batches = sum(header.count for header in headers), len(headers)
    finding.packed = dict(Counter(header.compression.name.lower() for header in headers))
    _epochs(finding, segment, headers)
    _times(finding, segment, headers)
    finding.days = _days(headers)
    finding.thinned = segment.lacks_records
    if not finding.thinned:
        _sequences(finding, headers)
    return finding


def _transactions(
    finding: Finding,
    segment: SegmentDescriptor,
    body: bytes,
    headers: Iterable[BatchHeader],
    before: Callable[[], SegmentFooter | None],
) -> None:
    """Compare markers and ranges of aborted transactions. `before` reads the footer of the segment before it."""
    footer, check = decode_footer(body), TransactionCheck()
    if not check.has_work(footer, headers):
        return
    batches = batches_of(body, footer)
    with suppress(CorruptData, FileNotFoundError, EOFError):  # that is a finding of its own
        if (footer_before := before()) is not None:
            check.begin_after(footer_before)
    try:
        for problem in check.problems(footer, batches, is_thinned=segment.lacks_records):
            finding.tell(problem)
    except CorruptData as error:
        finding.tell(f"its transactions cannot be read: {str(error).rstrip('.')}")


def _epochs(finding: Finding, segment: SegmentDescriptor, headers: Sequence[BatchHeader]) -> None:
    epoch = finding.first_epoch = headers[0].leader_epoch
    for header in headers:
        if header.leader_epoch < epoch:
            finding.tell(f"offset {header.base_offset}: epoch {header.leader_epoch} comes after epoch {epoch}")
        epoch = max(epoch, header.leader_epoch)
    if epoch > segment.leader_epoch:
        finding.tell(f"it has batches of epoch {epoch}, and was exported in epoch {segment.leader_epoch}")
    finding.last_epoch = epoch


def _times(finding: Finding, segment: SegmentDescriptor, headers: Sequence[BatchHeader]) -> None:
    finding.first_ms, finding.last_ms = headers[0].base_timestamp, max(header.max_timestamp for header in headers)
    for header in headers:
        has_horizon = header.attributes & DELETE_HORIZON  # it stands in place of the first record's time
        if not header.is_log_append_time and not has_horizon and header.max_timestamp < header.base_timestamp:
            finding.tell(
                f"offset {header.base_offset}: the first record is of {header.base_timestamp} ms, and none of it "
                f"is said to be later than {header.max_timestamp} ms"
            )
    if finding.last_ms != segment.last_timestamp_ms:
        finding.tell(
            f"its latest record is of {finding.last_ms} ms, and its descriptor says {segment.last_timestamp_ms} ms"
        )


def _days(headers: Iterable[BatchHeader]) -> dict[int, int]:
    """Records by day. A header tells the first time and the last: where these are of several days, the batch's records
    are taken as spread evenly between them. Records without a time are left out.
    """
    found: Counter[int] = Counter()
    for header in headers:
        last = header.max_timestamp
        has_first = not header.is_log_append_time and not header.attributes & DELETE_HORIZON
        first = header.base_timestamp if has_first and 0 <= header.base_timestamp <= last else last
        if last < 0 or not header.count:
            continue
        if first // DAY_MS == last // DAY_MS:
            found[last // DAY_MS] += header.count
            continue
        days, counts = np.unique(np.linspace(last, first, header.count) // DAY_MS, return_counts=True)
        found.update(dict(zip(days.astype(int).tolist(), counts.tolist(), strict=True)))
    return dict(found)


def _sequences(finding: Finding, headers: Sequence[BatchHeader]) -> None:
    for header in headers:
        if header.producer_id < 0 or header.base_sequence < 0 or header.is_control:
            continue
        known = finding.producers.get(header.producer_id)
        mine = Sequences(header.producer_epoch, header.base_sequence, header.producer_epoch, header.last_sequence)
        if known is None:
            finding.producers[header.producer_id] = mine
            continue
        if problem := break_between(known, mine):
            finding.tell(f"offset {header.base_offset}: producer {header.producer_id} {problem}")
        finding.producers[header.producer_id] = known._replace(last_epoch=mine.last_epoch, last=mine.last)


def break_between(before: Sequences, after: Sequences) -> str | None:
    """How a producer's sequences fail to continue; None where they continue."""
    if after.first_epoch < before.last_epoch:
        return f"writes in epoch {after.first_epoch} after epoch {before.last_epoch}"
    if after.first_epoch > before.last_epoch:
        return None if after.first == 0 else f"begins epoch {after.first_epoch} with sequence {after.first}, not 0"
    wanted = (before.last + 1) & SEQUENCE_MAX
    return None if after.first == wanted else f"goes on with sequence {after.first} where {wanted} should follow"


def joined(findings: Mapping[int, Finding]) -> Iterator[tuple[int, str]]:
    """Problems between the segments of one partition, by start offset: epochs and sequences."""
    epoch, producers = -1, dict[int, Sequences]()
    for start, finding in sorted(findings.items()):
        if not finding.whole:
            producers = {}  # its producers' sequences are unknown
            continue
        if finding.first_epoch < epoch:
            yield start, f"offset {start}: epoch {finding.first_epoch} comes after epoch {epoch}"
        epoch = max(epoch, finding.last_epoch)
        if finding.thinned:
            producers = {}
        for pid, after in finding.producers.items():
            before = producers.get(pid)
            if before is not None and (problem := break_between(before, after)):
                yield start, f"offset {start} or later: producer {pid} {problem}"
            producers[pid] = after
