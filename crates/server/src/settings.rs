//! One table for all settings: name, variable, value, range, default and help of each.
//!
//! This module has the columns, the syntax of values, and the `settings!` macro, which makes a configuration type and
//! the list of its settings of a table. The rows are in `config.rs`. Flags, the reader of the settings file,
//! `lockd config` and docs/reference/settings.md are all made from `Config::SETTINGS`.
//!
//! **Invariant.** A value within its range is served: no setting reaches an assertion of the kernel.
//! **What would break it.** A range wider than the kernel's own bound ([`kernel::Limits::SPAN_MAX`], the width of an
//! integer, [`engine::document::INLINE_MAX`]).
//!
//! **What is absent.** The configuration type: a [`Setting`] is generic over it. The command line: the program derives
//! its flags.

mod host_names;
mod quantity;
mod value;

use std::ffi::OsStr;

pub use host_names::HostNames;
pub(crate) use quantity::Quantity;
pub use quantity::{Range, duration_text, size_text};
pub(crate) use value::SettingValue;
pub use value::{BucketEncryption, Choice, LogFormat, LogLevel, ShownValue, Syntax, parse_size};

/// One row of the table: a field of the configuration `C`.
#[derive(Debug)]
pub struct Setting<C> {
    /// The flag without its dashes, and the key in the settings file.
    pub name: &'static str,
    /// The environment variable.
    pub variable: &'static str,
    /// The placeholder for the value in help texts.
    pub value_name: &'static str,
    /// One sentence for help and reference, without a full stop.
    pub help: &'static str,
    /// How a value is written.
    pub syntax: Syntax,
    /// The values allowed, of a quantity.
    pub range: Option<Range>,
    /// Describes the default where it is not a fixed value.
    pub(crate) default_note: Option<&'static str>,
    pub(crate) set: fn(&mut C, &OsStr) -> Result<(), String>,
    pub(crate) get: fn(&C) -> ShownValue,
    pub(crate) quantity: fn(&C) -> Option<Quantity>,
}

impl<C> Setting<C> {
    /// Parses a value, checks its range and sets it.
    pub fn set(&self, config: &mut C, text: &OsStr) -> Result<(), String> {
        (self.set)(config, text)?;
        self.check_range(config)
    }

    /// The value in a configuration.
    pub fn get(&self, config: &C) -> ShownValue {
        (self.get)(config)
    }

    /// The value in a configuration, as a flag takes it; `None`: not set.
    pub(crate) fn value_text(&self, config: &C) -> Option<String> {
        match (self.get(config), self.range) {
            (ShownValue::Unset, _) => None,
            (ShownValue::Number(bytes), Some(Range::Size(..))) => Some(size_text(bytes)),
            (ShownValue::Number(number), _) => Some(number.to_string()),
            (ShownValue::Switch(on), _) => Some(on.to_string()),
            (ShownValue::Text(text), _) => Some(text),
        }
    }

    /// Whether the value in a configuration is within its range.
    pub(crate) fn check_range(&self, config: &C) -> Result<(), String> {
        match ((self.quantity)(config), self.range) {
            (Some(quantity), Some(range)) if !quantity.is_within(range) => {
                Err(format!("out of range; allowed: {range}"))
            }
            _ => Ok(()),
        }
    }
}

/// The value of an optional column.
pub(crate) const fn optional<T: Copy>(values: &[T]) -> Option<T> {
    if values.is_empty() { None } else { Some(values[0]) }
}

/// Makes the type `Config`, with a field for each row, and `Config::SETTINGS`.
///
/// A row is its help text as a doc comment, then `name variable value_name => field: type = default`, and where they
/// apply `, range …` and `, note …`; `data_dir` may occur in a default.
macro_rules! settings {
    (|$data_dir:ident| $(
        $(#[doc = $help:literal])+
        $name:literal $variable:literal $value_name:literal => $field:ident: $type:ty = $default:expr
        $(, range $range:expr)? $(, note $note:literal)?;
    )+) => {
        /// Settings of a server: [`Config::in_directory`] or [`Config::in_memory`] with some fields changed.
        ///
        /// `log_format`, `log_level` and `otlp_endpoint` are for the program around the server, which does the logging.
        #[derive(Clone, Debug, PartialEq, Eq)]
        pub struct Config {
            $( $(#[doc = $help])+ pub $field: $type, )+
        }

        impl Config {
            /// Every setting, in the order in which `lockd config` lists them.
            pub const SETTINGS: &'static [$crate::settings::Setting<Config>] = &[$(
                $crate::settings::Setting {
                    name: $name,
                    variable: $variable,
                    value_name: $value_name,
                    help: concat!($($help),+).trim_ascii_start(),
                    syntax: <$type as $crate::settings::SettingValue>::SYNTAX,
                    range: $crate::settings::optional(&[$($range)?]),
                    default_note: $crate::settings::optional(&[$($note)?]),
                    set: |config, text| {
                        config.$field = $crate::settings::SettingValue::parse(text)?;
                        Ok(())
                    },
                    get: |config| $crate::settings::SettingValue::value(&config.$field),
                    quantity: |config| $crate::settings::SettingValue::quantity(&config.$field),
                },
            )+];

            fn defaults($data_dir: &std::path::Path) -> Config {
                Config { $( $field: $default, )+ }
            }
        }
    };
}

pub(crate) use settings;
