"""Judges transactions by what their clients were told, what readers got, and what is there at the end.

The kinds are those of Jepsen's Kafka workload, and some more:
- aborted-read: a reader of committed records got one whose transaction was not committed (G1a);
- dirty-read: it got one before anybody had asked to commit it;
- torn: some records of a transaction are there at the end, and others are not;
- lost-commit: a committed transaction is not there, or a reader of committed records passed one over;
- duplicate: one record at two offsets, or one input consumed by two transactions;
- lost-write: an acknowledged record is not in the log, or is elsewhere in it;
- inconsistent-offsets: one offset with two records;
- offsets-alone, output-alone: the committed offset is beyond the output, or the reverse;
- dirty-offset: an offset was told before anybody had asked to commit it, or of a transaction that was not committed;
- unstable-read: a reader got records, or a last stable offset, beyond an open transaction;
- torn-decision, late-batch, hanging: a transaction has markers of two kinds, records behind its marker, or no marker;
- fenced-write: a client that was fenced had a new record acknowledged.

`dependencies` finds cycles.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence

from headrace.sim.cluster.transactions.deleting import left_of
from headrace.sim.cluster.transactions.dependencies import cycles
from headrace.sim.cluster.transactions.history import (
    NO_PRODUCER,
    UNKNOWN,
    Contents,
    Ending,
    History,
    Logged,
    Look,
    Outcome,
    Partition,
    Poll,
    Register,
    Seen,
    Taken,
    Transaction,
    Write,
)
from headrace.sim.history import Problem

Writers = Mapping[bytes, tuple[Transaction, Write]]


def anomalies(history: History, ending: Ending) -> Iterator[Problem]:
    """All anomalies, by kind."""
    writers = {write.value: (each, write) for each in history.transactions for write in each.writes}
    if ending.starts:
        history, ending = left_of(history, ending)
    yield from of_contents(history, ending.contents, writers)
    yield from of_polls(history.polls, ending.contents, writers, ending.starts)
    yield from of_offsets(history, ending)
    yield from of_writes(history, ending)
    for partition, log in ending.logs.items():
        yield from of_log(partition, log, writers)
        yield from of_stable_offsets(partition, log, [each for each in history.polls if each.partition == partition])
    yield from cycles(history, ending.contents)


# --- the contents at the end ---


def of_contents(history: History, contents: Contents, writers: Writers) -> Iterator[Problem]:
    places: dict[bytes, tuple[Partition, int]] = {}
    for partition, records in contents.items():
        for record in records:
            if record.value in places:
                where = f"{places[record.value][0]} offset {places[record.value][1]}"
                yield Problem("duplicate", f"{_at(partition, record)}, and at {where}")
            places.setdefault(record.value, (partition, record.offset))
            known = writers.get(record.value)
            if known is None or known[1].partition != partition:
                yield Problem("phantom", f"{_at(partition, record)}, which nobody wrote there")
    for each in history.transactions:
        there = [write.value in places for write in each.writes]
        if any(there) and not all(there):
            lacks = next(write for write in each.writes if write.value not in places)
            yield Problem("torn", f"{each} lacks {lacks.value!r:.60} in {lacks.partition}, and has others")
        elif not all(there) and each.outcome is Outcome.COMMITTED:
            yield Problem("lost-commit", f"{each} is not there")
        elif any(there) and each.outcome is Outcome.ABORTED:
            yield Problem("aborted-read", f"{each} is there at the end")


def of_writes(history: History, ending: Ending) -> Iterator[Problem]:
    """Acknowledged records, and those of clients that were fenced. Without logs, only committed ones are looked for."""
    offsets: dict[Partition, dict[bytes, int]] = {}
    for partition in ending.contents:
        found = ending.logs.get(partition) or ending.contents[partition]
        offsets[partition] = {each.value: each.offset for each in found if each.value is not None}
    for each in history.transactions:
        for write in each.writes:
            if write.offset is None:
                continue
            at = offsets[write.partition].get(write.value)
            what = f"{write.partition} has {write.value!r:.60} of {each}"
            if at is None and (write.partition in ending.logs or each.outcome is Outcome.COMMITTED):
                yield Problem("lost-write", f"{what} nowhere, acknowledged at {write.offset}")
            elif at is not None and write.offset not in (UNKNOWN, at):
                yield Problem("lost-write", f"{what} at {at}, acknowledged at {write.offset}")
            if each.fenced is not None and write.sent > each.fenced:
                yield Problem("fenced-write", f"{what}, sent when another client had its id")


# --- polls ---


def of_polls(
    polls: Sequence[Poll], contents: Contents, writers: Writers, starts: Mapping[Partition, int] | None = None
) -> Iterator[Problem]:
    """Readers of committed records get all that are there at the end, and no others. Of records below the partition's
    start it is known how their transactions ended, unless they are in doubt.
    """
    offsets = {partition: [each.offset for each in records] for partition, records in contents.items()}
    values: dict[tuple[Partition, int], bytes] = {}
    positions: dict[tuple[str, Partition], int] = {}
    for poll in polls:
        place = poll.reader, poll.partition
        if poll.start < positions.get(place, 0):
            yield Problem("nonmonotonic-poll", f"{poll.reader} went back to {poll.start} of {poll.partition}")
        positions[place] = poll.end
        for record in poll.records:
            if values.setdefault((poll.partition, record.offset), record.value) != record.value:
                yield Problem("inconsistent-offsets", f"{_at(poll.partition, record)} for {poll.reader}")
        if poll.committed_only:
            start = 0 if starts is None else starts.get(poll.partition, 0)
            yield from _of_committed(poll, contents[poll.partition], offsets[poll.partition], writers, start)


def _of_committed(
    poll: Poll, records: Sequence[Seen], offsets: Sequence[int], writers: Writers, start: int
) -> Iterator[Problem]:
    there = records[bisect_left(offsets, poll.start) : bisect_left(offsets, poll.end)]
    got = set(poll.records)
    for record in there:
        if record not in got:
            yield Problem("lost-commit", f"{poll.reader} did not get {_at(poll.partition, record)}")
    for record in poll.records:
        if record.offset >= poll.stable:
            yield Problem("unstable-read", f"{poll.reader} got {_at(poll.partition, record)} below {poll.stable}")
        known = writers.get(record.value)
        if known is not None and (known[0].asked is None or known[0].asked > poll.answered):
            yield Problem("dirty-read", f"{poll.reader} got {_at(poll.partition, record)} of {known[0]}, then open")
        elif record.offset < start and known is not None and known[0].outcome is not Outcome.ABORTED:
            continue
        elif record not in there:
            yield Problem("aborted-read", f"{poll.reader} got {_at(poll.partition, record)}, which is not committed")


# --- offsets of groups ---


def of_offsets(history: History, ending: Ending) -> Iterator[Problem]:
    """The offsets and the output of transactions that consume: both, or neither."""
    seen = {record.value for records in ending.contents.values() for record in records}
    takers: dict[Register, list[tuple[Taken, Transaction]]] = defaultdict(list)
    for each in history.transactions:
        if each.taken is not None:
            takers[each.taken.register].append((each.taken, each))
    for register, known in takers.items():
        done = [(taken, each) for taken, each in known if any(write.value in seen for write in each.writes)]
        yield from _of_inputs(register, done)
        if register in ending.offsets:
            yield from _of_end(register, done, ending.offsets[register])
        yield from _of_looks(register, done, known, [look for look in history.looks if look.register == register])


def _of_inputs(register: Register, done: Sequence[tuple[Taken, Transaction]]) -> Iterator[Problem]:
    consumed: dict[int, Transaction] = {}
    for taken, each in done:
        for offset in taken.offsets:
            if offset in consumed:
                yield Problem("duplicate", f"input {offset} of {register}: {consumed[offset]}, and {each}")
            consumed[offset] = each


def _of_end(register: Register, done: Sequence[tuple[Taken, Transaction]], end: int) -> Iterator[Problem]:
    """The transactions follow each other up to the committed offset."""
    at = 0
    for taken, each in sorted(done, key=lambda each: each[0].end):
        if taken.start > at:
            yield Problem("offsets-alone", f"{register} went from {at} to {taken.start} without output; then {each}")
        at = max(at, taken.end)
    if end > at:
        yield Problem("offsets-alone", f"{register} ends at {end}, its output at {at}")
    elif end < at:
        yield Problem("output-alone", f"{register} ends at {end}, its output at {at}")


def _of_looks(
    register: Register,
    done: Sequence[tuple[Taken, Transaction]],
    known: Sequence[tuple[Taken, Transaction]],
    looks: Sequence[Look],
) -> Iterator[Problem]:
    asked = [(taken.end, each.asked) for taken, each in done]
    for look in looks:
        may_be = any(end == look.offset and at is not None and at < look.answered for end, at in asked)
        if look.offset and not may_be:
            others = [str(each) for taken, each in known if taken.end == look.offset]
            yield Problem("dirty-offset", f"{register} was said to be {look.offset}: {', '.join(others) or 'nobody'}")


# --- logs ---


def of_log(partition: Partition, log: Sequence[Logged], writers: Writers) -> Iterator[Problem]:
    """Each transaction's records lie together below one marker of its producer, which decides as its client heard."""
    open_now: dict[int, list[Logged]] = defaultdict(list)
    decided: dict[int, Logged] = {}
    for entry in log:
        if entry.producer_id == NO_PRODUCER:
            continue
        if entry.commits is None:
            open_now[entry.producer_id].append(entry)
            continue
        for record in open_now.pop(entry.producer_id, ()):
            known = writers.get(record.value or b"")
            if known is None:
                continue
            transaction = known[0]
            earlier = decided.setdefault(transaction.number, entry)
            if earlier is not entry:
                text = f"{transaction} has {record.value!r:.60} at {record.offset} of {partition}"
                yield Problem("late-batch", f"{text}, behind its marker at {earlier.offset}")
            is_wrong = transaction.outcome is (Outcome.ABORTED if entry.commits else Outcome.COMMITTED)
            if is_wrong:
                what = "committed" if entry.commits else "aborted"
                yield Problem(
                    "torn-decision", f"{transaction} is {what} by the marker at {entry.offset} of {partition}"
                )
    for records in open_now.values():
        known = writers.get(records[0].value or b"")
        text = f"{partition} offset {records[0].offset} of producer {records[0].producer_id}"
        yield Problem("hanging", f"{text}, {None if known is None else known[0]}, has no end")


