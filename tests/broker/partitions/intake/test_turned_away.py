"""Batches that a producer sends after its first batch was refused wait for that to come again."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from headrace.base.limits import TURNED_AWAY_MAX, TURNED_AWAY_MS_MAX
from headrace.broker.partitions.intake.turned_away import TurnedAway
from headrace.wire.batches import BatchHeader, encode_batch, parse_header
from headrace.wire.records import Record


def header(sequence: int, producer: int = 7, epoch: int = 0) -> BatchHeader:
    record = Record(0, 1_700_000_000_000, None, b"v", ())
    return parse_header(encode_batch([record], producer_id=producer, producer_epoch=epoch, base_sequence=sequence))


@given(st.permutations(range(5)), st.integers(0, 4))
def test_a_producer_begins_with_the_first_that_was_refused(tried: list[int], refused_first: int) -> None:
    away = TurnedAway()
    for sequence in range(refused_first, 5):
        away.note(header(sequence), 0.0)
    taken = next(each for each in tried if each >= refused_first and not away.awaits_another(header(each), 1.0))
    assert taken == refused_first
    assert not away


def test_others_and_later_epochs_are_let_in_and_all_is_forgotten_in_time() -> None:
    away = TurnedAway()
    away.note(header(0), 0.0)
    assert not away.awaits_another(header(5, producer=8), 1.0)
    assert away.awaits_another(header(5), 1.0)
    assert not away.awaits_another(header(5), TURNED_AWAY_MS_MAX / 1000)
    away.note(header(0), 0.0)
    assert not away.awaits_another(header(0, epoch=1), 1.0)
    assert not away


def test_no_more_are_remembered_than_the_limit() -> None:
    away = TurnedAway()
    for producer in range(TURNED_AWAY_MAX + 10):
        away.note(header(0, producer), 0.0)
    assert not away.awaits_another(header(1, 0), 1.0)
    assert away.awaits_another(header(1, TURNED_AWAY_MAX), 1.0)
    away.note(header(0, producer=-1), 0.0)
    assert not away.awaits_another(header(1, -1), 1.0)
