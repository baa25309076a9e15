"""Segments that were exported in the middle of transactions: later ones tell how these ended."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from headrace.base.errors import CorruptData
from headrace.base.ids import LAST_OFFSET, LeaderEpoch
from headrace.metadata.segment_keys import SegmentKey, is_undecided
from headrace.metadata.segments import SegmentDescriptor
from headrace.storage.tier.blocks import check_footer, read_block, read_footer, read_plan, told_later
from headrace.storage.tier.merge import merge_segments
from headrace.wire.transactions import AbortedTransaction, OpenTransaction

NOW = LeaderEpoch(12)
EARLY, LATE = AbortedTransaction(1, 0, 3, 1), AbortedTransaction(2, 1, 7, 8)
OPEN = OpenTransaction(2, 1)


def sealed_twice(history: Any) -> Sequence[SegmentDescriptor]:
    """Transactions of producers 1, which is aborted in the second segment, and 2, which is in the third."""
    for aborted, undecided in (((), (OpenTransaction(1, 0), OPEN)), ((EARLY,), (OPEN,)), ((LATE,), ()), ((LATE,), ())):
        history.export([history.batch([b"a", b"b"])], aborted_transactions=aborted, undecided_transactions=undecided)
    return [entry.descriptor for entry in history.catalog]


def test_a_key_says_whether_a_transaction_was_open(history: Any) -> None:
    segments = sealed_twice(history)
    assert [is_undecided(each) for each in segments] == [True, True, False, False]
    for each in segments:
        named = SegmentKey.parse(each.key)
        assert named is not None
        assert named.is_undecided == bool(read_footer(history.objects, each).undecided_transactions)
    with pytest.raises(CorruptData, match="open transactions"):
        check_footer(segments[2], read_footer(history.objects, segments[1]))


@pytest.mark.parametrize(
    ("later", "aborted", "told_to"),
    [(0, [], 2), (1, [EARLY], 4), (2, [EARLY, LATE], LAST_OFFSET), (3, [EARLY, LATE], LAST_OFFSET)],
)
def test_a_block_lists_what_segments_tell_that_have_come_by_now(
    history: Any, later: int, aborted: list[AbortedTransaction], told_to: int
) -> None:
    segments = sealed_twice(history)
    plan = read_plan(history.objects, segments[0])
    block = told_later(history.objects, plan, read_block(history.objects, plan, 0), segments[1 : 1 + later])
    assert (list(block.aborted), block.told_to) == (aborted, told_to)


def test_a_block_needs_no_later_segment_where_all_had_ended(history: Any) -> None:
    segments = sealed_twice(history)
    plan = read_plan(history.objects, segments[2])
    block = read_block(history.objects, plan, 0)
    assert (list(block.aborted), block.told_to) == ([LATE], LAST_OFFSET)
    gone = replace(segments[3], key="gone")
    assert told_later(history.objects, plan, block, [gone]) == block


def test_a_merged_segment_tells_each_transaction_once_and_what_its_last_part_left_open(history: Any) -> None:
    segments = sealed_twice(history)
    made = merge_segments(history.objects, segments[:2], made_in=NOW)
    footer = read_footer(history.objects, made)
    assert (footer.aborted_transactions, footer.undecided_transactions) == ((EARLY,), (OPEN,))
    assert is_undecided(made)
    whole = merge_segments(history.objects, segments, made_in=NOW)
    footer = read_footer(history.objects, whole)
    assert (footer.aborted_transactions, footer.undecided_transactions) == ((EARLY, LATE), ())
    assert not is_undecided(whole)
