"""When a segment is closed: by its indexes' size, and by its time less its own jitter."""

from __future__ import annotations

from headrace.storage.engine.identity import LogConfig
from headrace.storage.log.segment import INDEX_ENTRY, TIME_ENTRY
from tests.storage.log.log_world import DIRECTORY, Twin, batch, flush, new_disk, open_log


def test_a_segment_is_closed_when_an_index_is_full() -> None:
    disk = new_disk()
    limit = 5 * INDEX_ENTRY.size
    twin = Twin(open_log(disk, LogConfig(index_interval_bytes=0, segment_index_bytes=limit)))
    for number in range(40):
        twin.append(batch(2, seed=number))
    twin.log.roll()
    flush(twin.log)
    segments = twin.log.closed_segments()
    assert len(segments) > 5
    sizes = [
        max(disk.size(DIRECTORY / f"{info.base_offset:020}.{suffix}") for info in segments)
        for suffix in ("index", "timeindex")
    ]
    assert limit - 2 * TIME_ENTRY.size < max(sizes) <= limit
    assert twin.read_all() == twin.bytes_from(0)


def test_however_small_the_index_each_append_fits() -> None:
    twin = Twin(open_log(new_disk(), LogConfig(index_interval_bytes=0, segment_index_bytes=4)))
    for number in range(4):
        twin.append(batch(seed=number))
    flush(twin.log)
    assert [info.base_offset for info in twin.log.closed_segments()] == [0, 1, 2]
    assert twin.read_all() == twin.bytes_from(0)


def test_jitter_closes_segments_early_each_at_a_time_of_its_own() -> None:
    config = LogConfig(segment_ms=1000, segment_jitter_ms=500)
    twin = Twin(open_log(new_disk(), config))
    for time in range(0, 20_000, 10):
        twin.append(batch(times=(time,)))
    flush(twin.log)
    spans = [(info.next_offset - info.base_offset) * 10 for info in twin.log.closed_segments()]
    assert all(500 <= span <= 1010 for span in spans)
    assert len(set(spans)) > 5, "not all at once"
