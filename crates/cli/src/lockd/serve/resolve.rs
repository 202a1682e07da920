//! The source of each setting: a flag, a variable, the settings file, or the default.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::fmt;
use std::path::{Path, PathBuf};

use clap::ArgMatches;
use clap::parser::ValueSource;
use cli::usage;
use lockd_server::Config;
use lockd_server::settings::{self, Setting};
use serde_json::Value;
use system::xdg;

use super::settings::FILE;

/// The source of a setting.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Source {
    Flag,
    Variable(&'static str),
    File(PathBuf),
    Default,
    /// The default is above this bound, which was set.
    Lowered(&'static str),
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Source::Flag => f.write_str("flag"),
            Source::Variable(name) => write!(f, "variable {name}"),
            Source::File(path) => write!(f, "file {}", path.display()),
            Source::Default => f.write_str("default"),
            Source::Lowered(bound) => write!(f, "default, lowered to {bound}"),
        }
    }
}

/// The configuration, and the source of each setting.
pub(super) struct Resolved {
    pub(super) config: Config,
    sources: BTreeMap<&'static str, Source>,
}

/// The largest settings file, in bytes.
const FILE_MAX: u64 = 1 << 20;

/// Flags and variables are in the matches; the rest comes from the settings file.
pub(super) fn resolve(matches: &ArgMatches) -> Result<Resolved, String> {
    let (path, mut in_file) = match file(matches)? {
        Some(path) => {
            let settings = read(&path)?;
            (path, settings)
        }
        None => (PathBuf::new(), BTreeMap::new()),
    };
    let (mut values, mut sources) = (BTreeMap::new(), BTreeMap::new());
    for setting in Config::SETTINGS {
        let in_file = in_file.remove(setting.name).map(OsString::from);
        let given = || matches.get_raw(setting.name).and_then(Iterator::last).map(OsStr::to_os_string);
        let (value, source) = match matches.value_source(setting.name) {
            Some(ValueSource::CommandLine) => (given(), Source::Flag),
            Some(ValueSource::EnvVariable) => (given(), Source::Variable(setting.variable)),
            _ => (in_file, Source::File(path.clone())),
        };
        if let Some(value) = value {
            values.insert(setting.name, value);
            sources.insert(setting.name, source);
        }
    }
    let mut config = configure(&values)?;
    let lowered = config.lower_defaults(|name| sources.contains_key(name));
    sources.extend(lowered.into_iter().map(|(name, bound)| (name, Source::Lowered(bound))));
    config.check().map_err(|error| error.to_string())?;
    Ok(Resolved { config, sources })
}

/// The defaults with these values, each of them valid by itself.
fn configure(values: &BTreeMap<&'static str, OsString>) -> Result<Config, String> {
    let data_dir = match values.get(DATA_DIR) {
        Some(path) => {
            std::path::absolute(path).map_err(|error| format!("{error}: path={}", path.display()))?
        }
        None => xdg::data_home().map(|home| home.join("lockd")).ok_or("no home directory; set --data-dir")?,
    };
    let mut config = Config::in_directory(data_dir);
    for setting in Config::SETTINGS.iter().filter(|setting| setting.name != DATA_DIR) {
        if let Some(value) = values.get(setting.name) {
            setting.set(&mut config, value).map_err(|error| invalid(setting, value, &error))?;
        }
    }
    Ok(config)
}

/// Other defaults depend on it.
const DATA_DIR: &str = "data-dir";

/// In the words of clap.
fn invalid(setting: &Setting<Config>, value: &OsStr, error: &str) -> String {
    format!("invalid value '{}' for '--{} <{}>': {error}", value.display(), setting.name, setting.value_name)
}

/// The settings file that is named, which must exist; else the first that exists.
fn file(matches: &ArgMatches) -> Result<Option<PathBuf>, String> {
    if let Some(path) = matches.get_one::<PathBuf>(FILE) {
        return Ok(Some(path.clone()));
    }
    let folders = xdg::config_home().into_iter().chain([PathBuf::from("/etc")]);
    for path in folders.map(|folder| folder.join("lockd/lockd.toml")) {
        match path.try_exists() {
            Ok(true) => return Ok(Some(path)),
            Ok(false) => {}
            // It may exist: to start without it would be to guess.
            Err(error) => {
                let what = "the settings file cannot be read";
                return Err(format!("{what}: {error}: file={}", path.display()));
            }
        }
    }
    Ok(None)
}

