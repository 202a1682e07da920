//! The settings of a server as flags. What is not given here is looked for in variables, then in the file.

use std::path::PathBuf;
use std::time::Duration;

use clap::ArgAction;
use server::Config;
use server::backend::boot::StoreUrl;

use crate::logs::{Format, Level};
use cli::folders;

/// What `serve` and `config` take. Each has a `LOCKD_*` variable, and a name in the file.
#[derive(clap::Args)]
#[command(after_help = "Examples:\n  \
                        lockd serve                                   everything by default: a store, a CA and a client are made\n  \
                        lockd serve --listen 127.0.0.1:9341 --mtls=false --store mem://\n  \
                        lockd serve --bundle server.pem --store disk:///var/lib/lockd/store\n  \
                        lockd config > lockd.toml && lockd serve --config lockd.toml\n\n\
                        A flag goes before its variable, and that before the file: a TOML table of flags without their dashes, as \
                        `lockd config` prints it. Looked for, unless --config says where: lockd/lockd.toml in $XDG_CONFIG_HOME or \
                        ~/.config, then in /etc.\n\n\
                        SIGTERM stops it, after what is under way; SIGHUP reloads certificates and revocations.")]
pub(crate) struct Serve {
    /// The file with settings.
    #[arg(long, env = "LOCKD_CONFIG", value_name = "FILE")]
    pub(super) config: Option<PathBuf>,
    /// Where to listen: `host:port`, or `:port` [default: :9341].
    #[arg(long, env = "LOCKD_LISTEN", value_name = "ADDRESS")]
    listen: Option<String>,
    /// Listen on this socket too; whoever may open it is an operator.
    #[arg(long, env = "LOCKD_UNIX", value_name = "PATH")]
    unix: Option<PathBuf>,
    /// Where leases are kept: `disk:///path` or `mem://` [default: in the data folder].
    #[arg(long, env = "LOCKD_STORE", value_name = "URL")]
    store: Option<String>,
    /// The folder for everything that is not put elsewhere [default: ~/.local/share/lockd].
    #[arg(long, env = "LOCKD_DATA_DIR", value_name = "PATH")]
    data_dir: Option<PathBuf>,
    /// Certificates on both sides [default: true].
    #[arg(long, env = "LOCKD_MTLS", action = ArgAction::Set, num_args = 0..=1, default_missing_value = "true", value_name = "BOOL")]
    mtls: Option<bool>,
    /// The server's identity file [default: made in the data folder on the first start].
    #[arg(long, env = "LOCKD_BUNDLE", value_name = "FILE")]
    bundle: Option<PathBuf>,
    /// Revoked serials, one a line, besides those in the identity file.
    #[arg(long, env = "LOCKD_DENYLIST_PATH", value_name = "FILE")]
    denylist_path: Option<PathBuf>,
    /// Where a request names no TTL [default: 1m].
    #[arg(long, env = "LOCKD_DEFAULT_TTL", value_parser = humantime::parse_duration, value_name = "TIME")]
    default_ttl: Option<Duration>,
    /// The longest TTL [default: 5m].
    #[arg(long, env = "LOCKD_MAX_TTL", value_parser = humantime::parse_duration, value_name = "TIME")]
    max_ttl: Option<Duration>,
    /// The longest wait for a lease [default: 1m].
    #[arg(long, env = "LOCKD_ACQUIRE_BLOCK", value_parser = humantime::parse_duration, value_name = "TIME")]
    acquire_block: Option<Duration>,
    /// How late the end of what nobody waits for may be written down; nothing is honoured longer for it [default: 5s].
    #[arg(long, env = "LOCKD_SWEEPER_INTERVAL", value_parser = humantime::parse_duration, value_name = "TIME")]
    sweeper_interval: Option<Duration>,
    /// The longest document, as it is received [default: 100MB].
    #[arg(long, env = "LOCKD_JSON_MAX", value_parser = size, value_name = "SIZE")]
    json_max: Option<u64>,
    /// The longest document that is kept in the log; longer ones have files of their own [default: 64KiB].
    #[arg(long, env = "LOCKD_INLINE_MAX", value_parser = size, value_name = "SIZE")]
    inline_max: Option<u64>,
    /// How often what uploads left behind is looked for [default: 5m].
    #[arg(long, env = "LOCKD_GC_TEMPS_INTERVAL", value_parser = humantime::parse_duration, value_name = "TIME")]
    gc_temps_interval: Option<Duration>,
    /// How many shards a new store has; an old one keeps its own [default: 1].
    #[arg(long, env = "LOCKD_SHARDS", value_name = "N")]
    shards: Option<u32>,
    /// How many ended leases are remembered [default: 100000].
    #[arg(long, env = "LOCKD_HISTORY_MAX", value_name = "N")]
    history_max: Option<u32>,
    /// How long ended leases are remembered [default: 10m].
    #[arg(long, env = "LOCKD_HISTORY_WINDOW", value_parser = humantime::parse_duration, value_name = "TIME")]
    history_window: Option<Duration>,
    /// How many leases one identity may hold in a namespace [default: 1000000].
    #[arg(long, env = "LOCKD_MAX_LEASES_PER_IDENTITY", value_name = "N")]
    max_leases_per_identity: Option<u32>,
    /// How many connections there may be; one more waits to be accepted [default: 10000].
    #[arg(long, env = "LOCKD_MAX_CONNECTIONS", value_name = "N")]
    max_connections: Option<usize>,
    /// How long a handshake, and the head of a request, may take [default: 15s].
    #[arg(long, env = "LOCKD_HEAD_TIMEOUT", value_parser = humantime::parse_duration, value_name = "TIME")]
    head_timeout: Option<Duration>,
    /// How long one may do nothing who sends a body or is sent an answer [default: 30s].
    #[arg(long, env = "LOCKD_STALL_TIMEOUT", value_parser = humantime::parse_duration, value_name = "TIME")]
    stall_timeout: Option<Duration>,
    /// How long what is under way may go on when the server stops [default: 10s].
    #[arg(long, env = "LOCKD_DRAIN_TIMEOUT", value_parser = humantime::parse_duration, value_name = "TIME")]
    drain_timeout: Option<Duration>,
    /// Without mTLS, listen beyond this machine all the same [default: false].
    #[arg(long, env = "LOCKD_INSECURE_LISTEN", action = ArgAction::Set, num_args = 0..=1, default_missing_value = "true", value_name = "BOOL")]
    insecure_listen: Option<bool>,
    /// The data folder may be on a network filesystem [default: false].
    #[arg(long, env = "LOCKD_ALLOW_NETWORK_FS", action = ArgAction::Set, num_args = 0..=1, default_missing_value = "true", value_name = "BOOL")]
    allow_network_fs: Option<bool>,
    /// How logs are written, to standard error: a line of text each, or of JSON [default: text].
    #[arg(long, env = "LOCKD_LOG_FORMAT", value_name = "FORMAT")]
    log_format: Option<Format>,
    /// What is logged; `debug` has every request [default: info].
    #[arg(long, env = "LOCKD_LOG_LEVEL", value_name = "LEVEL")]
    log_level: Option<Level>,
    /// Send traces to this OpenTelemetry collector, as in `http://127.0.0.1:4318/v1/traces` (builds with the feature `otel`).
    #[arg(long, env = "LOCKD_OTLP_ENDPOINT", value_name = "URL")]
    pub(super) otlp_endpoint: Option<String>,
}

