//! Plain produce requests. The twin is `headrace.wire.plain_produce`, where the format is told.

use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyList};

use crate::bytes::Lent;
use crate::panics::guarded;
use crate::requests::{Front, LONG, front, topic};
use crate::varint::Reader;

const TOPIC_ID_VERSION: i16 = 13;

/// A batch: its partition, and where it lies in the frame.
#[derive(Debug, PartialEq, Eq)]
pub struct Part {
    pub index: i32,
    pub start: usize,
    pub end: usize,
}

#[derive(Debug, PartialEq, Eq)]
pub struct Topic {
    /// Where its name or id lies, with the length of a name before it.
    pub start: usize,
    pub end: usize,
    pub parts: Vec<Part>,
}

#[derive(Debug, PartialEq, Eq)]
pub struct Produce {
    pub correlation_id: i32,
    pub acks: i16,
    pub timeout_ms: i32,
    pub topics: Vec<Topic>,
}

/// The request of a frame without its length. None where the twin is to read it.
pub fn read(frame: &[u8]) -> Option<Produce> {
    let Front { version, correlation_id, mut reader } = front(frame)?;
    let (tags, transactional_id) = (reader.byte()?, reader.byte()?);
    let (acks, timeout_ms, topics) = (reader.i16()?, reader.i32()?, reader.byte()?);
    if tags != 0 || transactional_id != 0 || !(1 < topics && topics < LONG) {
        return None;
    }
    let topics = (1..topics).map(|_| read_topic(&mut reader, version)).collect::<Option<Vec<_>>>()?;
    if reader.byte()? != 0 || reader.at != frame.len() {
        return None;
    }
    Some(Produce { correlation_id, acks, timeout_ms, topics })
}

fn read_topic(reader: &mut Reader<'_>, version: i16) -> Option<Topic> {
    let (start, end) = topic(reader, version >= TOPIC_ID_VERSION)?;
    let count = reader.byte()?;
    if !(1 < count && count < LONG) {
        return None;
    }
    let parts = (1..count).map(|_| read_part(reader)).collect::<Option<Vec<_>>>()?;
    (reader.byte()? == 0).then_some(Topic { start, end, parts })
}

fn read_part(reader: &mut Reader<'_>) -> Option<Part> {
    let index = reader.i32()?;
    let size = usize::try_from(reader.unsigned(32)?).ok()?.checked_sub(1)?;
    let start = reader.at;
    reader.take(size)?;
    let end = reader.at;
    (reader.byte()? == 0).then_some(Part { index, start, end })
}

type Found = (i32, i16, i32, Py<PyList>);

/// `headrace.wire.plain_produce.read_plain_produce`: its fields, or None. Batches are slices of `frame`, a memoryview.
#[pyfunction]
pub fn read_plain_produce(py: Python<'_>, frame: &Bound<'_, PyAny>) -> PyResult<Option<Found>> {
    guarded(|| {
        let lent = Lent::of(frame)?;
        let data = lent.slice(py);
        let Some(found) = read(data) else {
            return Ok(None);
        };
        let topics = PyList::empty(py);
        for topic in &found.topics {
            let batches = PyList::empty(py);
            for part in &topic.parts {
                let batch = frame.get_item(pyo3::types::PySlice::new(
                    py,
                    isize::try_from(part.start)?,
                    isize::try_from(part.end)?,
                    1,
                ))?;
                batches.append((part.index, batch))?;
            }
            topics.append((PyBytes::new(py, &data[topic.start..topic.end]), batches))?;
        }
        Ok(Some((found.correlation_id, found.acks, found.timeout_ms, topics.unbind())))
    })
}
