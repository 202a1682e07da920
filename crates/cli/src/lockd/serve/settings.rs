//! What a server is set to: flags, or `LOCKD_*` variables.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, ToSocketAddrs};
use std::path::{Path, PathBuf};
use std::time::Duration;

use identity::Role;
use kernel::{Limits, Span};
use server::boot::StoreUrl;

use crate::data_folder;

/// Flags win over variables.
#[derive(clap::Args)]
#[command(after_help = "Examples:\n  \
                        lockd serve                                   everything by default: a store, a CA and a client are made\n  \
                        lockd serve --listen 127.0.0.1:9341 --mtls=false --store mem://\n  \
                        lockd serve --bundle server.pem --store disk:///var/lib/lockd/store\n\n\
                        SIGTERM stops it, after what is under way; SIGHUP reloads certificates and revocations.")]
pub(crate) struct Serve {
    /// Where to listen: `host:port`, or `:port`.
    #[arg(long, env = "LOCKD_LISTEN", default_value = ":9341", value_name = "ADDRESS")]
    pub(super) listen: String,
    /// Listen on this socket too; whoever may open it is an operator.
    #[arg(long, env = "LOCKD_UNIX", value_name = "PATH")]
    pub(super) unix: Option<PathBuf>,
    /// Where leases are kept: `disk:///path` or `mem://` [default: in the data folder].
    #[arg(long, env = "LOCKD_STORE", value_name = "URL")]
    pub(super) store: Option<String>,
    /// The folder for everything that is not put elsewhere [default: ~/.local/share/lockd].
    #[arg(long, env = "LOCKD_DATA_DIR", value_name = "PATH")]
    pub(super) data_dir: Option<PathBuf>,
    /// Certificates on both sides.
    #[arg(long, env = "LOCKD_MTLS", default_value_t = true, action = clap::ArgAction::Set, num_args = 0..=1, default_missing_value = "true", value_name = "BOOL")]
    pub(super) mtls: bool,
    /// The server's identity file [default: made in the data folder on the first start].
    #[arg(long, env = "LOCKD_BUNDLE", value_name = "FILE")]
    pub(super) bundle: Option<PathBuf>,
    /// Revoked serials, one a line, besides those in the identity file.
    #[arg(long, env = "LOCKD_DENYLIST_PATH", value_name = "FILE")]
    pub(super) denylist_path: Option<PathBuf>,
    /// Where a request names no TTL.
    #[arg(long, env = "LOCKD_DEFAULT_TTL", default_value = "60s", value_parser = humantime::parse_duration, value_name = "TIME")]
    pub(super) default_ttl: Duration,
    /// The longest TTL.
    #[arg(long, env = "LOCKD_MAX_TTL", default_value = "5m", value_parser = humantime::parse_duration, value_name = "TIME")]
    pub(super) max_ttl: Duration,
    /// The longest wait for a lease.
    #[arg(long, env = "LOCKD_ACQUIRE_BLOCK", default_value = "60s", value_parser = humantime::parse_duration, value_name = "TIME")]
    pub(super) acquire_block: Duration,
    /// The longest document, as it is received.
    #[arg(long, env = "LOCKD_JSON_MAX", default_value = "100MB", value_parser = size, value_name = "SIZE")]
    pub(super) json_max: u64,
    /// How often what uploads left behind is looked for.
    #[arg(long, env = "LOCKD_GC_TEMPS_INTERVAL", default_value = "5m", value_parser = humantime::parse_duration, value_name = "TIME")]
    pub(super) gc_temps_interval: Duration,
    /// How many shards a new store has; an old one keeps its own.
    #[arg(long, env = "LOCKD_SHARDS", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1024), value_name = "N")]
    pub(super) shards: u32,
    /// How many ended leases are remembered.
    #[arg(long, env = "LOCKD_HISTORY_MAX", value_name = "N")]
    pub(super) history_max: Option<u32>,
    /// How long ended leases are remembered.
    #[arg(long, env = "LOCKD_HISTORY_WINDOW", value_parser = humantime::parse_duration, value_name = "TIME")]
    pub(super) history_window: Option<Duration>,
    /// How many leases one identity may hold in a namespace.
    #[arg(long, env = "LOCKD_MAX_LEASES_PER_IDENTITY", value_name = "N")]
    pub(super) max_leases_per_identity: Option<u32>,
    /// Without mTLS, listen beyond this machine all the same.
    #[arg(long, env = "LOCKD_INSECURE_LISTEN")]
    pub(super) insecure_listen: bool,
    /// The data folder may be on a network filesystem.
    #[arg(long, env = "LOCKD_ALLOW_NETWORK_FS")]
    pub(super) allow_network_fs: bool,
}

impl Serve {
    pub(super) fn data_dir(&self) -> Result<PathBuf, String> {
        if let Some(path) = &self.data_dir {
            return std::path::absolute(path).map_err(|error| format!("{error}: path={}", path.display()));
        }
        data_folder().ok_or_else(|| "no home folder; say --data-dir".to_string())
    }

    pub(super) fn store(&self, data: &Path) -> Result<StoreUrl, String> {
        match &self.store {
            Some(url) => StoreUrl::parse(url).map_err(|error| error.to_string()),
            None => Ok(StoreUrl::Disk(data.join("store"))),
        }
    }

    pub(super) fn limits(&self) -> Limits {
        let usual = Limits::default();
        let window = self.history_window.map(super::span);
        Limits {
            ttl_max: super::span(self.max_ttl).max(Span(1)),
            history_max: self.history_max.unwrap_or(usual.history_max),
            history_window: window.unwrap_or(usual.history_window),
            leases_per_identity_max: self.max_leases_per_identity.unwrap_or(usual.leases_per_identity_max),
            ..usual
        }
    }

    /// Without a host: every address with mTLS, this machine without.
    pub(super) fn address(&self) -> Result<SocketAddr, String> {
        let address = match self.listen.strip_prefix(':') {
            Some(port) => {
                let port = port.parse().map_err(|_| format!("not a port: listen={}", self.listen))?;
                let any = if self.mtls {
                    IpAddr::V6(Ipv6Addr::UNSPECIFIED)
                } else {
                    IpAddr::V4(Ipv4Addr::LOCALHOST)
                };
                SocketAddr::new(any, port)
            }
            None => resolve(&self.listen)?,
        };
        if !self.mtls && !address.ip().is_loopback() && !self.insecure_listen {
            return Err(format!(
                "without mTLS anybody who can connect is let in; listen on 127.0.0.1, or say --insecure-listen: listen={}",
                self.listen
            ));
        }
        Ok(address)
    }
}

/// What everybody is, where nobody is asked.
pub(super) fn anonymous(bound: SocketAddr) -> Role {
    if bound.ip().is_loopback() { Role::Operator } else { Role::Worker }
}

fn resolve(text: &str) -> Result<SocketAddr, String> {
    let bad = || format!("not an address; host:port or :port is: listen={text}");
    text.to_socket_addrs().map_err(|_| bad())?.next().ok_or_else(bad)
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
