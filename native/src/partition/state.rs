//! Fields that every request looks at, in the objects of Python that own them.
//!
//! Each class here is the base of one class of Python, which sets and reads these fields as its own attributes
//! (`headrace.native`). Here they lie side by side, as numbers, where a request of many partitions finds them at once.

use std::sync::atomic::{AtomicBool, AtomicI64, Ordering::Relaxed};
use std::sync::{Mutex, MutexGuard, PoisonError};

use pyo3::PyTraverseError;
use pyo3::exceptions::PyAttributeError;
use pyo3::gc::PyVisit;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};

use crate::attribute;
use crate::attributes::field;
use crate::copying::others::{Noted, Others, Report};

/// Where the fields of `Leader` lie.
pub const NODE: usize = 0;
const EPOCH: usize = 1;
pub const ISR_ENDS: usize = 3;
const HIGH_WATERMARK: usize = 4;
pub const REPLICAS: usize = 6;
const ISR: usize = 7;
const PROPOSED: usize = 8;
pub const FOLLOWERS: usize = 9;

/// A reference to an object, or to none.
pub struct Slot(Mutex<Option<Py<PyAny>>>);

impl Slot {
    fn empty() -> Self {
        Self(Mutex::new(None))
    }

    pub fn get<'py>(&self, py: Python<'py>) -> Option<Bound<'py, PyAny>> {
        self.lock().as_ref().map(|held| held.bind(py).clone())
    }

    pub fn is_none(&self) -> bool {
        self.lock().is_none()
    }

    fn set(&self, value: Option<Py<PyAny>>) {
        let before = std::mem::replace(&mut *self.lock(), value);
        drop(before); // with the lock free: this may run Python
    }

    fn lock(&self) -> MutexGuard<'_, Option<Py<PyAny>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn traverse(&self, visit: &PyVisit<'_>) -> Result<(), PyTraverseError> {
        visit.call(&*self.lock())
    }
}

/// A class whose fields Python sets and reads: numbers, flags, and other objects. An object that was not set is None.
macro_rules! fields {
    (
        $(#[$about:meta])* $name:ident {
            numbers: [$($number:ident / $set_number:ident = $first:literal),*],
            flags: [$($flag:ident / $set_flag:ident),*],
            objects: [$($object:ident / $set_object:ident),*],
        }
    ) => {
        $(#[$about])*
        #[pyclass(frozen, subclass, module = "headrace_native")]
        pub struct $name {
            $($number: AtomicI64,)*
            $($flag: AtomicBool,)*
            $($object: Slot,)*
        }

        #[pymethods]
        impl $name {
            #[new]
            #[pyo3(signature = (*_parts, **_named))]
            fn new(_parts: &Bound<'_, PyTuple>, _named: Option<&Bound<'_, PyDict>>) -> Self {
                Self {
                    $($number: AtomicI64::new($first),)*
                    $($flag: AtomicBool::new(false),)*
                    $($object: Slot::empty(),)*
                }
            }

            $(
                #[getter]
                pub fn $number(&self) -> i64 {
                    self.$number.load(Relaxed)
                }

                #[setter($number)]
                pub fn $set_number(&self, value: i64) {
                    self.$number.store(value, Relaxed);
                }
            )*

            $(
                #[getter]
                pub fn $flag(&self) -> bool {
                    self.$flag.load(Relaxed)
                }

                #[setter($flag)]
                pub fn $set_flag(&self, value: bool) {
                    self.$flag.store(value, Relaxed);
                }
            )*

            $(
                #[getter]
                pub fn $object<'py>(&self, py: Python<'py>) -> Option<Bound<'py, PyAny>> {
                    self.$object.get(py)
                }

                #[setter($object)]
                pub fn $set_object(&self, value: Option<Py<PyAny>>) {
                    self.$object.set(value);
                }
            )*

            fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
                $(self.$object.traverse(&visit)?;)*
                let _ = visit;
                Ok(())
            }

            fn __clear__(&self) {
                $(self.$object.set(None);)*
            }
        }
    };
}

