//! Where each setting comes from: a flag, a variable, the file, or nowhere.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::ffi::{OsStr, OsString};
use std::fmt;
use std::path::{Path, PathBuf};

use clap::parser::ValueSource;
use clap::{ArgMatches, Args as _, Command, FromArgMatches as _};
use serde_json::{Value, json};
use server::Config;

use super::settings::Serve;
use crate::logs::{Format, Level};

/// Where a setting comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Source {
    Flag,
    Variable(String),
    File(PathBuf),
    Default,
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Source::Flag => f.write_str("flag"),
            Source::Variable(name) => write!(f, "variable {name}"),
            Source::File(path) => write!(f, "file {}", path.display()),
            Source::Default => f.write_str("default"),
        }
    }
}

/// Every setting, and where it comes from.
pub(super) struct Resolved {
    pub(super) config: Config,
    pub(super) format: Format,
    pub(super) level: Level,
    pub(super) collector: Option<String>,
    sources: BTreeMap<String, Source>,
}

/// The largest file of settings.
const FILE_MAX: u64 = 1 << 20;

/// Flags and variables are in the matches; the rest is looked for in the file.
pub(super) fn resolve(matches: &ArgMatches) -> Result<Resolved, String> {
    let command = Serve::augment_args(Command::new("lockd"));
    let mut sources = BTreeMap::new();
    let mut arguments = vec![OsString::from("lockd")];
    for (id, name) in names(&command) {
        match matches.value_source(&id) {
            Some(ValueSource::CommandLine) => {
                let values = matches.get_raw(&id).into_iter().flatten();
                arguments.extend(values.map(|value| flag(&name, value)));
                sources.insert(name, Source::Flag);
            }
            Some(ValueSource::EnvVariable) => {
                let variable = format!("LOCKD_{}", id.to_uppercase());
                sources.insert(name, Source::Variable(variable));
            }
            _ => {}
        }
    }
    if let Some(path) = file(matches)? {
        for (name, value) in read(&path, &command)? {
            let argument = flag(&name, value.as_ref());
            if let Entry::Vacant(place) = sources.entry(name) {
                arguments.push(argument);
                place.insert(Source::File(path.clone()));
            }
        }
    }
    let matches = command.try_get_matches_from(arguments).map_err(|error| first_line(&error))?;
    let serve = Serve::from_arg_matches(&matches).map_err(|error| first_line(&error))?;
    let ((format, level), collector) = (serve.logs(), serve.otlp_endpoint.clone());
    Ok(Resolved { config: serve.config()?, format, level, collector, sources })
}

/// The settings by their ids in clap and their names in the file.
fn names(command: &Command) -> Vec<(String, String)> {
    let named = command.get_arguments().filter_map(|arg| Some((arg.get_id().to_string(), arg.get_long()?)));
    named.map(|(id, long)| (id, long.to_string())).collect()
}

fn flag(name: &str, value: &OsStr) -> OsString {
    let mut flag = OsString::from(format!("--{name}="));
    flag.push(value);
    flag
}

fn first_line(error: &clap::Error) -> String {
    let text = error.to_string();
    text.lines().next().unwrap_or_default().trim_start_matches("error: ").to_string()
}

/// The file that is named, which has to be there; else the first that is.
fn file(matches: &ArgMatches) -> Result<Option<PathBuf>, String> {
    if let Some(path) = matches.get_one::<PathBuf>("config") {
        return Ok(Some(path.clone()));
    }
    let home = std::env::var_os("XDG_CONFIG_HOME").map(PathBuf::from).filter(|path| path.is_absolute());
    let home = home.or_else(|| std::env::var_os("HOME").map(|home| PathBuf::from(home).join(".config")));
    let folders = home.into_iter().chain([PathBuf::from("/etc")]);
    for path in folders.map(|folder| folder.join("lockd/lockd.toml")) {
        match path.try_exists() {
            Ok(true) => return Ok(Some(path)),
            Ok(false) => {}
            // What cannot be looked at may be there: to go on without it would be to guess.
            Err(error) => return Err(format!("{error}: file={}", path.display())),
        }
    }
    Ok(None)
}

