//! A leader's frame of batches and marks. The twins are `FollowerSession._take` in `headrace.broker.replication.followers`,
//! and `encode_answer` in `headrace.wire.replica_fetch`.

use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyList};

use crate::batches::Header;
use crate::panics::guarded;
use crate::partition::HotPartition;
use crate::partition::reading::hot_of;
use crate::{attribute, change};

const ROW_BYTES: usize = 54;
const LENGTH_BYTES: usize = 4;
const LENGTH_END: usize = 12;
const NO_EPOCH: i32 = -1;
const NO_OFFSET: i64 = -1;

/// A partition with more to send, and what is sent of it.
struct Sent<'py> {
    key: Bound<'py, PyAny>,
    place: Bound<'py, PyAny>,
    hot: Bound<'py, HotPartition>,
    records: Bound<'py, PyBytes>,
    next_offset: i64,
}

/// The buffers of a frame with all that is ready, up to `bytes_max`, and all news. None: the twin is to make it.
#[pyfunction]
pub fn take_ready<'py>(
    py: Python<'py>,
    session: &Bound<'py, PyAny>,
    bytes_max: i64,
) -> PyResult<Option<Bound<'py, PyList>>> {
    guarded(|| {
        let (ready, news) = (attribute!(session, "_ready"), attribute!(session, "_news"));
        let (ready, news) = (ready.cast::<PyDict>()?, news.cast::<PyDict>()?);
        let places = attribute!(session, "_places");
        let places = places.cast::<PyDict>()?;
        let Some(sent) = look(py, ready, places, bytes_max)? else {
            return Ok(None);
        };
        let mut frame = Frame::new(py);
        let told = PyDict::new(py);
        for each in &sent {
            told.set_item(&each.key, py.None())?;
            if !frame.add(&each.place, each.hot.get(), Some(&each.records))? {
                return Ok(None);
            }
        }
        for (key, _) in news {
            if told.contains(&key)? {
                continue;
            }
            let Some(place) = places.get_item(&key)? else {
                return Ok(None);
            };
            let Some(hot) = hot_of(&attribute!(place, "partition")) else {
                return Ok(None);
            };
            if !frame.add(&place, hot.get(), None)? {
                return Ok(None);
            }
        }
        let buffers = frame.buffers()?;
        for each in &sent {
            change!(each.place, "next_offset", each.next_offset);
            ready.del_item(&each.key)?;
            if each.next_offset < each.hot.get().log().log_end_offset() {
                ready.set_item(&each.key, py.None())?;
            }
        }
        news.clear();
        change!(session, "_is_behind", !ready.is_empty());
        Ok(Some(buffers))
    })
}

/// Look at what is ready. Changes nothing. None: something is unusual, or is not in memory.
fn look<'py>(
    py: Python<'py>,
    ready: &Bound<'py, PyDict>,
    places: &Bound<'py, PyDict>,
    bytes_max: i64,
) -> PyResult<Option<Vec<Sent<'py>>>> {
    let (mut sent, mut size) = (Vec::new(), 0);
    for (key, _) in ready {
        if size >= bytes_max {
            break;
        }
        let Some(place) = places.get_item(&key)? else {
            return Ok(None);
        };
        let Some(hot) = hot_of(&attribute!(place, "partition")) else {
            return Ok(None);
        };
        let found = hot.get().tail(py, attribute!(place, "next_offset").extract()?, bytes_max - size, size == 0)?;
        let Some((records, next_offset)) = found else {
            return Ok(None);
        };
        size += i64::try_from(records.as_bytes().len())?;
        sent.push(Sent { key, place, hot, records, next_offset });
    }
    Ok(Some(sent))
}

