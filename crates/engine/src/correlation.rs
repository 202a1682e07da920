//! Correlation ids: the text that a client sends, as the 16 bytes that a record carries.
//!
//! 32 hexadecimal digits, with dashes or without, are the number that they spell, so a UUID or a trace id is legible in
//! the log. Any other text is the start of its BLAKE3 hash: the log can be searched for it, but does not show it.

/// The id of a record whose client sent none.
pub const NO_CORRELATION: u128 = 0;

/// The id that a record carries for this text; never [`NO_CORRELATION`].
pub fn correlation_id(text: &str) -> u128 {
    spelled_number(text).unwrap_or_else(|| hash(text))
}

/// The number that a text spells, if it is an id that the log shows.
pub(crate) fn spelled_number(text: &str) -> Option<u128> {
    let digits: String = text.chars().filter(|c| *c != '-').collect();
    let is_hex = digits.len() == 32 && digits.bytes().all(|digit| digit.is_ascii_hexdigit());
    let number = u128::from_str_radix(&digits, 16).ok().filter(|_| is_hex);
    number.filter(|number| *number != NO_CORRELATION)
}

fn hash(text: &str) -> u128 {
    let hash = blake3::hash(text.as_bytes());
    u128::from_be_bytes(hash.as_bytes()[..16].try_into().expect("sixteen bytes"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hexadecimal_digits_are_a_number_and_other_texts_a_hash() {
        let number = 0x0123_4567_89ab_cdef_0123_4567_89ab_cdef;
        for text in ["0123456789abcdef0123456789ABCDEF", "01234567-89ab-cdef-0123-456789abcdef"] {
            assert_eq!(correlation_id(text), number, "{text}");
        }
        // Fixed: the ids of existing logs are found by it.
        assert_eq!(correlation_id("job-4711"), 0x3ebb_37ad_6bfb_87f5_458c_468e_b7cc_e6b3);
        for text in ["job-4711", "job-4712", "+123456789abcdef0123456789abcdef", &"0".repeat(32)] {
            assert_eq!(correlation_id(text), hash(text), "{text}");
        }
    }
}
