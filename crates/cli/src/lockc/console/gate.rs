//! Decides which requests of a browser pass.

use std::sync::Mutex;
use std::sync::PoisonError;

use api::Code;
use hyper::header::{HOST, HeaderMap, ORIGIN};
use hyper::http::uri::Authority;
use hyper::{Method, Uri};

/// The header with the token of the URL.
const TOKEN: &str = "x-console-token";
/// The header with the session.
const SESSION: &str = "x-console-session";
/// Where the token is exchanged for the session.
const SESSION_PATH: &str = "/session";
/// The console's static files.
const FILES: &str = "/ui/";

/// What becomes of a request.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Admission {
    Forward,
    /// The token was right: the session.
    Session(String),
    Refused(Code, &'static str),
}

/// The token, the session, and the names of this proxy.
pub(super) struct Gate {
    /// `None` once it was used.
    token: Mutex<Option<String>>,
    session: String,
    hosts: [String; 2],
}

impl Gate {
    pub(super) fn new(port: u16) -> Gate {
        let hosts = [format!("127.0.0.1:{port}"), format!("localhost:{port}")];
        Gate { token: Mutex::new(Some(secret())), session: secret(), hosts }
    }

    /// The link for the browser.
    pub(super) fn url(&self) -> String {
        let token = self.token.lock().unwrap_or_else(PoisonError::into_inner);
        format!("http://{}{FILES}#token={}", self.hosts[0], token.as_deref().unwrap_or_default())
    }

    pub(super) fn admit(&self, method: &Method, uri: &Uri, headers: &HeaderMap) -> Admission {
        if !self.is_own_host(uri, headers) {
            return Admission::Refused(Code::Forbidden, "the host is not this console's");
        }
        let is_file = uri.path().starts_with(FILES) && matches!(*method, Method::GET | Method::HEAD);
        if !self.is_own_page(headers, is_file && uri.path() == FILES) {
            return Admission::Refused(Code::Forbidden, "a web page of another origin sent this");
        }
        if uri.path() == SESSION_PATH {
            return self.exchange(method, headers);
        }
        if is_file || has(headers, SESSION, &self.session) {
            return Admission::Forward;
        }
        Admission::Refused(Code::Unauthenticated, "the request has no session of this console")
    }

    /// DNS rebinding: a page whose name was made to resolve to this address names itself.
    fn is_own_host(&self, uri: &Uri, headers: &HeaderMap) -> bool {
        let named = headers.get_all(HOST).iter().map(|host| host.to_str().unwrap_or_default());
        let named: Vec<&str> = named.chain(uri.authority().map(Authority::as_str)).collect();
        !named.is_empty()
            && named.iter().all(|host| self.hosts.iter().any(|own| own.eq_ignore_ascii_case(host)))
    }

    /// `is_link`: the first page may be opened by a link of any page.
    fn is_own_page(&self, headers: &HeaderMap, is_link: bool) -> bool {
        let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default();
        let is_navigation =
            is_link && text("sec-fetch-mode") == "navigate" && text("sec-fetch-dest") == "document";
        let is_own = |origin: &str| self.hosts.iter().any(|host| origin == format!("http://{host}"));
        let origins = headers.get_all(ORIGIN).iter().map(|origin| origin.to_str().unwrap_or_default());
        let site = text("sec-fetch-site");
        origins.into_iter().all(is_own) && (is_navigation || !matches!(site, "cross-site" | "same-site"))
    }

    fn exchange(&self, method: &Method, headers: &HeaderMap) -> Admission {
        if *method != Method::POST {
            return Admission::Refused(Code::MethodNotAllowed, "the path does not support this method");
        }
        let mut token = self.token.lock().unwrap_or_else(PoisonError::into_inner);
        match token.as_deref() {
            Some(right) if has(headers, TOKEN, right) => {
                *token = None;
                Admission::Session(self.session.clone())
            }
            Some(_) => Admission::Refused(Code::Unauthenticated, "the token is wrong"),
            None => {
                let why = "the link was used before; run `lockc console` again";
                Admission::Refused(Code::Unauthenticated, why)
            }
        }
    }
}

/// Whether the header occurs once, with this value. Takes the same time for every wrong value of its length.
fn has(headers: &HeaderMap, name: &str, wanted: &str) -> bool {
    let mut values = headers.get_all(name).iter();
    let (Some(value), None) = (values.next(), values.next()) else { return false };
    let (value, wanted) = (value.as_bytes(), wanted.as_bytes());
    value.len() == wanted.len() && value.iter().zip(wanted).fold(0, |differs, (a, b)| differs | (a ^ b)) == 0
}

