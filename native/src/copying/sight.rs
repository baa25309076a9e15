//! How far readers may see a copy. The twins are `broker.partitions.sight.Sight` and `FollowerPartition.on_marks`.

use pyo3::prelude::*;

use super::copy::HotCopy;
use super::taking::Row;
use crate::{attribute, call, change};

impl HotCopy {
    /// Whether the marks of a row are those of a copy that goes on: nothing is to be deleted here.
    pub fn takes_marks(&self, row: &Row) -> bool {
        !self.role().is_over() && row.log_start <= self.log().log_start_offset()
    }

    /// `FollowerPartition.on_marks`.
    pub fn on_marks(&self, py: Python<'_>, copy: &Bound<'_, PyAny>, row: &Row) -> PyResult<()> {
        let told = row.high_watermark;
        if told < 0 {
            return Ok(());
        }
        if told > attribute!(copy, "_high_watermark").extract()? {
            change!(copy, "_high_watermark", told);
        }
        let sight = self.sight(py);
        let before: Option<i64> = attribute!(sight, "reported").extract()?;
        let reported = before.map_or(told, |before| before.max(told));
        if before != Some(reported) {
            change!(sight, "reported", reported);
        }
        let more = self.show(py, reported)?;
        if more > 0 { self.on_visible(py, copy, more, reported.min(self.log().flushed_end())) } else { Ok(()) }
    }

    /// `Sight.show`.
    fn show(&self, py: Python<'_>, reported: i64) -> PyResult<i64> {
        let (sight, flushed_end) = (self.sight(py), self.log().flushed_end());
        if !attribute!(sight, "is_level").is_truthy()? {
            if flushed_end < reported {
                return Ok(0);
            }
            change!(sight, "is_level", true);
        }
        let end = reported.min(flushed_end);
        if end <= attribute!(sight, "_shown").extract()? {
            return Ok(0);
        }
        let appended = self.role().appended_bytes();
        let more = appended - attribute!(sight, "_shown_bytes").extract::<i64>()?;
        change!(sight, "_shown", end);
        change!(sight, "_shown_bytes", appended);
        Ok(more.max(1))
    }

    /// `FetchParking.on_visible`; `end` is the last stable offset where no transaction is open.
    fn on_visible(&self, py: Python<'_>, copy: &Bound<'_, PyAny>, more: i64, end: i64) -> PyResult<()> {
        let fetches = self.fetches(py);
        let transactions = attribute!(attribute!(copy, "producers"), "transactions");
        if attribute!(fetches, "_waiting").is_truthy()?
            || attribute!(transactions, "_first").is_truthy()?
            || attribute!(transactions, "_ended").is_truthy()?
        {
            call!(fetches, "on_visible", more, attribute!(copy, "last_stable_offset"));
            return Ok(());
        }
        let withheld = attribute!(fetches, "_withheld_bytes").extract::<i64>()? + more;
        let is_told = end > attribute!(fetches, "_stable_told").extract()?;
        if is_told {
            change!(fetches, "_stable_told", end);
        }
        change!(fetches, "_withheld_bytes", if is_told { 0 } else { withheld });
        Ok(())
    }
}
