//! Where a command comes from, beyond the identity that the kernel knows: for the audit trail.
//!
//! The log records the correlation id. The rest lives as long as the request, and reaches the audit log only.

use std::sync::Arc;

use crate::correlation::{NO_CORRELATION, correlation_id, spelled_number};

/// Where a command comes from. Clones are cheap.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Origin {
    /// The client's correlation id as a record carries it; [`NO_CORRELATION`] if there is none.
    pub correlation: u128,
    /// The id as the client sent it, if the record does not show it.
    pub correlation_text: Option<Arc<str>>,
    /// The serial number of the client's certificate, in hexadecimal; `None` without mutual TLS.
    pub serial: Option<Arc<str>>,
}

impl Origin {
    /// A request with this correlation id, as the client sent it.
    pub fn correlated(text: &str) -> Origin {
        let correlation_text = spelled_number(text).is_none().then(|| text.into());
        Origin { correlation: correlation_id(text), correlation_text, serial: None }
    }

    /// The correlation id, as the client sent it or as a number of 32 digits; `None` if there is none.
    pub fn correlation(&self) -> Option<String> {
        match &self.correlation_text {
            Some(text) => Some(text.to_string()),
            None => (self.correlation != NO_CORRELATION).then(|| format!("{:032x}", self.correlation)),
        }
    }

    /// The bytes that it occupies besides its own size.
    pub(crate) fn bytes(&self) -> usize {
        let text = |text: &Option<Arc<str>>| text.as_ref().map_or(0, |text| text.len());
        text(&self.correlation_text) + text(&self.serial)
    }
}

impl From<u128> for Origin {
    fn from(correlation: u128) -> Origin {
        Origin { correlation, ..Origin::default() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_correlation_id_is_shown_as_it_was_sent() {
        for text in ["job-4711", "a", "0123456789abcdef0123456789abcdef", &"0".repeat(32), &"f".repeat(64)] {
            assert_eq!(Origin::correlated(text).correlation().as_deref(), Some(text));
            assert_eq!(Origin::correlated(text).correlation, correlation_id(text));
        }
        let dashes = Origin::correlated("FFFFFFFF-89ab-cdef-0123-456789abcdef").correlation();
        assert_eq!(dashes.as_deref(), Some("ffffffff89abcdef0123456789abcdef"));
        assert_eq!(Origin::default().correlation(), None);
    }
}
