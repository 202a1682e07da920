//! Names of parties, and the short texts a holder may attach: valid by construction.

use alloc::sync::Arc;
use core::fmt;

/// Why a text is no name of its kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TextError {
    /// There is nothing in it.
    Empty,
    /// It is longer than so many bytes.
    TooLong {
        /// The most bytes it may have.
        max: usize,
    },
    /// A control character.
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

/// Most names are ASCII, where a byte tells.
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
            /// The most bytes it may have.
            pub const MAX_BYTES: usize = $max;

            /// Takes a text that is not empty, not too long, and has no control characters.
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
    /// A unit of isolation: resources, agents and quotas of two namespaces never meet.
    Namespace, 128
);
label!(
    /// Who is asking, as the edge authenticated it. Leases belong to identities.
    Identity, 256
);
label!(
    /// An agent of an identity: belongs to the identity that first used it in the namespace.
    AgentName, 256
);
label!(
    /// A run of a program, of one identity: told when what it holds already is in its own way.
    SessionName, 256
);
label!(
    /// Who the holder says it is, for people to read.
    Owner, 256
);
label!(
    /// Why the holder wants the resources, shown to those who wait.
    Reason, 256
);

/// Up to 1 KiB that the holder attaches to its lease. The kernel never looks inside.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Metadata(Arc<[u8]>);

impl Metadata {
    /// The most bytes it may have.
    pub const MAX_BYTES: usize = 1024;

    /// Takes one byte or more, up to [`Metadata::MAX_BYTES`]; a lease without metadata has none of this type.
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
    fn bad_labels_are_refused_each_for_its_reason() {
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
