//! Refuses requests that a web page makes a user's browser send.
//!
//! Without mTLS every client of the machine is an operator, and so is every page that a browser on it shows, unless the
//! server tells the two apart. Two attacks matter: a page posts to `127.0.0.1` (cross-site request forgery), and a page
//! whose own name suddenly resolves to `127.0.0.1` reads from there as if from itself (DNS rebinding). With mTLS a
//! browser that has a client certificate can be made to post, too.
//!
//! **Invariant.** No request passes whose `Origin` is not the server's own, or that the browser itself marks as
//! cross-site; except that a user may follow a link from elsewhere to the first page of the console. On a plain TCP socket, moreover, every host that a request names is a name of this machine, and a body is
//! `application/json`, which a page cannot send elsewhere without asking first.
//!
//! **What is absent.** Protection against programs: they may send any header.

use std::net::IpAddr;
use std::sync::Arc;

use api::{Code, Refusal};
use axum::http::uri::Authority;
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method, Request, Uri, header};
use http_body::Body;
use tokio::net::TcpListener;

use crate::http::ui;
use crate::settings::HostNames;

static SEC_FETCH_SITE: HeaderName = HeaderName::from_static("sec-fetch-site");
static SEC_FETCH_MODE: HeaderName = HeaderName::from_static("sec-fetch-mode");
static SEC_FETCH_DEST: HeaderName = HeaderName::from_static("sec-fetch-dest");

/// The rules of one socket.
#[derive(Clone)]
pub(crate) struct BrowserGuard(Socket);

#[derive(Clone)]
enum Socket {
    Tls,
    Unix,
    Plain(Arc<PlainSocket>),
}

struct PlainSocket {
    /// The address that the server listens on.
    bound: Option<IpAddr>,
    host_name: String,
    allowed: HostNames,
}

impl BrowserGuard {
    /// For a socket with mutual TLS. A browser verifies the name in the server's certificate, so any name may be used.
    pub(crate) fn tls() -> BrowserGuard {
        BrowserGuard(Socket::Tls)
    }

    /// For a Unix socket, which a browser reaches through a proxy at most.
    pub(crate) fn unix() -> BrowserGuard {
        BrowserGuard(Socket::Unix)
    }

    /// For plain HTTP. `allowed` are names of this machine beside those that are always allowed.
    pub(crate) fn plain(listener: &TcpListener, allowed: &HostNames) -> BrowserGuard {
        let bound = listener.local_addr().ok().map(|address| address.ip().to_canonical());
        let (host_name, allowed) = (system::host_name(), allowed.clone());
        BrowserGuard(Socket::Plain(Arc::new(PlainSocket { bound, host_name, allowed })))
    }

    /// Refuses a request that a web page may have sent.
    pub(crate) fn check<B: Body>(&self, request: &Request<B>) -> Result<(), Refusal> {
        let headers = request.headers();
        if let Socket::Plain(socket) = &self.0 {
            check_hosts(socket, request.uri(), headers)?;
            // Where any name is allowed, a page of any name may send what it likes: the type proves nothing.
            if !socket.allowed.is_any() && !request.body().is_end_stream() {
                check_content_type(headers)?;
            }
        }
        let is_cross_site = headers.get_all(&SEC_FETCH_SITE).iter().any(|site| site == "cross-site");
        if is_cross_site && !is_followed_link(request) {
            let detail = "a web page of another site made the browser send this: sec_fetch_site=cross-site";
            return Err(Refusal::new(Code::Forbidden, detail));
        }
        let mut origins = headers.get_all(header::ORIGIN).iter();
        match origins.find(|origin| !self.is_own(origin, request.uri(), headers)) {
            Some(foreign) => Err(refused("a web page of another origin sent this", "origin", foreign)),
            None => Ok(()),
        }
    }

