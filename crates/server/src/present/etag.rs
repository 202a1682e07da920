//! A document's hash as text.

use kernel::Etag;

/// 64 lower-case hexadecimal digits.
pub(crate) fn etag_text(etag: Etag) -> String {
    etag.0.iter().fold(String::with_capacity(etag.0.len() * 2), |text, byte| text + &format!("{byte:02x}"))
}
