//! Every call: its path, what answers it, and its description. Router and `/openapi.json` are both made from this list.

use api::Code::{
    self, AlreadyHeld, Deadlock, DocumentTooLarge, Draining, EtagMismatch, FencingMismatch, Forbidden,
    InvalidJson, InvalidKey, InvalidRange, InvalidState, InvalidTtl, LeaseExpired, LeaseRevoked, MissingKey,
    MissingLeaseId, NotFound, NotHeld, QuotaExceeded, Retired, StaleEpoch, Throttled, VersionConflict,
    Waiting,
};
use api::{agents, ask, header, path, tell, words};
use utoipa::openapi::link::LinkBuilder;
use utoipa::openapi::schema::{AllOfBuilder, ArrayBuilder, ObjectBuilder, Schema, Type};
use utoipa::openapi::{ContentBuilder, HeaderBuilder, Ref, RefOr, Required, ResponseBuilder};

use crate::handlers::acquire;
use crate::handlers::agents as parties;
use crate::handlers::bulk;
use crate::handlers::contention;
use crate::handlers::events;
use crate::handlers::health;
use crate::handlers::holder;
use crate::handlers::manifest;
use crate::handlers::operator;
use crate::handlers::read;
use crate::handlers::views;
use crate::handlers::write;
use crate::http::openapi;
use crate::http::openapi::{Call, HeaderEtag, HeaderEventId, HeaderNumber, anything, json, number};

/// Why a credential is worth nothing, or nothing any more.
const NOT_YOURS: [Code; 6] = [NotHeld, LeaseExpired, LeaseRevoked, StaleEpoch, NotFound, Retired];

/// All of them.
pub(crate) fn all() -> Vec<Call> {
    [leases(), agents(), contended(), documents(), looks(), operators(), server()]
        .into_iter()
        .flatten()
        .collect()
}

fn leases() -> Vec<Call> {
    vec![
        acquire_call(),
        Call::post(path::ACTIVATE, holder::activate)
            .named("leases", "activate", "Make a reserved lease active")
            .body::<ask::Holder>()
            .changes()
            .tells::<tell::Extended>("It is active. Its deadline is as it was.")
            .refuses(&NOT_YOURS)
            .refuses(&[InvalidKey, InvalidState]),
        Call::post(path::KEEPALIVE, holder::keepalive)
            .named("leases", "keepalive", "Extend a lease")
            .at_length("Never shortens, and never revives a lease that ran out.")
            .body::<ask::Keepalive>()
            .changes()
            .tells::<tell::Extended>("It lasts until then.")
            .refuses(&NOT_YOURS)
            .refuses(&[InvalidKey, InvalidTtl, InvalidState]),
        Call::post(path::RELEASE, holder::release)
            .named("leases", "release", "Give a lease back")
            .at_length("May be repeated: whoever shows the last credential of a lease that is over is told the same.")
            .body::<ask::Holder>()
            .changes()
            .tells::<tell::Released>("It is given back, now or before.")
            .refuses(&[InvalidKey, NotHeld, StaleEpoch, NotFound]),
        Call::post("/v1/leases/{id}/rebind", acquire::rebind)
            .named("leases", "rebind", "Take a lease back that ran out and is on hold")
            .at_length(
                "For leases with `on_expiry` of `hold_ms` or `manual`, once for each time that they run out. \
                 The answer has a new credential and a new fencing token.",
            )
            .of_lease()
            .body::<ask::Holder>()
            .changes()
            .tells::<tell::Granted>("It is yours again.")
            .refuses(&NOT_YOURS)
            .refuses(&[InvalidKey, InvalidState, QuotaExceeded]),
        Call::post("/v1/leases/{id}/touch", holder::touch)
            .named("leases", "touch", "Say that a lease is in use")
            .at_length("Only matters under a quota on idle leases. Commits count as use, keepalives do not.")
            .of_lease()
            .body::<ask::Holder>()
            .changes()
            .tells::<tell::Extended>("It lasts until then.")
            .refuses(&NOT_YOURS)
            .refuses(&[InvalidKey, InvalidState]),
    ]
}