fields! {
    /// The base of `headrace.storage.log.state.LocalState`.
    LogState {
        numbers: [
            log_start_offset / set_log_start_offset = 0,
            log_end_offset / set_log_end_offset = 0,
            flushed_end / set_flushed_end = 0,
            flushed_position / set_flushed_position = 0,
            owed / set_owed = 0
        ],
        flags: [
            failed / set_failed,
            lacks_room / set_lacks_room
        ],
        objects: [
            read_only / set_read_only,
            config / set_config,
            leader_epochs / set_leader_epochs,
            unsynced / set_unsynced,
            collected / set_collected,
            journal / set_journal
        ],
    }
}

impl LogState {
    pub fn is_read_only(&self) -> bool {
        !self.read_only.is_none()
    }
}

fields! {
    /// The base of `headrace.storage.log.segment.Segment`.
    SegmentState {
        numbers: [
            base / set_base = 0,
            end / set_end = 0,
            size / set_size = 0,
            created_ms / set_created_ms = -1,
            first_timestamp / set_first_timestamp = -1,
            max_timestamp / set_max_timestamp = -1,
            max_timestamp_offset / set_max_timestamp_offset = -1,
            since_entry / set_since_entry = 0
        ],
        flags: [],
        objects: [
            file / set_file
        ],
    }
}

fields! {
    /// The base of `headrace.storage.log.contents.Contents`.
    ContentsState {
        numbers: [
            size / set_size = 0,
            held_size / set_held_size = 0
        ],
        flags: [],
        objects: [
            active / set_active
        ],
    }
}

/// The object, where it was set. Raises `AttributeError`.
pub fn known<'py>(object: Option<Bound<'py, PyAny>>, name: &'static str) -> PyResult<Bound<'py, PyAny>> {
    object.ok_or_else(|| PyAttributeError::new_err(name))
}

/// The base of `headrace.broker.partitions.in_sync.InSyncReplicas`, which has a `Leader`. Flushes of this node's own log
/// are noted here alone until Python asks for it.
#[pyclass(frozen, subclass, module = "headrace_native")]
pub struct LeaderState {
    leader: Slot,
    /// `leader` lacks the last `own_end` and `high_watermark`, and the last reports of `others`.
    is_behind: AtomicBool,
    others: Others,
    epoch: AtomicI64,
    own_end: AtomicI64,
    /// The smallest end of the others in `isr_ends`; `i64::MAX`: there are none.
    others_end: AtomicI64,
    high_watermark: AtomicI64,
    /// How many replicas are in sync.
    in_sync: AtomicI64,
    is_proposed: AtomicBool,
}

#[pymethods]
impl LeaderState {
    #[new]
    #[pyo3(signature = (*_parts, **_named))]
    fn new(_parts: &Bound<'_, PyTuple>, _named: Option<&Bound<'_, PyDict>>) -> Self {
        Self {
            leader: Slot::empty(),
            is_behind: AtomicBool::new(false),
            others: Others::unknown(),
            epoch: AtomicI64::new(-1),
            own_end: AtomicI64::new(0),
            others_end: AtomicI64::new(0),
            high_watermark: AtomicI64::new(0),
            in_sync: AtomicI64::new(0),
            is_proposed: AtomicBool::new(false),
        }
    }

