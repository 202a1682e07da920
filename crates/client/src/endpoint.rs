//! The address of a server: `host[:port]`, a URL, or `unix:/path`.

use std::path::PathBuf;

use crate::error::{Error, Kind};

/// The address of a server, and whether it is reached over TLS.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Endpoint {
    pub(crate) address: Address,
    pub(crate) tls: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Address {
    /// Host and port.
    Tcp(String, u16),
    /// The path of a Unix socket.
    Unix(PathBuf),
}

impl Endpoint {
    /// Parses an address. A bare `host[:port]` means HTTPS, or HTTP if `plain`; the default port is 9341.
    pub fn parse(text: &str, plain: bool) -> Result<Endpoint, Error> {
        if let Some(path) = text.strip_prefix("unix:") {
            let path = path.strip_prefix("//").unwrap_or(path);
            if !path.starts_with('/') {
                return Err(invalid(
                    "the path of a Unix socket must be absolute, as in unix:/run/lockd.sock",
                    text,
                ));
            }
            return Ok(Endpoint { address: Address::Unix(path.into()), tls: false });
        }
        let (tls, rest) = match text.split_once("://") {
            Some(("http", rest)) => (false, rest),
            Some(("https", rest)) => (true, rest),
            Some(_) => return Err(invalid("unknown scheme; use http, https or unix", text)),
            None => (!plain, text),
        };
        let authority = rest.strip_suffix('/').unwrap_or(rest);
        let (host, port) =
            split(authority).ok_or_else(|| invalid("expected host[:port], a URL or unix:/path", text))?;
        Ok(Endpoint { address: Address::Tcp(host, port), tls })
    }

    /// The authority of request URIs.
    pub(crate) fn authority(&self) -> String {
        match &self.address {
            Address::Tcp(host, port) if host.contains(':') => format!("[{host}]:{port}"),
            Address::Tcp(host, port) => format!("{host}:{port}"),
            Address::Unix(_) => "localhost".to_string(),
        }
    }
}

impl std::fmt::Display for Endpoint {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match &self.address {
            Address::Unix(path) => write!(f, "unix:{}", path.display()),
            Address::Tcp(..) => {
                write!(f, "{}://{}", if self.tls { "https" } else { "http" }, self.authority())
            }
        }
    }
}

fn invalid(what: &str, text: &str) -> Error {
    Error::new(Kind::Invalid, format!("{what}: server={text:?}"))
}

fn split(authority: &str) -> Option<(String, u16)> {
    let (host, port) = if let Some(rest) = authority.strip_prefix('[') {
        let (host, rest) = rest.split_once(']')?;
        (host, if rest.is_empty() { None } else { Some(rest.strip_prefix(':')?) })
    } else {
        match authority.split_once(':') {
            Some((host, port)) if !port.contains(':') => (host, Some(port)),
            // No port, or an IPv6 address without brackets.
            _ => (authority, None),
        }
    };
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_' | ':' | '%');
    let port = port.map_or(Some(api::PORT), |port| port.parse().ok().filter(|port| *port > 0))?;
    (!host.is_empty() && host.chars().all(plain)).then(|| (host.to_string(), port))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_read_as_they_are_documented() {
        for (text, plain, shown) in [
            ("localhost", false, "https://localhost:9341"),
            ("localhost", true, "http://localhost:9341"),
            ("10.0.0.1:80", true, "http://10.0.0.1:80"),
            ("http://a.example", false, "http://a.example:9341"),
            ("https://a.example:1/", true, "https://a.example:1"),
            ("[::1]:5", true, "http://[::1]:5"),
            ("[::1]", true, "http://[::1]:9341"),
            ("::1", true, "http://[::1]:9341"),
            ("unix:/run/lockd.sock", false, "unix:/run/lockd.sock"),
            ("unix:///run/lockd.sock", false, "unix:/run/lockd.sock"),
        ] {
            assert_eq!(Endpoint::parse(text, plain).expect(text).to_string(), shown, "{text}");
        }
    }

    #[test]
    fn anything_else_is_refused_and_named() {
        for text in
            ["", ":80", "a:", "a:0", "a:99999", "ftp://a", "http://a/path", "a b", "u@h", "unix:x", "[::1"]
        {
            let error = Endpoint::parse(text, true).expect_err(text);
            assert_eq!(error.kind(), Kind::Invalid);
            assert!(error.to_string().ends_with(&format!("server={text:?}")), "{error}");
        }
    }
}
