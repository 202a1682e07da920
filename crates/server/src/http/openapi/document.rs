//! All calls in one document.

use serde_json::Value;
use utoipa::openapi::security::SecurityScheme;
use utoipa::openapi::tag::TagBuilder;
use utoipa::openapi::{
    ComponentsBuilder, InfoBuilder, LicenseBuilder, OpenApiBuilder, Paths, SecurityRequirement,
};

use super::call::Call;
use super::rules;
use crate::backend::shards::Settings;

const ABOUT: &str = "\
A lease authority: it grants leases over named resources, fences holders that have gone stale, and keeps an atomic JSON \
document beside each key.

Whoever acquires gets a `lease_id`, which is a credential, and a `fencing_token`, which only grows. The credential is shown \
with every call under the lease. What other systems keep is safe where they check the token.

Requests with unknown fields or unknown query parameters are refused. Answers may grow new fields: ignore what you do not \
know. Every refusal has the same shape: `error` is a code for programs, `detail` is for people. A path that is not here \
answers 404 `not_found`, another method 405 `method_not_allowed` with `Allow`.

Clients show a certificate of the server's CA. A server without mutual TLS takes everybody for `anonymous`.";

/// What the calls are about, in the order in which a newcomer should read of them.
const TAGS: [(&str, &str); 5] = [
    ("leases", "Take a lease, keep it, give it back."),
    ("documents", "The JSON document beside a key."),
    ("views", "Who holds what."),
    ("operators", "Take leases back, stop grants, set quotas. Needs the role `operator`."),
    ("server", "The server itself."),
];

/// The document, as it is served.
pub(crate) fn document(calls: &[Call], settings: &Settings) -> Vec<u8> {
    let mut paths = Paths::new();
    let mut components = ComponentsBuilder::new();
    for call in calls {
        paths.add_path_operation(call.path, vec![call.method.clone()], call.operation());
        components = components.schemas_from_iter(call.schemas.iter().cloned());
    }
    let certificate = SecurityScheme::MutualTls {
        description: Some("A certificate of the server's CA, made by `lockd auth new client`.".to_string()),
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
    let mut whole: Value = serde_json::to_value(&whole).expect("it can always be written");
    rules::add(&mut whole, settings);
    serde_json::to_vec(&whole).expect("it can always be written")
}
