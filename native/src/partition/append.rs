//! The append of one plain batch, from its bytes to its place in the log.
//!
//! The twins are `Partition.examine` and `Partition.append`, with all that these call. First everything is looked at.
//! Where anything is unusual, `None` hands the batch back, and nothing has changed. After that nothing may be handed
//! back any more: what fails then raises, and ends the partition. `looking` marks the first half.

use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyList, PySlice};

use super::HotPartition;
use super::room::{Coming, add_to_segment, collects, has_room, latest_epoch};
use super::rules::{LogConfig, Settings};
use super::state::{SegmentState, known};
use crate::attributes::{add, field, named};
use crate::batches::{self, Header};
use crate::bytes::Lent;
use crate::records::{HeadersMax, Walked, walk};
use crate::{attribute, call, change};

const HEADER_BYTES: usize = 61;
/// Base offset, length and leader epoch, which the leader sets.
const PREFIX_BYTES: isize = 16;
/// Control batches, those of a transaction, and those with log append time.
const UNUSUAL: i16 = 0x38;
const CODEC_MASK: i16 = 0x07;
const NO_CODEC: i16 = 0;
const NO_PRODUCER_ID: i64 = -1;
const SEQUENCE_MAX: i64 = (1 << 31) - 1;

/// What is known of a batch's records.
#[derive(Clone, Copy)]
pub enum Facts {
    /// They are not looked at.
    Unwalked,
    Of(Walked),
}

/// A batch that may be appended, and the state that it changes.
struct Admitted<'py> {
    header: Header,
    size: i64,
    base: i64,
    end: i64,
    epoch: i64,
    active: Bound<'py, SegmentState>,
    config: LogConfig,
    now_ms: i64,
    /// The state of its producer; none: it has no producer id, or is not known yet.
    producer: Option<Bound<'py, PyAny>>,
}

impl HotPartition {
    /// `Partition.examine`, for a batch without a codec.
    pub(super) fn facts(&self, py: Python<'_>, batch: &[u8], now_ms: i64) -> PyResult<Option<Facts>> {
        if !self.is_ready(py)? || batch.len() < HEADER_BYTES {
            return Ok(None);
        }
        let settings = self.settings(py)?;
        Ok(Header::read(batch).and_then(|header| self.walked(batch, &header, &settings, now_ms)))
    }

    fn walked(&self, batch: &[u8], header: &Header, settings: &Settings, now_ms: i64) -> Option<Facts> {
        if header.attributes & CODEC_MASK != NO_CODEC || settings.codec.is_some_and(|codec| codec != NO_CODEC) {
            return None;
        }
        if !settings.checks_uncompressed {
            return Some(Facts::Unwalked);
        }
        let limits = &self.limits;
        let (count, size) = (i64::from(header.count), i64::try_from(batch.len()).ok()?);
        if !(0 < count && count <= limits.walked_records_max && size <= limits.walked_bytes_max) {
            return None;
        }
        let most = HeadersMax { of_all: limits.walked_headers_max, of_one: limits.record_headers_max };
        let found = walk(&batch[HEADER_BYTES..], u32::try_from(count).ok()?, header.base_timestamp, most)?;
        let is_fit = (found.all_keyed || !settings.compact) && settings.allows(found.oldest, found.newest, now_ms);
        is_fit.then_some(Facts::Of(found))
    }

    /// Whether it is served, and a batch need not wait.
    fn is_ready(&self, py: Python<'_>) -> PyResult<bool> {
        let parts = &self.parts;
        let gate = parts.gate.bind(py);
        Ok(!self.role().is_over()
            && !attribute!(gate, "is_stopped").is_truthy()?
            && !attribute!(gate, "takes_over").is_truthy()?
            && !attribute!(parts.line.bind(py), "_places").is_truthy()?)
    }

    pub fn settings(&self, py: Python<'_>) -> PyResult<Settings> {
        self.settings.settings(&self.role().settings(py)?)
    }

