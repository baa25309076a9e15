//! Whether the records of a batch can be read. The twin is `headrace.wire.walking`, where the format is told.

use pyo3::prelude::*;

use crate::bytes::Lent;
use crate::panics::guarded;
use crate::varint::{Length, Reader};

const NO_TIME: i64 = -1;

/// What is known of the records of a batch. Times are in milliseconds since 1970.
#[derive(Debug, PartialEq, Eq, Clone, Copy)]
pub struct Walked {
    pub oldest: i64,
    /// -1 where no record has a time.
    pub newest: i64,
    pub all_keyed: bool,
}

/// How many headers records may have.
#[derive(Clone, Copy)]
pub struct HeadersMax {
    pub of_all: i64,
    pub of_one: i64,
}

/// Check `count` records, which must fill `data`. None where the twin is to look at them: most likely to refuse them.
pub fn walk(data: &[u8], count: u32, base_timestamp: i64, mut headers_max: HeadersMax) -> Option<Walked> {
    let mut reader = Reader::new(data, 0);
    let (mut oldest, mut newest, mut all_keyed) = (i64::MAX, i64::MIN, true);
    for index in 0..count {
        let length = usize::try_from(reader.signed(32)?).ok()?;
        let end = reader.at.checked_add(length)?;
        if end > data.len() {
            return None;
        }
        reader.skip(1)?; // the attributes, which nobody uses
        let time = reader.signed(64)?;
        if reader.signed(32)? != i64::from(index) {
            return None;
        }
        match reader.length()? {
            Length::Of(size) => reader.skip(size)?,
            Length::Null => all_keyed = false,
        }
        pass(&mut reader)?;
        let headers = reader.signed(32)?;
        if headers != 0 {
            pass_headers(&mut reader, headers, end, headers_max)?;
            headers_max.of_all -= headers;
        }
        if reader.at != end {
            return None;
        }
        oldest = oldest.min(time);
        newest = newest.max(time);
    }
    if count == 0 || reader.at != data.len() {
        return None;
    }
    let (oldest, newest) = (base_timestamp.checked_add(oldest)?, base_timestamp.checked_add(newest)?);
    Some(Walked { oldest, newest: newest.max(NO_TIME), all_keyed })
}

fn pass_headers(reader: &mut Reader<'_>, count: i64, end: usize, headers_max: HeadersMax) -> Option<()> {
    let room = i64::try_from(end.checked_sub(reader.at)? / 2).ok()?;
    if !(0 < count && count <= room && count <= headers_max.of_all && count <= headers_max.of_one) {
        return None;
    }
    for _ in 0..count {
        let name = usize::try_from(reader.signed(32)?).ok()?;
        reader.skip(name)?;
        pass(reader)?;
    }
    Some(())
}

/// Step over a field that may be null.
fn pass(reader: &mut Reader<'_>) -> Option<()> {
    match reader.length()? {
        Length::Of(size) => reader.skip(size),
        Length::Null => Some(()),
    }
}

/// `headrace.wire.walking.walk_records`: (oldest, newest, all have keys), or None.
#[pyfunction]
pub fn walk_records(
    py: Python<'_>,
    data: &Bound<'_, PyAny>,
    count: u32,
    base_timestamp: i64,
    headers_max: i64,
    headers_of_one_max: i64,
) -> PyResult<Option<(i64, i64, bool)>> {
    guarded(|| {
        let lent = Lent::of(data)?;
        let most = HeadersMax { of_all: headers_max, of_one: headers_of_one_max };
        let found = walk(lent.slice(py), count, base_timestamp, most);
        Ok(found.map(|walked| (walked.oldest, walked.newest, walked.all_keyed)))
    })
}

#[cfg(test)]
mod tests {
    use super::{HeadersMax, Walked, walk};

    const MANY: HeadersMax = HeadersMax { of_all: 1 << 40, of_one: 1000 };

    fn one(record: &[u8]) -> Option<Walked> {
        walk(record, 1, 1000, MANY)
    }

    #[test]
    fn a_record_is_walked() {
        let walked = Walked { oldest: 1001, newest: 1001, all_keyed: true };
        assert_eq!(one(&[16, 0, 2, 0, 2, b'k', 2, b'v', 0]), Some(walked));
        let keyless = Walked { all_keyed: false, ..walked };
        assert_eq!(one(&[14, 0, 2, 0, 1, 2, b'v', 0]), Some(keyless));
    }

    #[test]
    fn what_is_wrong_is_left_to_the_twin() {
        assert_eq!(one(&[16, 0, 2, 2, 2, b'k', 2, b'v', 0]), None); // the second offset first
        assert_eq!(one(&[18, 0, 2, 0, 2, b'k', 2, b'v', 0]), None); // longer than it is
        assert_eq!(one(&[14, 0, 2, 0, 2, b'k', 2, b'v', 0]), None); // shorter
        assert_eq!(one(&[16, 0, 2, 0, 2, b'k', 2, b'v', 0, 0]), None); // and a byte behind it
        assert_eq!(one(&[14, 0, 2, 0, 3, 2, b'v', 0]), None); // a key of length -2
        assert_eq!(walk(&[], 0, 0, MANY), None);
    }

    #[test]
    fn headers_are_counted() {
        let record = [22, 0, 0, 0, 1, 1, 2, 2, b'h', 4, b'a', b'b'];
        assert!(one(&record).is_some());
        assert_eq!(walk(&record, 1, 0, HeadersMax { of_all: 0, of_one: 1000 }), None);
        assert_eq!(walk(&record, 1, 0, HeadersMax { of_all: 1000, of_one: 0 }), None);
    }
}
