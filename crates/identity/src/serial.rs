//! Serial numbers of certificates, which identify them in a denylist.

use std::fmt;
use std::str::FromStr;

use crate::error::Error;

const BYTES_MAX: usize = 20;
/// Length of new serials, in bytes.
const NEW_BYTES: usize = 16;

/// A positive number of at most 20 bytes. As text: lower-case hexadecimal, an even number of digits.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Serial([u8; BYTES_MAX]);

impl Serial {
    /// From big-endian bytes; leading zeros are ignored.
    pub fn from_bytes(bytes: &[u8]) -> Option<Serial> {
        let bytes = &bytes[bytes.iter().position(|byte| *byte != 0)?..];
        let mut serial = [0; BYTES_MAX];
        serial[BYTES_MAX.checked_sub(bytes.len())?..].copy_from_slice(bytes);
        Some(Serial(serial))
    }

    /// A random serial. Its first two bits are fixed, so that it is positive and always 16 bytes long.
    pub(crate) fn random(fill: &mut dyn FnMut(&mut [u8])) -> Serial {
        let mut bytes = [0; NEW_BYTES];
        fill(&mut bytes);
        bytes[0] = bytes[0] & 0x7f | 0x40;
        Serial::from_bytes(&bytes).expect("not zero, and not too long")
    }

    /// Big-endian bytes, without leading zeros.
    pub fn as_bytes(&self) -> &[u8] {
        let first = self.0.iter().position(|byte| *byte != 0).expect("not zero");
        &self.0[first..]
    }
}

impl fmt::Display for Serial {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.as_bytes().iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for Serial {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl FromStr for Serial {
    type Err = Error;

    /// Parses hexadecimal digits in either case; colons between bytes, as other tools print them, are ignored.
    fn from_str(text: &str) -> Result<Serial, Error> {
        let wrong = || {
            let rule = "a serial is up to 40 hexadecimal digits, not all of them 0";
            Error::invalid(format!("{rule}: serial={}", text.escape_debug()))
        };
        let digits: Option<Vec<u8>> = text.chars().filter(|c| *c != ':').map(digit).collect();
        let digits = digits.ok_or_else(wrong)?;
        let padded = if digits.len() % 2 == 0 { digits } else { [&[0], &digits[..]].concat() };
        let bytes: Vec<u8> = padded.chunks(2).map(|pair| pair[0] << 4 | pair[1]).collect();
        Serial::from_bytes(&bytes).ok_or_else(wrong)
    }
}

fn digit(c: char) -> Option<u8> {
    c.to_digit(16).map(|digit| u8::try_from(digit).expect("below 16"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spellings_of_one_number_are_one_serial() {
        for text in ["0a1b", "A1B", "0A:1B", "00000a1b", "a1b"] {
            assert_eq!(text.parse::<Serial>().expect(text).to_string(), "0a1b", "{text}");
        }
        let longest = "ff".repeat(20);
        assert_eq!(longest.parse::<Serial>().expect("20 bytes").to_string(), longest);
    }

    #[test]
    fn invalid_serials_are_refused() {
        for text in ["", "0", "00", ":", "0x1", "g1", "-1", " 1", "1 2", "é", &"ff".repeat(21)] {
            assert!(text.parse::<Serial>().is_err(), "{text}");
        }
    }

    #[test]
    fn random_serials_are_positive_and_of_equal_length() {
        for byte in [0, 0x7f, 0x80, 0xff] {
            let serial = Serial::random(&mut |bytes| bytes.fill(byte));
            assert_eq!(serial.as_bytes().len(), NEW_BYTES);
            assert!(serial.as_bytes()[0] < 0x80);
        }
    }
}
