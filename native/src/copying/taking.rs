//! A leader's frame of batches and marks, and the follower's frame of reports. The twins are `Source._on_frame` and
//! `Source._send` in `headrace.broker.replication.copying`.

use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyMemoryView, PySlice};

use super::copy::HotCopy;
use crate::bytes::Lent;
use crate::panics::guarded;
use crate::varint::Reader;
use crate::{attribute, call, change};

const NO_EPOCH: i32 = -1;
const NO_OFFSET: i64 = -1;
/// All rows were taken.
const ALL: isize = -1;

/// `wire.replica_fetch.Copied`, of which a plain one has no error, no divergence, nothing to skip and no damage.
pub struct Row {
    generation: i32,
    is_plain: bool,
    pub high_watermark: i64,
    pub log_start: i64,
    pub gaps_below: i64,
    /// Where its records lie in the frame.
    from: usize,
    to: usize,
}

impl Row {
    /// None: the twin is to say what is wrong, or tells of damage.
    fn read(reader: &mut Reader<'_>) -> Option<Self> {
        let (generation, error) = (reader.i32()?, reader.i16()?);
        let (high_watermark, log_start) = (reader.i64()?, reader.i64()?);
        let (diverging_epoch, _) = (reader.i32()?, reader.i64()?);
        let (gaps_below, skip_to) = (reader.i64()?, reader.i64()?);
        let size = usize::try_from(reader.i32()?).ok()?;
        if diverging_epoch < NO_EPOCH {
            return None;
        }
        let from = reader.at;
        reader.take(size)?;
        let is_plain = error == 0 && diverging_epoch == NO_EPOCH && skip_to == NO_OFFSET;
        Some(Self { generation, is_plain, high_watermark, log_start, gaps_below, from, to: reader.at })
    }

    fn read_all(frame: &[u8]) -> Option<Vec<Self>> {
        let (mut reader, mut rows) = (Reader::new(frame, 0), Vec::new());
        while reader.at < frame.len() {
            rows.push(Self::read(&mut reader)?);
        }
        Some(rows)
    }
}

/// Take the rows of a leader's frame, in order. Returns how many are taken: the twin goes on from there. -1: all are.
#[pyfunction]
pub fn copy_rows(py: Python<'_>, source: &Bound<'_, PyAny>, frame: &Bound<'_, PyMemoryView>) -> PyResult<isize> {
    guarded(|| {
        let lent = Lent::of(frame)?;
        let bytes = lent.slice(py);
        let Some(rows) = Row::read_all(bytes) else {
            return Ok(0);
        };
        let placed = attribute!(source, "_placed_as");
        let placed = placed.cast::<PyDict>()?;
        for (at, row) in rows.iter().enumerate() {
            let Some(copy) = placed.get_item(row.generation)? else {
                continue;
            };
            if !row.is_plain {
                return Ok(isize::try_from(at)?);
            }
            match take(py, source, &copy, row, frame, bytes) {
                Ok(true) => {}
                Ok(false) => return Ok(isize::try_from(at)?),
                Err(error) => {
                    let is_unchanged = call!(source, "on_native_failure", &copy, error.into_value(py)).is_truthy()?;
                    return Ok(isize::try_from(at + usize::from(!is_unchanged))?);
                }
            }
        }
        Ok(ALL)
    })
}

/// `Source._on_row`. Returns whether it was done.
fn take<'py>(
    py: Python<'py>,
    source: &Bound<'py, PyAny>,
    copy: &Bound<'py, PyAny>,
    row: &Row,
    frame: &Bound<'py, PyMemoryView>,
    bytes: &[u8],
) -> PyResult<bool> {
    let Some(hot) = HotCopy::of(copy) else {
        return Ok(false);
    };
    let hot = hot.get();
    let records = &bytes[row.from..row.to];
    let looked = hot.looking(py, || {
        if !hot.takes_marks(row) {
            return Ok(None);
        }
        if records.is_empty() {
            return Ok(Some(None));
        }
        let Some(admitted) = hot.admit(py, records, row.gaps_below)? else {
            return Ok(None);
        };
        let slice = PySlice::new(py, isize::try_from(row.from)?, isize::try_from(row.to)?, 1);
        Ok(Some(Some((admitted, frame.get_item(slice)?))))
    })?;
    let Some(batches) = looked else {
        return Ok(false);
    };
    guarded(|| {
        hot.note_report(copy)?;
        let key = attribute!(copy, "topic_partition");
        if let Some((admitted, view)) = &batches {
            hot.append(py, copy, admitted, view, records)?;
            count_unflushed(py, source, hot, copy, &key, i64::try_from(records.len())?)?;
        }
        let refused = attribute!(source, "_refused");
        if refused.is_truthy()? {
            call!(refused, "pop", &key, py.None());
        }
        if batches.is_some() && !attribute!(copy, "stuck_at").is_none() {
            change!(copy, "stuck_at", py.None());
        }
        hot.on_marks(py, copy, row)?;
        Ok(true)
    })
}