fn acquire_call() -> Call {
    let state = ObjectBuilder::new()
        .property("state", anything())
        .description(Some("With `include_state=1`: the document; missing if there is none."));
    let granted = AllOfBuilder::new().item(Ref::from_schema_name("Granted")).item(state).build();
    let credential = "$response.body#/lease_id";
    let body =
        |name| (name, LinkBuilder::new().request_body(Some(serde_json::json!({"lease_id": credential}))));
    let of_lease = |name| (name, LinkBuilder::new().parameter("path.id", "$response.body#/public_id"));
    let both =
        |name| (name, of_lease(name).1.request_body(Some(serde_json::json!({"lease_id": credential}))));
    let links = [
        body("activate"),
        body("keepalive"),
        body("release"),
        both("rebind"),
        both("touch"),
        of_lease("lease"),
        of_lease("revoke_lease"),
        of_lease("reclaim_lease"),
    ];
    let call = Call::post(path::ACQUIRE, acquire::acquire)
        .named("leases", "acquire", "Take a lease")
        .at_length(
            "Over one key, or over several resources, all or none. Who is in the way is waited for, in turn, for up to \
             `block_seconds`. Keep `lease_id`: it is shown with everything that is done under the lease.",
        )
        .query::<acquire::AcquireQuery>()
        .body::<ask::Acquire>()
        .changes()
        .with::<tell::Granted>()
        .answers(200, json(RefOr::T(Schema::AllOf(granted))).description("It is yours."))
        .refuses(&[InvalidKey, InvalidTtl, MissingKey, Forbidden, LeaseExpired, LeaseRevoked])
        .refuses(&[Waiting, Deadlock, AlreadyHeld, QuotaExceeded]);
    links.into_iter().fold(call, |call, (name, link)| call.leads_to(name, link))
}

fn agents() -> Vec<Call> {
    vec![
        Call::post(path::MANIFEST, manifest::manifest)
            .named("agents", "manifest", "Declare all that an agent will touch")
            .at_length(
                "One lease over all of it, or a verdict on what to do instead. Come back with the same `attempt_id`: an \
                 attempt is as old as its first try, and the oldest is in nobody's way for ever.",
            )
            .body::<agents::Manifest>()
            .changes()
            .with::<agents::Intent>()
            .with::<words::AttemptId>()
            .with::<words::Directory>()
            .with::<words::Reason>()
            .with::<words::Predicate>()
            .with::<words::ResourceText>()
            .with::<agents::Verdict>()
            .with::<agents::InTheWay>()
            .with::<tell::Granted>()
            .tells::<agents::Judged>("What to do next.")
            .refuses(&[InvalidKey, InvalidTtl, Forbidden, AlreadyHeld]),
        bulk_call::<agents::Bulk>(Call::post(path::HEARTBEAT, bulk::heartbeat))
            .named("agents", "heartbeat", "Extend several leases")
            .answers(200, results::<agents::BulkResult>("What came of each."))
            .with::<agents::BulkResult>(),
        bulk_call::<agents::Bulk>(Call::post(path::RELEASE_ALL, bulk::release))
            .named("agents", "release_all", "Give several leases back")
            .answers(200, results::<agents::BulkResult>("What came of each."))
            .with::<agents::BulkResult>(),
        bulk_call::<agents::Reconcile>(Call::post(path::RECONCILE, bulk::reconcile))
            .named("agents", "reconcile", "What is true of several leases, whatever their holder believes")
            .answers(200, results::<agents::Reconciled>("What is true of each."))
            .with::<tell::Lease>()
            .with::<tell::Member>()
            .with::<tell::Granted>()
            .with::<agents::Reconciled>(),
        Call::get(path::AGENTS, parties::agents)
            .named("agents", "agents", "The agents of a namespace")
            .query::<parties::AgentsQuery>()
            .reads()
            .with::<agents::Agent>()
            .with::<agents::AgentState>()
            .tells::<agents::Agents>("A page of them.")
            .refuses(&[InvalidKey, Forbidden]),
        Call::post("/v1/agents/{id}/state", parties::set_state)
            .named("agents", "set_agent", "Say what an agent is doing")
            .of_agent()
            .body::<agents::SetAgent>()
            .changes()
            .with::<agents::AgentState>()
            .tells::<agents::Agent>("It is so now.")
            .refuses(&[InvalidKey, Forbidden, NotFound]),
    ]
}

