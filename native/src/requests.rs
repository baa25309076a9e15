//! What the readers of plain requests share.

use crate::varint::Reader;

const UUID_BYTES: usize = 16;
/// The first length whose compact form takes more than one byte.
pub const LONG: u8 = 128;

/// The front of a frame without its length. The reader stands behind the client id.
pub struct Front<'a> {
    pub version: i16,
    pub correlation_id: i32,
    pub reader: Reader<'a>,
}

/// None where the twin is to read the request, as its client id is no ASCII.
pub fn front(frame: &[u8]) -> Option<Front<'_>> {
    let mut reader = Reader::new(frame, 2);
    let (version, correlation_id, client_id) = (reader.i16()?, reader.i32()?, reader.i16()?);
    if client_id > 0 && !reader.take(usize::try_from(client_id).ok()?)?.is_ascii() {
        return None;
    }
    Some(Front { version, correlation_id, reader })
}

/// Where the next topic's id lies, or its name with the compact length before it.
pub fn topic(reader: &mut Reader<'_>, by_id: bool) -> Option<(usize, usize)> {
    let start = reader.at;
    if by_id {
        reader.take(UUID_BYTES)?;
    } else {
        let size = reader.byte()?;
        if !(0 < size && size < LONG) {
            return None;
        }
        reader.take(usize::from(size) - 1)?;
    }
    Some((start, reader.at))
}
