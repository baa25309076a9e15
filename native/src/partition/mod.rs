//! The hot road of one partition that this broker leads.
//!
//! Python owns the state, and everything that decides about roles. What is here reads and changes the same attributes
//! as the twins do, so that either may go on where the other has stopped. The twins are in
//! `headrace.broker.partitions.partition`.

mod append;
mod durable;
pub mod parts;
pub mod producing;
pub mod reading;
pub mod room;
pub mod rules;
pub mod state;

use pyo3::PyTraverseError;
use pyo3::gc::PyVisit;
use pyo3::prelude::*;

use self::append::Facts;
use self::parts::{Kinds, Limits, Parts};
use self::rules::{Known, LogConfig, Settings};
use self::state::{LeaderState, LogState, RoleState};
use crate::attributes::named;
use crate::bytes::Lent;
use crate::call;
use crate::panics::guarded;
use crate::records::Walked;

/// One per partition, for as long as its role lasts. On the event loop alone.
#[pyclass(frozen, module = "headrace_native")]
pub struct HotPartition {
    parts: Parts,
    kinds: Kinds,
    limits: Limits,
    settings: Known<Settings>,
    config: Known<LogConfig>,
}

#[pymethods]
impl HotPartition {
    #[new]
    fn new(partition: &Bound<'_, RoleState>, kinds: Kinds) -> PyResult<Self> {
        let limits = Limits::read(kinds.8.bind(partition.py()))?;
        Ok(Self { parts: Parts::of(partition)?, kinds, limits, settings: Known::new(), config: Known::new() })
    }

    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        self.parts.traverse(&visit)
    }

    /// `Partition.examine`: the facts of the records, or None where the twin is to look.
    fn examine<'py>(&self, py: Python<'py>, records: &Bound<'py, PyAny>) -> PyResult<Option<Bound<'py, PyAny>>> {
        self.looking(py, || {
            let lent = Lent::of(records)?;
            let now_ms = self.now_ms(py)?;
            match self.facts(py, lent.slice(py), now_ms)? {
                None => Ok(None),
                Some(facts) => self.walked_of(py, facts).map(Some),
            }
        })
    }

    /// `Partition.append` of a batch that was examined: its offsets, or None where the twin is to append it.
    fn append<'py>(
        &self,
        py: Python<'py>,
        records: &Bound<'py, PyAny>,
        needs_isr: bool,
        walked: &Bound<'py, PyAny>,
    ) -> PyResult<Option<Bound<'py, PyAny>>> {
        guarded(|| {
            let (facts, lent, now_ms) = self.looking(py, || {
                let facts = if walked.is(&self.kinds.7) {
                    Facts::Unwalked
                } else {
                    let (oldest, newest, all_keyed) = walked.extract()?;
                    Facts::Of(Walked { oldest, newest, all_keyed })
                };
                Ok((facts, Lent::of(records)?, self.now_ms(py)?))
            })?;
            let taken = self.append_at(py, records, &lent, needs_isr, facts, now_ms)?;
            taken.map(|(base, end)| self.appended(py, base, end)).transpose()
        })
    }

    /// `examine`, then `append`.
    fn take<'py>(
        &self,
        py: Python<'py>,
        records: &Bound<'py, PyAny>,
        needs_isr: bool,
    ) -> PyResult<Option<Bound<'py, PyAny>>> {
        guarded(|| {
            let taken = self.take_plain(py, records, needs_isr)?;
            taken.map(|(base, end)| self.appended(py, base, end)).transpose()
        })
    }

    /// `Partition._on_durable`.
    fn durable(&self, py: Python<'_>, end: i64, appended_bytes: i64) -> PyResult<()> {
        guarded(|| self.on_durable(py, end, appended_bytes))
    }
}

impl HotPartition {
    /// Work that changes nothing. Raises `UnchangedError` where it fails, with the cause. That may lie in Python's hands
    /// alone, such as where a bound of a slice found no memory.
    fn looking<T>(&self, py: Python<'_>, work: impl FnOnce() -> PyResult<T>) -> PyResult<T> {
        let looked = guarded(work).and_then(|found| match PyErr::take(py) {
            None => Ok(found),
            Some(unnoticed) => Err(unnoticed),
        });
        looked.map_err(|cause| {
            let unchanged = PyErr::from_type(self.kinds.9.bind(py).clone(), ());
            unchanged.set_cause(py, Some(cause));
            unchanged
        })
    }

    /// `Partition.append_plain`. Returns the batch's first offset, and the one after its last.
    fn take_plain<'py>(
        &self,
        py: Python<'py>,
        records: &Bound<'py, PyAny>,
        needs_isr: bool,
    ) -> PyResult<Option<(i64, i64)>> {
        let (facts, lent, now_ms) = self.looking(py, || {
            let (lent, now_ms) = (Lent::of(records)?, self.now_ms(py)?);
            Ok((self.facts(py, lent.slice(py), now_ms)?, lent, now_ms))
        })?;
        match facts {
            None => Ok(None),
            Some(facts) => self.append_at(py, records, &lent, needs_isr, facts, now_ms),
        }
    }

    /// An `Appended`.
    fn appended<'py>(&self, py: Python<'py>, base: i64, end: i64) -> PyResult<Bound<'py, PyAny>> {
        let place = (base, end, -1).into_pyobject(py)?;
        named(self.kinds.0.bind(py), self.kinds.1.bind(py), place)
    }

    /// A `Walked`.
    fn walked_of<'py>(&self, py: Python<'py>, facts: Facts) -> PyResult<Bound<'py, PyAny>> {
        match facts {
            Facts::Unwalked => Ok(self.kinds.7.bind(py).clone()),
            Facts::Of(Walked { oldest, newest, all_keyed }) => {
                let fields = (oldest, newest, all_keyed).into_pyobject(py)?;
                named(self.kinds.0.bind(py), self.kinds.2.bind(py), fields)
            }
        }
    }

    pub fn parts(&self) -> &Parts {
        &self.parts
    }

    pub fn kinds(&self) -> &Kinds {
        &self.kinds
    }

    pub fn role(&self) -> &RoleState {
        self.parts.partition.get()
    }

    pub fn log(&self) -> &LogState {
        self.parts.log.get()
    }

    pub fn isr(&self) -> &LeaderState {
        self.parts.isr.get()
    }

    fn now_ms(&self, py: Python<'_>) -> PyResult<i64> {
        call!(self.parts.clock.bind(py), "now_ms").extract()
    }
}
