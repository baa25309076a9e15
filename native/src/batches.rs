//! The header of a batch. The twin is `headrace.wire.batches`, where the format is told.

use pyo3::prelude::*;
use pyo3::types::PyTuple;

use crate::bytes::Lent;
use crate::panics::guarded;
use crate::varint::Reader;

const HEADER_BYTES: usize = 61;
/// Bytes that a batch's length does not count.
const LENGTH_END: usize = 12;
/// The CRC covers everything from here.
const CRC_START: usize = 21;
const MAGIC: i8 = 2;
const CODEC_MASK: i16 = 0x07;
const CODEC_MAX: i16 = 4;

/// The fields, as in `BatchHeader`.
#[derive(Debug, PartialEq, Eq, Clone, Copy)]
pub struct Header {
    pub base_offset: i64,
    pub batch_length: i32,
    pub leader_epoch: i32,
    pub magic: i8,
    pub crc: u32,
    pub attributes: i16,
    pub last_offset_delta: i32,
    pub base_timestamp: i64,
    pub max_timestamp: i64,
    pub producer_id: i64,
    pub producer_epoch: i16,
    pub base_sequence: i32,
    pub count: i32,
}

impl Header {
    /// At the front of these bytes, unchecked. None where they end within it.
    pub fn read(batch: &[u8]) -> Option<Self> {
        let mut reader = Reader::new(batch, 0);
        Some(Self {
            base_offset: reader.i64()?,
            batch_length: reader.i32()?,
            leader_epoch: reader.i32()?,
            magic: reader.i8()?,
            crc: reader.i32()?.cast_unsigned(),
            attributes: reader.i16()?,
            last_offset_delta: reader.i32()?,
            base_timestamp: reader.i64()?,
            max_timestamp: reader.i64()?,
            producer_id: reader.i64()?,
            producer_epoch: reader.i16()?,
            base_sequence: reader.i32()?,
            count: reader.i32()?,
        })
    }

    /// In the order of `BatchHeader`.
    pub fn as_tuple<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        let wide = |number: i64| number.into_pyobject(py).map(Bound::into_any);
        let narrow = |number: i32| number.into_pyobject(py).map(Bound::into_any);
        PyTuple::new(
            py,
            [
                wide(self.base_offset)?,
                narrow(self.batch_length)?,
                narrow(self.leader_epoch)?,
                narrow(self.magic.into())?,
                wide(self.crc.into())?,
                narrow(self.attributes.into())?,
                narrow(self.last_offset_delta)?,
                wide(self.base_timestamp)?,
                wide(self.max_timestamp)?,
                wide(self.producer_id)?,
                narrow(self.producer_epoch.into())?,
                narrow(self.base_sequence)?,
                narrow(self.count)?,
            ],
        )
    }
}

/// The header of the batch at `at`, which is sound and ends before `end`. None where the twin is to say what is wrong.
/// `compacted`: records may be missing.
pub fn check(buffer: &[u8], at: usize, end: usize, compacted: bool) -> Option<Header> {
    let batch = buffer.get(at..end)?;
    let header = Header::read(batch)?;
    let size = LENGTH_END.checked_add(usize::try_from(header.batch_length).ok()?)?;
    let (count, most) = (i64::from(header.count), i64::from(header.last_offset_delta) + 1);
    let is_counted = if compacted { 0 <= count && count <= most } else { 0 < count && count == most };
    let is_sound = size >= HEADER_BYTES
        && header.magic == MAGIC
        && is_counted
        && header.last_offset_delta >= 0
        && header.attributes & CODEC_MASK <= CODEC_MAX
        && crc32c::crc32c(batch.get(CRC_START..size)?) == header.crc;
    is_sound.then_some(header)
}

/// `headrace.wire.batches.check_batch`: the fields of the header, or None.
#[pyfunction]
pub fn check_batch<'py>(
    py: Python<'py>,
    buffer: &Bound<'py, PyAny>,
    at: usize,
    end: usize,
    compacted: bool,
) -> PyResult<Option<Bound<'py, PyTuple>>> {
    guarded(|| {
        let lent = Lent::of(buffer)?;
        check(lent.slice(py), at, end, compacted).map(|header| header.as_tuple(py)).transpose()
    })
}

#[cfg(test)]
mod tests {
    use super::{CRC_START, check};

    fn batch(count: i32, delta: i32) -> Vec<u8> {
        let mut made = Vec::new();
        made.extend(7i64.to_be_bytes());
        made.extend(50i32.to_be_bytes()); // one byte of records
        made.extend(3i32.to_be_bytes());
        made.push(2);
        made.extend([0; 4]);
        made.extend(0i16.to_be_bytes());
        made.extend(delta.to_be_bytes());
        made.extend([0; 30]);
        made.extend(count.to_be_bytes());
        made.push(9);
        let crc = crc32c::crc32c(&made[CRC_START..]);
        made[17..21].copy_from_slice(&crc.to_be_bytes());
        made
    }

    #[test]
    fn a_sound_batch_has_its_header() {
        let sound = batch(2, 1);
        let header = check(&sound, 0, sound.len(), false).expect("it is sound");
        assert_eq!((header.base_offset, header.batch_length, header.leader_epoch), (7, 50, 3));
        assert_eq!((header.magic, header.last_offset_delta, header.count), (2, 1, 2));
        assert_eq!(check(&sound, 0, sound.len() - 1, false), None);
        assert_eq!(check(&sound, 1, sound.len(), false), None);
        assert_eq!(check(&sound, 0, sound.len() + 1, false), None);
    }

    #[test]
    fn records_may_be_missing_where_a_log_is_compacted() {
        for (count, delta, whole, thinned) in
            [(1, 1, false, true), (0, 1, false, true), (3, 1, false, false), (0, -1, false, false), (1, 0, true, true)]
        {
            let made = batch(count, delta);
            assert_eq!(check(&made, 0, made.len(), false).is_some(), whole);
            assert_eq!(check(&made, 0, made.len(), true).is_some(), thinned);
        }
    }

    #[test]
    fn every_flipped_bit_behind_the_crc_is_seen() {
        let sound = batch(2, 1);
        for at in CRC_START - 4..sound.len() {
            let mut damaged = sound.clone();
            damaged[at] ^= 1;
            assert_eq!(check(&damaged, 0, damaged.len(), false), None);
        }
    }
}