impl Serve {
    /// All of it, with what is usual where nothing is said.
    pub(super) fn config(self) -> Result<Config, String> {
        let mut config = Config::in_folder(self.data_dir()?);
        if let Some(url) = &self.store {
            config.store = StoreUrl::parse(url).map_err(|error| error.to_string())?;
        }
        config.unix = self.unix;
        config.bundle = self.bundle;
        config.denylist_path = self.denylist_path;
        take(&mut config.listen, self.listen);
        take(&mut config.mtls, self.mtls);
        take(&mut config.default_ttl, self.default_ttl);
        take(&mut config.max_ttl, self.max_ttl);
        take(&mut config.acquire_block, self.acquire_block);
        take(&mut config.sweeper_interval, self.sweeper_interval);
        take(&mut config.json_max, self.json_max);
        take(&mut config.inline_max, self.inline_max);
        take(&mut config.gc_temps_interval, self.gc_temps_interval);
        take(&mut config.shards, self.shards);
        take(&mut config.history_max, self.history_max);
        take(&mut config.history_window, self.history_window);
        take(&mut config.max_leases_per_identity, self.max_leases_per_identity);
        take(&mut config.max_connections, self.max_connections);
        take(&mut config.head_timeout, self.head_timeout);
        take(&mut config.stall_timeout, self.stall_timeout);
        take(&mut config.drain_timeout, self.drain_timeout);
        take(&mut config.insecure_listen, self.insecure_listen);
        take(&mut config.allow_network_fs, self.allow_network_fs);
        config.check().map_err(|error| error.to_string())?;
        Ok(config)
    }

    /// How, and how much, is logged.
    pub(super) fn logs(&self) -> (Format, Level) {
        (self.log_format.unwrap_or_default(), self.log_level.unwrap_or_default())
    }

    fn data_dir(&self) -> Result<PathBuf, String> {
        if let Some(path) = &self.data_dir {
            return std::path::absolute(path).map_err(|error| format!("{error}: path={}", path.display()));
        }
        folders::data().ok_or_else(|| "no home folder; say --data-dir".to_string())
    }
}

fn take<T>(setting: &mut T, said: Option<T>) {
    if let Some(said) = said {
        *setting = said;
    }
}

/// `16MB`, `64KiB`, `1000`.
fn size(text: &str) -> Result<u64, String> {
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
    number.checked_mul(unit).filter(|bytes| *bytes > 0).ok_or_else(|| "a size that cannot be".into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read_in_the_usual_spellings() {
        for (text, bytes) in [("100MB", 100_000_000), ("64KiB", 65_536), ("7", 7), ("1g", 1_000_000_000)] {
            assert_eq!(size(text), Ok(bytes), "{text}");
        }
        for bad in
            ["", "MB", "-1", "0", "1.5MB", "5 parsecs", "99999999999999999999", "18446744073709551615KB"]
        {
            assert!(size(bad).is_err(), "{bad}");
        }
    }
}
