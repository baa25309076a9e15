//! The native road of one partition that this broker copies: appends of plain batches, as its leader has them.
//!
//! The twins are in `headrace.broker.partitions.following`, and `LocalCopying.append_verbatim`.

use pyo3::PyTraverseError;
use pyo3::gc::PyVisit;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyList};

use crate::attributes::{add, named};
use crate::batches::{self, Header};
use crate::panics::guarded;
use crate::partition::parts::{Kinds, Limits};
use crate::partition::room::{Coming, add_to_segment, collects, has_room, latest_epoch, needs_upkeep};
use crate::partition::rules::{Known, LogConfig};
use crate::partition::state::{ContentsState, LogState, RoleState, SegmentState, known};
use crate::{attribute, call, change};

/// Control batches, and those of a transaction.
const UNUSUAL: i16 = 0x30;
const LENGTH_END: i64 = 12;
const NO_PRODUCER_ID: i64 = -1;
const SEQUENCE_MAX: i64 = (1 << 31) - 1;

/// Batches that may be appended, and the state that they change.
pub struct Admitted<'py> {
    headers: Vec<Header>,
    size: i64,
    end: i64,
    newest: i64,
    active: Bound<'py, SegmentState>,
    config: LogConfig,
    now_ms: i64,
}

/// One per copied partition, for as long as its role lasts. On the event loop alone.
#[pyclass(frozen, module = "headrace_native")]
pub struct HotCopy {
    role: Py<RoleState>,
    log: Py<LogState>,
    contents: Py<ContentsState>,
    newest: Py<PyAny>,
    aborted: Py<PyAny>,
    share: Py<PyAny>,
    fetches: Py<PyAny>,
    flusher: Py<PyAny>,
    clock: Py<PyAny>,
    sight: Py<PyAny>,
    /// A leader's report that its log is sound.
    sound: Py<PyAny>,
    kinds: Kinds,
    limits: Limits,
    config: Known<LogConfig>,
    is_throttled: Known<bool>,
}

#[pymethods]
impl HotCopy {
    #[new]
    fn new(copy: &Bound<'_, RoleState>, kinds: Kinds, sound: Py<PyAny>) -> PyResult<Self> {
        let py = copy.py();
        let part = |name| copy.getattr(name);
        let log = part(intern!(py, "log"))?;
        let contents = log.getattr("contents")?;
        Ok(Self {
            newest: contents.getattr("newest")?.unbind(),
            contents: contents.cast_into()?.unbind(),
            aborted: log.getattr("aborted")?.unbind(),
            log: log.cast_into()?.unbind(),
            share: part(intern!(py, "_share"))?.unbind(),
            fetches: part(intern!(py, "fetches"))?.unbind(),
            flusher: part(intern!(py, "_flusher"))?.unbind(),
            clock: part(intern!(py, "_clock"))?.unbind(),
            sight: part(intern!(py, "_sight"))?.unbind(),
            role: copy.clone().unbind(),
            limits: Limits::read(kinds.8.bind(py))?,
            sound,
            kinds,
            config: Known::new(),
            is_throttled: Known::new(),
        })
    }

    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        visit.call(&self.role)?;
        visit.call(&self.log)?;
        visit.call(&self.contents)?;
        for part in [
            &self.newest,
            &self.aborted,
            &self.share,
            &self.fetches,
            &self.flusher,
            &self.clock,
            &self.sight,
            &self.sound,
        ] {
            visit.call(part)?;
        }
        Ok(())
    }
}

