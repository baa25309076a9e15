"""The judge of what clients of replicated partitions saw: silent on a sound history, and each anomaly by its name."""

from __future__ import annotations

import uuid

import pytest

from headrace.sim.cluster.records.anomalies import anomalies
from headrace.sim.cluster.records.history import Poll, RecordsHistory, Sent
from headrace.sim.history import Found, PartitionKey

KEY = PartitionKey(uuid.UUID(int=7), 0)


def found(offset: int, value: str) -> Found:
    return Found(offset, None, value.encode(), 1_700_000_000_000)


def log(*values: str) -> list[Found]:
    return [found(offset, value) for offset, value in enumerate(values)]


def history(*values: str) -> RecordsHistory:
    """Of one lane that sent and was acknowledged all of these, from offset 0 on."""
    told = RecordsHistory()
    for number, value in enumerate(values):
        told.sent[value.encode()] = Sent(KEY, "lane", number)
    told.acknowledge([value.encode() for value in values], 0, on_all=True)
    return told


def kinds(told: RecordsHistory, *content: Found) -> set[str]:
    return {problem.kind for problem in anomalies(told, {KEY: content})}


def test_a_sound_history_has_none() -> None:
    told = history("a", "b", "c")
    told.polls += [Poll("one", KEY, log("a", "b")), Poll("two", KEY, log("a", "b", "c")), Poll("one", KEY, [])]
    told.polls.append(Poll("one", KEY, [found(2, "c")]))
    assert kinds(told, *log("a", "b", "c")) == set()


def test_what_only_a_leader_acknowledged_may_be_lost() -> None:
    told = history("a")
    told.sent[b"b"] = told.sent[b"c"] = Sent(KEY, "other", 0)
    told.acknowledge([b"b"], 1, on_all=False)
    assert kinds(told, *log("a", "c")) == set()


def test_what_was_acknowledged_by_all_is_lost_where_later_records_are_there_and_else_unseen() -> None:
    told = history("a", "b", "c")
    assert kinds(told, *log("a", "b")) == {"unseen"}
    told.acked[b"c"] = told.acked[b"c"]._replace(offset=-1)
    del told.acked[b"b"]
    assert kinds(told, *log("a", "b")) == {"lost-write"}


def test_what_a_consumer_got_may_not_go_away() -> None:
    told = history("a")
    told.sent[b"b"] = Sent(KEY, "other", 0)
    told.polls.append(Poll("one", KEY, log("a", "b")))
    assert kinds(told, *log("a")) == {"unseen"}
    told.sent[b"c"] = Sent(KEY, "third", 0)
    assert kinds(told, *log("a", "c")) == {"lost-write", "inconsistent-offsets"}


def test_one_record_at_two_offsets_is_a_duplicate() -> None:
    assert kinds(history("a", "b"), *log("a", "b", "b")) == {"duplicate", "inconsistent-offsets"}


def test_a_record_elsewhere_than_acknowledged_is_inconsistent() -> None:
    told = history("a", "b")
    told.acknowledge([b"a"], 1, on_all=True)
    assert kinds(told, *log("a", "b")) == {"inconsistent-offsets"}


@pytest.mark.parametrize(
    ("offsets", "kind"),
    [((0, 1, 1), "nonmonotonic-poll"), ((0, 1, 0), "nonmonotonic-poll"), ((0, 2), "poll-skip"), ((1,), "poll-skip")],
)
def test_a_consumer_goes_neither_back_nor_past_a_record(offsets: tuple[int, ...], kind: str) -> None:
    content = log("a", "b", "c")
    told = history("a", "b", "c")
    told.polls += [Poll("one", KEY, [content[offset]]) for offset in offsets]
    assert kinds(told, *content) == {kind}


def test_what_nobody_sent_and_what_comes_in_another_order_is_told() -> None:
    assert kinds(history("a"), *log("a", "x")) == {"phantom"}
    swapped = history("a", "b")
    swapped.acked.clear()
    assert kinds(swapped, *log("b", "a")) == {"misordered"}