    #[getter]
    fn leader<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let known = self.leader.get(py).ok_or_else(|| PyAttributeError::new_err("leader"))?;
        if !self.is_behind.load(Relaxed) {
            return Ok(known);
        }
        let fields = known.cast::<PyTuple>()?.to_list();
        let ends = field(&known, ISR_ENDS)?.cast_into::<PyDict>()?.copy()?;
        ends.set_item(field(&known, NODE)?, self.own_end.load(Relaxed))?;
        if let Some(followers) = self.others.told(&known, &ends)? {
            fields.set_item(FOLLOWERS, followers)?;
        }
        fields.set_item(ISR_ENDS, ends)?;
        fields.set_item(HIGH_WATERMARK, self.high_watermark.load(Relaxed))?;
        let new = attribute!(py.get_type::<PyTuple>(), "__new__");
        let leader = new.call1((known.get_type(), fields))?;
        self.leader.set(Some(leader.clone().unbind()));
        self.others.forget();
        self.is_behind.store(false, Relaxed);
        Ok(leader)
    }

    #[getter(high_watermark)]
    fn known_high_watermark(&self) -> i64 {
        self.high_watermark()
    }

    #[setter]
    fn set_leader(&self, leader: Bound<'_, PyAny>) -> PyResult<()> {
        let node = field(&leader, NODE)?.extract::<i64>()?;
        let (mut own, mut others) = (0, i64::MAX);
        for (replica, end) in field(&leader, ISR_ENDS)?.cast::<PyDict>()? {
            let end = end.extract::<i64>()?;
            if replica.extract::<i64>()? == node {
                own = end;
            } else {
                others = others.min(end);
            }
        }
        let (epoch, high_watermark) = (field(&leader, EPOCH)?.extract()?, field(&leader, HIGH_WATERMARK)?.extract()?);
        let (in_sync, proposed) = (i64::try_from(field(&leader, ISR)?.len()?)?, field(&leader, PROPOSED)?);
        self.epoch.store(epoch, Relaxed);
        self.own_end.store(own, Relaxed);
        self.others_end.store(others, Relaxed);
        self.high_watermark.store(high_watermark, Relaxed);
        self.in_sync.store(in_sync, Relaxed);
        self.is_proposed.store(!proposed.is_none(), Relaxed);
        self.is_behind.store(false, Relaxed);
        self.others.forget();
        self.leader.set(Some(leader.unbind()));
        Ok(())
    }

    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        self.leader.traverse(&visit)
    }

    fn __clear__(&self) {
        self.leader.set(None);
    }
}

impl LeaderState {
    pub fn epoch(&self) -> i64 {
        self.epoch.load(Relaxed)
    }

    pub fn high_watermark(&self) -> i64 {
        self.high_watermark.load(Relaxed)
    }

    /// Whether nobody else is in sync, or would be as proposed.
    pub fn is_alone(&self) -> bool {
        self.others_end.load(Relaxed) == i64::MAX
    }

    /// How many copies count for `min.insync.replicas`; none: a change of the ISR is proposed.
    pub fn in_sync(&self) -> Option<i64> {
        (!self.is_proposed.load(Relaxed)).then(|| self.in_sync.load(Relaxed))
    }

    /// `Leader.on_fetch` of a follower that has reported before, and counts. Returns the high watermark where it has
    /// risen.
    pub fn on_report(&self, py: Python<'_>, replica: i64, report: &Report) -> PyResult<Noted> {
        let known = self.leader.get(py).ok_or_else(|| PyAttributeError::new_err("leader"))?;
        let noted = self.others.on_report(&known, replica, report)?;
        self.is_behind.fetch_or(!matches!(noted, Noted::Nothing), Relaxed);
        let Noted::End(lowest) = noted else {
            return Ok(noted);
        };
        self.others_end.store(lowest, Relaxed);
        Ok(self.reach(lowest.min(self.own_end.load(Relaxed))).map_or(Noted::Unchanged, Noted::End))
    }

    /// `Leader.on_flushed`. Returns the high watermark where it has risen.
    pub fn on_flushed(&self, end: i64) -> Option<i64> {
        if end <= self.own_end.load(Relaxed) {
            return None;
        }
        self.own_end.store(end, Relaxed);
        self.is_behind.store(true, Relaxed);
        self.reach(end.min(self.others_end.load(Relaxed)))
    }

    fn reach(&self, reached: i64) -> Option<i64> {
        if reached <= self.high_watermark() {
            return None;
        }
        self.high_watermark.store(reached, Relaxed);
        Some(reached)
    }
}