/// The settings in a file by name, each checked as its flag is.
fn read(path: &Path) -> Result<BTreeMap<String, String>, String> {
    let wrong = |what: String| format!("{what}: file={}", path.display());
    let unreadable = |error: std::io::Error| wrong(format!("the settings file cannot be read: {error}"));
    let length = std::fs::metadata(path).map_err(unreadable)?.len();
    if length > FILE_MAX {
        return Err(wrong(format!("longer than a settings file may be: max_bytes={FILE_MAX}")));
    }
    let text = std::fs::read_to_string(path).map_err(unreadable)?;
    let table: toml::Table = text.parse().map_err(|error: toml::de::Error| {
        let line = error.span().map_or(1, |span| text[..span.start].matches('\n').count() + 1);
        wrong(format!("not TOML: {}: line={line}", error.message()))
    })?;
    let mut settings = BTreeMap::new();
    for (name, value) in table {
        let Some(setting) = Config::SETTINGS.iter().find(|setting| setting.name == name) else {
            return Err(wrong(no_such_setting(&name)));
        };
        let value = match value {
            toml::Value::String(text) => text,
            toml::Value::Integer(number) => number.to_string(),
            toml::Value::Boolean(flag) => flag.to_string(),
            _ => return Err(wrong(format!("text, a whole number, true or false is needed: {name}"))),
        };
        let checked = setting.check(value.as_ref());
        checked.map_err(|error| wrong(invalid(setting, value.as_ref(), &error)))?;
        settings.insert(name, value);
    }
    Ok(settings)
}

fn no_such_setting(name: &str) -> String {
    let names = Config::SETTINGS.iter().map(|setting| setting.name);
    match usage::most_similar(name, names) {
        Some(similar) => format!("no such setting; a similar one exists: {similar}: {name}"),
        None => format!("no such setting; `lockd config` lists them: {name}"),
    }
}

impl Resolved {
    /// Each setting by its name, with its source; null: not set.
    pub(super) fn listed(&self) -> Vec<(&'static str, Value, &Source)> {
        let source = |setting: &Setting<Config>| self.sources.get(setting.name).unwrap_or(&Source::Default);
        let row = |setting: &'static Setting<Config>| {
            (setting.name, shown(setting.get(&self.config)), source(setting))
        };
        Config::SETTINGS.iter().map(row).collect()
    }
}

fn shown(value: settings::ShownValue) -> Value {
    match value {
        settings::ShownValue::Unset => Value::Null,
        settings::ShownValue::Text(text) => text.into(),
        settings::ShownValue::Number(number) => number.into(),
        settings::ShownValue::Switch(on) => on.into(),
    }
}

#[cfg(test)]
mod tests {
    use clap::Command;

    use super::super::settings::Serve;
    use super::*;

    fn resolved(arguments: &[&str]) -> Result<Resolved, String> {
        let command = Serve::add_flags(Command::new("lockd"));
        let arguments = ["lockd"].iter().chain(arguments);
        resolve(&command.try_get_matches_from(arguments).expect("flags that are there"))
    }

    fn with_file(text: &str, arguments: &[&str]) -> Result<Resolved, String> {
        let file = tempfile::NamedTempFile::new().expect("a file");
        std::fs::write(file.path(), text).expect("room");
        let path = file.path().display().to_string();
        resolved(&[&["--config", &path, "--data-dir", "/tmp/x"], arguments].concat())
    }

    #[test]
    fn every_flag_is_listed_and_what_is_listed_can_be_read_again() {
        let usual =
            resolved(&["--data-dir", "/tmp/x", "--unix", "/tmp/s", "--log-level", "debug"]).expect("sound");
        let listed = usual.listed();
        let command = Serve::add_flags(Command::new("lockd"));
        let flags = command.get_arguments().filter_map(clap::Arg::get_long).filter(|name| *name != FILE);
        let shown: Vec<&str> = listed.iter().map(|(name, _, _)| *name).collect();
        assert_eq!(flags.collect::<Vec<_>>(), shown);
        let text = super::super::toml(&listed);
        let again = with_file(&text, &[]).expect("what was printed can be read");
        assert_eq!(again.config, usual.config);
    }

    #[test]
    fn what_the_help_says_is_the_default_is() {
        // Enough memory for the defaults, on any machine.
        let usual = resolved(&["--data-dir", "/tmp/x", "--memory-max", "8GiB"]).expect("sound");
        let mut help = Serve::add_flags(Command::new("lockd")).term_width(10_000);
        let help = help.render_help().to_string();
        for (name, value, source) in usual.listed() {
            let line = help
                .lines()
                .find(|line| line.contains(&format!("--{name} ")))
                .unwrap_or_else(|| panic!("{name}"));
            let text = value.as_str().map_or_else(|| value.to_string(), str::to_string);
            let said = match (name, text.as_str()) {
                ("json-max" | "audit-log-size", "100000000") => "100MB",
                ("inline-max", "65536") => "64KiB",
                ("min-body-rate", "8000") => "8KB",
                ("max-document-bytes-per-namespace", "17179869184") => "16GiB",
                ("log-retain", "268435456") => "256MiB",
                ("s3-max-part-size" | "s3-multipart-threshold", "5242880") => "5MiB",
                (
                    "data-dir"
                    | "store"
                    | "bundle"
                    | "unix"
                    | "denylist-path"
                    | "otlp-endpoint"
                    | "tls-cert"
                    | "tls-key"
                    | "tls-ca"
                    | "spiffe-map"
                    | "allowed-hosts"
                    | "memory-max"
                    | "audit-log"
                    | "store-key-file"
                    | "s3-region"
                    | "s3-endpoint"
                    | "s3-kms-key-id"
                    | "s3-credential-process"
                    | "s3-ca-file"
                    | "advertise",
                    _,
                ) => continue,
                (_, text) => text,
            };
            assert!(line.contains(&format!("[default: {said}]")), "{line}: {said}");
            assert_eq!(*source, Source::Default, "{name}");
        }
    }

