//! Bytes as lower-case hexadecimal text.

const DIGITS: &[u8; 16] = b"0123456789abcdef";

/// Two digits for each byte.
pub fn encode(bytes: &[u8]) -> String {
    let digits = bytes.iter().flat_map(|byte| [byte >> 4, byte & 15]);
    digits.map(|digit| char::from(DIGITS[usize::from(digit)])).collect()
}

#[cfg(test)]
mod tests {
    #[test]
    fn every_byte_has_two_lower_case_digits() {
        assert_eq!(super::encode(&[]), "");
        assert_eq!(super::encode(&[0, 1, 0x7f, 0x80, 0xab, 0xff]), "00017f80abff");
    }
}