fn contended() -> Vec<Call> {
    vec![
        Call::get("/v1/resource/{resource}/state", contention::resource)
            .named("agents", "resource_state", "Who holds a resource, and who waits for it")
            .of_resource()
            .query::<contention::ContentionQuery>()
            .reads()
            .with::<tell::Lease>()
            .with::<tell::Member>()
            .tells::<agents::ResourceState>("As it is.")
            .refuses(&[InvalidKey, Forbidden]),
        Call::get(path::CONTENTION, contention::contention)
            .named("agents", "contention", "Who is in whose way")
            .query::<contention::ContentionQuery>()
            .reads()
            .with::<agents::Waiting>()
            .with::<agents::InTheWay>()
            .with::<agents::Hotspot>()
            .with::<agents::Timeouts>()
            .with::<ask::Resource>()
            .tells::<agents::Contention>("Now, and lately.")
            .refuses(&[InvalidKey, Forbidden]),
        Call::get(path::EVENTS, events::events)
            .named("agents", "events", "What happens, as it happens")
            .query::<events::EventsQuery>()
            .with::<words::EventId>()
            .header::<HeaderEventId>(
                "Last-Event-ID",
                Required::False,
                "Go on behind this event, if it is still known.",
            )
            .reads()
            .with::<words::SentEvent>()
            .with::<words::EventName>()
            .with::<agents::Event>()
            .answers(200, stream::<words::SentEvent>("Server-sent events, until either end hangs up."))
            .refuses(&[InvalidKey, Forbidden, Draining, Throttled]),
    ]
}

/// One of these after the other.
fn stream<T: utoipa::ToSchema>(what: &str) -> ResponseBuilder {
    let each = ContentBuilder::new().schema(Some(Ref::from_schema_name(T::name()))).build();
    ResponseBuilder::new().description(what).content("text/event-stream", each)
}

/// One of these for each lease, in order.
fn results<T: utoipa::ToSchema>(what: &str) -> ResponseBuilder {
    let each = ArrayBuilder::new().items(Ref::from_schema_name(T::name()));
    let all = ObjectBuilder::new().property("results", each).required("results");
    json(RefOr::T(Schema::Object(all.build()))).description(what)
}

/// Each lease is answered on its own.
fn bulk_call<T: utoipa::ToSchema>(call: Call) -> Call {
    call.body::<T>()
        .at_length(
            "Up to 10,000 credentials, in a body of at most 2 MiB; each is answered on its own, in order.",
        )
        .changes()
        .refuses(&[InvalidKey, Forbidden, NotFound])
}

fn documents() -> Vec<Call> {
    let reading = "With the credential of a lease that covers the key; or, with `public=1` and the right to it, without.";
    vec![
        reads_more(Call::get(path::GET_STATE, read::get))
            .named("documents", "read_state", "Read a document")
            .at_length(reading),
        reads(Call::post(path::GET_STATE, read::get))
            .named("documents", "get_state", "Read a document")
            .at_length(reading),
        updates(path::UPDATE_STATE).named("documents", "update_state", "Commit a document"),
        removes(path::REMOVE_STATE).named("documents", "remove_state", "Remove a document"),
        reads_more(Call::get("/v1/get-state", read::get))
            .named("documents", "read_state_dashed", "As `/v1/get_state`")
            .deprecated(),
        reads(Call::post("/v1/get-state", read::get))
            .named("documents", "get_state_dashed", "As `/v1/get_state`")
            .deprecated(),
        updates("/v1/update-state")
            .named("documents", "update_state_dashed", "As `/v1/update_state`")
            .deprecated(),
        removes("/v1/remove-state")
            .named("documents", "remove_state_dashed", "As `/v1/remove_state`")
            .deprecated(),
    ]
}

