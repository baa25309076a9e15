//! What follows an append or a flush: the high watermark of a leader, and those who wait for it.

use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};

use super::HotPartition;
use crate::attributes::{field, named};
use crate::{attribute, call, change};

/// Where the fields of `Leader` lie.
const NODE: usize = 0;
const ISR_ENDS: usize = 3;
const HIGH_WATERMARK: usize = 4;

impl HotPartition {
    /// `Partition._after_write`, of a log that has not failed.
    pub(super) fn after_write(&self, py: Python<'_>, end: i64, appended_bytes: i64) -> PyResult<()> {
        let parts = &self.parts;
        let (log, partition) = (parts.log.bind(py), parts.partition.bind(py));
        let is_synced = attribute!(log, "flushed_end").extract::<i64>()? == end;
        if !is_synced || self.needs_upkeep(py, log)? {
            call!(parts.flusher.bind(py), "request", partition);
        }
        if is_synced { self.on_durable(py, end, appended_bytes) } else { Ok(()) }
    }

    /// `LocalState.needs_flush`, of a log whose appends are left to the kernel.
    fn needs_upkeep(&self, py: Python<'_>, log: &Bound<'_, PyAny>) -> PyResult<bool> {
        let unsynced = attribute!(log, "unsynced");
        Ok(attribute!(unsynced, "closed").is_truthy()?
            || attribute!(unsynced, "checkpoint").is_truthy()?
            || attribute!(unsynced, "snapshots").is_truthy()?
            || attribute!(unsynced, "removals").is_truthy()?
            || attribute!(unsynced, "birth").is_truthy()?
            || attribute!(unsynced, "gaps_below").is_truthy()?
            || attribute!(self.parts.aborted.bind(py), "needs_writing").is_truthy()?)
    }

    /// `Partition._on_durable`.
    pub(super) fn on_durable(&self, py: Python<'_>, end: i64, appended_bytes: i64) -> PyResult<()> {
        let (isr, visible) = (self.parts.isr.bind(py), self.parts.visible_bytes.bind(py));
        let leader = attribute!(isr, "leader");
        let ends = field(&leader, ISR_ENDS)?;
        let noted = attribute!(visible, "_flushed");
        if ends.len()? > 1 || noted.is_truthy()? {
            call!(noted, "append", (end, appended_bytes));
        }
        let node = field(&leader, NODE)?;
        if end <= ends.get_item(&node)?.extract::<i64>()? {
            return Ok(());
        }
        let ends = ends.cast::<PyDict>()?.copy()?;
        ends.set_item(node, end)?;
        let mut reached = end;
        for other in ends.values() {
            reached = reached.min(other.extract()?);
        }
        let known = field(&leader, HIGH_WATERMARK)?.extract::<i64>()?;
        let fields = leader.cast::<PyTuple>()?.to_list();
        fields.set_item(ISR_ENDS, ends)?;
        fields.set_item(HIGH_WATERMARK, reached.max(known))?;
        change!(isr, "leader", named(self.kinds.0.bind(py), self.kinds.6.bind(py), fields.to_tuple())?);
        if reached > known { self.on_high_watermark(py, reached, appended_bytes) } else { Ok(()) }
    }

    /// `Partition._carry_out` of a higher high watermark.
    fn on_high_watermark(&self, py: Python<'_>, reached: i64, appended_bytes: i64) -> PyResult<()> {
        let parts = &self.parts;
        let (visible, fetches) = (parts.visible_bytes.bind(py), parts.fetches.bind(py));
        let is_watched = attribute!(parts.commits.bind(py), "_waiting").is_truthy()?
            || attribute!(fetches, "_waiting").is_truthy()?
            || attribute!(parts.tails.bind(py), "feeds").is_truthy()?
            || attribute!(visible, "_flushed").is_truthy()?;
        let partition = parts.partition.bind(py);
        if is_watched || !self.has_no_transactions(py)? {
            let effect = named(self.kinds.0.bind(py), self.kinds.7.bind(py), PyTuple::new(py, [reached])?)?;
            call!(partition, "_carry_out", effect, appended_bytes);
            return Ok(());
        }
        let more = (appended_bytes - attribute!(visible, "known").extract::<i64>()?).max(1);
        change!(visible, "known", appended_bytes);
        let withheld = attribute!(fetches, "_withheld_bytes").extract::<i64>()? + more;
        let is_told = reached > attribute!(fetches, "_stable_told").extract()?;
        if is_told {
            change!(fetches, "_stable_told", reached);
        }
        change!(fetches, "_withheld_bytes", if is_told { 0 } else { withheld });
        Ok(())
    }

    /// Whether the last stable offset is the high watermark, as no transaction is open or has lately ended.
    pub(super) fn has_no_transactions(&self, py: Python<'_>) -> PyResult<bool> {
        Ok(!self.parts.open.bind(py).is_truthy()? && !self.parts.ended.bind(py).is_truthy()?)
    }
}
