"""The judges of transactions, on histories made by hand: sound ones pass, and each anomaly is told by its name."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from headrace.sim.cluster.transactions.anomalies import anomalies
from headrace.sim.cluster.transactions.history import (
    Ending,
    History,
    Logged,
    Look,
    Partition,
    Poll,
    Register,
    Seen,
    Taken,
    Transaction,
    Write,
)

P, Q = Partition("t", 0), Partition("t", 1)
GROUP = Register("g", P)
COMMIT, ABORT = True, False


class Story:
    """A history as it happens: each call is the next moment."""

    def __init__(self) -> None:
        self.history = History()
        self.logs: dict[Partition, list[Logged]] = {P: [], Q: []}
        self.offsets: dict[Register, int] = {}

    def begin(self, *partitions: Partition, taken: Taken | None = None) -> Transaction:
        """A transaction with one acknowledged record in each partition."""
        begun = self.history.begin(f"producer {len(self.history.transactions)}")
        begun.taken = taken
        for partition in partitions:
            self.write(begun, partition)
        return begun

    def write(self, begun: Transaction, partition: Partition) -> None:
        value = f"{begun.number}/{len(begun.writes)}".encode()
        log = self.logs[partition]
        begun.writes.append(Write(partition, value, self.history.now(), len(log)))
        log.append(Logged(len(log), begun.number, 0, value))

    def mark(self, begun: Transaction, commits: bool, *partitions: Partition) -> None:
        for partition in partitions or dict.fromkeys(write.partition for write in begun.writes):
            log = self.logs[partition]
            log.append(Logged(len(log), begun.number, 0, None, commits))

    def ask(self, begun: Transaction) -> None:
        begun.asked = self.history.now()

    def commit(self, begun: Transaction) -> None:
        self.ask(begun)
        self.mark(begun, COMMIT)
        begun.is_committed, begun.ended = True, self.history.now()

    def abort(self, begun: Transaction) -> None:
        self.mark(begun, ABORT)
        begun.is_aborted, begun.ended = True, self.history.now()

    def contents(self, partition: Partition) -> list[Seen]:
        committed, waiting = list[Seen](), dict[int, list[Seen]]()
        for entry in self.logs[partition]:
            if entry.commits is None:
                assert entry.value is not None
                waiting.setdefault(entry.producer_id, []).append(Seen(entry.offset, entry.value))
            elif entry.commits:
                committed += waiting.pop(entry.producer_id, [])
            else:
                waiting.pop(entry.producer_id, None)
        return sorted(committed)

    def poll(
        self,
        partition: Partition,
        *records: Seen,
        end: int | None = None,
        stable: int | None = None,
        high_watermark: int | None = None,
    ) -> None:
        """A reader from the start got these records."""
        end = len(self.logs[partition]) if end is None else end
        stable = end if stable is None else stable
        marks = stable, end if high_watermark is None else high_watermark
        reader = f"reader {len(self.history.polls)}"
        self.history.polls.append(Poll(reader, partition, True, 0, end, records, *marks, self.history.now()))

    def look(self, offset: int) -> None:
        self.history.looks.append(Look(GROUP, offset, self.history.now()))

    @property
    def ending(self) -> Ending:
        return Ending({each: self.contents(each) for each in self.logs}, self.offsets, self.logs)

    def kinds(self) -> list[str]:
        return [problem.kind for problem in anomalies(self.history, self.ending)]


def test_a_sound_history_has_no_anomaly() -> None:
    story = Story()
    first, second, third = story.begin(P, Q), story.begin(P), story.begin(Q)
    story.commit(first)
    story.poll(P, Seen(0, b"0/0"), end=1, high_watermark=3)
    story.abort(second)
    story.ask(third)  # no answer
    story.mark(third, COMMIT)
    taken = story.begin(Q, taken=Taken(GROUP, 0, 1, (0,)))
    story.look(0)
    story.commit(taken)
    story.look(1)
    story.offsets[GROUP] = 1
    for partition in (P, Q):
        story.poll(partition, *story.contents(partition))
    assert story.kinds() == []


def test_a_transaction_is_there_whole_and_once() -> None:
    story = Story()
    torn, lost, aborted = story.begin(P, Q), story.begin(P), story.begin(P)
    story.ask(torn)
    story.mark(torn, COMMIT, P)
    story.mark(torn, ABORT, Q)
    story.abort(lost)
    lost.asked, lost.is_committed, lost.is_aborted = 1, True, False
    story.commit(aborted)
    aborted.is_committed, aborted.is_aborted = False, True
    assert story.kinds() == ["torn", "lost-commit", "aborted-read", "torn-decision", "torn-decision"]
    again = Story()
    twice = again.begin(P)
    again.logs[P].append(again.logs[P][0]._replace(offset=1))
    again.commit(twice)
    assert "duplicate" in again.kinds()
    nobody = Story()
    nobody.logs[P] += [Logged(0, 9, 0, b"x"), Logged(1, 9, 0, None, COMMIT)]
    assert nobody.kinds() == ["phantom"]


def test_a_reader_of_committed_records_gets_these_and_no_others() -> None:
    story = Story()
    first, second, third = story.begin(P), story.begin(P), story.begin(P)
    story.commit(first)
    story.poll(P, Seen(0, b"0/0"), Seen(1, b"1/0"), end=2, high_watermark=4)
    story.ask(second)
    story.commit(third)
    story.mark(second, ABORT)
    story.poll(P, Seen(0, b"0/0"), Seen(1, b"1/0"), Seen(2, b"2/0"))
    story.poll(P, Seen(0, b"0/0"))
    assert story.kinds() == ["dirty-read", "aborted-read", "lost-commit", "unstable-read"]


@pytest.mark.parametrize(("stable", "high_watermark", "kinds"), [(0, 1, []), (1, 1, ["unstable-read"]), (2, 2, [])])
def test_a_last_stable_offset_is_below_what_is_open(stable: int, high_watermark: int, kinds: list[str]) -> None:
    """The transaction begins at 0, and its marker is at 1."""
    story = Story()
    story.commit(story.begin(P))
    story.poll(P, end=0, stable=stable, high_watermark=high_watermark)
    assert story.kinds() == kinds


def test_what_is_given_out_lies_below_the_last_stable_offset() -> None:
    story = Story()
    story.commit(story.begin(P))
    story.poll(P, Seen(0, b"0/0"), end=1, stable=0, high_watermark=1)
    assert story.kinds() == ["unstable-read"]


def test_nobody_goes_back_and_an_offset_has_one_record() -> None:
    story = Story()
    story.commit(story.begin(P))
    story.poll(P, Seen(0, b"0/0"))
    story.history.polls.append(story.history.polls[0])
    story.history.polls.append(replace_poll(story.history.polls[0], "other", (Seen(0, b"another"),)))
    assert story.kinds() == ["nonmonotonic-poll", "inconsistent-offsets", "lost-commit", "aborted-read"]


def replace_poll(poll: Poll, reader: str, records: tuple[Seen, ...]) -> Poll:
    return poll._replace(reader=reader, records=records)


def test_an_acknowledged_record_is_in_the_log_where_it_was_acknowledged() -> None:
    story = Story()
    begun = story.begin(P, P)
    story.commit(begun)
    begun.writes[0].offset = 7
    del story.logs[P][1]
    begun.is_committed, begun.asked, begun.is_aborted = False, None, True
    story.logs[P][-1] = story.logs[P][-1]._replace(commits=ABORT)
    assert story.kinds() == ["lost-write", "lost-write"]


def test_a_fenced_client_writes_nothing_new() -> None:
    story = Story()
    begun = story.begin(P)
    begun.fenced = story.history.now()
    story.mark(begun, ABORT)
    assert story.kinds() == []
    story.write(begun, P)
    story.mark(begun, ABORT)
    assert "fenced-write" in story.kinds()


def test_a_log_has_an_end_for_each_transaction_and_nothing_behind_it() -> None:
    story = Story()
    late, hanging = story.begin(P), story.begin(Q)
    story.commit(late)
    story.write(late, P)
    story.mark(late, COMMIT)
    assert hanging.asked is None
    assert story.kinds() == ["late-batch", "hanging"]


# --- offsets ---


def moved(story: Story, start: int, end: int, *, offsets: Sequence[int] | None = None) -> Transaction:
    taken = Taken(GROUP, start, end, tuple(range(start, end) if offsets is None else offsets))
    return story.begin(Q, taken=taken)


def test_offsets_have_their_output() -> None:
    story = Story()
    story.commit(moved(story, 0, 2))
    story.commit(moved(story, 3, 4))
    story.offsets[GROUP] = 5
    assert story.kinds() == ["offsets-alone", "offsets-alone"]


def test_output_has_its_offsets() -> None:
    story = Story()
    story.commit(moved(story, 0, 2))
    story.offsets[GROUP] = 0
    assert story.kinds() == ["output-alone"]


def test_no_input_is_consumed_twice() -> None:
    """Two clients were told the same offset. None of them can be the first."""
    story = Story()
    one, other = moved(story, 0, 2), moved(story, 0, 3, offsets=[0])
    story.commit(one)
    story.commit(other)
    story.offsets[GROUP] = 3
    assert story.kinds() == ["duplicate", "G-single"]


def test_an_offset_is_told_once_its_transaction_is_committed() -> None:
    story = Story()
    committed, aborted = moved(story, 0, 2), moved(story, 2, 4)
    story.look(2)
    story.commit(committed)
    story.look(2)
    story.abort(aborted)
    story.look(4)
    story.look(9)
    story.offsets[GROUP] = 2
    assert story.kinds() == ["dirty-offset"] * 3


# --- dependencies ---


def test_a_write_behind_the_end_of_its_transaction_opposes_time() -> None:
    story = Story()
    ended = story.begin(Q)
    story.commit(ended)
    younger = story.begin(P)
    story.write(ended, P)
    story.mark(ended, COMMIT, P)
    story.commit(younger)
    assert story.kinds() == ["G0-realtime"]


def test_two_that_read_from_each_other_are_a_cycle() -> None:
    """Each consumed what the other wrote."""
    story = Story()
    one, other = story.begin(P), story.begin(Q)
    story.commit(one)
    story.commit(other)
    one.ended = other.ended = None
    one.taken = Taken(Register("a", Q), 0, 1, (0,))
    other.taken = Taken(Register("b", P), 0, 1, (0,))
    story.offsets |= {Register("a", Q): 1, Register("b", P): 1}
    assert story.kinds() == ["G1c"]


def test_concurrent_transactions_may_be_mixed() -> None:
    story = Story()
    one, other = story.begin(P), story.begin(Q)
    story.write(one, Q)
    story.write(other, P)
    story.commit(other)
    story.commit(one)
    assert story.kinds() == []