    /// `Partition.append`, where the batch and the partition are as usual. Returns its first offset, and the one after
    /// its last.
    pub(super) fn append_at<'py>(
        &self,
        py: Python<'py>,
        records: &Bound<'py, PyAny>,
        lent: &Lent,
        needs_isr: bool,
        facts: Facts,
        now_ms: i64,
    ) -> PyResult<Option<(i64, i64)>> {
        let batch = lent.slice(py);
        let looked = self.looking(py, || {
            let Some(admitted) = self.admit(py, batch, needs_isr, facts, now_ms)? else {
                return Ok(None);
            };
            let rest = PySlice::new(py, PREFIX_BYTES, isize::try_from(batch.len())?, 1);
            Ok(Some((admitted.prefix(py), records.get_item(rest)?, admitted)))
        })?;
        let Some((prefix, rest, admitted)) = looked else {
            return Ok(None);
        };
        self.write(py, &admitted, (prefix, rest), batch)?;
        self.note(py, &admitted)?;
        Ok(Some((admitted.base, admitted.end)))
    }

    /// Look at everything. Changes nothing.
    fn admit<'py>(
        &self,
        py: Python<'py>,
        batch: &[u8],
        needs_isr: bool,
        facts: Facts,
        now_ms: i64,
    ) -> PyResult<Option<Admitted<'py>>> {
        let (parts, settings) = (&self.parts, self.settings(py)?);
        let size = i64::try_from(batch.len())?;
        let config = self.config.config(&known(self.log().config(py), "config")?)?;
        if config.fsync && !needs_isr {
            return Ok(None); // it is to be written at once
        }
        if !self.takes_writes(py, needs_isr, settings.min_insync_replicas)? || size > settings.max_message_bytes {
            return Ok(None);
        }
        let Some(header) = batches::check(batch, 0, batch.len(), false) else {
            return Ok(None);
        };
        if !is_plain(&header, batch.len()) || !is_timed(&header, facts, &settings, now_ms) {
            return Ok(None);
        }
        let Some(producer) = self.admitted_producer(py, &header)? else {
            return Ok(None);
        };
        let Some(active) = parts.contents.get().active(py) else {
            return Ok(None);
        };
        let active = active.cast_into::<SegmentState>()?;
        let epoch = self.isr().epoch();
        let base = self.log().log_end_offset();
        let end = base + i64::from(header.last_offset_delta) + 1;
        let admitted = Admitted { header, size, base, end, epoch, active, config, now_ms, producer: producer.0 };
        Ok(self.has_place(py, &admitted)?.then_some(admitted))
    }

    /// As `Partition._refusal_for_now`.
    fn takes_writes(&self, py: Python<'_>, needs_isr: bool, min_insync_replicas: i64) -> PyResult<bool> {
        let parts = &self.parts;
        if !self.is_ready(py)?
            || attribute!(parts.share.bind(py), "left").extract::<i64>()? < 0
            || self.log().is_read_only()
        {
            return Ok(false);
        }
        if !needs_isr || min_insync_replicas <= 1 {
            return Ok(true);
        }
        Ok(self.isr().in_sync().is_some_and(|copies| copies >= min_insync_replicas))
    }

    /// The state of the batch's producer, where the batch comes next and none is awaited before it
    /// (`EarlierBatches.are_awaited_before`): none where it has no state yet.
    #[allow(clippy::type_complexity)]
    fn admitted_producer<'py>(
        &self,
        py: Python<'py>,
        header: &Header,
    ) -> PyResult<Option<(Option<Bound<'py, PyAny>>,)>> {
        if header.producer_id == NO_PRODUCER_ID {
            return Ok(Some((None,)));
        }
        let parts = &self.parts;
        if header.producer_epoch < 0 || parts.open.bind(py).is_truthy()? || parts.asked.bind(py).is_truthy()? {
            return Ok(None);
        }
        let turned_away = parts.turned_away.bind(py);
        if turned_away.is_truthy()? && turned_away.contains(header.producer_id)? {
            return Ok(None);
        }
        let Some(state) = parts.states.bind(py).get_item(header.producer_id)? else {
            let is_first = header.base_sequence == 0 || attribute!(parts.earlier.bind(py), "_taken_over_at").is_none();
            return Ok(is_first.then_some((None,)));
        };
        let is_next = attribute!(state, "epoch").extract::<i16>()? == header.producer_epoch
            && i64::from(header.base_sequence) == next_sequence(&attribute!(state, "batches"))?;
        Ok(is_next.then_some((Some(state),)))
    }

    /// As `LocalState.write`, up to the first change: the active segment has room, and its file is open.
    fn has_place(&self, py: Python<'_>, admitted: &Admitted<'_>) -> PyResult<bool> {
        let (config, active, contents) = (&admitted.config, admitted.active.get(), self.parts.contents.bind(py));
        if config.log_append_time
            || self.log().failed()
            || self.log().lacks_room()
            || active.file(py).is_none()
            || attribute!(self.parts.aborted.bind(py), "active_bytes").extract::<i64>()? > config.segment_index_bytes
            || latest_epoch(py, self.log())? != admitted.epoch
        {
            return Ok(false);
        }
        let held = attribute!(contents, "_held");
        let held_count = i64::try_from(held.len()?)?;
        let collected = known(self.log().collected(py), "collected")?;
        let goes_on = if config.fsync {
            collects(&self.limits, self.log().journal(py), &collected, admitted.size)?
        } else {
            held_count == 0 && attribute!(collected, "end").is_none() && self.log().owed() <= self.log().flushed_end()
        };
        Ok(goes_on && has_room(&admitted.active, config, admitted.coming(), held_count, contents.get().held_size())?)
    }

    /// `LocalState.write`.
    fn write<'py>(
        &self,
        py: Python<'py>,
        admitted: &Admitted<'py>,
        buffers: (Bound<'py, PyBytes>, Bound<'py, PyAny>),
        batch: &[u8],
    ) -> PyResult<()> {
        let parts = &self.parts;
        let (log, contents) = (parts.log.bind(py), parts.contents.bind(py));
        let unsynced = known(self.log().unsynced(py), "unsynced")?;
        self.keep_for_readers(py, admitted, &buffers.0, batch)?;
        if admitted.config.fsync {
            let buffers = PyList::new(py, [buffers.0.into_any(), buffers.1])?;
            let placed = self.placed(py, admitted, &buffers)?;
            attribute!(contents, "_held").cast::<PyList>()?.append((placed, admitted.base))?;
            contents.get().set_held_size(contents.get().held_size() + admitted.size);
            let collected = known(self.log().collected(py), "collected")?;
            let to_come = attribute!(collected, "buffers");
            for buffer in buffers {
                to_come.cast::<PyList>()?.append(buffer)?;
            }
            add(&collected, pyo3::intern!(py, "size"), admitted.size)?;
            change!(collected, "end", admitted.end);
            add(&known(self.log().journal(py), "journal")?, pyo3::intern!(py, "_pending_bytes"), admitted.size)?;
            change!(unsynced, "active", true);
            self.log().set_owed(admitted.end);
        } else {
            call!(log, "write_past_held", PyList::new(py, [buffers.0.into_any(), buffers.1])?);
            let (last, newest) = (admitted.end - 1, admitted.header.max_timestamp);
            add_to_segment(&admitted.active, last, admitted.size, newest, admitted.config.index_interval_bytes)?;
            contents.get().set_size(contents.get().size() + admitted.size);
            change!(unsynced, "active", true);
            self.log().set_flushed_end(admitted.end);
            self.log().set_flushed_position(admitted.active.get().size());
        }
        self.log().set_log_end_offset(admitted.end);
        Ok(())
    }

    /// `Newest.add`.
    fn keep_for_readers(
        &self,
        py: Python<'_>,
        admitted: &Admitted<'_>,
        prefix: &Bound<'_, PyBytes>,
        batch: &[u8],
    ) -> PyResult<()> {
        let newest = self.parts.newest.bind(py);
        if !attribute!(newest, "_is_followed").is_truthy()? {
            return Ok(());
        }
        if add(newest, pyo3::intern!(py, "_unread"), admitted.size)? > self.limits.newest_unread_bytes_max {
            change!(newest, "_is_followed", false);
            call!(newest, "drop");
            return Ok(());
        }
        let prefix = prefix.as_bytes();
        let whole = PyBytes::new_with(py, batch.len(), |made| {
            made[..prefix.len()].copy_from_slice(prefix);
            made[prefix.len()..].copy_from_slice(&batch[prefix.len()..]);
            Ok(())
        })?;
        attribute!(newest, "_batches").cast::<PyDict>()?.set_item(admitted.base, (admitted.end, whole))?;
        let size = admitted.size + self.limits.newest_overhead_bytes;
        call!(attribute!(newest, "_room"), "add", newest, admitted.base, size);
        Ok(())
    }

    fn placed<'py>(
        &self,
        py: Python<'py>,
        admitted: &Admitted<'py>,
        buffers: &Bound<'py, PyList>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let header = self.header(py, admitted)?;
        let newest = admitted.header.max_timestamp.max(-1);
        let fields = (buffers, PyList::new(py, [header])?, admitted.size, newest, admitted.end, false);
        named(self.kinds.0.bind(py), self.kinds.3.bind(py), fields.into_pyobject(py)?)
    }

    fn header<'py>(&self, py: Python<'py>, admitted: &Admitted<'py>) -> PyResult<Bound<'py, PyAny>> {
        named(self.kinds.0.bind(py), self.kinds.4.bind(py), admitted.header.as_tuple(py)?)
    }

    /// The rest of `Partition._append`.
    fn note(&self, py: Python<'_>, admitted: &Admitted<'_>) -> PyResult<()> {
        let parts = &self.parts;
        let partition = parts.partition.bind(py);
        if attribute!(partition, "open_since_ms").is_none() {
            change!(partition, "open_since_ms", admitted.now_ms);
        }
        self.note_producer(py, admitted)?;
        let appended = self.role().appended_bytes() + admitted.size;
        self.role().set_appended_bytes(appended);
        add(parts.share.bind(py), pyo3::intern!(py, "left"), -admitted.size)?;
        if appended >= self.role().snapshot_at_bytes() {
            call!(partition, "snapshot_producers");
        }
        let feeds = attribute!(parts.tails.bind(py), "feeds");
        if feeds.is_truthy()? {
            for feed in feeds.try_iter()? {
                let feed = feed?;
                call!(feed, "on_appended", partition);
            }
        }
        self.after_write(py, admitted.end, appended)
    }

    /// `ProducerStates.on_appended`.
    fn note_producer(&self, py: Python<'_>, admitted: &Admitted<'_>) -> PyResult<()> {
        let header = &admitted.header;
        if header.producer_id == NO_PRODUCER_ID {
            return Ok(());
        }
        let Some(state) = &admitted.producer else {
            call!(
                self.parts.producers.bind(py),
                "on_appended",
                self.header(py, admitted)?,
                admitted.base,
                admitted.now_ms
            );
            return Ok(());
        };
        let delta = i64::from(header.last_offset_delta);
        let last_sequence = (i64::from(header.base_sequence) + delta) & SEQUENCE_MAX;
        let about = (header.base_sequence, last_sequence, admitted.base, admitted.base + delta, admitted.now_ms);
        let batch = named(self.kinds.0.bind(py), self.kinds.5.bind(py), about.into_pyobject(py)?)?;
        call!(attribute!(state, "batches"), "append", batch);
        call!(self.parts.states.bind(py), "move_to_end", header.producer_id);
        Ok(())
    }
}

