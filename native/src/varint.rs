//! Varints as Kafka writes them: little-endian groups of 7 bits, of signed numbers in zigzag (KIP-98, KIP-482).

/// Reads from the front of a slice. Every method returns `None` where the bytes end, or are no such number.
pub struct Reader<'a> {
    data: &'a [u8],
    pub at: usize,
}

/// Of a field that may be null.
pub enum Length {
    Null,
    Of(usize),
}

impl<'a> Reader<'a> {
    pub fn new(data: &'a [u8], at: usize) -> Self {
        Self { data, at }
    }

    pub fn byte(&mut self) -> Option<u8> {
        let found = *self.data.get(self.at)?;
        self.at += 1;
        Some(found)
    }

    /// The next `size` bytes.
    pub fn take(&mut self, size: usize) -> Option<&'a [u8]> {
        let end = self.at.checked_add(size)?;
        let found = self.data.get(self.at..end)?;
        self.at = end;
        Some(found)
    }

    pub fn i8(&mut self) -> Option<i8> {
        Some(self.byte()?.cast_signed())
    }

    pub fn i16(&mut self) -> Option<i16> {
        Some(i16::from_be_bytes(self.take(2)?.try_into().ok()?))
    }

    pub fn i32(&mut self) -> Option<i32> {
        Some(i32::from_be_bytes(self.take(4)?.try_into().ok()?))
    }

    pub fn i64(&mut self) -> Option<i64> {
        Some(i64::from_be_bytes(self.take(8)?.try_into().ok()?))
    }

    /// At most `bits` bits, 32 or 64, in 5 bytes or 10.
    pub fn unsigned(&mut self, bits: u32) -> Option<u64> {
        let mut value: u64 = 0;
        let mut shift = 0;
        loop {
            let byte = self.byte()?;
            let group = u64::from(byte & 0x7F);
            if shift == 63 && group > 1 {
                return None;
            }
            value |= group << shift;
            if byte < 0x80 {
                return if bits < 64 && value >> bits != 0 { None } else { Some(value) };
            }
            shift += 7;
            if shift >= bits {
                return None;
            }
        }
    }

    /// As `unsigned`, in zigzag.
    pub fn signed(&mut self, bits: u32) -> Option<i64> {
        let value = self.unsigned(bits)?;
        Some((value >> 1).cast_signed() ^ -((value & 1).cast_signed()))
    }

    /// The length of a field, in 32 bits.
    pub fn length(&mut self) -> Option<Length> {
        match self.signed(32)? {
            -1 => Some(Length::Null),
            length => Some(Length::Of(usize::try_from(length).ok()?)),
        }
    }

    /// Step over so many bytes, which may lie behind the end.
    pub fn skip(&mut self, size: usize) -> Option<()> {
        self.at = self.at.checked_add(size)?;
        Some(())
    }
}

/// Write a number as `Reader::unsigned` reads it.
pub fn write_unsigned(out: &mut Vec<u8>, mut value: u64) {
    while value > 0x7F {
        out.push(value.to_le_bytes()[0] | 0x80);
        value >>= 7;
    }
    out.push(value.to_le_bytes()[0]);
}

#[cfg(test)]
mod tests {
    use super::Reader;

    fn signed(data: &[u8], bits: u32) -> Option<(i64, usize)> {
        let mut reader = Reader::new(data, 0);
        reader.signed(bits).map(|found| (found, reader.at))
    }

    #[test]
    fn numbers_are_read_in_zigzag() {
        assert_eq!(signed(&[0], 32), Some((0, 1)));
        assert_eq!(signed(&[1], 32), Some((-1, 1)));
        assert_eq!(signed(&[0x80, 0x01], 32), Some((64, 2)));
        assert_eq!(signed(&[0xFF, 0xFF, 0xFF, 0xFF, 0x0F], 32), Some((i64::from(i32::MIN), 5)));
        let most = [0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0x01];
        assert_eq!(signed(&most, 64), Some((i64::MIN, 10)));
    }

    #[test]
    fn wider_and_cut_ones_are_none() {
        assert_eq!(signed(&[0xFF, 0xFF, 0xFF, 0xFF, 0x1F], 32), None);
        assert_eq!(signed(&[0x80, 0x80, 0x80, 0x80, 0x80, 0x00], 32), None);
        assert_eq!(signed(&[0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0x03], 64), None);
        assert_eq!(signed(&[0x80], 32), None);
        assert_eq!(signed(&[], 32), None);
    }
}
