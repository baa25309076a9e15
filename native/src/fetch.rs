//! Plain fetch requests and their answers. The twin is `headrace.wire.plain_fetch`, where the format is told.

use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyList, PySequence};

use crate::bytes::Lent;
use crate::panics::guarded;
use crate::requests::{Front, LONG, front, topic};
use crate::varint::{Reader, write_unsigned};

const RACK_VERSION: i16 = 11;
const FLEXIBLE_VERSION: i16 = 12;
const TOPIC_ID_VERSION: i16 = 13;
const NO_REPLICA_ID_VERSION: i16 = 15;
const CONSUMER: i32 = -1;
const NO_SESSION: (i32, i32) = (0, -1);

/// Partition, leader epoch, offset, maximum bytes.
pub type Asked = (i32, i32, i64, i32);

#[derive(Debug, PartialEq, Eq)]
pub struct Topic {
    /// Where its name or id lies, with the length of a name before it.
    pub start: usize,
    pub end: usize,
    pub asked: Vec<Asked>,
}

#[derive(Debug, PartialEq, Eq)]
pub struct Fetch {
    pub version: i16,
    pub correlation_id: i32,
    pub wait_ms_max: i32,
    pub bytes_min: i32,
    pub bytes_max: i32,
    pub isolation_level: i8,
    /// Where the rack lies.
    pub rack: (usize, usize),
    pub topics: Vec<Topic>,
}

/// The request of a frame without its length. None where the twin is to read it.
pub fn read(frame: &[u8]) -> Option<Fetch> {
    let Front { version, correlation_id, mut reader } = front(frame)?;
    let flexible = version >= FLEXIBLE_VERSION;
    if flexible && reader.byte()? != 0 {
        return None;
    }
    if version < NO_REPLICA_ID_VERSION && reader.i32()? != CONSUMER {
        return None;
    }
    let (wait_ms_max, bytes_min, bytes_max, isolation_level) =
        (reader.i32()?, reader.i32()?, reader.i32()?, reader.i8()?);
    if (reader.i32()?, reader.i32()?) != NO_SESSION {
        return None;
    }
    let (topics, rack) = if flexible {
        (flexible_topics(&mut reader, version)?, flexible_rack(&mut reader)?)
    } else {
        (older_topics(&mut reader)?, older_rack(&mut reader, version)?)
    };
    if topics.is_empty() || reader.at != frame.len() {
        return None;
    }
    Some(Fetch { version, correlation_id, wait_ms_max, bytes_min, bytes_max, isolation_level, rack, topics })
}

fn asked(reader: &mut Reader<'_>, flexible: bool) -> Option<Asked> {
    let (partition, leader_epoch, offset) = (reader.i32()?, reader.i32()?, reader.i64()?);
    if flexible {
        reader.take(4)?; // the epoch of the last record that was fetched
    }
    reader.take(8)?; // where a follower's log starts
    let bytes_max = reader.i32()?;
    if flexible && reader.byte()? != 0 {
        return None;
    }
    Some((partition, leader_epoch, offset, bytes_max))
}

fn older_topics(reader: &mut Reader<'_>) -> Option<Vec<Topic>> {
    let mut topics = Vec::new();
    for _ in 0..reader.i32()? {
        let start = reader.at;
        let name = usize::try_from(reader.i16()?).ok()?;
        reader.take(name)?;
        let end = reader.at;
        let count = reader.i32()?;
        if name == 0 || count <= 0 {
            return None;
        }
        let asked = (0..count).map(|_| asked(reader, false)).collect::<Option<Vec<_>>>()?;
        topics.push(Topic { start, end, asked });
    }
    (reader.i32()? == 0).then_some(topics) // no forgotten ones
}

fn older_rack(reader: &mut Reader<'_>, version: i16) -> Option<(usize, usize)> {
    if version < RACK_VERSION {
        return Some((0, 0));
    }
    let size = usize::try_from(reader.i16()?).ok()?;
    let start = reader.at;
    reader.take(size)?.is_ascii().then_some((start, reader.at))
}

fn flexible_topics(reader: &mut Reader<'_>, version: i16) -> Option<Vec<Topic>> {
    let count = reader.byte()?;
    if !(1 < count && count < LONG) {
        return None;
    }
    let mut topics = Vec::new();
    for _ in 1..count {
        let (start, end) = topic(reader, version >= TOPIC_ID_VERSION)?;
        let partitions = reader.unsigned(32)?;
        if partitions < 2 {
            return None;
        }
        let asked = (1..partitions).map(|_| asked(reader, true)).collect::<Option<Vec<_>>>()?;
        if reader.byte()? != 0 {
            return None;
        }
        topics.push(Topic { start, end, asked });
    }
    Some(topics)
}

