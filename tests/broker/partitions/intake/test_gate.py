"""Requests that wait until a leader may write again."""

from __future__ import annotations

import pytest

from headrace.broker.partitions.intake import gate
from headrace.broker.partitions.intake.gate import Gate


@pytest.mark.parametrize("limit", ["PARKED_BATCHES_MAX", "PARKED_BATCHES_BYTES_MAX"])
def test_who_was_refused_for_want_of_room_is_not_overtaken_by_who_has_room(
    monkeypatch: pytest.MonkeyPatch, limit: str
) -> None:
    monkeypatch.setattr(gate, limit, 1 if limit == "PARKED_BATCHES_MAX" else 20)
    told: list[int] = []
    stopped = Gate(takes_over=False)
    stopped.is_stopped = True
    assert stopped.park(lambda: told.append(1), 10)
    assert not stopped.park(lambda: told.append(2), 11)
    assert not stopped.park(lambda: told.append(3), 1)
    stopped.resume()
    assert told == [1]
    stopped.is_stopped = True
    assert stopped.park(lambda: told.append(4), 1), "nobody waits"
