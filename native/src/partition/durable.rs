//! What follows an append or a flush: the high watermark of a leader, and those who wait for it.

use pyo3::prelude::*;
use pyo3::types::PyTuple;

use super::HotPartition;
use super::room::needs_upkeep;
use crate::attributes::named;
use crate::{attribute, call, change};

impl HotPartition {
    /// `Partition._after_write`, of a log that has not failed.
    pub(super) fn after_write(&self, py: Python<'_>, end: i64, appended_bytes: i64) -> PyResult<()> {
        let parts = &self.parts;
        let is_synced = self.log().flushed_end() == end;
        if !is_synced || needs_upkeep(py, self.log(), parts.aborted.bind(py))? {
            call!(parts.flusher.bind(py), "request", parts.partition.bind(py));
        }
        if is_synced { self.on_durable(py, end, appended_bytes) } else { Ok(()) }
    }

    /// `Partition._on_durable`.
    pub(super) fn on_durable(&self, py: Python<'_>, end: i64, appended_bytes: i64) -> PyResult<()> {
        let (isr, noted) = (self.isr(), attribute!(self.parts.visible_bytes.bind(py), "_flushed"));
        if !isr.is_alone() || noted.is_truthy()? {
            call!(noted, "append", (end, appended_bytes));
        }
        match isr.on_flushed(end) {
            Some(reached) => self.on_high_watermark(py, reached, appended_bytes),
            None => Ok(()),
        }
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
            let effect = named(self.kinds.0.bind(py), self.kinds.6.bind(py), PyTuple::new(py, [reached])?)?;
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
    pub fn has_no_transactions(&self, py: Python<'_>) -> PyResult<bool> {
        Ok(!self.parts.open.bind(py).is_truthy()? && !self.parts.ended.bind(py).is_truthy()?)
    }
}