    /// `lockd serve --max-ttl 10s` did not start, because of a default that was not set: 60 s. Then it did, and `lockd config`
    /// showed 10 s as the default.
    #[test]
    fn a_default_follows_a_lower_bound_that_is_set_and_is_listed_as_lowered() {
        for (name, value, bound, bound_value, source) in [
            ("default-ttl", "10s", "max-ttl", "10s", "default, lowered to max-ttl"),
            ("max-handshakes-per-address", "7", "max-handshakes", "7", "default, lowered to max-handshakes"),
            (
                "max-connections-per-identity",
                "45",
                "max-connections",
                "100",
                "default, lowered to half of max-connections",
            ),
            ("max-connections", "682", "memory-max", "256MiB", "default, lowered to what memory-max allows"),
        ] {
            let bound = format!("--{bound}={bound_value}");
            // Enough memory for the other defaults, on any machine.
            let enough = "--memory-max=8GiB";
            let others: &[&str] = if name == "max-connections" { &[] } else { &[enough] };
            let found =
                resolved(&[&["--data-dir", "/tmp/x", &bound], others].concat()).expect("it is allowed");
            let listed = found.listed();
            let row = listed.iter().find(|(listed, ..)| *listed == name).expect("listed");
            assert_eq!((row.1.to_string().trim_matches('"'), row.2.to_string().as_str()), (value, source));
            let usual = resolved(&["--data-dir", "/tmp/x", enough]).expect("sound");
            let listed = usual.listed();
            let row = listed.iter().find(|(listed, ..)| *listed == name).expect("listed");
            assert_eq!(row.2, &Source::Default);
        }
    }

    #[test]
    fn a_ttl_above_the_maximum_is_refused_with_both_settings_and_both_values() {
        let both = ["--data-dir", "/tmp/x", "--max-ttl", "10s", "--default-ttl", "11s"];
        let in_file = with_file("default-ttl = \"11s\"\n", &["--max-ttl", "10s"]);
        for refused in [resolved(&both), in_file] {
            let error = refused.err().expect("they contradict each other");
            for part in ["--max-ttl, which is 10s", "setting=--default-ttl", "value=11s"] {
                assert!(error.contains(part), "{error}");
            }
        }
    }

    #[test]
    fn a_flag_goes_before_the_file_and_the_file_before_what_is_usual() {
        let text = "max-ttl = \"2m\"\nshards = 3\nmtls = false\nlisten = \"127.0.0.1:7\"\n";
        let found = with_file(text, &["--shards", "5"]).expect("sound");
        assert_eq!((found.config.shards, found.config.max_ttl.as_secs()), (5, 120));
        let sources: BTreeMap<&str, String> =
            found.listed().iter().map(|(name, _, source)| (*name, source.to_string())).collect();
        assert_eq!(sources["shards"], "flag");
        assert!(sources["max-ttl"].starts_with("file /"), "{}", sources["max-ttl"]);
        assert_eq!(sources["default-ttl"], "default");
    }

    #[test]
    fn a_file_that_cannot_be_is_named_with_what_is_wrong() {
        for (text, said) in [
            ("max-ttl = \"2 parsecs\"", "invalid value '2 parsecs' for '--max-ttl"),
            ("max_ttl = \"2m\"", "no such setting; a similar one exists: max-ttl: max_ttl"),
            ("config = \"other.toml\"", "no such setting; `lockd config` lists them: config"),
            ("shards = [1]", "text, a whole number, true or false is needed: shards"),
            ("shards = 1\nshards = 2", "not TOML: duplicate key"),
            ("listen = ", "line=1"),
            (
                "shards = 0",
                "invalid value '0' for '--shards <N>': out of range; allowed: from 1 to 1024: file=",
            ),
        ] {
            let error = with_file(text, &[]).err().unwrap_or_else(|| panic!("{text}"));
            assert!(error.contains(said), "{text}: {error}");
        }
        assert!(
            resolved(&["--config", "/nowhere/at/all"])
                .is_err_and(|error| error.contains("file=/nowhere/at/all"))
        );
    }
}