impl HotCopy {
    /// The copy's native road, where it has one.
    pub fn of<'py>(copy: &Bound<'py, PyAny>) -> Option<Bound<'py, Self>> {
        copy.cast::<RoleState>().ok()?.get().hot(copy.py())?.cast_into().ok()
    }

    /// Work that changes nothing. Raises `UnchangedError` where it fails, with the cause.
    pub fn looking<T>(&self, py: Python<'_>, work: impl FnOnce() -> PyResult<T>) -> PyResult<T> {
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

    pub fn role(&self) -> &RoleState {
        self.role.get()
    }

    pub fn log(&self) -> &LogState {
        self.log.get()
    }

    pub fn sight<'py>(&self, py: Python<'py>) -> &Bound<'py, PyAny> {
        self.sight.bind(py)
    }

    pub fn fetches<'py>(&self, py: Python<'py>) -> &Bound<'py, PyAny> {
        self.fetches.bind(py)
    }

    /// `FollowerPartition.is_flushed`.
    pub fn is_flushed(&self) -> bool {
        self.log().flushed_end() == self.log().log_end_offset()
    }

    /// `FollowerPartition.readable_from`.
    pub fn readable_from(&self, copy: &Bound<'_, PyAny>) -> PyResult<i64> {
        let sound_from = attribute!(copy, "_sound_from").extract::<i64>()?;
        let log_start = self.log().log_start_offset();
        if sound_from > log_start {
            return Ok(sound_from);
        }
        match self.role().kept_from() {
            None => Ok(log_start.min(self.log().log_end_offset())),
            Some(_) => attribute!(copy, "readable_from").extract(),
        }
    }

    /// The leader reports no damage.
    pub fn note_report(&self, copy: &Bound<'_, PyAny>) -> PyResult<()> {
        if !attribute!(copy, "leader_report").is(&self.sound) {
            change!(copy, "leader_report", &self.sound);
        }
        Ok(())
    }

    /// Look at everything: `Source._append` up to the first change. Changes nothing.
    pub fn admit<'py>(&self, py: Python<'py>, records: &[u8], gaps_below: i64) -> PyResult<Option<Admitted<'py>>> {
        let (log, base) = (self.log(), self.log().log_end_offset());
        let is_unusual = log.failed()
            || log.lacks_room()
            || log.is_read_only()
            || gaps_below > base
            || attribute!(self.share.bind(py), "left").extract::<i64>()? < 0
            || self.is_throttled.is_throttled(&self.role().settings(py)?)?;
        if is_unusual {
            return Ok(None);
        }
        let Some(headers) = whole_batches(records, base, latest_epoch(py, log)?) else {
            return Ok(None);
        };
        let (Some(active), Some(last)) = (self.contents.get().active(py), headers.last()) else {
            return Ok(None);
        };
        let end = last.base_offset + i64::from(last.last_offset_delta) + 1;
        let newest = headers.iter().map(|header| header.max_timestamp).max().unwrap_or(-1);
        let admitted = Admitted {
            size: i64::try_from(records.len())?,
            end,
            newest,
            active: active.cast_into()?,
            config: self.config.config(&known(log.config(py), "config")?)?,
            now_ms: call!(self.clock.bind(py), "now_ms").extract()?,
            headers,
        };
        Ok(self.has_place(py, &admitted)?.then_some(admitted))
    }

    /// As `LocalState.write`, up to the first change: the active segment has room, and its file is open.
    fn has_place(&self, py: Python<'_>, admitted: &Admitted<'_>) -> PyResult<bool> {
        let (log, config, contents) = (self.log(), &admitted.config, self.contents.get());
        if admitted.active.get().file(py).is_none()
            || attribute!(self.aborted.bind(py), "active_bytes").extract::<i64>()? > config.segment_index_bytes
        {
            return Ok(false);
        }
        let held_count = i64::try_from(attribute!(self.contents.bind(py), "_held").len()?)?;
        let collected = known(log.collected(py), "collected")?;
        let goes_on = if config.fsync {
            collects(&self.limits, log.journal(py), &collected, admitted.size)?
        } else {
            held_count == 0 && attribute!(collected, "end").is_none() && log.owed() <= log.flushed_end()
        };
        let coming =
            Coming { size: admitted.size, end: admitted.end, newest: admitted.newest, now_ms: admitted.now_ms };
        Ok(goes_on && has_room(&admitted.active, config, coming, held_count, contents.held_size())?)
    }

    /// `FollowerPartition.append`.
    pub fn append<'py>(
        &self,
        py: Python<'py>,
        copy: &Bound<'py, PyAny>,
        admitted: &Admitted<'py>,
        view: &Bound<'py, PyAny>,
        records: &[u8],
    ) -> PyResult<()> {
        self.write(py, admitted, view, records)?;
        self.learn(py, copy, admitted)?;
        let appended = self.role().appended_bytes() + admitted.size;
        self.role().set_appended_bytes(appended);
        add(self.share.bind(py), intern!(py, "left"), -admitted.size)?;
        if appended >= self.role().snapshot_at_bytes() {
            call!(copy, "snapshot_producers");
        }
        if attribute!(copy, "open_since_ms").is_none() {
            change!(copy, "open_since_ms", admitted.now_ms);
        }
        if admitted.config.fsync || needs_upkeep(py, self.log(), self.aborted.bind(py))? {
            call!(self.flusher.bind(py), "request", copy);
        }
        Ok(())
    }

    /// `LocalState.write`.
    fn write<'py>(
        &self,
        py: Python<'py>,
        admitted: &Admitted<'py>,
        view: &Bound<'py, PyAny>,
        records: &[u8],
    ) -> PyResult<()> {
        let (log, contents) = (self.log(), self.contents.get());
        let unsynced = known(log.unsynced(py), "unsynced")?;
        let buffers = PyList::new(py, [view])?;
        self.keep_for_readers(py, admitted, records)?;
        if admitted.config.fsync {
            let collected = known(log.collected(py), "collected")?;
            let held = (self.placed(py, admitted, &buffers)?, admitted.headers[0].base_offset);
            attribute!(self.contents.bind(py), "_held").cast::<PyList>()?.append(held)?;
            contents.set_held_size(contents.held_size() + admitted.size);
            attribute!(collected, "buffers").cast::<PyList>()?.append(view)?;
            add(&collected, intern!(py, "size"), admitted.size)?;
            change!(collected, "end", admitted.end);
            add(&known(log.journal(py), "journal")?, intern!(py, "_pending_bytes"), admitted.size)?;
            change!(unsynced, "active", true);
            log.set_owed(admitted.end);
        } else {
            call!(self.log.bind(py), "write_past_held", buffers);
            for header in &admitted.headers {
                let last = header.base_offset + i64::from(header.last_offset_delta);
                let size = LENGTH_END + i64::from(header.batch_length);
                let interval = admitted.config.index_interval_bytes;
                add_to_segment(&admitted.active, last, size, header.max_timestamp, interval)?;
            }
            contents.set_size(contents.size() + admitted.size);
            change!(unsynced, "active", true);
            log.set_flushed_end(admitted.end);
            log.set_flushed_position(admitted.active.get().size());
        }
        log.set_log_end_offset(admitted.end);
        Ok(())
    }

    /// `Newest.add`.
    fn keep_for_readers(&self, py: Python<'_>, admitted: &Admitted<'_>, records: &[u8]) -> PyResult<()> {
        let newest = self.newest.bind(py);
        if admitted.headers.len() != 1 || !attribute!(newest, "_is_followed").is_truthy()? {
            return Ok(());
        }
        if add(newest, intern!(py, "_unread"), admitted.size)? > self.limits.newest_unread_bytes_max {
            change!(newest, "_is_followed", false);
            call!(newest, "drop");
            return Ok(());
        }
        let base = admitted.headers[0].base_offset;
        let kept = (admitted.end, PyBytes::new(py, records));
        attribute!(newest, "_batches").cast::<PyDict>()?.set_item(base, kept)?;
        let size = admitted.size + self.limits.newest_overhead_bytes;
        call!(attribute!(newest, "_room"), "add", newest, base, size);
        Ok(())
    }

    /// `place_verbatim`.
    fn placed<'py>(
        &self,
        py: Python<'py>,
        admitted: &Admitted<'py>,
        buffers: &Bound<'py, PyList>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let headers = PyList::empty(py);
        for header in &admitted.headers {
            headers.append(self.header(py, header)?)?;
        }
        let fields = (buffers, headers, admitted.size, admitted.newest, admitted.end, true);
        named(self.kinds.0.bind(py), self.kinds.3.bind(py), fields.into_pyobject(py)?)
    }

    fn header<'py>(&self, py: Python<'py>, header: &Header) -> PyResult<Bound<'py, PyAny>> {
        named(self.kinds.0.bind(py), self.kinds.4.bind(py), header.as_tuple(py)?)
    }

    /// `FollowerPartition._learn`, of batches of no transaction.
    fn learn<'py>(&self, py: Python<'py>, copy: &Bound<'py, PyAny>, admitted: &Admitted<'py>) -> PyResult<()> {
        let producers = attribute!(copy, "producers");
        let states = attribute!(producers, "_states");
        for header in admitted.headers.iter().filter(|header| header.producer_id != NO_PRODUCER_ID) {
            let state = states.cast::<PyDict>()?.get_item(header.producer_id)?;
            let state = match state {
                Some(state) if attribute!(state, "epoch").extract::<i16>()? == header.producer_epoch => state,
                _ => {
                    call!(producers, "on_appended", self.header(py, header)?, header.base_offset, admitted.now_ms);
                    continue;
                }
            };
            let (base, delta) = (header.base_offset, i64::from(header.last_offset_delta));
            let first = i64::from(header.base_sequence);
            let last = if first < 0 { -1 } else { (first + delta) & SEQUENCE_MAX };
            let about = (first, last, base, base + delta, admitted.now_ms);
            let batch = named(self.kinds.0.bind(py), self.kinds.5.bind(py), about.into_pyobject(py)?)?;
            call!(attribute!(state, "batches"), "append", batch);
            call!(states, "move_to_end", header.producer_id);
        }
        Ok(())
    }
}

/// Sound batches of one epoch that follow one another from `base` on, none of a transaction. None: others.
fn whole_batches(records: &[u8], base: i64, epoch: i64) -> Option<Vec<Header>> {
    let (mut at, mut end, mut headers) = (0, base, Vec::new());
    while at < records.len() {
        let header = batches::check(records, at, records.len(), false)?;
        if header.base_offset != end || i64::from(header.leader_epoch) != epoch || header.attributes & UNUSUAL != 0 {
            return None;
        }
        end += i64::from(header.last_offset_delta) + 1;
        at += usize::try_from(LENGTH_END + i64::from(header.batch_length)).ok()?;
        headers.push(header);
    }
    Some(headers)
}

impl Known<bool> {
    /// Whether some copies of the topic may be throttled while they are not in sync.
    fn is_throttled(&self, settings: &Bound<'_, PyAny>) -> PyResult<bool> {
        self.of(settings, |settings| {
            let throttled = attribute!(settings, "throttled_followers");
            Ok(attribute!(throttled, "all").is_truthy()? || attribute!(throttled, "some").is_truthy()?)
        })
    }
}
