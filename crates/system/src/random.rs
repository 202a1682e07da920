//! Unpredictable bytes from the operating system.

use rustix::rand::{GetRandomFlags, getrandom};

/// Fills the buffer. Panics if the machine has no randomness: nothing can be made safely then.
pub fn fill(mut buffer: &mut [u8]) {
    while !buffer.is_empty() {
        match getrandom(&mut *buffer, GetRandomFlags::empty()) {
            Ok(filled) => buffer = &mut buffer[filled..],
            Err(rustix::io::Errno::INTR) => {}
            Err(error) => panic!("the machine has no randomness: {error}"),
        }
    }
}

/// `N` random bytes.
pub fn bytes<const N: usize>() -> [u8; N] {
    let mut bytes = [0; N];
    fill(&mut bytes);
    bytes
}

/// A random number.
pub fn number() -> u64 {
    u64::from_le_bytes(bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Equal by chance once in 2^128 runs.
    #[test]
    fn two_draws_differ_and_a_large_buffer_is_filled_to_its_end() {
        assert_ne!(bytes::<16>(), bytes::<16>());
        let mut buffer = vec![0; 100_000];
        fill(&mut buffer);
        assert!(buffer[99_000..].iter().any(|byte| *byte != 0));
    }
}