impl Admitted<'_> {
    fn coming(&self) -> Coming {
        let newest = self.header.max_timestamp.max(-1);
        Coming { size: self.size, end: self.end, newest, now_ms: self.now_ms }
    }

    fn prefix<'py>(&self, py: Python<'py>) -> Bound<'py, PyBytes> {
        let mut made = [0; PREFIX_BYTES.unsigned_abs()];
        made[..8].copy_from_slice(&self.base.to_be_bytes());
        made[8..12].copy_from_slice(&self.header.batch_length.to_be_bytes());
        made[12..].copy_from_slice(&self.epoch.to_be_bytes()[4..]);
        PyBytes::new(py, &made)
    }
}

/// Whether it is exactly one batch, a client's, and of no transaction.
fn is_plain(header: &Header, size: usize) -> bool {
    usize::try_from(header.batch_length).is_ok_and(|length| length + 12 == size)
        && header.base_offset == 0
        && header.attributes & UNUSUAL == 0
        && (header.producer_id == NO_PRODUCER_ID || (header.producer_id >= 0 && header.base_sequence >= 0))
}

/// Whether its times are within bounds, and the highest is that of its records.
fn is_timed(header: &Header, facts: Facts, settings: &Settings, now_ms: i64) -> bool {
    match facts {
        Facts::Unwalked => {
            settings.allows(header.base_timestamp, header.max_timestamp, now_ms)
                && (settings.times.is_none() || header.base_timestamp <= header.max_timestamp)
        }
        Facts::Of(walked) => settings.times.is_none() || header.max_timestamp == walked.newest,
    }
}

/// `ProducerState.next_sequence`.
fn next_sequence(batches: &Bound<'_, PyAny>) -> PyResult<i64> {
    if batches.len()? == 0 {
        return Ok(0);
    }
    Ok((field(&batches.get_item(-1)?, 1)?.extract::<i64>()? + 1) & SEQUENCE_MAX)
}