fn flexible_rack(reader: &mut Reader<'_>) -> Option<(usize, usize)> {
    let (forgotten, size) = (reader.byte()?, reader.byte()?);
    if forgotten != 1 || !(0 < size && size < LONG) {
        return None;
    }
    let start = reader.at;
    let is_ascii = reader.take(usize::from(size) - 1)?.is_ascii();
    let end = reader.at;
    (is_ascii && reader.byte()? == 0).then_some((start, end))
}

type Found = (i16, i32, i32, i32, i32, i8, Py<PyBytes>, Py<PyList>);

/// `headrace.wire.plain_fetch.read_plain_fetch`: its fields, or None.
#[pyfunction]
pub fn read_plain_fetch(py: Python<'_>, frame: &Bound<'_, PyAny>) -> PyResult<Option<Found>> {
    guarded(|| {
        let lent = Lent::of(frame)?;
        let data = lent.slice(py);
        let Some(found) = read(data) else {
            return Ok(None);
        };
        let topics = PyList::empty(py);
        for topic in &found.topics {
            topics.append((PyBytes::new(py, &data[topic.start..topic.end]), PyList::new(py, &topic.asked)?))?;
        }
        Ok(Some((
            found.version,
            found.correlation_id,
            found.wait_ms_max,
            found.bytes_min,
            found.bytes_max,
            found.isolation_level,
            PyBytes::new(py, &data[found.rack.0..found.rack.1]).unbind(),
            topics.unbind(),
        )))
    })
}

/// Partition, high watermark, last stable offset, log start, records, aborted transactions.
type Part<'py> = (i32, i64, i64, i64, Bound<'py, PyAny>, Bound<'py, PySequence>);

/// `headrace.wire.plain_fetch.write_plain_found` where all is one buffer of at most `bytes_max`: it, or None.
#[pyfunction]
pub fn write_plain_found<'py>(
    py: Python<'py>,
    version: i16,
    correlation_id: i32,
    topics: Vec<(Bound<'py, PyBytes>, Vec<Part<'py>>)>,
    committed_only: bool,
    bytes_max: usize,
) -> PyResult<Option<Bound<'py, PyBytes>>> {
    guarded(|| {
        let flexible = version >= FLEXIBLE_VERSION;
        let mut made = Vec::with_capacity(512);
        made.extend([0; 4]);
        made.extend(correlation_id.to_be_bytes());
        if flexible {
            made.push(0); // tags of the header
        }
        made.extend([0; 10]); // throttle time, error, session
        if flexible {
            write_unsigned(&mut made, topics.len() as u64 + 1);
        } else {
            made.extend(i32::try_from(topics.len())?.to_be_bytes());
        }
        let front = made.len();
        for (topic, parts) in topics {
            made.extend(topic.as_bytes());
            if flexible {
                write_unsigned(&mut made, parts.len() as u64 + 1);
            } else {
                made.extend(i32::try_from(parts.len())?.to_be_bytes());
            }
            for part in parts {
                if !part.5.is_empty()? || !write_part(py, &mut made, version, part, committed_only, bytes_max)? {
                    return Ok(None);
                }
            }
            if flexible {
                made.push(0);
            }
        }
        if flexible {
            made.push(0);
        }
        if made.len() - front > bytes_max {
            return Ok(None);
        }
        let size = i32::try_from(made.len() - 4)?;
        made[..4].copy_from_slice(&size.to_be_bytes());
        Ok(Some(PyBytes::new(py, &made)))
    })
}

/// Returns whether there was room.
fn write_part(
    py: Python<'_>,
    made: &mut Vec<u8>,
    version: i16,
    part: Part<'_>,
    committed_only: bool,
    bytes_max: usize,
) -> PyResult<bool> {
    let (index, high_watermark, stable, start, records, _) = part;
    let lent = Lent::of(&records)?;
    let records = lent.slice(py);
    if records.len() > bytes_max {
        return Ok(false);
    }
    made.extend(index.to_be_bytes());
    made.extend([0; 2]); // no error
    for offset in [high_watermark, stable, start] {
        made.extend(offset.to_be_bytes());
    }
    let flexible = version >= FLEXIBLE_VERSION;
    if flexible {
        made.push(u8::from(committed_only)); // no aborted transactions, or null
    } else {
        made.extend(if committed_only { [0; 4] } else { [0xFF; 4] });
    }
    if version >= RACK_VERSION {
        made.extend([0xFF; 4]); // no replica is preferred
    }
    if flexible {
        write_unsigned(made, records.len() as u64 + 1);
    } else {
        made.extend(i32::try_from(records.len())?.to_be_bytes());
    }
    made.extend(records);
    if flexible {
        made.push(0);
    }
    Ok(true)
}
