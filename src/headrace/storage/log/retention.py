"""Decides how many of the oldest segments are due for removal, by age and by size. Changes nothing."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from headrace.storage.engine import LogConfig
from headrace.storage.log.segment import Segment


def due(
    segments: Sequence[Segment],
    config: LogConfig,
    *,
    log_size: int,
    log_start: int,
    now_ms: int,
    up_to: int,
    gaps_below: int,
    written_ms: Callable[[Segment], int],
) -> int:
    """Return how many of the oldest of these closed, durable segments may be removed: none that reaches above `up_to`.

    A segment is due in each of these cases:
    - It lies below the log's start.
    - All its records are older than `retention_ms`.
    - Compaction has emptied it.
    - The log without it still holds `retention_bytes`.

    `written_ms`: see `is_old`.
    """
    count = 0
    for segment in segments:
        if not segment.synced or segment.end > up_to:
            break
        below = segment.end <= log_start
        is_bare = (
            not segment.size and segment.end <= gaps_below and not segment.damages
        )  # compaction left nothing in it
        old = is_old(segment, config, now_ms, written_ms) or is_bare
        surplus = config.retention_bytes >= 0 and log_size - segment.size >= config.retention_bytes
        if not (below or old or surplus):
            break
        log_size -= segment.size
        count += 1
    return count


def is_old(segment: Segment, config: LogConfig, now_ms: int, written_ms: Callable[[Segment], int]) -> bool:
    """Whether all records are older than `retention_ms`. Where none has a timestamp, the file's last change counts,
    which `written_ms` returns (as in Kafka: `LogSegment.largestTimestamp`).
    """
    if config.retention_ms < 0:
        return False
    newest_ms = segment.max_timestamp if segment.max_timestamp >= 0 or not segment.size else written_ms(segment)
    return 0 <= newest_ms < now_ms - config.retention_ms
