//! Fetches of many partitions at once: what is there to read, and who waits for more.
//!
//! The twins are `_Road._read_all` in `headrace.broker.handlers.plain_fetch`, and `ParkedFetch` in
//! `headrace.broker.kit.parking`.

use pyo3::prelude::*;
use pyo3::types::{PyBool, PyBytes, PyDict, PyList, PyTuple};

use super::HotPartition;
use super::state::RoleState;
use crate::attributes::field;
use crate::panics::guarded;
use crate::{attribute, call, change};

const ANY_EPOCH: i64 = -1;

/// What a fetch asks of all its partitions.
struct Wish<'a, 'py> {
    bytes_max: i64,
    committed_only: bool,
    /// `_read` and `_aborted` of the twin.
    read: &'a Bound<'py, PyAny>,
    aborted: &'a Bound<'py, PyAny>,
}

/// What was found of one partition.
enum Found<'py> {
    Part(Bound<'py, PyTuple>, i64),
    /// The twin is to look.
    Unusual,
    /// It cannot be read at once, which the twin has said already.
    Nothing,
}

/// The partition of each (index, leader epoch, offset, limit) in `topics`, beside it, as `known` has them by topic and
/// index. None: one is not known.
#[pyfunction]
pub fn find_places<'py>(
    py: Python<'py>,
    topics: &Bound<'py, PyList>,
    known: &Bound<'py, PyDict>,
) -> PyResult<Option<Bound<'py, PyList>>> {
    guarded(|| {
        let places = PyList::empty(py);
        for topic in topics {
            let (name, each) = (field(&topic, 0)?, field(&topic, 1)?);
            for asked in each.cast::<PyList>()? {
                let Some(partition) = known.get_item((&name, field(&asked, 0)?))? else {
                    return Ok(None);
                };
                places.append((partition, asked))?;
            }
        }
        Ok(Some(places))
    })
}

/// A list of (partition, (index, leader epoch, offset, limit)) is read in order, until `bytes_max` are reached. Returns
/// the parts of the answer and their bytes. None: the twin is to do it; False: it has found an obstacle.
#[pyfunction]
pub fn read_places<'py>(
    py: Python<'py>,
    places: &Bound<'py, PyList>,
    bytes_max: i64,
    committed_only: bool,
    read: &Bound<'py, PyAny>,
    aborted: &Bound<'py, PyAny>,
) -> PyResult<Bound<'py, PyAny>> {
    guarded(|| {
        let wish = Wish { bytes_max, committed_only, read, aborted };
        let parts = PyList::empty(py);
        let mut size = 0;
        for place in places {
            let (partition, asked) = (field(&place, 0)?, field(&place, 1)?);
            let Some(hot) = hot_of(&partition) else {
                return Ok(py.None().into_bound(py));
            };
            match hot.get().read_place(py, &partition, asked.extract()?, size, &wish)? {
                Found::Part(part, more) => {
                    parts.append(part)?;
                    size += more;
                }
                Found::Unusual => return Ok(py.None().into_bound(py)),
                Found::Nothing => return Ok(PyBool::new(py, false).to_owned().into_any()),
            }
        }
        Ok((parts, size).into_pyobject(py)?.into_any())
    })
}

/// The partition's native road, where it has one.
pub fn hot_of<'py>(partition: &Bound<'py, PyAny>) -> Option<Bound<'py, HotPartition>> {
    partition.cast::<RoleState>().ok()?.get().hot(partition.py())?.cast_into().ok()
}

