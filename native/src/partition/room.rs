//! What the active segment and the journal have room for, and what they note of batches. Leaders and followers append
//! by the same rules.

use pyo3::prelude::*;

use super::parts::Limits;
use super::rules::LogConfig;
use super::state::{LogState, SegmentState, known};
use crate::attributes::field;
use crate::{attribute, call};

const RELATIVE_OFFSET_MAX: i64 = (1 << 31) - 1;
const INDEX_ENTRY_BYTES: i64 = 8;
const TIME_ENTRY_BYTES: i64 = 12;

/// Batches that are to be appended together.
#[derive(Clone, Copy)]
pub struct Coming {
    pub size: i64,
    /// The offset after the last.
    pub end: i64,
    /// Their newest time.
    pub newest: i64,
    pub now_ms: i64,
}

/// `not Contents.is_full`, of a segment that is not empty.
pub fn has_room(
    active: &Bound<'_, SegmentState>,
    config: &LogConfig,
    coming: Coming,
    held_count: i64,
    held_size: i64,
) -> PyResult<bool> {
    let indexes = active.as_any();
    let (index, times) =
        (i64::try_from(attribute!(indexes, "index").len()?)?, i64::try_from(attribute!(indexes, "times").len()?)?);
    let active = active.get();
    let first = active.first_timestamp();
    let age = if first >= 0 {
        coming.newest.saturating_sub(first)
    } else {
        coming.now_ms.saturating_sub(active.created_ms())
    };
    Ok(active.size() > 0
        && active.created_ms() >= 0
        && active.size() + held_size + coming.size <= config.segment_bytes
        && config.segment_ms.saturating_sub(age) >= config.segment_jitter_ms.max(0)
        && index + (1 + held_count) * INDEX_ENTRY_BYTES <= config.segment_index_bytes
        && times + (2 + held_count) * TIME_ENTRY_BYTES <= config.segment_index_bytes
        && coming.end - active.base() <= RELATIVE_OFFSET_MAX)
}

/// `Segment.add`, of one batch.
pub fn add_to_segment(
    segment: &Bound<'_, SegmentState>,
    last_offset: i64,
    size: i64,
    max_timestamp: i64,
    interval: i64,
) -> PyResult<()> {
    let active = segment.get();
    if active.since_entry() > interval {
        call!(segment.as_any(), "add", last_offset, size, max_timestamp, interval);
        return Ok(());
    }
    if max_timestamp > active.max_timestamp() {
        active.set_max_timestamp(max_timestamp);
        active.set_max_timestamp_offset(last_offset);
    }
    active.set_size(active.size() + size);
    active.set_since_entry(active.since_entry() + size);
    active.set_end(last_offset + 1);
    Ok(())
}

/// Whether `Collected.add` would take the batches.
pub fn collects(
    limits: &Limits,
    journal: Option<Bound<'_, PyAny>>,
    collected: &Bound<'_, PyAny>,
    size: i64,
) -> PyResult<bool> {
    let Some(journal) = journal else {
        return Ok(false);
    };
    Ok(!attribute!(collected, "end").is_none()
        && attribute!(journal, "is_ready").is_truthy()?
        && attribute!(collected, "size").extract::<i64>()? + size <= limits.journal_log_bytes_max
        && attribute!(journal, "_pending_bytes").extract::<i64>()? + size <= limits.journal_pending_bytes_max)
}

/// `LocalState.needs_flush`, of a log whose appends are left to the kernel.
pub fn needs_upkeep(py: Python<'_>, log: &LogState, aborted: &Bound<'_, PyAny>) -> PyResult<bool> {
    let unsynced = known(log.unsynced(py), "unsynced")?;
    Ok(attribute!(unsynced, "closed").is_truthy()?
        || attribute!(unsynced, "checkpoint").is_truthy()?
        || attribute!(unsynced, "snapshots").is_truthy()?
        || attribute!(unsynced, "removals").is_truthy()?
        || attribute!(unsynced, "birth").is_truthy()?
        || attribute!(unsynced, "gaps_below").is_truthy()?
        || attribute!(aborted, "needs_writing").is_truthy()?)
}

/// `LeaderEpochs.latest`.
pub fn latest_epoch(py: Python<'_>, log: &LogState) -> PyResult<i64> {
    let entries = attribute!(known(log.leader_epochs(py), "leader_epochs")?, "entries");
    match entries.len()? {
        0 => Ok(-1),
        count => field(&entries.get_item(count - 1)?, 0)?.extract(),
    }
}
