"""Records that a table's judge knows to be possibly gone, and its accusations of a read."""

from __future__ import annotations

import pytest

from headrace.sim.cluster.copies.ledger import Ledger, Written

OLD, NEW, GONE = Written(3, b"a", b"1"), Written(8, b"a", b"2"), Written(9, b"b", None)
VALUE = Written(2, b"b", b"0")
WHOLE = [VALUE, OLD, NEW, GONE]


def accused(
    found: list[Written],
    *,
    frontier: int | None = None,
    parted: bool = False,
    floor: int = 0,
    outruns: bool = False,
    gone_below: int = 0,
) -> list[str]:
    """Of a reading, after all was acknowledged, and where there is a `frontier` what is behind that may be lost."""
    kinds: list[str] = []
    ledger = Ledger(lambda kind, _: kinds.append(kind))
    for each in WHOLE:
        ledger.acked(each)
    before = ledger.now()
    ledger.outruns, ledger.gone_below = outruns, gone_below
    if frontier is not None:
        ledger.lose(frontier, parted=parted)
    ledger.judge("who reads", before, found, floor=floor, whole=True)
    return kinds


@pytest.mark.parametrize(
    ("found", "kinds"),
    [
        (WHOLE, []),
        ([NEW, GONE], []),
        ([NEW], []),
        ([OLD, GONE], ["last-value-lost"]),
        ([GONE], ["last-value-lost"]),
        ([VALUE, NEW], ["deleted-key-back"]),
        ([NEW, GONE._replace(value=b"3")], ["table-differs"]),
    ],
)
def test_every_key_has_its_last_value_and_no_deleted_key_any(found: list[Written], kinds: list[str]) -> None:
    assert accused(found) == kinds


@pytest.mark.parametrize(
    ("frontier", "found", "kinds"),
    [
        (5, [OLD, VALUE], []),
        (5, [OLD, VALUE, NEW._replace(key=b"c")], []),
        (9, [OLD, VALUE], ["last-value-lost"]),
        (10, [VALUE, NEW], ["deleted-key-back"]),
        (4, [VALUE], ["last-value-lost"]),
    ],
)
def test_an_unclean_election_takes_what_is_behind_history_and_not_more(
    frontier: int, found: list[Written], kinds: list[str]
) -> None:
    assert accused(found, frontier=frontier) == kinds


def test_where_another_log_is_kept_brokers_are_not_judged_by_history() -> None:
    assert accused([], frontier=10, parted=True, floor=10) == []
    assert accused([], frontier=10, parted=True) == ["last-value-lost"]


def test_a_log_that_was_compacted_before_its_history_may_lose_what_a_lost_record_replaced() -> None:
    assert accused([VALUE], frontier=5) == ["last-value-lost"]
    assert accused([VALUE], frontier=5, outruns=True) == []


def test_what_lies_below_the_start_may_be_gone_and_nothing_above_it() -> None:
    assert accused([GONE], gone_below=9) == []
    assert accused([GONE], gone_below=8) == ["last-value-lost"]


def test_at_rest_both_readings_are_the_same_of_all_that_cannot_have_been_deleted() -> None:
    kinds: list[str] = []
    ledger = Ledger(lambda kind, _: kinds.append(kind))
    ledger.compare([NEW, GONE], WHOLE)
    assert not kinds
    ledger.gone_below = 4
    ledger.compare([NEW], [VALUE, NEW])
    assert not kinds
    ledger.compare([OLD], [NEW])
    assert kinds == ["table-apart"]
