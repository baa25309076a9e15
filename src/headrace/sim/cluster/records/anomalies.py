"""Judges what clients of replicated partitions saw, and the final contents. It knows nothing of brokers.

The kinds are those of Jepsen's Kafka workload:
- lost-write: acknowledged at acks=all, or polled, and missing although later records are there;
- unseen: the same where no later record is there;
- duplicate: one record at two offsets;
- inconsistent-offsets: one offset with two records, or a record at another offset than acknowledged;
- nonmonotonic-poll: a consumer goes back;
- poll-skip: a consumer leaves out existing records.

Two more are our own:
- phantom: a record that nobody sent;
- misordered: a producer's records in another order than sent.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from types import MappingProxyType

from headrace.sim.cluster.records.history import RecordsHistory
from headrace.sim.history import Found, PartitionKey, Problem

Contents = Mapping[PartitionKey, Sequence[Found]]


def anomalies(
    history: RecordsHistory, contents: Contents, starts: Mapping[PartitionKey, int] = MappingProxyType({})
) -> Iterator[Problem]:
    """All anomalies, by kind. `contents` has every partition from its first record to its end, including deleted
    records. `starts` gives the first offset that is not deleted, if that is not 0."""
    yield from _content(history, contents)
    yield from _offsets(history, contents)
    yield from _duplicates(history, contents)
    yield from _lost(history, contents)
    yield from _polls(history, starts)


def of_content(history: RecordsHistory, contents: Contents) -> Iterator[Problem]:
    """Anomalies that also count for partitions that have lost acknowledged and polled records."""
    yield from _content(history, contents)
    yield from _duplicates(RecordsHistory(sent=history.sent), contents)


def _content(history: RecordsHistory, contents: Contents) -> Iterator[Problem]:
    for partition, records in contents.items():
        last: dict[str, int] = {}
        for place, record in enumerate(records):
            if record.offset != place:
                yield Problem("poll-skip", f"{_name(partition)} ends with {record.offset} where {place} was due")
                break
            sent = history.sent.get(record.value or b"")
            if sent is None or sent.partition != partition:
                yield Problem("phantom", f"{_at(partition, record)}, which nobody sent there")
                continue
            if sent.number < last.get(sent.lane, -1):
                yield Problem("misordered", f"{_at(partition, record)} behind number {last[sent.lane]}")
            last[sent.lane] = sent.number


def _offsets(history: RecordsHistory, contents: Contents) -> Iterator[Problem]:
    values: dict[tuple[PartitionKey, int], bytes | None] = {}
    for partition, record in _seen(history, contents):
        other = values.setdefault((partition, record.offset), record.value)
        if other != record.value:
            yield Problem("inconsistent-offsets", f"{_at(partition, record)}, elsewhere {other!r:.60}")
    places = {record.value: (partition, record.offset) for partition, records in contents.items() for record in records}
    for value, acked in history.acked.items():
        found = places.get(value)
        if found is not None and acked.offset not in (-1, found[1]):
            where = f"{_name(found[0])} has {value!r:.60} at {found[1]}"
            yield Problem("inconsistent-offsets", f"{where}, acknowledged at {acked.offset}")


def _duplicates(history: RecordsHistory, contents: Contents) -> Iterator[Problem]:
    places: dict[bytes | None, int] = {}
    for partition, record in _seen(history, contents):
        other = places.setdefault(record.value, record.offset)
        if other != record.offset:
            yield Problem("duplicate", f"{_at(partition, record)}, and at {other}")


def _lost(history: RecordsHistory, contents: Contents) -> Iterator[Problem]:
    ends = {partition: records[-1].offset + 1 if records else 0 for partition, records in contents.items()}
    there = {record.value for records in contents.values() for record in records}
    for value, acked in history.acked.items():
        if acked.on_all and value not in there:
            partition = history.sent[value].partition
            kind = "unseen" if acked.offset >= ends.get(partition, 0) else "lost-write"
            yield Problem(kind, f"{_name(partition)} lacks {value!r:.60}, acknowledged at {acked.offset}")
    for poll in history.polls:
        for record in poll.records:
            if record.value not in there:
                kind = "unseen" if record.offset >= ends.get(poll.partition, 0) else "lost-write"
                text = f"{_name(poll.partition)} lacks {record.value!r:.60}, which {poll.reader} got at {record.offset}"
                yield Problem(kind, text)


def _polls(history: RecordsHistory, starts: Mapping[PartitionKey, int]) -> Iterator[Problem]:
    """Anomalies of polls. Records that were deleted before they were read do not count."""
    positions: dict[tuple[str, PartitionKey], int] = {}
    for poll in history.polls:
        place = poll.reader, poll.partition
        for record in poll.records:
            before = positions.get(place, -1)
            if record.offset <= before:
                text = f"{poll.reader} got {_at(poll.partition, record)} after {before}"
                yield Problem("nonmonotonic-poll", text)
            elif record.offset > max(before + 1, starts.get(poll.partition, 0)):
                text = f"{poll.reader} got {_at(poll.partition, record)} after {before}, and nothing between"
                yield Problem("poll-skip", text)
            positions[place] = record.offset


def _seen(history: RecordsHistory, contents: Contents) -> Iterator[tuple[PartitionKey, Found]]:
    polled = ((poll.partition, record) for poll in history.polls for record in poll.records)
    return chain(polled, ((partition, record) for partition, records in contents.items() for record in records))


def _at(partition: PartitionKey, record: Found) -> str:
    return f"{_name(partition)} offset {record.offset} {record.value!r:.60}"


def _name(partition: PartitionKey) -> str:
    return f"partition {partition.number} of {str(partition.topic_id)[:8]}"
