//! The values of settings: how each type is read from text, and shown.

use std::ffi::OsStr;
use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use bucket::Encryption;

use super::{Quantity, duration_text};
use crate::backend::store::StoreUrl;

/// How a value is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Syntax {
    /// Any text; the setting's own parser checks it.
    Text,
    /// A path, which need not be UTF-8.
    Path,
    /// `true` or `false`; the flag alone means `true`.
    Switch,
    /// `30s`, `1h 30m`.
    Duration,
    /// `16MB`, `64KiB`, `1000`.
    Size,
    /// A whole number.
    Count,
    /// One of these.
    Choice(&'static [Choice]),
}

/// A word that a setting takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Choice {
    /// The word.
    pub name: &'static str,
    /// The meaning of the value.
    pub help: &'static str,
}

/// A value as it is shown.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ShownValue {
    /// There is none.
    Unset,
    /// Text, a path, a duration.
    Text(String),
    /// Bytes or a count.
    Number(u64),
    /// On or off.
    Switch(bool),
}

/// A type that a setting may have.
pub(crate) trait SettingValue: Sized {
    const SYNTAX: Syntax;
    fn parse(text: &OsStr) -> Result<Self, String>;
    fn value(&self) -> ShownValue;

    /// For values with a range.
    fn quantity(&self) -> Option<Quantity> {
        None
    }
}

fn utf8(text: &OsStr) -> Result<&str, String> {
    text.to_str().ok_or_else(|| "not UTF-8".to_string())
}

impl SettingValue for String {
    const SYNTAX: Syntax = Syntax::Text;

    fn parse(text: &OsStr) -> Result<String, String> {
        utf8(text).map(str::to_string)
    }

    fn value(&self) -> ShownValue {
        ShownValue::Text(self.clone())
    }
}

impl SettingValue for PathBuf {
    const SYNTAX: Syntax = Syntax::Path;

    fn parse(text: &OsStr) -> Result<PathBuf, String> {
        if text.is_empty() { Err("a path is needed".into()) } else { Ok(PathBuf::from(text)) }
    }

    fn value(&self) -> ShownValue {
        ShownValue::Text(self.display().to_string())
    }
}

impl<T: SettingValue> SettingValue for Option<T> {
    const SYNTAX: Syntax = T::SYNTAX;

    fn parse(text: &OsStr) -> Result<Option<T>, String> {
        T::parse(text).map(Some)
    }

    fn value(&self) -> ShownValue {
        self.as_ref().map_or(ShownValue::Unset, T::value)
    }
}

impl SettingValue for StoreUrl {
    const SYNTAX: Syntax = Syntax::Text;

    fn parse(text: &OsStr) -> Result<StoreUrl, String> {
        StoreUrl::parse(utf8(text)?).map_err(|error| error.to_string())
    }

    fn value(&self) -> ShownValue {
        ShownValue::Text(self.to_string())
    }
}

impl SettingValue for bool {
    const SYNTAX: Syntax = Syntax::Switch;

    fn parse(text: &OsStr) -> Result<bool, String> {
        utf8(text)?.parse().map_err(|_| "true or false is needed".to_string())
    }

    fn value(&self) -> ShownValue {
        ShownValue::Switch(*self)
    }
}

impl SettingValue for Duration {
    const SYNTAX: Syntax = Syntax::Duration;

    fn parse(text: &OsStr) -> Result<Duration, String> {
        let text = utf8(text)?;
        if let Ok(seconds) = text.parse() {
            return Ok(Duration::from_secs(seconds));
        }
        humantime::parse_duration(text).map_err(|error| format!("{error}; write 30s, 5m or 1h"))
    }

    fn value(&self) -> ShownValue {
        ShownValue::Text(duration_text(*self))
    }

    fn quantity(&self) -> Option<Quantity> {
        Some(Quantity::Duration(*self))
    }
}

/// A size in bytes; counts are 32 bits wide, or a `usize`.
impl SettingValue for u64 {
    const SYNTAX: Syntax = Syntax::Size;

    fn parse(text: &OsStr) -> Result<u64, String> {
        parse_size(utf8(text)?)
    }

    fn value(&self) -> ShownValue {
        ShownValue::Number(*self)
    }

    fn quantity(&self) -> Option<Quantity> {
        Some(Quantity::Number(*self))
    }
}

fn count<T: std::str::FromStr<Err: fmt::Display>>(text: &OsStr) -> Result<T, String> {
    utf8(text)?.parse().map_err(|error: T::Err| error.to_string())
}