/// By GET, a read may ask for a part, or for nothing if nothing has changed.
fn reads_more(call: Call) -> Call {
    let etag = || HeaderBuilder::new().schema(Some(ObjectBuilder::new().schema_type(Type::String))).build();
    let text = || ObjectBuilder::new().schema_type(Type::String);
    let range =
        HeaderBuilder::new().schema(Some(text())).description(Some("Which part, of how many bytes.")).build();
    // A part of a document is no JSON.
    let part =
        ResponseBuilder::new().description("The part that was asked for.").header("Content-Range", range);
    let part = part.header("ETag", etag()).content("application/json", ContentBuilder::new().build());
    let known = ResponseBuilder::new().description("The reader has this version.").header("ETag", etag());
    reads(call)
        .header::<String>("If-None-Match", Required::False, "Tags of versions that need not be sent again.")
        .header::<String>("Range", Required::False, "One range of bytes, as in `bytes=0-99`.")
        .header::<String>(
            "If-Range",
            Required::False,
            "The tag of the version that the range is of; all of another.",
        )
        .answers(206, part)
        .answers(304, known)
        .refuses(&[InvalidRange])
}

fn reads(call: Call) -> Call {
    let version = || number("The version of the key.");
    let etag = HeaderBuilder::new().schema(Some(ObjectBuilder::new().schema_type(Type::String)));
    let document = json(anything())
        .description("The document.")
        .header("ETag", etag.description(Some("Its hash, in quotes.")).build())
        .header("X-Key-Version", version());
    let nothing = ResponseBuilder::new().description("There is none.").header("X-Key-Version", version());
    call.compressed()
        .query::<read::ReadQuery>()
        .header::<words::Credential>(header::LEASE_ID, Required::False, "The credential.")
        .reads()
        .answers(200, document)
        .answers(204, nothing)
        .refuses(&NOT_YOURS)
        .refuses(&[InvalidKey, MissingKey, MissingLeaseId, Forbidden])
}

fn updates(path: &'static str) -> Call {
    writes(Call::post(path, write::update))
        .at_length(
            "All of it or nothing, in the log record that checks lease, token and conditions. A body that is not JSON, too \
             long or cut off leaves no trace.",
        )
        .document()
        .tells::<tell::Committed>("It is committed.")
        .refuses(&[InvalidJson, DocumentTooLarge])
}

fn removes(path: &'static str) -> Call {
    writes(Call::post(path, write::remove))
        .at_length("Nothing to remove is no error: `removed` is false then, and the version stays.")
        .tells::<tell::Removed>("It is gone.")
}

fn writes(call: Call) -> Call {
    call.query::<write::WriteQuery>()
        .header::<words::Credential>(header::LEASE_ID, Required::True, "The credential.")
        .header::<HeaderNumber>(
            header::FENCING_TOKEN,
            Required::False,
            "Refuse unless this is the lease's fencing token.",
        )
        .header::<HeaderNumber>(
            header::IF_VERSION,
            Required::False,
            "Refuse unless the key has this version.",
        )
        .header::<HeaderEtag>(
            header::IF_STATE_ETAG,
            Required::False,
            "Refuse unless the document has this hash; empty: unless there is none.",
        )
        .changes()
        .refuses(&NOT_YOURS)
        .refuses(&[InvalidKey, MissingKey, MissingLeaseId])
        .refuses(&[FencingMismatch, VersionConflict, EtagMismatch, InvalidState])
}

fn looks() -> Vec<Call> {
    vec![
        Call::get(path::DESCRIBE, views::describe)
            .named("views", "describe", "What is known of a key")
            .at_length("Never its document, never a secret.")
            .query::<views::DescribeQuery>()
            .reads()
            .tells::<tell::Described>("This is known.")
            .refuses(&[InvalidKey, MissingKey, Forbidden, NotFound]),
        Call::get(path::LEASES, views::leases)
            .named("views", "leases", "Every lease that may be seen")
            .at_length("Page by page: ask again with `cursor`, until there is none in the answer.")
            .query::<views::LeasesQuery>()
            .reads()
            .tells::<tell::Leases>("A page of them.")
            .refuses(&[InvalidKey, Forbidden]),
        Call::get("/v1/leases/{id}", views::lease)
            .named("views", "lease", "One lease")
            .at_length("Also after its end, while its history is kept.")
            .of_lease()
            .reads()
            .tells::<tell::Lease>("The lease.")
            .refuses(&[NotFound, Retired]),
        Call::get(path::FENCE, views::fence)
            .named("views", "fence", "Is a fencing token current?")
            .at_length("As of this moment: information, never a guard.")
            .query::<views::FenceQuery>()
            .reads()
            .tells::<tell::Fence>("It is, or it is not.")
            .refuses(&[InvalidKey, MissingKey, Forbidden]),
        Call::get(path::NAMESPACES, views::namespaces)
            .named("views", "namespaces", "All namespaces that may be seen")
            .reads()
            .tells::<tell::Namespaces>("By name."),
    ]
}

