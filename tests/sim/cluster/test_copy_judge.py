"""The records that a copy serves: its own log from its start, and history before that, or where the log ends below
it."""

from __future__ import annotations

import pytest

from headrace.sim.cluster.copies.judge import _differ, _joined
from headrace.sim.cluster.records.media import Batch


def batches(start: int, end: int, epoch: int = 0) -> list[Batch]:
    """Of one record each."""
    return [Batch(at, at + 1, epoch, b"%d in %d" % (at, epoch)) for at in range(start, end)]


HISTORY = batches(0, 4)


@pytest.mark.parametrize(
    ("log", "served"),
    [
        ([], HISTORY),
        (batches(0, 2), HISTORY),
        (batches(0, 4), HISTORY),
        (batches(2, 6), batches(0, 6)),
        (batches(4, 6), batches(0, 6)),
        (batches(5, 6), HISTORY),
        (batches(2, 6, epoch=1), [*batches(0, 2), *batches(2, 6, epoch=1)]),
        (batches(0, 4, epoch=1), batches(0, 4, epoch=1)),
    ],
    ids=[
        "nothing",
        "less",
        "the same",
        "more",
        "begun behind it",
        "a gap",
        "something else",
        "as long, something else",
    ],
)
def test_what_is_served(log: list[Batch], served: list[Batch]) -> None:
    assert _joined(HISTORY, log) == served
    assert _joined([], log) == log


def test_a_log_that_is_not_what_was_exported() -> None:
    assert not _differ(HISTORY, batches(2, 6))
    assert not _differ(HISTORY, batches(4, 6, epoch=1))
    assert not _differ([], batches(0, 6))
    assert _differ(HISTORY, batches(3, 6, epoch=1))
    assert _differ(HISTORY, [Batch(3, 6, 0, b"three at once")])
