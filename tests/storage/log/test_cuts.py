"""A follower's log is cut where the leader's goes on otherwise: what is left of it says what it said before."""

from __future__ import annotations

from headrace.base.ids import Offset
from tests.storage.log.log_world import Twin, batch, new_disk, open_log


def test_a_producer_snapshot_that_waits_for_its_flush_is_read_after_a_cut() -> None:
    """Its file is not there yet: recovering the producers from it stopped the broker."""
    twin = Twin(open_log(new_disk()))
    twin.append(batch(1))
    twin.log.write_producer_snapshot(b"as of 1", Offset(1))
    twin.append(batch(1), batch(1))
    twin.log.write_producer_snapshot(b"as of 3", Offset(3))
    assert twin.log.latest_producer_snapshot() == (3, b"as of 3")
    twin.log.truncate_to(Offset(2))
    assert twin.log.latest_producer_snapshot() == (1, b"as of 1")
