//! The web console: static files under `/ui/`, the same for every client. Everything that its pages show comes from the
//! calls of the API, with the rights of the browser's certificate.
//!
//! **Invariant.** No file refers to another host, and the policy in the headers forbids it: scripts, styles and requests
//! are the server's own, nothing inline runs, and no other page may frame the console.
//!
//! **What is absent.** State of any kind, and a build step: the files in `crates/server/ui` are served as they are. A debug
//! build reads them from disk, so that a change needs no compilation; a release build has them inside.

use std::borrow::Cow;
use std::sync::Arc;

use axum::Router;
use axum::extract::Path;
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Redirect, Response};
use axum::routing::get;

use api::{Code, Refusal};

use crate::backend::shards::Backend;
use crate::present::refusals::RefusalResponse;

/// The first page.
pub(crate) const PATH: &str = "/ui/";
/// Redirected to the first page.
pub(crate) const PATH_BARE: &str = "/ui";
const FILE_PATH: &str = "/ui/{file}";
/// The paths of all routes.
pub(crate) const PATHS: [&str; 3] = [PATH, PATH_BARE, FILE_PATH];

/// The first page's file.
const INDEX: &str = "index.html";

const POLICY: &str =
    "default-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; object-src 'none'";

/// The headers of every file.
const HEADERS: [(&str, &str); 7] = [
    ("content-security-policy", POLICY),
    ("x-content-type-options", "nosniff"),
    ("referrer-policy", "no-referrer"),
    ("cross-origin-opener-policy", "same-origin"),
    ("cross-origin-resource-policy", "same-origin"),
    ("x-frame-options", "DENY"),
    // Validated by its hash with every use: a new server has new files.
    ("cache-control", "no-cache"),
];

struct Asset {
    name: &'static str,
    content_type: &'static str,
    embedded: &'static [u8],
}

macro_rules! assets {
    ($($name:literal: $kind:expr,)*) => {
        const ASSETS: &[Asset] = &[$(
            Asset {
                name: $name,
                content_type: $kind,
                embedded: include_bytes!(concat!(env!("CARGO_MANIFEST_DIR"), "/ui/", $name)),
            },
        )*];
    };
}

const HTML: &str = "text/html; charset=utf-8";
const CSS: &str = "text/css; charset=utf-8";
const SCRIPT: &str = "text/javascript; charset=utf-8";
const SVG: &str = "image/svg+xml";

assets! {
    "index.html": HTML,
    "style.css": CSS,
    "icon.svg": SVG,
    "app.js": SCRIPT,
    "api.js": SCRIPT,
    "live.js": SCRIPT,
    "dom.js": SCRIPT,
    "json.js": SCRIPT,
    "list.js": SCRIPT,
    "plot.js": SCRIPT,
    "timeline.js": SCRIPT,
    "graph.js": SCRIPT,
    "actions.js": SCRIPT,
    "overview.js": SCRIPT,
    "keys.js": SCRIPT,
    "key.js": SCRIPT,
    "waits.js": SCRIPT,
    "agents.js": SCRIPT,
    "events.js": SCRIPT,
    "namespaces.js": SCRIPT,
}

/// The routes of the console.
pub(crate) fn routes() -> Router<Arc<Backend>> {
    Router::new()
        .route(PATH_BARE, get(async || Redirect::permanent(PATH)))
        .route(PATH, get(async |headers: HeaderMap| file(INDEX, &headers)))
        .route(FILE_PATH, get(async |Path(name): Path<String>, headers: HeaderMap| file(&name, &headers)))
}

