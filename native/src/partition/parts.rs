//! What an append reads and changes, all of which Python owns.

use pyo3::gc::PyVisit;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyType};
use pyo3::{PyTraverseError, intern};

use super::state::{ContentsState, LeaderState, LogState, RoleState};

/// Classes and constants of the twins, in the order of `headrace.broker.partitions.hot.KINDS`.
#[derive(FromPyObject)]
pub struct Kinds(
    /// `tuple.__new__`
    pub Py<PyAny>,
    /// `Appended`
    pub Py<PyType>,
    /// `Walked`
    pub Py<PyType>,
    /// `Placed`
    pub Py<PyType>,
    /// `BatchHeader`
    pub Py<PyType>,
    /// `RememberedBatch`
    pub Py<PyType>,
    /// `AdvanceHighWatermark`
    pub Py<PyType>,
    /// `UNWALKED`
    pub Py<PyAny>,
    /// `base.limits`, a module
    pub Py<PyAny>,
    /// `UnchangedError`
    pub Py<PyType>,
);

/// Bounds of `base.limits`.
#[derive(Clone, Copy)]
pub struct Limits {
    pub walked_records_max: i64,
    pub walked_bytes_max: i64,
    pub walked_headers_max: i64,
    pub record_headers_max: i64,
    pub journal_log_bytes_max: i64,
    pub journal_pending_bytes_max: i64,
    pub newest_unread_bytes_max: i64,
    pub newest_overhead_bytes: i64,
}

impl Limits {
    pub fn read(limits: &Bound<'_, PyAny>) -> PyResult<Self> {
        let number = |name: &str| -> PyResult<i64> { limits.getattr(name)?.extract() };
        Ok(Self {
            walked_records_max: number("WALKED_ON_LOOP_RECORDS_MAX")?,
            walked_bytes_max: number("WALKED_ON_LOOP_BYTES_MAX")?,
            walked_headers_max: number("WALKED_ON_LOOP_HEADERS_MAX")?,
            record_headers_max: number("RECORD_HEADERS_MAX")?,
            journal_log_bytes_max: number("JOURNAL_LOG_BYTES_MAX")?,
            journal_pending_bytes_max: number("JOURNAL_PENDING_BYTES_MAX")?,
            newest_unread_bytes_max: number("NEWEST_UNREAD_BYTES_MAX")?,
            newest_overhead_bytes: number("NEWEST_BATCH_OVERHEAD_BYTES")?,
        })
    }
}

/// The objects that a partition keeps for as long as its role lasts.
pub struct Parts {
    pub partition: Py<RoleState>,
    pub log: Py<LogState>,
    pub contents: Py<ContentsState>,
    pub newest: Py<PyAny>,
    pub aborted: Py<PyAny>,
    pub gate: Py<PyAny>,
    pub line: Py<PyAny>,
    pub isr: Py<LeaderState>,
    pub share: Py<PyAny>,
    pub earlier: Py<PyAny>,
    pub turned_away: Py<PyAny>,
    pub tails: Py<PyAny>,
    pub commits: Py<PyAny>,
    pub visible_bytes: Py<PyAny>,
    pub fetches: Py<PyAny>,
    pub flusher: Py<PyAny>,
    pub clock: Py<PyAny>,
    pub producers: Py<PyAny>,
    /// The producers' states, by id.
    pub states: Py<PyDict>,
    /// First offsets of open transactions, by producer id.
    pub open: Py<PyAny>,
    /// Transactions that have ended lately.
    pub ended: Py<PyAny>,
    /// Verifications that are under way.
    pub asked: Py<PyAny>,
}

impl Parts {
    /// The parts of a role that begins. Only a role that is over is given other ones, such as other producers.
    pub fn of(partition: &Bound<'_, RoleState>) -> PyResult<Self> {
        let py = partition.py();
        let part = |name| partition.getattr(name);
        let log = part(intern!(py, "log"))?;
        let contents = log.getattr("contents")?;
        let earlier = part(intern!(py, "earlier"))?;
        let producers = part(intern!(py, "producers"))?;
        let transactions = producers.getattr("transactions")?;
        Ok(Self {
            newest: contents.getattr("newest")?.unbind(),
            contents: contents.cast_into()?.unbind(),
            aborted: log.getattr("aborted")?.unbind(),
            log: log.cast_into()?.unbind(),
            gate: part(intern!(py, "gate"))?.unbind(),
            line: part(intern!(py, "line"))?.unbind(),
            isr: part(intern!(py, "isr"))?.cast_into()?.unbind(),
            share: part(intern!(py, "_share"))?.unbind(),
            turned_away: earlier.getattr("_turned_away")?.getattr("_first")?.unbind(),
            earlier: earlier.unbind(),
            tails: part(intern!(py, "tails"))?.unbind(),
            commits: part(intern!(py, "_commits"))?.unbind(),
            visible_bytes: part(intern!(py, "_visible_bytes"))?.unbind(),
            fetches: part(intern!(py, "fetches"))?.unbind(),
            flusher: part(intern!(py, "_flusher"))?.unbind(),
            clock: part(intern!(py, "_clock"))?.unbind(),
            states: producers.getattr("_states")?.cast_into()?.unbind(),
            open: transactions.getattr("_first")?.unbind(),
            ended: transactions.getattr("_ended")?.unbind(),
            asked: producers.getattr("_asked")?.unbind(),
            producers: producers.unbind(),
            partition: partition.clone().unbind(),
        })
    }

    /// For Python's collector: the partition refers to this.
    pub fn traverse(&self, visit: &PyVisit<'_>) -> Result<(), PyTraverseError> {
        visit.call(&self.partition)?;
        visit.call(&self.log)?;
        visit.call(&self.isr)?;
        visit.call(&self.contents)?;
        for part in [
            &self.newest,
            &self.aborted,
            &self.gate,
            &self.line,
            &self.share,
            &self.earlier,
            &self.turned_away,
            &self.tails,
            &self.commits,
            &self.visible_bytes,
            &self.fetches,
            &self.flusher,
            &self.clock,
            &self.producers,
            &self.open,
            &self.ended,
            &self.asked,
        ] {
            visit.call(part)?;
        }
        visit.call(&self.states)
    }
}
