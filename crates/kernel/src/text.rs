//! Names of parties, and the short texts that a holder may attach to a lease. Valid by construction.

use alloc::sync::Arc;
use core::fmt;

/// Why a text is not valid for its type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TextError {
    /// The text is empty.
    Empty,
    /// The text is too long.
    TooLong {
        /// The maximum length in bytes.
        max: usize,
    },
    /// The text contains a control character.
    Control,
}

impl fmt::Display for TextError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            TextError::Empty => write!(f, "empty"),
            TextError::TooLong { max } => write!(f, "too long: max_bytes={max}"),
            TextError::Control => write!(f, "contains a control character"),
        }
    }
}

impl core::error::Error for TextError {}

pub(crate) fn check_text(text: &str, max: usize) -> Result<(), TextError> {
    if text.is_empty() {
        return Err(TextError::Empty);
    }
    if text.len() > max {
        return Err(TextError::TooLong { max });
    }
    if has_control(text) {
        return Err(TextError::Control);
    }
    Ok(())
}

/// Fast path: most names are ASCII, and bytes can be checked without decoding.
fn has_control(text: &str) -> bool {
    if text.is_ascii() {
        text.bytes().any(|byte| byte.is_ascii_control())
    } else {
        text.chars().any(char::is_control)
    }
}

macro_rules! label {
    ($(#[$doc:meta])* $name:ident, $max:literal) => {
        $(#[$doc])*
        #[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(Arc<str>);

        impl $name {
            /// The maximum length in bytes.
            pub const MAX_BYTES: usize = $max;

            /// Accepts a text of 1 to `MAX_BYTES` bytes without control characters.
            pub fn new(text: &str) -> Result<$name, TextError> {
                check_text(text, $max)?;
                Ok($name(text.into()))
            }

            /// The text.
            pub fn as_str(&self) -> &str {
                &self.0
            }

            #[allow(dead_code, reason = "not every label is a key of a table")]
            pub(crate) fn shared(&self) -> &Arc<str> {
                &self.0
            }

            #[allow(dead_code, reason = "not every label is a key of a table")]
            pub(crate) fn from_shared(text: &Arc<str>) -> $name {
                debug_assert!(check_text(text, $max).is_ok());
                $name(Arc::clone(text))
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Debug::fmt(&self.0, f)
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }
    };
}

label!(
    /// A unit of isolation: resources, agents and quotas of different namespaces never interact.
    Namespace, 128
);
label!(
    /// The authenticated identity of a client. Leases belong to identities.
    Identity, 256
);
label!(
    /// The name of an agent. In each namespace an agent belongs to the identity that first used it.
    AgentName, 256
);
label!(
    /// One run of a client program, scoped to its identity. Used to detect a session that conflicts with
    /// its own leases.
    SessionName, 256
);
label!(
    /// The holder's description of itself, for people to read.
    Owner, 256
);
label!(
    /// Why the holder wants the resources, shown to waiters.
    Reason, 256
);

/// Up to 1 KiB that the holder attaches to its lease. Opaque to the kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Metadata(Arc<[u8]>);

impl Metadata {
    /// The maximum length in bytes.
    pub const MAX_BYTES: usize = 1024;

    /// Accepts 1 to [`Metadata::MAX_BYTES`] bytes; a lease without metadata has no value of this type.
    pub fn new(bytes: &[u8]) -> Result<Metadata, TextError> {
        match bytes.len() {
            0 => Err(TextError::Empty),
            n if n > Metadata::MAX_BYTES => Err(TextError::TooLong { max: Metadata::MAX_BYTES }),
            _ => Ok(Metadata(bytes.into())),
        }
    }

    /// The bytes.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn invalid_labels_are_rejected_with_the_matching_error() {
        assert_eq!(Owner::new(""), Err(TextError::Empty));
        assert_eq!(Owner::new(&"x".repeat(257)), Err(TextError::TooLong { max: 256 }));
        assert_eq!(Owner::new("a\nb"), Err(TextError::Control));
        assert_eq!(Owner::new("a\u{85}b"), Err(TextError::Control));
        assert!(Owner::new(&"x".repeat(256)).is_ok());
        assert!(Owner::new("wörker #7: ../../etc").is_ok());
    }

    #[test]
    fn metadata_is_bounded() {
        assert!(Metadata::new(&[0; 1024]).is_ok());
        assert_eq!(Metadata::new(&[0; 1025]), Err(TextError::TooLong { max: 1024 }));
        assert_eq!(Metadata::new(&[]), Err(TextError::Empty));
    }
}