fn file(name: &str, request: &HeaderMap) -> Response {
    let Some(asset) = ASSETS.iter().find(|asset| asset.name == name) else {
        return RefusalResponse(Refusal::new(Code::NotFound, "no such path")).into_response();
    };
    let content = asset.content();
    let etag = format!("\"{}\"", &blake3::hash(&content).to_hex()[..32]);
    let is_known = request.get_all(header::IF_NONE_MATCH).iter().any(|known| known == etag.as_str());
    let mut response = if is_known {
        StatusCode::NOT_MODIFIED.into_response()
    } else {
        ([(header::CONTENT_TYPE, asset.content_type)], content.into_owned()).into_response()
    };
    let headers = response.headers_mut();
    headers.insert(header::ETAG, HeaderValue::from_str(&etag).expect("hexadecimal digits"));
    for (name, value) in HEADERS {
        headers.insert(name, HeaderValue::from_static(value));
    }
    response
}

impl Asset {
    /// The file from disk, or the embedded one where there are no sources.
    #[cfg(debug_assertions)]
    fn content(&self) -> Cow<'static, [u8]> {
        let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("ui").join(self.name);
        std::fs::read(path).map_or(Cow::Borrowed(self.embedded), Cow::Owned)
    }

    #[cfg(not(debug_assertions))]
    fn content(&self) -> Cow<'static, [u8]> {
        Cow::Borrowed(self.embedded)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use axum::Extension;
    use axum::body::Body;
    use axum::http::Request;
    use http_body_util::BodyExt;
    use identity::Role;
    use serde_json::Value;
    use tower::ServiceExt;

    use super::*;
    use crate::backend::shards::RequestLimits;
    use crate::peer::Peer;

    async fn ask(limits: RequestLimits, request: Request<Body>) -> (StatusCode, HeaderMap, Vec<u8>) {
        let backend = crate::testing::backend(limits);
        let router = crate::http::router::router(&backend).layer(Extension(Peer::anonymous(Role::Worker)));
        let response = router.oneshot(request).await.expect("it always answers");
        let (head, body) = response.into_parts();
        (head.status, head.headers, body.collect().await.expect("a response").to_bytes().to_vec())
    }

    async fn get_file(path: &str) -> (StatusCode, HeaderMap, Vec<u8>) {
        ask(RequestLimits::default(), Request::get(path).body(Body::empty()).expect("a valid request")).await
    }

    #[tokio::test]
    async fn every_file_is_served_with_its_type_and_a_policy() {
        for asset in ASSETS {
            let (status, headers, body) = get_file(&format!("/ui/{}", asset.name)).await;
            assert_eq!((status, &body[..]), (StatusCode::OK, &*asset.content()), "{}", asset.name);
            assert_eq!(headers["content-type"], asset.content_type);
            let policy = headers["content-security-policy"].to_str().expect("text");
            assert!(policy.starts_with("default-src 'self';") && !policy.contains("unsafe"), "{policy}");
            assert!(policy.contains("frame-ancestors 'none'"));
            assert_eq!(headers["x-content-type-options"], "nosniff");
            assert_eq!(headers["referrer-policy"], "no-referrer");
            assert_eq!(headers["cache-control"], "no-cache");
        }
        let (status, headers, body) = get_file("/ui/").await;
        assert_eq!((status, &headers["content-type"]), (StatusCode::OK, &HeaderValue::from_static(HTML)));
        assert!(body.starts_with(b"<!doctype html>"));
        assert_eq!(get_file("/ui").await.1["location"], "/ui/");
        for path in ["/ui/nothing.js", "/ui/../Cargo.toml", "/ui/%2e%2e%2fCargo.toml", "/ui/app.js/", "/uix"]
        {
            assert_eq!(get_file(path).await.0, StatusCode::NOT_FOUND, "{path}");
        }
    }

    #[tokio::test]
    async fn a_known_file_is_not_sent_again() {
        let etag = get_file("/ui/app.js").await.1["etag"].clone();
        let request = Request::get("/ui/app.js").header("if-none-match", etag).body(Body::empty());
        let (status, headers, body) = ask(RequestLimits::default(), request.expect("a valid request")).await;
        assert_eq!((status, body.len()), (StatusCode::NOT_MODIFIED, 0));
        assert!(headers.contains_key("content-security-policy"));
    }

    #[tokio::test]
    async fn a_setting_turns_the_console_off() {
        let off = RequestLimits { ui: false, ..RequestLimits::default() };
        for path in ["/ui/", "/ui", "/ui/app.js"] {
            let request = Request::get(path).body(Body::empty()).expect("a valid request");
            assert_eq!(ask(off, request).await.0, StatusCode::NOT_FOUND, "{path}");
        }
    }

    /// The pages of a console drifted away from the API of its server for three releases of another product.
    #[tokio::test]
    async fn the_console_calls_nothing_that_is_not_in_the_description() {
        let (_, _, document) = get_file("/openapi.json").await;
        let document: Value = serde_json::from_slice(&document).expect("JSON");
        let (_, _, script) = get_file("/ui/api.js").await;
        let script = String::from_utf8(script).expect("text");
        let table = script.split("const CALLS = {").nth(1).and_then(|rest| rest.split("};").next());
        let mut called = BTreeSet::new();
        for line in table.expect("the table of calls").lines().filter(|line| line.contains(": [")) {
            let (name, call) = line.trim().split_once(": [").expect("a row");
            let mut parts = call.split('\'').skip(1).step_by(2);
            let (method, path) = (parts.next().expect("a method"), parts.next().expect("a path"));
            let operation = &document["paths"][path][method.to_lowercase()];
            assert_eq!(operation["operationId"], name, "{method} {path}");
            called.insert(name.to_string());
        }
        assert!(called.len() > 15, "{called:?}");
        for asset in ASSETS.iter().filter(|asset| asset.content_type == SCRIPT) {
            let content = asset.content();
            let text = std::str::from_utf8(&content).expect("text");
            if asset.name == "api.js" {
                assert_eq!(
                    text.matches("fetch(").count(),
                    2,
                    "the calls, and the session of `lockc console`"
                );
                continue;
            }
            for bypass in ["fetch(", "XMLHttpRequest", "EventSource", "WebSocket", "sendBeacon", "'/v1"] {
                assert!(!text.contains(bypass), "{}: {bypass}", asset.name);
            }
            for used in ["get('", "post('", "send('", "list('"] {
                let calls = text.match_indices(used).filter(|(at, _)| !text[..*at].ends_with('.'));
                for (at, _) in calls {
                    let call = text[at + used.len()..].split('\'').next().expect("a name");
                    assert!(called.contains(call), "{}: {call}", asset.name);
                }
            }
        }
    }

    /// The most bytes of all files together.
    const TOTAL_MAX: usize = 120_000;

    #[test]
    fn the_console_is_small_and_every_file_of_it_is_served() {
        let total: usize = ASSETS.iter().map(|asset| asset.content().len()).sum();
        assert!(total <= TOTAL_MAX, "{total} bytes");
        let on_disk = std::fs::read_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/ui")).expect("the sources");
        let mut on_disk: Vec<String> =
            on_disk.map(|entry| entry.expect("readable").file_name().into_string().expect("UTF-8")).collect();
        let mut served: Vec<&str> = ASSETS.iter().map(|asset| asset.name).collect();
        on_disk.sort();
        served.sort_unstable();
        assert_eq!(on_disk, served);
    }

    /// Nothing inline, no text that becomes markup, and nothing from elsewhere.
    #[test]
    fn no_file_needs_more_than_the_policy_allows() {
        for asset in ASSETS {
            let content = asset.content();
            let text = std::str::from_utf8(&content).expect("text");
            for forbidden in [
                "innerHTML",
                "outerHTML",
                "insertAdjacentHTML",
                "document.write",
                "eval(",
                "new Function",
                " style=\"",
                "onclick=",
                "<style",
                "javascript:",
            ] {
                assert!(!text.contains(forbidden), "{}: {forbidden}", asset.name);
            }
            for url in text.split("http").skip(1) {
                let is_url = url.starts_with("://") || url.starts_with("s://");
                assert!(
                    !is_url || url.starts_with("://www.w3.org/2000/svg"),
                    "{}: http{:.40}",
                    asset.name,
                    url
                );
            }
        }
    }
}