impl HotPartition {
    /// The batches in memory from `offset` on, for a follower, and the offset after them. None: the twin is to read.
    fn tail<'py>(
        &self,
        py: Python<'py>,
        offset: i64,
        room: i64,
        at_least_one: bool,
    ) -> PyResult<Option<(Bound<'py, PyBytes>, i64)>> {
        let (log, end) = (self.log(), self.log().log_end_offset());
        if self.role().is_over() || log.is_read_only() || !(log.log_start_offset()..end).contains(&offset) {
            return Ok(None);
        }
        let throttled = attribute!(self.role().settings(py)?, "throttled_leaders");
        if attribute!(throttled, "all").is_truthy()? || attribute!(throttled, "some").is_truthy()? {
            return Ok(None);
        }
        let Some(found) = self.newest(py, offset, room, end, at_least_one)? else {
            return Ok(None);
        };
        let records = found.cast_into::<PyBytes>()?;
        let next_offset = end_of(records.as_bytes());
        Ok(next_offset.map(|next_offset| (records, next_offset)))
    }
}

/// `wire.batches.end_of`.
fn end_of(batches: &[u8]) -> Option<i64> {
    let mut at = 0;
    loop {
        let header = Header::read(batches.get(at..)?)?;
        at += LENGTH_END + usize::try_from(header.batch_length).ok()?;
        if at >= batches.len() {
            return header.base_offset.checked_add(i64::from(header.last_offset_delta) + 1);
        }
    }
}

/// `encode_answer`: heads of rows in buffers of their own, between the records.
struct Frame<'py> {
    py: Python<'py>,
    /// The first buffer, which begins with the frame's length.
    first: Option<Vec<u8>>,
    whole: Vec<Bound<'py, PyBytes>>,
    /// Rows behind the last records.
    head: Vec<u8>,
    size: usize,
}

impl<'py> Frame<'py> {
    fn new(py: Python<'py>) -> Self {
        Self { py, first: None, whole: Vec::new(), head: vec![0; LENGTH_BYTES], size: 0 }
    }

    /// `_row`, and its records. False: there is damage, of which the twin is to tell.
    fn add(
        &mut self,
        place: &Bound<'py, PyAny>,
        hot: &HotPartition,
        records: Option<&Bound<'py, PyBytes>>,
    ) -> PyResult<bool> {
        let parts = hot.parts();
        if !attribute!(parts.partition.bind(self.py), "damaged").is_none() {
            return Ok(false);
        }
        let gaps_below: i64 = attribute!(parts.contents.bind(self.py), "gaps_below").extract()?;
        let start = hot.start_offset(self.py)?;
        let size = records.map_or(0, |records| records.as_bytes().len());
        self.head.reserve(ROW_BYTES);
        self.head.extend(attribute!(place, "generation").extract::<i32>()?.to_be_bytes());
        self.head.extend([0; 2]); // no error
        self.head.extend(hot.isr().high_watermark().to_be_bytes());
        self.head.extend(start.to_be_bytes());
        self.head.extend(NO_EPOCH.to_be_bytes());
        self.head.extend(NO_OFFSET.to_be_bytes());
        self.head.extend(gaps_below.to_be_bytes());
        self.head.extend(NO_OFFSET.to_be_bytes());
        self.head.extend(i32::try_from(size)?.to_be_bytes());
        if let Some(records) = records {
            self.end_head();
            self.whole.push(records.clone());
            self.size += size;
        }
        Ok(true)
    }

    fn end_head(&mut self) {
        let head = std::mem::take(&mut self.head);
        self.size += head.len();
        if self.first.is_none() {
            self.first = Some(head);
        } else {
            self.whole.push(PyBytes::new(self.py, &head));
        }
    }

    fn buffers(mut self) -> PyResult<Bound<'py, PyList>> {
        if !self.head.is_empty() {
            self.end_head();
        }
        let mut first = self.first.unwrap_or_default();
        first[..LENGTH_BYTES].copy_from_slice(&i32::try_from(self.size - LENGTH_BYTES)?.to_be_bytes());
        let buffers = PyList::new(self.py, [PyBytes::new(self.py, &first)])?;
        for buffer in self.whole {
            buffers.append(buffer)?;
        }
        Ok(buffers)
    }
}