impl HotPartition {
    fn read_place<'py>(
        &self,
        py: Python<'py>,
        partition: &Bound<'py, PyAny>,
        asked: (i64, i64, i64, i64),
        so_far: i64,
        wish: &Wish<'_, 'py>,
    ) -> PyResult<Found<'py>> {
        let (index, believed, offset, limit) = asked;
        let (role, log, isr) = (self.role(), self.log(), self.isr());
        if role.is_over() || (believed != ANY_EPOCH && believed != isr.epoch()) || log.is_read_only() {
            return Ok(Found::Unusual);
        }
        let (high_watermark, log_start, kept_from) = (isr.high_watermark(), log.log_start_offset(), role.kept_from());
        let begins_at = kept_from.map_or(log_start, |kept_from| log_start.max(kept_from.min(high_watermark)));
        if offset < begins_at || offset > high_watermark.max(log.log_end_offset()) {
            return Ok(Found::Unusual);
        }
        let is_plain = self.has_no_transactions(py)?;
        let room = limit.min(wish.bytes_max - so_far);
        let mut records = PyBytes::new(py, b"").into_any();
        let mut aborted = PyTuple::empty(py).into_any();
        if offset < high_watermark && (room > 0 || so_far == 0) {
            let in_memory =
                if is_plain { self.newest(py, offset, room.max(0), high_watermark, so_far == 0)? } else { None };
            records = if let Some(found) = in_memory {
                found
            } else {
                wish.read.call1((partition, offset, room.max(0), wish.committed_only, so_far == 0))?
            };
            if records.is_none() {
                return Ok(Found::Nothing);
            }
            if wish.committed_only {
                aborted = wish.aborted.call1((partition, offset, &records, py.None()))?;
                if aborted.is_none() {
                    return Ok(Found::Nothing);
                }
            }
        }
        let size = i64::try_from(records.len()?)?;
        let stable = if is_plain { high_watermark } else { attribute!(partition, "last_stable_offset").extract()? };
        let start = self.start_offset(py)?;
        Ok(Found::Part((index, high_watermark, stable, start, records, aborted).into_pyobject(py)?, size))
    }

    /// `Newest.read`: whole batches in memory from `start` on, or none where some are not there.
    pub fn newest<'py>(
        &self,
        py: Python<'py>,
        start: i64,
        bytes_max: i64,
        end: i64,
        at_least_one: bool,
    ) -> PyResult<Option<Bound<'py, PyAny>>> {
        let newest = self.parts.newest.bind(py);
        let batches = attribute!(newest, "_batches");
        let batches = batches.cast::<PyDict>()?;
        let Some(mut found) = batches.get_item(start)? else {
            return Ok(None);
        };
        let mut parts: Vec<Bound<'py, PyBytes>> = Vec::new();
        let (mut size, mut next, mut is_last) = (0, start, false);
        loop {
            let until = field(&found, 0)?.extract::<i64>()?;
            if until > end {
                break;
            }
            next = until;
            let data = field(&found, 1)?.cast_into::<PyBytes>()?;
            size += i64::try_from(data.as_bytes().len())?;
            if size > bytes_max && (!parts.is_empty() || !at_least_one) {
                break;
            }
            parts.push(data);
            let Some(following) = batches.get_item(next)? else {
                is_last = true;
                break;
            };
            found = following;
        }
        change!(newest, "_unread", 0);
        if parts.is_empty() || (is_last && next < end) {
            return Ok(None);
        }
        if parts.len() == 1 {
            return Ok(parts.pop().map(Bound::into_any));
        }
        let whole = parts.iter().map(|part| part.as_bytes().len()).sum();
        let joined = PyBytes::new_with(py, whole, |mut made| {
            for part in &parts {
                let (front, rest) = made.split_at_mut(part.as_bytes().len());
                front.copy_from_slice(part.as_bytes());
                made = rest;
            }
            Ok(())
        })?;
        Ok(Some(joined.into_any()))
    }

    /// `Replica.watch`. Returns whether it was done.
    fn watch(&self, py: Python<'_>, waiter: &Bound<'_, PyAny>) -> PyResult<bool> {
        if self.role().is_over() || !self.has_no_transactions(py)? {
            return Ok(false);
        }
        let fetches = self.parts.fetches.bind(py);
        attribute!(fetches, "_waiting").cast::<PyDict>()?.set_item(waiter, py.None())?;
        let (stable, told) = (self.isr().high_watermark(), attribute!(fetches, "_stable_told").extract::<i64>()?);
        if !(0 <= told && told <= stable) {
            change!(fetches, "_stable_told", stable);
        }
        Ok(true)
    }
}

/// Have the waiter told of what becomes visible in these partitions.
#[pyfunction]
pub fn watch_all(py: Python<'_>, partitions: &Bound<'_, PyTuple>, waiter: &Bound<'_, PyAny>) -> PyResult<()> {
    guarded(|| {
        for partition in partitions {
            if attribute!(waiter, "_read_on").is_none() {
                return Ok(());
            }
            let is_done = match hot_of(&partition) {
                Some(hot) => hot.get().watch(py, waiter)?,
                None => false,
            };
            if !is_done {
                call!(partition, "watch", waiter);
            }
        }
        Ok(())
    })
}

/// Have the waiter told no more.
#[pyfunction]
pub fn unwatch_all(py: Python<'_>, partitions: &Bound<'_, PyTuple>, waiter: &Bound<'_, PyAny>) -> PyResult<()> {
    guarded(|| {
        for partition in partitions {
            let Some(hot) = hot_of(&partition) else {
                call!(partition, "unwatch", waiter);
                continue;
            };
            let waiting = attribute!(hot.get().parts.fetches.bind(py), "_waiting");
            let waiting = waiting.cast::<PyDict>()?;
            if waiting.contains(waiter)? {
                waiting.del_item(waiter)?;
            }
        }
        Ok(())
    })
}
