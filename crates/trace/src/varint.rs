//! Numbers in few bytes: LEB128 varints, and zigzag for those with a sign.
//!
//! In: integers, or bytes that came from a file. Out: bytes, or integers. Must not: read past the end, or accept a
//! number that does not fit; bytes from outside give `None`, never a panic.

/// Appends `value`, seven bits a byte, low bits first.
pub(crate) fn put(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

/// Maps small numbers of either sign to small numbers without one: 0, -1, 1, -2 become 0, 1, 2, 3.
pub(crate) const fn zigzag(value: i64) -> u64 {
    ((value << 1) ^ (value >> 63)) as u64
}

/// The inverse of [`zigzag`].
pub(crate) const fn unzigzag(value: u64) -> i64 {
    ((value >> 1) as i64) ^ -((value & 1) as i64)
}

/// Reads varints from a slice, front to back.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Cursor<'a> {
    bytes: &'a [u8],
}

impl<'a> Cursor<'a> {
    pub(crate) const fn new(bytes: &'a [u8]) -> Cursor<'a> {
        Cursor { bytes }
    }

    pub(crate) const fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// The next `count` bytes as they are.
    pub(crate) fn take(&mut self, count: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.bytes.split_at_checked(count)?;
        self.bytes = rest;
        Some(taken)
    }

    /// The next varint. Eight bytes are looked at together, because one branch a byte costs more than the rest of
    /// the decoder; the three folds close the gaps that the stop bits leave.
    #[inline]
    pub(crate) fn number(&mut self) -> Option<u64> {
        const STOP: u64 = 0x8080_8080_8080_8080;
        if let Some(eight) = self.bytes.first_chunk::<8>() {
            let word = u64::from_le_bytes(*eight);
            let stops = !word & STOP;
            if stops != 0 {
                let bits = stops.trailing_zeros() + 1;
                let kept = word & (u64::MAX >> (64 - bits)) & !STOP;
                let pairs = (kept & 0x007f_007f_007f_007f) | ((kept & 0x7f00_7f00_7f00_7f00) >> 1);
                let quads = (pairs & 0x0000_3fff_0000_3fff) | ((pairs & 0x3fff_0000_3fff_0000) >> 2);
                self.bytes = &self.bytes[(bits / 8) as usize..];
                return Some((quads & 0x0fff_ffff) | ((quads & 0x0fff_ffff_0000_0000) >> 4));
            }
        }
        self.number_bytewise()
    }

    fn number_bytewise(&mut self) -> Option<u64> {
        let mut value = 0_u64;
        for (index, &byte) in self.bytes.iter().enumerate().take(10) {
            let low = u64::from(byte & 0x7f);
            if index == 9 && low > 1 {
                return None;
            }
            value |= low << (7 * index);
            if byte < 0x80 {
                self.bytes = &self.bytes[index + 1..];
                return Some(value);
            }
        }
        None
    }

    /// A number that must fit 32 bits.
    pub(crate) fn number32(&mut self) -> Option<u32> {
        u32::try_from(self.number()?).ok()
    }

    /// A length-prefixed text.
    pub(crate) fn text(&mut self) -> Option<String> {
        let length = usize::try_from(self.number()?).ok()?;
        Some(std::str::from_utf8(self.take(length)?).ok()?.to_owned())
    }
}

/// Appends a length-prefixed text.
pub(crate) fn put_text(out: &mut Vec<u8>, text: &str) {
    put(out, text.len() as u64);
    out.extend_from_slice(text.as_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;

    proptest::proptest! {
        #[test]
        fn what_is_put_is_taken(values: Vec<u64>, shift in 0_u32..64) {
            let mut bytes = Vec::new();
            for value in &values {
                put(&mut bytes, value >> shift);
            }
            let mut cursor = Cursor::new(&bytes);
            for value in &values {
                assert_eq!(cursor.number(), Some(value >> shift));
            }
            assert_eq!(cursor.number(), None);
        }

        #[test]
        fn zigzag_is_undone(value: i64) {
            assert_eq!(unzigzag(zigzag(value)), value);
        }

        #[test]
        fn any_bytes_are_numbers_or_refused(bytes: Vec<u8>) {
            let mut cursor = Cursor::new(&bytes);
            while cursor.number().is_some() {}
            Cursor::new(&bytes).text();
        }
    }

    #[test]
    fn eleven_bytes_are_no_number() {
        assert_eq!(Cursor::new(&[0xff; 11]).number(), None);
        assert_eq!(Cursor::new(&[0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 2]).number(), None);
    }
}