    /// Whether an origin is the one that the request was sent to.
    fn is_own(&self, origin: &HeaderValue, uri: &Uri, headers: &HeaderMap) -> bool {
        let Some(origin) = origin.to_str().ok().and_then(|text| text.parse::<Uri>().ok()) else {
            return false;
        };
        let (Some(scheme), Some(authority)) = (origin.scheme_str(), origin.authority()) else { return false };
        let default_port = match (scheme, &self.0) {
            ("https", Socket::Tls | Socket::Unix) => 443,
            ("http", Socket::Plain(_) | Socket::Unix) => 80,
            _ => return false,
        };
        let port = |authority: &Authority| authority.port_u16().unwrap_or(default_port);
        let is_same = |named: Option<Authority>| {
            named.is_some_and(|named| {
                named.host().eq_ignore_ascii_case(authority.host()) && port(&named) == port(authority)
            })
        };
        let mut named = hosts(uri, headers).peekable();
        named.peek().is_some() && named.all(is_same)
    }
}

impl PlainSocket {
    fn is_allowed(&self, host: &str) -> bool {
        if self.allowed.contains(host) {
            return true;
        }
        let address = host.trim_start_matches('[').trim_end_matches(']').parse::<IpAddr>();
        match address.map(|address| address.to_canonical()) {
            // An address is not resolved, so it cannot be rebound.
            Ok(_) if self.bound.is_some_and(|bound| bound.is_unspecified()) => true,
            Ok(address) => address.is_loopback() || self.bound == Some(address),
            Err(_) => {
                let names = ["localhost", self.host_name.as_str()];
                names.iter().any(|name| name.eq_ignore_ascii_case(host))
            }
        }
    }
}

/// Whether a user followed a link on another site to a page of the console: such a request is answered with a file that
/// is the same for everyone, and that no other page may frame.
fn is_followed_link<B>(request: &Request<B>) -> bool {
    let is =
        |name: &HeaderName, wanted: &str| request.headers().get(name).is_some_and(|value| value == wanted);
    let is_page = [ui::PATH, ui::PATH_BARE].contains(&request.uri().path());
    request.method() == Method::GET
        && is_page
        && is(&SEC_FETCH_MODE, "navigate")
        && is(&SEC_FETCH_DEST, "document")
}

/// Every host that the request names: in its target and in `Host`; `None` for one that is malformed.
fn hosts<'a>(uri: &'a Uri, headers: &'a HeaderMap) -> impl Iterator<Item = Option<Authority>> + 'a {
    let in_header = headers.get_all(header::HOST).iter();
    let parsed = in_header.map(|host| Authority::try_from(host.as_bytes()).ok().filter(is_plain));
    uri.authority().into_iter().map(|authority| Some(authority.clone()).filter(is_plain)).chain(parsed)
}

/// Whether it is a host and maybe a port, without a user.
fn is_plain(authority: &Authority) -> bool {
    !authority.as_str().contains('@')
}

/// A request that names no host, which no browser sends, passes.
fn check_hosts(socket: &PlainSocket, uri: &Uri, headers: &HeaderMap) -> Result<(), Refusal> {
    for host in hosts(uri, headers) {
        if !host.as_ref().is_some_and(|host| socket.is_allowed(host.host())) {
            let shown = host.as_ref().map_or("malformed", Authority::as_str);
            let detail =
                "the host is no name of this machine; if it is, start the server with --allowed-hosts";
            return Err(Refusal::new(Code::Forbidden, format!("{detail}: host={shown}")));
        }
    }
    Ok(())
}

fn check_content_type(headers: &HeaderMap) -> Result<(), Refusal> {
    let kind = headers.get(header::CONTENT_TYPE);
    let essence = kind.and_then(|kind| kind.to_str().ok()?.split(';').next());
    if essence.is_some_and(|essence| essence.trim().eq_ignore_ascii_case("application/json")) {
        return Ok(());
    }
    let detail = "without mTLS a body needs the header `Content-Type: application/json`; with curl add \
                  -H 'Content-Type: application/json'";
    let none = HeaderValue::from_static("none");
    let refusal = refused(detail, "content_type", kind.unwrap_or(&none));
    Err(Refusal { error: Code::InvalidBody, ..refusal })
}