/// The base of `headrace.broker.partitions.replica.Replica`.
#[pyclass(frozen, subclass, module = "headrace_native")]
pub struct RoleState {
    ended: Slot,
    is_over: AtomicBool,
    hot: Slot,
    settings: Slot,
    history: Slot,
    kept_from: AtomicI64,
    appended_bytes: AtomicI64,
    snapshot_at_bytes: AtomicI64,
}

#[pymethods]
impl RoleState {
    #[new]
    #[pyo3(signature = (*_parts, **_named))]
    fn new(_parts: &Bound<'_, PyTuple>, _named: Option<&Bound<'_, PyDict>>) -> Self {
        Self {
            ended: Slot::empty(),
            is_over: AtomicBool::new(false),
            hot: Slot::empty(),
            settings: Slot::empty(),
            history: Slot::empty(),
            kept_from: AtomicI64::new(0),
            appended_bytes: AtomicI64::new(0),
            snapshot_at_bytes: AtomicI64::new(0),
        }
    }

    #[getter(_appended_bytes)]
    pub fn appended_bytes(&self) -> i64 {
        self.appended_bytes.load(Relaxed)
    }

    #[setter(_appended_bytes)]
    pub fn set_appended_bytes(&self, size: i64) {
        self.appended_bytes.store(size, Relaxed);
    }

    #[getter(_snapshot_at_bytes)]
    pub fn snapshot_at_bytes(&self) -> i64 {
        self.snapshot_at_bytes.load(Relaxed)
    }

    #[setter(_snapshot_at_bytes)]
    fn set_snapshot_at_bytes(&self, size: i64) {
        self.snapshot_at_bytes.store(size, Relaxed);
    }

    #[getter(_ended)]
    fn ended<'py>(&self, py: Python<'py>) -> Option<Bound<'py, PyAny>> {
        self.ended.get(py)
    }

    #[setter(_ended)]
    fn set_ended(&self, error: Bound<'_, PyAny>) -> PyResult<()> {
        self.is_over.store(error.extract::<i64>()? != 0, Relaxed);
        self.ended.set(Some(error.unbind()));
        Ok(())
    }

    #[getter]
    pub fn hot<'py>(&self, py: Python<'py>) -> Option<Bound<'py, PyAny>> {
        self.hot.get(py)
    }

    #[setter]
    fn set_hot(&self, hot: Option<Py<PyAny>>) {
        self.hot.set(hot);
    }

    #[getter]
    pub fn settings<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        self.settings.get(py).ok_or_else(|| PyAttributeError::new_err("settings"))
    }

    #[setter]
    fn set_settings(&self, settings: Option<Py<PyAny>>) {
        self.settings.set(settings);
    }

    #[getter]
    fn history<'py>(&self, py: Python<'py>) -> Option<Bound<'py, PyAny>> {
        self.history.get(py)
    }

    #[setter]
    fn set_history(&self, history: Option<Bound<'_, PyAny>>) -> PyResult<()> {
        if let Some(catalog) = &history {
            self.kept_from.store(attribute!(catalog, "log_start_offset").extract()?, Relaxed);
        }
        self.history.set(history.map(Bound::unbind));
        Ok(())
    }

    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        self.ended.traverse(&visit)?;
        self.hot.traverse(&visit)?;
        self.settings.traverse(&visit)?;
        self.history.traverse(&visit)
    }

    fn __clear__(&self) {
        self.ended.set(None);
        self.hot.set(None);
        self.settings.set(None);
        self.history.set(None);
    }
}

impl RoleState {
    pub fn is_over(&self) -> bool {
        self.is_over.load(Relaxed)
    }

    /// The first offset that its durable history has not deleted; none: it has no history.
    pub fn kept_from(&self) -> Option<i64> {
        (!self.history.is_none()).then(|| self.kept_from.load(Relaxed))
    }
}