fn operators() -> Vec<Call> {
    vec![
        Call::post("/v1/leases/{id}/revoke", operator::revoke_lease)
            .named("operators", "revoke_lease", "Withdraw a lease")
            .at_length("Its holder has no authority any more. Its resources are free once it is reclaimed.")
            .of_lease()
            .changes()
            .tells::<tell::Lease>("What became of it.")
            .refuses(&[Forbidden, NotFound, Retired, InvalidState]),
        Call::post("/v1/leases/{id}/reclaim", operator::reclaim_lease)
            .named("operators", "reclaim_lease", "Free what a withdrawn lease still holds")
            .of_lease()
            .changes()
            .tells::<tell::Lease>("What became of it.")
            .refuses(&[Forbidden, NotFound, Retired, InvalidState]),
        Call::post(path::REVOKE, operator::revoke)
            .named("operators", "revoke", "Withdraw leases of an identity or an agent")
            .body::<ask::Party>()
            .changes()
            .tells::<tell::RevokedAll>("So many were withdrawn.")
            .refuses(&[InvalidKey, Forbidden]),
        Call::post(path::PAUSE, operator::pause)
            .named("operators", "pause", "Stop somebody's grants, or let them go on")
            .body::<ask::Pause>()
            .changes()
            .tells::<tell::Done>("It is so now.")
            .refuses(&[InvalidKey, Forbidden, NotFound]),
        Call::delete("/v1/namespaces/{name}", operator::delete_namespace)
            .named("operators", "delete_namespace", "Delete a namespace, with all that is in it")
            .at_length("Not while anybody holds a lease there. Until it is gone nothing is granted there. May be repeated.")
            .of_namespace()
            .changes()
            .tells::<tell::Done>("It is gone, now or before.")
            .refuses(&[InvalidKey, Forbidden, InvalidState]),
        Call::get(path::QUOTAS, operator::quotas)
            .named("operators", "quotas", "What somebody may use")
            .reads()
            .tells::<tell::Quotas>("By scope.")
            .refuses(&[Forbidden]),
        Call::put(path::QUOTAS, operator::set_quota)
            .named("operators", "set_quota", "Say what somebody may use")
            .at_length("The whole of it: what is missing is not limited there.")
            .body::<ask::Quota>()
            .changes()
            .tells::<tell::Done>("It is so now.")
            .refuses(&[InvalidKey, Forbidden]),
    ]
}

fn server() -> Vec<Call> {
    let text = ObjectBuilder::new().schema_type(Type::String);
    let text = ContentBuilder::new().schema(Some(text)).build();
    let object = ObjectBuilder::new().schema_type(Type::Object).into();
    vec![
        Call::get("/healthz", health::healthz)
            .named("server", "healthz", "Is it alive?")
            .answers(200, ResponseBuilder::new().description("Yes.").content("text/plain", text.clone())),
        Call::get("/readyz", health::readyz)
            .named("server", "readyz", "Can it grant, durably?")
            .tells::<tell::Ready>("It can.")
            .tells_with::<tell::Ready>(503, "It cannot."),
        Call::get("/metrics", health::metrics)
            .named("server", "metrics", "Its figures, for Prometheus")
            .answers(
                200,
                ResponseBuilder::new().description("They.").content("application/openmetrics-text", text),
            ),
        Call::get(openapi::PATH, openapi::serve)
            .named("server", "openapi", "This document")
            .answers(200, json(object).description("It.")),
    ]
}