fn refused(what: &str, name: &str, value: &HeaderValue) -> Refusal {
    let value = String::from_utf8_lossy(value.as_bytes());
    Refusal::new(Code::Forbidden, format!("{what}: {name}={}", value.escape_debug()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plain(bound: &str, allowed: &str) -> BrowserGuard {
        let allowed = HostNames::parse(allowed).expect("names");
        let bound = Some(bound.parse().expect("an address"));
        BrowserGuard(Socket::Plain(Arc::new(PlainSocket { bound, host_name: "build-7".into(), allowed })))
    }

    fn passes(guard: &BrowserGuard, uri: &str, headers: &[(&str, &str)]) -> bool {
        let request = Request::get(uri);
        let request = headers.iter().fold(request, |request, (name, value)| request.header(*name, *value));
        guard.check(&request.body(String::new()).expect("a valid request")).is_ok()
    }

    #[test]
    fn only_names_of_this_machine_pass_without_tls() {
        let guard = plain("127.0.0.1", "lockd.internal");
        for host in [
            "localhost",
            "LOCALHOST:9341",
            "127.0.0.1:80",
            "[::1]:9341",
            "127.9.9.9",
            "build-7",
            "Build-7:1",
            "lockd.internal:9341",
            "[::ffff:127.0.0.1]",
        ] {
            assert!(passes(&guard, "/healthz", &[("host", host)]), "{host}");
        }
        for host in [
            "evil.example",
            "localhost.evil.example",
            "evil.localhost",
            "localhost@evil.example",
            "10.0.0.1",
            "",
            "evil.example:9341",
            "127.0.0.1.nip.io",
            "build-77",
            "[::2]",
        ] {
            assert!(!passes(&guard, "/healthz", &[("host", host)]), "{host}");
        }
        assert!(passes(&guard, "/healthz", &[]), "no browser leaves it out");
        assert!(!passes(&guard, "http://evil.example/healthz", &[("host", "localhost")]), "in the target");
        assert!(!passes(&guard, "/healthz", &[("host", "localhost"), ("host", "evil.example")]), "twice");
        let everywhere = plain("0.0.0.0", "");
        assert!(
            passes(&everywhere, "/healthz", &[("host", "10.0.0.1:9341")]),
            "an address cannot be rebound"
        );
        assert!(!passes(&everywhere, "/healthz", &[("host", "evil.example")]));
        assert!(passes(&plain("127.0.0.1", "*"), "/healthz", &[("host", "any.example")]));
    }

    #[test]
    fn an_origin_is_the_servers_own_or_foreign() {
        let at = |guard: &BrowserGuard, host: &str, origin: &str| {
            passes(guard, "/v1/leases", &[("host", host), ("origin", origin)])
        };
        let (plain, tls, unix) = (plain("127.0.0.1", ""), BrowserGuard::tls(), BrowserGuard::unix());
        assert!(at(&plain, "localhost:9341", "http://localhost:9341"));
        assert!(at(&plain, "localhost", "http://localhost:80"));
        assert!(at(&tls, "lockd.example:9341", "https://LOCKD.example:9341"));
        assert!(at(&tls, "lockd.example", "https://lockd.example:443"));
        assert!(at(&unix, "lockd", "http://lockd") && at(&unix, "lockd", "https://lockd"));
        for origin in [
            "null",
            "http://localhost:8080",
            "https://localhost:9341",
            "http://evil.example",
            "evil",
            "",
            "http://127.0.0.1:9341",
            "http://localhost:9341.evil.example",
            "file://",
        ] {
            assert!(!at(&plain, "localhost:9341", origin), "{origin}");
        }
        assert!(!at(&tls, "lockd.example:9341", "http://lockd.example:9341"), "another scheme");
        assert!(
            !passes(&tls, "/v1/leases", &[("origin", "https://lockd.example")]),
            "no host to compare with"
        );
        for guard in [&plain, &tls, &unix] {
            // A link to the console in a chat was refused: the browser marks the first request of the page as cross-site.
            let link = [
                ("sec-fetch-site", "cross-site"),
                ("sec-fetch-mode", "navigate"),
                ("sec-fetch-dest", "document"),
            ];
            let framed = [
                ("sec-fetch-site", "cross-site"),
                ("sec-fetch-mode", "navigate"),
                ("sec-fetch-dest", "iframe"),
            ];
            assert!(passes(guard, "/ui/", &link) && !passes(guard, "/ui/", &framed));
            assert!(!passes(guard, "/v1/leases", &link) && !passes(guard, "/ui/app.js", &link));
            assert!(!passes(guard, "/v1/leases", &[("sec-fetch-site", "cross-site")]));
            assert!(passes(guard, "/v1/leases", &[("sec-fetch-site", "none")]));
        }
    }
}