/// The rest of `Source._append`: the bytes on their way to the disk, and what is to be reported.
fn count_unflushed(
    py: Python<'_>,
    source: &Bound<'_, PyAny>,
    hot: &HotCopy,
    copy: &Bound<'_, PyAny>,
    key: &Bound<'_, PyAny>,
    size: i64,
) -> PyResult<()> {
    let unflushed = attribute!(source, "_unflushed");
    let known = unflushed.cast::<PyDict>()?.get_item(key)?;
    let is_flushed = hot.is_flushed();
    if is_flushed && known.as_ref().map_or(Ok(true), PyAnyMethods::is_empty)? {
        return report(py, source, key);
    }
    let known = match known {
        Some(known) => known,
        None => call!(source, "unflushed_of", key),
    };
    call!(known, "append", (hot.log().log_end_offset(), size));
    change!(source, "_unflushed_bytes", attribute!(source, "_unflushed_bytes").extract::<i64>()? + size);
    if is_flushed {
        call!(source, "_on_flushed", copy);
    }
    Ok(())
}

/// Have the flushed end reported, unless the partition is about to be placed again.
fn report(py: Python<'_>, source: &Bound<'_, PyAny>, key: &Bound<'_, PyAny>) -> PyResult<()> {
    if !attribute!(source, "_to_place").contains(key)? {
        attribute!(source, "_flushed").cast::<PyDict>()?.set_item(key, py.None())?;
        if !attribute!(source, "_due").is_truthy()? {
            call!(source, "_send_soon");
        }
    }
    Ok(())
}

/// The frame of `Source._send`, where there is nothing to place or to forget. None: the twin is to send.
#[pyfunction]
pub fn write_reports<'py>(
    py: Python<'py>,
    source: &Bound<'py, PyAny>,
    who: &Bound<'py, PyBytes>,
    wants: bool,
    bytes_max: i32,
    rows_max: usize,
) -> PyResult<Option<Bound<'py, PyBytes>>> {
    guarded(|| {
        let (flushed, copies) = (attribute!(source, "_flushed"), attribute!(source, "_copies"));
        let generations = attribute!(source, "_generations");
        let (flushed, copies) = (flushed.cast::<PyDict>()?, copies.cast::<PyDict>()?);
        let generations = generations.cast::<PyDict>()?;
        if flushed.len() > rows_max {
            return Ok(None);
        }
        let who = who.as_bytes();
        let mut made = Vec::with_capacity(4 + who.len() + 17 + flushed.len() * 20);
        made.extend([0; 4]);
        made.extend(who);
        made.push(u8::from(wants));
        for number in [bytes_max, 0, i32::try_from(flushed.len())?, 0] {
            made.extend(number.to_be_bytes());
        }
        for (key, _) in flushed {
            let (Some(copy), Some(generation)) = (copies.get_item(&key)?, generations.get_item(&key)?) else {
                return Ok(None);
            };
            let Some(hot) = HotCopy::of(&copy) else {
                return Ok(None);
            };
            made.extend(generation.extract::<i32>()?.to_be_bytes());
            made.extend(hot.get().log().flushed_end().to_be_bytes());
            made.extend(hot.get().readable_from(&copy)?.to_be_bytes());
        }
        let size = i32::try_from(made.len() - 4)?;
        made[..4].copy_from_slice(&size.to_be_bytes());
        flushed.clear();
        Ok(Some(PyBytes::new(py, &made)))
    })
}