def of_stable_offsets(partition: Partition, log: Sequence[Logged], polls: Sequence[Poll]) -> Iterator[Problem]:
    """No reader is told a last stable offset above the first offset of a transaction that was open then. It was open
    where its marker lies above the high watermark in the same answer. Deleted offsets count as decided."""
    spans = _spans(log)
    markers = [marker for _, marker in spans]
    lowest = [0] * len(spans)  # the first offset of any transaction that ends at this marker or behind it
    least: int | None = None
    for at in range(len(spans) - 1, -1, -1):
        least = spans[at][0] if least is None else min(least, spans[at][0])
        lowest[at] = least
    for poll in polls:
        at = bisect_left(markers, poll.high_watermark)
        if at < len(spans) and lowest[at] < poll.stable > poll.begins:
            text = f"{poll.reader} was told {poll.stable} of {partition}, with {poll.high_watermark} replicated"
            yield Problem("unstable-read", f"{text}: a transaction was open from {lowest[at]} on")


def _spans(log: Sequence[Logged]) -> list[tuple[int, int]]:
    """The first offset and the marker's offset of each transaction, by markers. One without an end has the log's."""
    first: dict[int, int] = {}
    spans: list[tuple[int, int]] = []
    for entry in log:
        if entry.producer_id == NO_PRODUCER:
            continue
        if entry.commits is None:
            first.setdefault(entry.producer_id, entry.offset)
        elif entry.producer_id in first:
            spans.append((first.pop(entry.producer_id), entry.offset))
    end = log[-1].offset + 1 if log else 0
    return [*spans, *((begun, end) for begun in first.values())]


def _at(partition: Partition, record: Seen) -> str:
    return f"{partition} offset {record.offset} {record.value!r:.60}"