impl SettingValue for u32 {
    const SYNTAX: Syntax = Syntax::Count;

    fn parse(text: &OsStr) -> Result<u32, String> {
        count(text)
    }

    fn value(&self) -> ShownValue {
        ShownValue::Number((*self).into())
    }

    fn quantity(&self) -> Option<Quantity> {
        Some(Quantity::Number((*self).into()))
    }
}

impl SettingValue for usize {
    const SYNTAX: Syntax = Syntax::Count;

    fn parse(text: &OsStr) -> Result<usize, String> {
        count(text)
    }

    fn value(&self) -> ShownValue {
        ShownValue::Number(*self as u64)
    }

    fn quantity(&self) -> Option<Quantity> {
        Some(Quantity::Number(*self as u64))
    }
}

/// `16MB`, `64KiB`, `1000`.
pub fn parse_size(text: &str) -> Result<u64, String> {
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let unit = match text[digits.len()..].to_ascii_lowercase().as_str() {
        "" | "b" => 1,
        "k" | "kb" => 1000,
        "m" | "mb" => 1_000_000,
        "g" | "gb" => 1_000_000_000,
        "kib" => 1 << 10,
        "mib" => 1 << 20,
        "gib" => 1 << 30,
        _ => return Err("a size is a number and one of KB, MB, GB, KiB, MiB, GiB".into()),
    };
    let number: u64 = digits.trim().parse().map_err(|_| "a size begins with a whole number".to_string())?;
    number.checked_mul(unit).ok_or_else(|| "more bytes than fit into 64 bits".into())
}

/// Makes an enum whose variants are words.
macro_rules! choices {
    ($(#[$doc:meta])+ $type:ident { $( $(#[doc = $help:literal])+ $variant:ident = $name:literal, )+ }) => {
        $(#[$doc])+
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum $type {
            $( $(#[doc = $help])+ $variant, )+
        }

        impl fmt::Display for $type {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(match self {
                    $( $type::$variant => $name, )+
                })
            }
        }

        impl SettingValue for $type {
            const SYNTAX: Syntax = Syntax::Choice(&[
                $( Choice { name: $name, help: concat!($($help),+).trim_ascii_start() }, )+
            ]);

            fn parse(text: &OsStr) -> Result<$type, String> {
                match utf8(text)? {
                    $( $name => Ok($type::$variant), )+
                    _ => Err(concat!("one of", $(" ", $name),+, " is needed").into()),
                }
            }

            fn value(&self) -> ShownValue {
                ShownValue::Text(self.to_string())
            }
        }
    };
}

choices! {
    /// The format of a log line.
    LogFormat {
        /// Lines of text, for people
        Text = "text",
        /// One JSON object per line, for programs
        Json = "json",
    }
}

choices! {
    /// The least severe level that is logged.
    LogLevel {
        /// Failures that end the server or keep something from being done
        Error = "error",
        /// Conditions that an operator should look at
        Warn = "warn",
        /// Starts, stops, reloads
        Info = "info",
        /// Every request, handshake and snapshot
        Debug = "debug",
    }
}

choices! {
    /// Encryption of objects by the store.
    BucketEncryption {
        /// As the bucket is configured
        Bucket = "bucket",
        /// With keys of the store
        Aes256 = "AES256",
        /// With a key of the key management service
        Kms = "aws:kms",
    }
}

impl BucketEncryption {
    /// With this key of the key management service.
    pub(crate) fn with_key(self, key: Option<String>) -> Encryption {
        match self {
            BucketEncryption::Bucket => Encryption::Bucket,
            BucketEncryption::Aes256 => Encryption::Aes256,
            BucketEncryption::Kms => Encryption::Kms(key),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read_in_the_usual_spellings() {
        for (text, bytes) in [("100MB", 100_000_000), ("64KiB", 65_536), ("7", 7), ("1g", 1_000_000_000)] {
            assert_eq!(parse_size(text), Ok(bytes), "{text}");
        }
        for bad in ["", "MB", "-1", "1.5MB", "5 parsecs", "99999999999999999999", "18446744073709551615KB"] {
            assert!(parse_size(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn choices_are_words() {
        assert_eq!(LogLevel::parse(OsStr::new("warn")), Ok(LogLevel::Warn));
        let error = LogFormat::parse(OsStr::new("xml")).expect_err("no such format");
        assert_eq!(error, "one of text json is needed");
    }
}
