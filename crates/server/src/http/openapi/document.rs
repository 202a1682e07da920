//! Assembles the OpenAPI document from all calls.

use serde_json::Value;
use utoipa::openapi::security::SecurityScheme;
use utoipa::openapi::tag::TagBuilder;
use utoipa::openapi::{
    ComponentsBuilder, InfoBuilder, LicenseBuilder, OpenApiBuilder, Paths, SecurityRequirement,
};

use super::call::ApiCall;
use super::rules;
use crate::backend::shards::RequestLimits;

const ABOUT: &str = "\
A lease authority: it grants leases over named resources, fences holders that have gone stale, and keeps an atomic JSON \
document beside each key.

An acquire returns a `lease_id`, which is a credential, and a `fencing_token`, which only grows. Every call under the lease \
needs the credential. Other systems protect their data by checking the token.

Requests with unknown fields or unknown query parameters are refused. Later versions may add fields to responses: ignore \
unknown ones. Every error response has the same shape: `error` is a code for programs, `detail` is for people. An unknown \
path returns 404 `not_found`, an unsupported method 405 `method_not_allowed` with `Allow`.

Clients authenticate with a certificate of the server's CA. A server without mutual TLS treats every client as `anonymous`.";

/// The groups of calls, in reading order.
const TAGS: [(&str, &str); 5] = [
    ("leases", "Acquire, extend and release leases."),
    ("documents", "The JSON document of a key."),
    ("views", "Leases, keys and namespaces, read only."),
    ("operators", "Revoke leases, pause grants, set quotas. Needs the role `operator`."),
    ("server", "The server itself."),
];

/// The serialized document.
pub(crate) fn document(calls: &[ApiCall], settings: &RequestLimits) -> Vec<u8> {
    let mut paths = Paths::new();
    let mut components = ComponentsBuilder::new();
    for call in calls {
        paths.add_path_operation(call.path, vec![call.method.clone()], call.operation());
        components = components.schemas_from_iter(call.schemas.iter().cloned());
    }
    let certificate = SecurityScheme::MutualTls {
        description: Some(
            "A client certificate of the server's CA, created by `lockd auth new client`.".to_string(),
        ),
        deprecated: None,
        extensions: None,
    };
    let none: [&str; 0] = [];
    let license = LicenseBuilder::new().name("MIT OR Apache-2.0").identifier(Some("MIT OR Apache-2.0"));
    let info = InfoBuilder::new()
        .title("lockd")
        .version(env!("CARGO_PKG_VERSION"))
        .description(Some(ABOUT))
        .license(Some(license.build()));
    let whole = OpenApiBuilder::new()
        .info(info)
        .paths(paths)
        .components(Some(components.security_scheme("certificate", certificate).build()))
        .security(Some([SecurityRequirement::new("certificate", none), SecurityRequirement::default()]))
        .tags(Some(TAGS.map(|(name, about)| TagBuilder::new().name(name).description(Some(about)).build())))
        .build();
    let mut whole: Value = serde_json::to_value(&whole).expect("the document serializes");
    rules::add(&mut whole, settings);
    serde_json::to_vec(&whole).expect("the document serializes")
}