/// 32 random bytes in hexadecimal digits.
fn secret() -> String {
    let digit = |bits: u8| char::from_digit(u32::from(bits), 16).expect("four bits");
    system::random::bytes::<32>().iter().flat_map(|byte| [digit(byte >> 4), digit(byte & 15)]).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use hyper::header::HeaderName;

    fn ask(gate: &Gate, method: &Method, path: &str, headers: &[(&str, &str)]) -> Admission {
        let mut map = HeaderMap::new();
        for (name, value) in headers {
            let name = HeaderName::from_bytes(name.as_bytes()).expect("a name");
            map.append(name, value.parse().expect("a value"));
        }
        gate.admit(method, &path.parse().expect("a path"), &map)
    }

    fn code(admission: &Admission) -> Option<Code> {
        match admission {
            Admission::Refused(code, _) => Some(*code),
            _ => None,
        }
    }

    const HOST: (&str, &str) = ("host", "127.0.0.1:7000");

    #[test]
    fn the_token_is_valid_once_and_the_session_from_then_on() {
        let gate = Gate::new(7000);
        let url = gate.url();
        let token = url.strip_prefix("http://127.0.0.1:7000/ui/#token=").expect("in the fragment");
        assert_eq!(token.len(), 64);
        let refused = ask(&gate, &Method::GET, "/v1/whoami", &[HOST]);
        assert_eq!(code(&refused), Some(Code::Unauthenticated));
        let wrong = ask(&gate, &Method::POST, "/session", &[HOST, ("x-console-token", &"0".repeat(64))]);
        assert_eq!(code(&wrong), Some(Code::Unauthenticated), "and it does not use up the right one");
        let Admission::Session(session) =
            ask(&gate, &Method::POST, "/session", &[HOST, ("x-console-token", token)])
        else {
            panic!("the right token")
        };
        let again = ask(&gate, &Method::POST, "/session", &[HOST, ("x-console-token", token)]);
        assert_eq!(code(&again), Some(Code::Unauthenticated));
        let mine = ("x-console-session", session.as_str());
        assert_eq!(ask(&gate, &Method::GET, "/v1/whoami", &[HOST, mine]), Admission::Forward);
        assert_ne!(ask(&gate, &Method::GET, "/v1/whoami", &[HOST, mine, mine]), Admission::Forward, "twice");
        let as_session = ("x-console-session", token);
        assert_ne!(ask(&gate, &Method::GET, "/v1/whoami", &[HOST, as_session]), Admission::Forward);
    }

    #[test]
    fn other_hosts_and_pages_are_refused_even_with_the_session() {
        let gate = Gate::new(7000);
        let mine = ("x-console-session", gate.session.as_str());
        let passes = |headers: &[(&str, &str)]| {
            ask(&gate, &Method::POST, "/v1/pause", &[headers, &[mine]].concat()) == Admission::Forward
        };
        assert!(passes(&[HOST]) && passes(&[("host", "localhost:7000")]));
        assert!(passes(&[HOST, ("origin", "http://127.0.0.1:7000"), ("sec-fetch-site", "same-origin")]));
        for host in ["evil.example:7000", "127.0.0.1:7001", "127.0.0.1", "127.0.0.1:7000.evil.example", ""] {
            assert!(!passes(&[("host", host)]), "{host}");
        }
        assert!(!passes(&[]) && !passes(&[HOST, ("host", "evil.example")]));
        for origin in ["null", "http://127.0.0.1:7001", "https://127.0.0.1:7000", "http://evil.example"] {
            assert!(!passes(&[HOST, ("origin", origin)]), "{origin}");
        }
        for site in ["cross-site", "same-site"] {
            assert!(!passes(&[HOST, ("sec-fetch-site", site)]), "{site}");
        }
    }

    #[test]
    fn only_static_files_are_served_without_a_session() {
        let gate = Gate::new(7000);
        let forwards = |method: &Method, path: &str| ask(&gate, method, path, &[HOST]) == Admission::Forward;
        assert!(forwards(&Method::GET, "/ui/") && forwards(&Method::GET, "/ui/app.js"));
        for path in ["/v1/leases", "/metrics", "/openapi.json", "/", "/ui", "/uix", "/healthz"] {
            assert!(!forwards(&Method::GET, path), "{path}");
        }
        assert!(!forwards(&Method::POST, "/ui/"));
    }
}
