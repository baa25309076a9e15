//! A follower's frame of reports. The twins are `FollowerSession._on_flushed` in `headrace.broker.replication.followers`,
//! `InSyncReplicas.on_follower`, and `Partition._carry_out` of a higher high watermark.

use pyo3::prelude::*;
use pyo3::types::{PyDict, PyMemoryView};

use super::others::{Noted, Report};
use crate::attributes::{field, named};
use crate::bytes::Lent;
use crate::panics::guarded;
use crate::partition::HotPartition;
use crate::partition::reading::hot_of;
use crate::varint::Reader;
use crate::{attribute, call, change};

const REPORT_BYTES: usize = 20;
/// All reports were taken.
const ALL: isize = -1;

/// Take a follower's frame that reports flushed ends, and nothing else: its first `at` bytes identify it. Returns how many
/// reports are taken (-1: all), whether an answer is wanted, and its bytes at most. None: the twin is to take the frame.
#[pyfunction]
pub fn take_reports(
    py: Python<'_>,
    session: &Bound<'_, PyAny>,
    frame: &Bound<'_, PyMemoryView>,
    at: usize,
    may_join: bool,
) -> PyResult<Option<(isize, bool, i32)>> {
    guarded(|| {
        let lent = Lent::of(frame)?;
        let Some((wants_answer, bytes_max, reports)) = read(lent.slice(py), at) else {
            return Ok(None);
        };
        let (placed_as, places) = (attribute!(session, "_placed_as"), attribute!(session, "_places"));
        let (placed_as, places) = (placed_as.cast::<PyDict>()?, places.cast::<PyDict>()?);
        let (replica, broker_epoch): (i64, i64) =
            (attribute!(session, "replica").extract()?, attribute!(session, "broker_epoch").extract()?);
        for (at, (generation, flushed_end, readable_from)) in reports.iter().enumerate() {
            let Some(key) = placed_as.get_item(generation)? else {
                continue; // it belongs to an epoch, or a log, that is over
            };
            let taken = isize::try_from(at)?;
            let Some(place) = places.get_item(key)? else {
                return Ok(Some((taken, wants_answer, bytes_max)));
            };
            let partition = attribute!(place, "partition");
            let Some(hot) = hot_of(&partition) else {
                return Ok(Some((taken, wants_answer, bytes_max)));
            };
            let hot = hot.get();
            let report = Report {
                broker_epoch,
                flushed_end: *flushed_end,
                readable_from: *readable_from,
                log_end: hot.log().log_end_offset(),
                now: hot.monotonic(py)?,
                may_join,
            };
            let was_sent = *flushed_end <= attribute!(place, "next_offset").extract()?;
            let noted = if was_sent { hot.isr().on_report(py, replica, &report)? } else { Noted::Nothing };
            match noted {
                Noted::Nothing => return Ok(Some((taken, wants_answer, bytes_max))),
                Noted::Unchanged => {}
                Noted::End(reached) => hot.on_replicated(py, reached)?,
            }
        }
        Ok(Some((ALL, wants_answer, bytes_max)))
    })
}

/// `wire.replica_fetch.decode_request`: generations, flushed ends, and where readers may begin.
#[allow(clippy::type_complexity)]
fn read(frame: &[u8], at: usize) -> Option<(bool, i32, Vec<(i32, i64, i64)>)> {
    let mut reader = Reader::new(frame, at);
    let (wants_answer, bytes_max) = (reader.byte()? != 0, reader.i32()?);
    let (placed, flushed, forgotten) = (reader.i32()?, usize::try_from(reader.i32()?).ok()?, reader.i32()?);
    if placed != 0 || forgotten != 0 || reader.at.checked_add(flushed.checked_mul(REPORT_BYTES)?)? != frame.len() {
        return None;
    }
    let mut reports = Vec::with_capacity(flushed);
    for _ in 0..flushed {
        reports.push((reader.i32()?, reader.i64()?, reader.i64()?));
    }
    Some((wants_answer, bytes_max, reports))
}

impl HotPartition {
    fn monotonic(&self, py: Python<'_>) -> PyResult<f64> {
        call!(self.parts().clock.bind(py), "monotonic").extract()
    }

    /// `Partition._carry_out_all` of a higher high watermark.
    fn on_replicated(&self, py: Python<'_>, reached: i64) -> PyResult<()> {
        let parts = self.parts();
        let (partition, visible) = (parts.partition.bind(py), parts.visible_bytes.bind(py));
        if !self.has_enough(py)? || !self.has_no_transactions(py)? {
            let known = attribute!(visible, "known");
            let effect = named(self.kinds().0.bind(py), self.kinds().6.bind(py), (reached,).into_pyobject(py)?)?;
            call!(partition, "_carry_out", effect, known);
            return Ok(());
        }
        let known = attribute!(visible, "known").extract::<i64>()?;
        self.settle_commits(py, reached, &attribute!(partition, "_ended"))?;
        let more = self.count_visible(py, reached, known)?.max(1);
        let fetches = parts.fetches.bind(py);
        if attribute!(fetches, "_waiting").is_truthy()? {
            call!(fetches, "on_visible", more, reached);
        } else {
            let withheld = attribute!(fetches, "_withheld_bytes").extract::<i64>()? + more;
            let is_told = reached > attribute!(fetches, "_stable_told").extract()?;
            if is_told {
                change!(fetches, "_stable_told", reached);
            }
            change!(fetches, "_withheld_bytes", if is_told { 0 } else { withheld });
        }
        for feed in attribute!(parts.tails.bind(py), "feeds").cast::<PyDict>()?.copy()?.keys() {
            call!(feed, "on_news", partition);
        }
        Ok(())
    }

    /// Whether an append that is committed now has enough copies (`_outcome_of`).
    fn has_enough(&self, py: Python<'_>) -> PyResult<bool> {
        let least = self.settings(py)?.min_insync_replicas;
        Ok(!self.role().is_over() && (least <= 1 || self.isr().in_sync().is_some_and(|copies| copies >= least)))
    }

    /// `CommitParking.wake_below`, of appends that enough copies have.
    fn settle_commits(&self, py: Python<'_>, reached: i64, no_error: &Bound<'_, PyAny>) -> PyResult<()> {
        let commits = self.parts().commits.bind(py);
        loop {
            let waiting = attribute!(commits, "_waiting");
            if waiting.is_empty()? {
                return Ok(());
            }
            let first = waiting.get_item(0)?;
            if field(&first, 0)?.extract::<i64>()? > reached {
                return Ok(());
            }
            call!(waiting, "popleft");
            call!(field(&first, 1)?, "on_outcome", no_error);
        }
    }

    /// `VisibleBytes.on_visible`.
    fn count_visible(&self, py: Python<'_>, reached: i64, appended_bytes: i64) -> PyResult<i64> {
        let visible = self.parts().visible_bytes.bind(py);
        let flushed = attribute!(visible, "_flushed");
        let known = attribute!(visible, "known").extract::<i64>()?;
        let mut below = if flushed.is_empty()? { appended_bytes } else { known };
        while !flushed.is_empty()? {
            let (end, bytes): (i64, i64) = flushed.get_item(0)?.extract()?;
            if end > reached {
                break;
            }
            call!(flushed, "popleft");
            below = bytes;
        }
        change!(visible, "known", below);
        Ok(below - known)
    }
}
