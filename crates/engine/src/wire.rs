//! The primitive encodings of records and snapshots: integers, texts, byte strings, optional values.
//!
//! [`parts`] has the kernel types that records and snapshots share.

mod legacy;
pub(crate) mod parts;

use kernel::Shard;

use crate::record::DecodeError;

/// The format in which records and snapshots are encoded. Only the second is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// Format 1, in the store of this shard: locations did not name it.
    One(Shard),
    /// Format 2.
    Two,
}

/// Encodes into a buffer.
pub struct Writer<'a>(&'a mut Vec<u8>);

impl<'a> Writer<'a> {
    pub(crate) fn new(buffer: &'a mut Vec<u8>) -> Writer<'a> {
        Writer(buffer)
    }

    pub(crate) fn byte(&mut self, byte: u8) {
        self.0.push(byte);
    }

    pub(crate) fn flag(&mut self, flag: bool) {
        self.byte(u8::from(flag));
    }

    pub(crate) fn fixed(&mut self, bytes: &[u8]) {
        self.0.extend_from_slice(bytes);
    }

    /// LEB128: seven bits per byte, lowest first; the high bit marks continuation.
    pub(crate) fn number(&mut self, mut number: u64) {
        while number >= 0x80 {
            self.byte(u8::try_from(number & 0x7f).expect("seven bits") | 0x80);
            number >>= 7;
        }
        self.byte(u8::try_from(number).expect("seven bits"));
    }

    pub(crate) fn count(&mut self, count: usize) {
        self.number(count as u64);
    }

    pub(crate) fn bytes(&mut self, bytes: &[u8]) {
        self.count(bytes.len());
        self.fixed(bytes);
    }

    pub(crate) fn text(&mut self, text: &str) {
        self.bytes(text.as_bytes());
    }

    pub(crate) fn maybe<T>(&mut self, value: Option<T>, write: impl FnOnce(&mut Self, T)) {
        self.flag(value.is_some());
        if let Some(value) = value {
            write(self, value);
        }
    }
}

/// Decodes from a slice, and tracks the offset for errors.
pub struct Reader<'a> {
    bytes: &'a [u8],
    offset: usize,
}

type Read<T> = Result<T, DecodeError>;

impl<'a> Reader<'a> {
    pub(crate) fn new(bytes: &'a [u8]) -> Reader<'a> {
        Reader::within(bytes, 0)
    }

    /// Decodes a part of a longer input; `offset` is its position there.
    pub(crate) fn within(bytes: &'a [u8], offset: usize) -> Reader<'a> {
        Reader { bytes, offset }
    }

    pub(crate) fn error(&self, what: impl Into<String>) -> DecodeError {
        DecodeError { offset: self.offset, what: what.into() }
    }

    pub(crate) fn take(&mut self, length: usize) -> Read<&'a [u8]> {
        match self.bytes.split_at_checked(length) {
            Some((taken, left)) => {
                self.bytes = left;
                self.offset += length;
                Ok(taken)
            }
            None => Err(self.error("unexpected end")),
        }
    }

    pub(crate) fn fixed<const N: usize>(&mut self) -> Read<[u8; N]> {
        Ok(self.take(N)?.try_into().expect("as many as were taken"))
    }

    pub(crate) fn byte(&mut self) -> Read<u8> {
        let Some((first, left)) = self.bytes.split_first() else {
            return Err(self.error("unexpected end"));
        };
        self.bytes = left;
        self.offset += 1;
        Ok(*first)
    }

    pub(crate) fn flag(&mut self) -> Read<bool> {
        match self.byte()? {
            0 => Ok(false),
            1 => Ok(true),
            other => Err(self.error(format!("a flag is neither 0 nor 1: value={other}"))),
        }
    }

    /// Accepts only the shortest encoding: a number has one spelling.
    pub(crate) fn number(&mut self) -> Read<u64> {
        let mut number = 0_u64;
        for shift in (0..64).step_by(7) {
            let byte = self.byte()?;
            let bits = u64::from(byte & 0x7f);
            if bits << shift >> shift != bits || (byte == 0 && shift > 0) {
                return Err(self.error("an integer is too large, or not in its shortest encoding"));
            }
            number |= bits << shift;
            if byte & 0x80 == 0 {
                return Ok(number);
            }
        }
        Err(self.error("an integer is too long"))
    }

    pub(crate) fn small<T: TryFrom<u64>>(&mut self) -> Read<T> {
        let number = self.number()?;
        T::try_from(number).map_err(|_| self.error(format!("an integer is too large: value={number}")))
    }

    /// A count of items, each of at least one byte.
    pub(crate) fn count(&mut self, max: usize) -> Read<usize> {
        let count: usize = self.small()?;
        if count > max {
            Err(self.error(format!("a count exceeds its limit: count={count} max={max}")))
        } else {
            Ok(count)
        }
    }

    pub(crate) fn bytes(&mut self, max: usize) -> Read<&'a [u8]> {
        let length = self.count(max)?;
        self.take(length)
    }

    pub(crate) fn text(&mut self) -> Read<&'a str> {
        let bytes = self.bytes(TEXT_MAX)?;
        std::str::from_utf8(bytes).map_err(|_| self.error("a text is not UTF-8"))
    }

    pub(crate) fn maybe<T>(&mut self, read: impl FnOnce(&mut Self) -> Read<T>) -> Read<Option<T>> {
        if self.flag()? { read(self).map(Some) } else { Ok(None) }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// Checks that all bytes were consumed.
    pub(crate) fn end(&self) -> Read<()> {
        if self.bytes.is_empty() { Ok(()) } else { Err(self.error("trailing bytes")) }
    }
}

/// Maximum length of a text in bytes.
const TEXT_MAX: usize = 1024;

#[cfg(test)]
mod tests {
    use super::*;

    fn written(number: u64) -> Vec<u8> {
        let mut bytes = Vec::new();
        Writer::new(&mut bytes).number(number);
        bytes
    }

    #[test]
    fn numbers_read_back_and_have_one_spelling() {
        for number in [0, 1, 127, 128, 300, u64::from(u32::MAX), 1 << 52, u64::MAX - 1, u64::MAX] {
            let bytes = written(number);
            assert_eq!(Reader::new(&bytes).number(), Ok(number));
            assert!(Reader::new(&bytes[..bytes.len() - 1]).number().is_err(), "cut short: {number}");
        }
        for bad in [
            &[0x80, 0x00][..],
            &[0xff; 10],
            &[0x80; 11],
            &[0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 2],
        ] {
            assert!(Reader::new(bad).number().is_err(), "{bad:?}");
        }
    }

    #[test]
    fn flags_are_0_or_1() {
        assert_eq!(Reader::new(&[1]).flag(), Ok(true));
        assert!(Reader::new(&[2]).flag().is_err());
    }
}
