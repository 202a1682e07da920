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

const POLICY: &str = "default-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; object-src 'none'";

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
    let mut response = match is_known {
        true => StatusCode::NOT_MODIFIED.into_response(),
        false => ([(header::CONTENT_TYPE, asset.content_type)], content.into_owned()).into_response(),
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
    use super::*;

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
        (on_disk.sort(), served.sort_unstable());
        assert_eq!(on_disk, served);
    }

    /// Nothing inline, no text that becomes markup, and nothing from elsewhere.
    #[test]
    fn no_file_needs_more_than_the_policy_allows() {
        for asset in ASSETS {
            let content = asset.content();
            let text = std::str::from_utf8(&content).expect("text");
            for forbidden in
                ["innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "new Function", " style=\"", "onclick=", "<style", "javascript:"]
            {
                assert!(!text.contains(forbidden), "{}: {forbidden}", asset.name);
            }
            for url in text.split("http").skip(1) {
                let is_url = url.starts_with("://") || url.starts_with("s://");
                assert!(!is_url || url.starts_with("://www.w3.org/2000/svg"), "{}: http{:.40}", asset.name, url);
            }
        }
    }
}
