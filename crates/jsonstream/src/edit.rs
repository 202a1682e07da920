//! Edits of a document by path, on its text: everything else stays byte for byte.
//!
//! **Invariant.** [`apply`] returns valid JSON or an error. Numbers of any length, the order of keys, escapes and
//! whitespace outside of the edited values are unchanged; new text is compact.
//!
//! **What is absent.** Clocks: the caller passes the time. Floating point: arithmetic is exact or refused.
//!
//! # The edits
//!
//! | edit | effect |
//! |---|---|
//! | `path=value` | sets. A JSON number, `true`, `false`, `null` or a quoted JSON string is set as is; anything else is a string |
//! | `path:=JSON` | sets to any JSON, objects and negative numbers included |
//! | `path++` `path--` | adds or subtracts 1 |
//! | `path=+N` `path=-N` | adds or subtracts a number |
//! | `rm:path` `delete:path` | removes; no effect if it does not exist |
//! | `time:path=NOW` | sets to the caller's time |
//! | `time:path=2026-11-15T08:42:00Z` | sets to that time, in RFC 3339 |
//!
//! ```
//! # use jsonstream::edit::{EditError, apply, parse_edit};
//! # fn edit(document: &str, edits: &[&str]) -> Result<String, EditError> {
//! #     let edits: Vec<_> = edits.iter().map(|text| parse_edit(text)).collect::<Result<_, _>>()?;
//! #     let out = apply(document.as_bytes(), &edits, "2026-11-15T08:42:00Z")?;
//! #     Ok(String::from_utf8(out).expect("JSON"))
//! # }
//! // An empty document is read as {}, and missing objects are created.
//! assert_eq!(edit("", &["progress.step=fetch"])?, r#"{"progress":{"step":"fetch"}}"#);
//! assert_eq!(edit("", &["progress.count++", "progress.count=+5"])?, r#"{"progress":{"count":6}}"#);
//! assert_eq!(edit("", &["time:seen=NOW"])?, r#"{"seen":"2026-11-15T08:42:00Z"}"#);
//!
//! // Values.
//! assert_eq!(edit("", &["a=5", "b=true", "c=five", "d=\"5\""])?, r#"{"a":5,"b":true,"c":"five","d":"5"}"#);
//! assert_eq!(edit("", &["a=", "b={}"])?, r#"{"a":"","b":"{}"}"#);
//! assert_eq!(edit("", &["a:=-5", "b:={ \"c\": [] }"])?, r#"{"a":-5,"b":{"c":[]}}"#);
//!
//! // The rest of the text is unchanged.
//! let text = "{ \"big\": 123456789012345678901234567890, \"n\": 1 }";
//! assert_eq!(edit(text, &["n=2"])?, "{ \"big\": 123456789012345678901234567890, \"n\": 2 }");
//! assert_eq!(edit(text, &["rm:n"])?, "{ \"big\": 123456789012345678901234567890 }");
//! # Ok::<(), EditError>(())
//! ```
//!
//! # Paths
//!
//! `a.b` descends into objects, `a[0]` and `a[-1]` index arrays from either end, `a[+]` appends. A document that
//! is an array is edited by `[0]=…`. A backslash escapes the punctuation after it: `a\.b` is one name. It is required
//! before `.`, `[`, `]`, `=` and `\` in a name; before `:`, `+` or `-` if a name ends with it;
//! and before the colon of a name that begins with `rm:`, `delete:` or `time:` (but `time:=1` sets `time`). A name
//! cannot be empty.
//!
//! ```
//! # use jsonstream::edit::{EditError, apply, parse_edit};
//! # fn edit(document: &str, edits: &[&str]) -> Result<String, EditError> {
//! #     let edits: Vec<_> = edits.iter().map(|text| parse_edit(text)).collect::<Result<_, _>>()?;
//! #     let out = apply(document.as_bytes(), &edits, "2026-11-15T08:42:00Z")?;
//! #     Ok(String::from_utf8(out).expect("JSON"))
//! # }
//! assert_eq!(edit(r#"{"a":[1,2,3]}"#, &["a[0]=x", "a[-1]++", "a[+]=4"])?, r#"{"a":["x",2,4,4]}"#);
//! assert_eq!(edit("", &["jobs[+].name=first"])?, r#"{"jobs":[{"name":"first"}]}"#);
//! assert_eq!(edit("", &[r"a\.b=1", r"c\=d=2", r"rm\:e=3"])?, r#"{"a.b":1,"c=d":2,"rm:e":3}"#);
//! assert!(edit("", &["a+=5"]).is_err(), "to add is =+5");
//! # Ok::<(), EditError>(())
//! ```
//!
//! Missing objects along the path are created, and a missing array for `[+]`. An indexed element must exist. A path
//! through a string, a number, `true`, `false` or `null` is refused, and so is a name in an array or an index in an
//! object. Of duplicate keys the last one counts, as for most readers; `rm:` removes all of them.
//!
//! # Arithmetic
//!
//! Arithmetic is exact, in decimal, with up to 38 digits; beyond that it is refused. A missing path counts as 0; an
//! existing value must be a number. The result has as many digits after the point as the longer operand, and never an
//! exponent.
//!
//! ```
//! # use jsonstream::edit::{EditError, apply, parse_edit};
//! # fn edit(document: &str, edits: &[&str]) -> Result<String, EditError> {
//! #     let edits: Vec<_> = edits.iter().map(|text| parse_edit(text)).collect::<Result<_, _>>()?;
//! #     let out = apply(document.as_bytes(), &edits, "2026-11-15T08:42:00Z")?;
//! #     Ok(String::from_utf8(out).expect("JSON"))
//! # }
//! assert_eq!(edit(r#"{"n":9007199254740993}"#, &["n++"])?, r#"{"n":9007199254740994}"#);
//! assert_eq!(edit(r#"{"n":0.1}"#, &["n=+0.20"])?, r#"{"n":0.30}"#);
//! assert_eq!(edit(r#"{"n":1.5e3}"#, &["n=-1"])?, r#"{"n":1499}"#);
//! assert_eq!(edit("", &["zone=+01:00"])?, r#"{"zone":"+01:00"}"#, "anything but a number is a string");
//! assert!(edit(r#"{"n":"7"}"#, &["n++"]).is_err());
//! # Ok::<(), EditError>(())
//! ```
//!
//! # Limits
//!
//! An edit has at most [`EDIT_BYTES_MAX`] bytes and [`STEPS_MAX`] steps; there are at most [`EDITS_MAX`] at once,
//! and a document has at most [`DOCUMENT_BYTES_MAX`] bytes before and after.
//!
//! The modules in reading order: `path` and `syntax` parse edits, with `rfc3339` for times and `decimal` for numbers;
//! `text` finds values in the text of a document; `change` changes it.

mod error;
mod path;
mod syntax;
mod rfc3339;
mod decimal;
mod text;
mod change;

pub use change::apply;
pub use error::{EditError, EditErrorKind};
pub use path::STEPS_MAX;
pub use syntax::{Edit, parse_edit};

/// Maximum length of an edit, in bytes.
pub const EDIT_BYTES_MAX: usize = 1 << 20;

/// Maximum number of edits that are applied together.
pub const EDITS_MAX: usize = 1024;

/// Maximum length of a document, in bytes: above the default limit of servers.
pub const DOCUMENT_BYTES_MAX: u64 = 1 << 30;