/// The settings in a file, each checked as its flag would be.
fn read(path: &Path, command: &Command) -> Result<Vec<(String, String)>, String> {
    let wrong = |what: String| format!("{what}: file={}", path.display());
    let length = std::fs::metadata(path).map_err(|error| wrong(error.to_string()))?.len();
    if length > FILE_MAX {
        return Err(wrong("a file of settings is shorter".into()));
    }
    let text = std::fs::read_to_string(path).map_err(|error| wrong(error.to_string()))?;
    let table: toml::Table = text.parse().map_err(|error: toml::de::Error| {
        let line = error.span().map_or(1, |span| text[..span.start].matches('\n').count() + 1);
        wrong(format!("not TOML: {}: line={line}", error.message()))
    })?;
    let mut settings = Vec::new();
    for (name, value) in table {
        if name == "config" || !names(command).iter().any(|(_, known)| *known == name) {
            return Err(wrong(format!("no such setting; `lockd config` lists them: {name}")));
        }
        let value = match value {
            toml::Value::String(text) => text,
            toml::Value::Integer(number) => number.to_string(),
            toml::Value::Boolean(flag) => flag.to_string(),
            _ => return Err(wrong(format!("text, a whole number, true or false is needed: {name}"))),
        };
        let alone = [OsString::from("lockd"), flag(&name, value.as_ref())];
        command.clone().try_get_matches_from(alone).map_err(|error| wrong(first_line(&error)))?;
        settings.push((name, value));
    }
    Ok(settings)
}

impl Resolved {
    /// Each setting by its name, with where it comes from; null: not set.
    pub(super) fn listed(&self) -> Vec<(&'static str, Value, &Source)> {
        let config = &self.config;
        let time = |duration| json!(humantime::format_duration(duration).to_string());
        let path = |path: &Option<PathBuf>| json!(path.as_ref().map(|path| path.display().to_string()));
        let values = [
            ("listen", json!(config.listen)),
            ("unix", path(&config.unix)),
            ("store", json!(config.store.to_string())),
            ("data-dir", json!(config.data_dir.display().to_string())),
            ("mtls", json!(config.mtls)),
            ("bundle", path(&config.bundle)),
            ("denylist-path", path(&config.denylist_path)),
            ("default-ttl", time(config.default_ttl)),
            ("max-ttl", time(config.max_ttl)),
            ("acquire-block", time(config.acquire_block)),
            ("sweeper-interval", time(config.sweeper_interval)),
            ("json-max", json!(config.json_max)),
            ("inline-max", json!(config.inline_max)),
            ("gc-temps-interval", time(config.gc_temps_interval)),
            ("shards", json!(config.shards)),
            ("history-max", json!(config.history_max)),
            ("history-window", time(config.history_window)),
            ("max-leases-per-identity", json!(config.max_leases_per_identity)),
            ("max-connections", json!(config.max_connections)),
            ("head-timeout", time(config.head_timeout)),
            ("stall-timeout", time(config.stall_timeout)),
            ("drain-timeout", time(config.drain_timeout)),
            ("insecure-listen", json!(config.insecure_listen)),
            ("allow-network-fs", json!(config.allow_network_fs)),
            ("log-format", json!(self.format.to_string())),
            ("log-level", json!(self.level.to_string())),
            ("otlp-endpoint", json!(self.collector)),
        ];
        let from = |name: &str| self.sources.get(name).unwrap_or(&Source::Default);
        values.into_iter().map(|(name, value)| (name, value, from(name))).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn resolved(arguments: &[&str]) -> Result<Resolved, String> {
        let command = Serve::augment_args(Command::new("lockd"));
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
        let command = Serve::augment_args(Command::new("lockd"));
        let flags: Vec<String> = names(&command).into_iter().map(|(_, name)| name).collect();
        let shown: Vec<&str> = listed.iter().map(|(name, _, _)| *name).collect();
        assert_eq!(flags.iter().filter(|name| *name != "config").collect::<Vec<_>>(), shown);
        let text = super::super::toml(&listed);
        let again = with_file(&text, &[]).expect("what was printed can be read");
        assert_eq!(again.config, usual.config);
        assert_eq!((again.format, again.level), (usual.format, usual.level));
    }

    #[test]
    fn what_the_help_says_is_the_default_is() {
        let usual = resolved(&["--data-dir", "/tmp/x"]).expect("sound");
        let mut help = Serve::augment_args(Command::new("lockd")).term_width(10_000);
        let help = help.render_help().to_string();
        for (name, value, source) in usual.listed() {
            let line = help
                .lines()
                .find(|line| line.contains(&format!("--{name} ")))
                .unwrap_or_else(|| panic!("{name}"));
            let text = value.as_str().map_or_else(|| value.to_string(), str::to_string);
            let said = match (name, text.as_str()) {
                ("json-max", "100000000") => "100MB",
                ("inline-max", "65536") => "64KiB",
                ("data-dir" | "store" | "bundle" | "unix" | "denylist-path" | "otlp-endpoint", _) => continue,
                (_, text) => text,
            };
            assert!(line.contains(&format!("[default: {said}]")), "{line}: {said}");
            assert_eq!(*source, Source::Default, "{name}");
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
            ("max_ttl = \"2m\"", "no such setting"),
            ("config = \"other.toml\"", "no such setting"),
            ("shards = [1]", "text, a whole number, true or false is needed: shards"),
            ("shards = 1\nshards = 2", "not TOML: duplicate key"),
            ("listen = ", "line=1"),
            ("shards = 0", "setting=--shards"),
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
