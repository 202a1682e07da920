//! Every call: its path, its handler and its description. Router and `/openapi.json` are both built from this list.

use api::Code::{
    self, AlreadyHeld, Deadlock, DocumentTooLarge, Draining, EtagMismatch, FencingMismatch, Forbidden,
    InvalidJson, InvalidKey, InvalidRange, InvalidState, InvalidTtl, LeaseExpired, LeaseRevoked, MissingKey,
    MissingLeaseId, NotFound, NotHeld, QuotaExceeded, Retired, StaleEpoch, Throttled, VersionConflict,
    Waiting,
};
use api::{agents, header, history, path, requests, responses, schema_types};
use utoipa::openapi::link::LinkBuilder;
use utoipa::openapi::schema::{AllOfBuilder, ArrayBuilder, ObjectBuilder, Schema, Type};
use utoipa::openapi::{ContentBuilder, HeaderBuilder, Ref, RefOr, Required, ResponseBuilder};

use crate::handlers::{
    acquire, agents as agent_calls, bulk, contention as contention_calls, events, hand_over, health,
    history as history_calls, holder, manifest, operator, read, reload, views as view_calls, write,
};
use crate::http::openapi::{self, ApiCall, HeaderEtag, HeaderEventId, HeaderNumber, anything, json, number};

/// Why a credential is not, or no longer, valid.
const INVALID_CREDENTIAL: [Code; 6] = [NotHeld, LeaseExpired, LeaseRevoked, StaleEpoch, NotFound, Retired];

/// All calls.
pub(crate) fn all() -> Vec<ApiCall> {
    [leases(), agents(), contention(), documents(), views(), operators(), server_acts(), server()]
        .into_iter()
        .flatten()
        .collect()
}

fn leases() -> Vec<ApiCall> {
    vec![
        acquire_call(),
        ApiCall::post(path::ACTIVATE, holder::activate)
            .named("leases", "activate", "Make a reserved lease active")
            .body::<requests::Holder>()
            .changes()
            .returns::<responses::Extended>("The lease is active. Its deadline is unchanged.")
            .refuses(&INVALID_CREDENTIAL)
            .refuses(&[InvalidKey, InvalidState]),
        ApiCall::post(path::KEEPALIVE, holder::keepalive)
            .named("leases", "keepalive", "Extend a lease")
            .described("Never shortens a lease and never revives an expired one.")
            .body::<requests::Keepalive>()
            .changes()
            .returns::<responses::Extended>("The lease's deadline after the call.")
            .refuses(&INVALID_CREDENTIAL)
            .refuses(&[InvalidKey, InvalidTtl, InvalidState]),
        ApiCall::post(path::RELEASE, holder::release)
            .named("leases", "release", "Release a lease")
            .described("May be repeated: the last credential of an ended lease gets the same response.")
            .body::<requests::Holder>()
            .changes()
            .returns::<responses::Released>("The lease is released, by this call or earlier.")
            .refuses(&[InvalidKey, NotHeld, StaleEpoch, NotFound]),
        ApiCall::post("/v1/leases/{id}/rebind", acquire::rebind)
            .named("leases", "rebind", "Rebind an expired lease that is on hold")
            .described(
                "For leases with `on_expiry` of `hold_ms` or `manual`, once after each expiry. The response has a new credential \
                 and a new fencing token.",
            )
            .of_lease()
            .body::<requests::Holder>()
            .changes()
            .returns::<responses::Granted>("The lease is held again.")
            .refuses(&INVALID_CREDENTIAL)
            .refuses(&[InvalidKey, InvalidState, QuotaExceeded]),
        ApiCall::post("/v1/leases/{id}/touch", holder::touch)
            .named("leases", "touch", "Record use of a lease")
            .described("Only matters under a quota with `idle_ms`. Commits count as use, keepalives do not.")
            .of_lease()
            .body::<requests::Holder>()
            .changes()
            .returns::<responses::Extended>("The lease's deadline after the call.")
            .refuses(&INVALID_CREDENTIAL)
            .refuses(&[InvalidKey, InvalidState]),
    ]
}

fn acquire_call() -> ApiCall {
    let state = ObjectBuilder::new()
        .property("state", anything())
        .description(Some("With `include_state=1`: `state` is the document; missing if there is none."));
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
    let call = ApiCall::post(path::ACQUIRE, acquire::acquire)
        .named("leases", "acquire", "Acquire a lease")
        .described(
            "Over one key, or over several resources, all or none. With `block_seconds` a blocked request waits in a fair queue. \
             A refusal with `attempt_id` keeps the place in that queue: send it with the next try of the same request, within the server's \
             `acquire-block` and 15 s, also after a restart of the server. To have one when the connection breaks, send the request \
             once without `block_seconds` first. Keep `lease_id`: every call under the lease needs it.",
        )
        .query::<acquire::AcquireQuery>()
        .body::<requests::Acquire>()
        .changes()
        .with::<responses::Granted>()
        .response_with(200, json(RefOr::T(Schema::AllOf(granted))).description("The lease is granted."))
        .refuses(&[InvalidKey, InvalidTtl, MissingKey, Forbidden, LeaseExpired, LeaseRevoked])
        .refuses(&[Waiting, Deadlock, AlreadyHeld, QuotaExceeded]);
    links.into_iter().fold(call, |call, (name, link)| call.links_to(name, link))
}

fn agents() -> Vec<ApiCall> {
    vec![
        ApiCall::post(path::MANIFEST, manifest::manifest)
            .named("agents", "manifest", "Declare all resources that an agent intends to use")
            .described(
                "Grants one lease over all of them, or returns a verdict on what to do instead. Retry with the same `attempt_id`: an \
                 attempt's age counts from its first try, and the oldest attempt is never blocked forever.",
            )
            .body::<agents::Manifest>()
            .changes()
            .with::<agents::Intent>()
            .with::<schema_types::AttemptId>()
            .with::<schema_types::Directory>()
            .with::<schema_types::Reason>()
            .with::<schema_types::Predicate>()
            .with::<schema_types::ResourceText>()
            .with::<agents::Verdict>()
            .with::<agents::ConflictingLease>()
            .with::<responses::Granted>()
            .returns::<agents::ManifestOutcome>("The verdict, with the lease if it is granted.")
            .refuses(&[InvalidKey, InvalidTtl, Forbidden, AlreadyHeld]),
        bulk_call::<agents::Bulk>(ApiCall::post(path::HEARTBEAT, bulk::heartbeat))
            .named("agents", "heartbeat", "Extend several leases")
            .response_with(200, results::<agents::BulkResult>("One result for each lease, in order."))
            .with::<agents::BulkResult>(),
        bulk_call::<agents::Bulk>(ApiCall::post(path::RELEASE_ALL, bulk::release))
            .named("agents", "release_all", "Release several leases")
            .response_with(200, results::<agents::BulkResult>("One result for each lease, in order."))
            .with::<agents::BulkResult>(),
        bulk_call::<agents::Reconcile>(ApiCall::post(path::RECONCILE, bulk::reconcile))
            .named("agents", "reconcile", "Read the current state of several leases")
            .response_with(200, results::<agents::ReconciledLease>("The current state of each lease, in order."))
            .with::<responses::Lease>()
            .with::<responses::Member>()
            .with::<responses::Granted>()
            .with::<agents::ReconciledLease>(),
        ApiCall::get(path::AGENTS, agent_calls::agents)
            .named("agents", "agents", "List the agents of a namespace")
            .query::<agent_calls::AgentsQuery>()
            .reads()
            .with::<agents::Agent>()
            .with::<agents::AgentState>()
            .returns::<agents::Agents>("One page of the list.")
            .refuses(&[InvalidKey, Forbidden]),
        ApiCall::post("/v1/agents/{id}/state", agent_calls::set_state)
            .named("agents", "set_agent", "Set the state of an agent")
            .of_agent()
            .body::<agents::SetAgent>()
            .changes()
            .with::<agents::AgentState>()
            .returns::<agents::Agent>("The agent, updated.")
            .refuses(&[InvalidKey, Forbidden, NotFound]),
    ]
}

fn contention() -> Vec<ApiCall> {
    vec![
        ApiCall::get("/v1/resource/{resource}/state", contention_calls::resource)
            .named("agents", "resource_state", "Read the leases and waiters of a resource")
            .of_resource()
            .query::<contention_calls::ContentionQuery>()
            .reads()
            .with::<responses::Lease>()
            .with::<responses::Member>()
            .with::<schema_types::ResourceCondition>()
            .returns::<agents::ResourceState>("The state of the resource now.")
            .refuses(&[InvalidKey, Forbidden]),
        ApiCall::get("/v1/resource/{resource}/history", history_calls::history)
            .named("agents", "resource_history", "Read the recent history of a resource")
            .described(
                "Goes back one hour, or to `since_unix_ms`: the server keeps it in memory, bounded in bytes for each resource \
                 and in all. Requests that met a conflict are listed under the first 8 resources that they conflicted on.",
            )
            .of_resource()
            .query::<history_calls::HistoryQuery>()
            .reads()
            .with::<history::HistoryEntry>()
            .with::<history::HistoryLimit>()
            .returns::<history::History>("The recent history of the resource.")
            .refuses(&[InvalidKey, Forbidden]),
        ApiCall::get(path::CONTENTION, contention_calls::contention)
            .named("agents", "contention", "List waiters and recent contention")
            .query::<contention_calls::WaitersQuery>()
            .reads()
            .with::<agents::Victim>()
            .with::<agents::Waiting>()
            .with::<agents::ConflictingLease>()
            .with::<agents::Hotspot>()
            .with::<agents::Timeouts>()
            .with::<requests::Resource>()
            .returns::<agents::Contention>("Current waiters and recent contention.")
            .refuses(&[InvalidKey, Forbidden]),
        ApiCall::get(path::EVENTS, events::events)
            .named("agents", "events", "Stream events as they happen")
            .query::<events::EventsQuery>()
            .with::<schema_types::EventId>()
            .header::<HeaderEventId>(
                "Last-Event-ID",
                Required::False,
                "Resume behind this event, if the server still has it; otherwise the stream starts with a `reset`.",
            )
            .reads()
            .with::<schema_types::SentEvent>()
            .with::<schema_types::EventName>()
            .with::<agents::Event>()
            .response_with(200, stream::<schema_types::SentEvent>("Server-sent events, until either side closes the connection."))
            .refuses(&[InvalidKey, Forbidden, Draining, Throttled]),
    ]
}

/// A stream of `T`.
fn stream<T: utoipa::ToSchema>(what: &str) -> ResponseBuilder {
    let each = ContentBuilder::new().schema(Some(Ref::from_schema_name(T::name()))).build();
    ResponseBuilder::new().description(what).content("text/event-stream", each)
}

/// One `T` for each lease, in order.
fn results<T: utoipa::ToSchema>(what: &str) -> ResponseBuilder {
    let each = ArrayBuilder::new().items(Ref::from_schema_name(T::name()));
    let all = ObjectBuilder::new().property("results", each).required("results");
    json(RefOr::T(Schema::Object(all.build()))).description(what)
}

/// A call for several leases, each with its own result.
fn bulk_call<T: utoipa::ToSchema>(call: ApiCall) -> ApiCall {
    call.body::<T>()
        .described("Up to 10,000 credentials in a body of at most 2 MiB. Each has its own result, in order.")
        .changes()
        .refuses(&[InvalidKey, Forbidden, NotFound])
}

fn documents() -> Vec<ApiCall> {
    let reading = "Needs the credential of a lease that covers the key; or, with `public=1`, only the right to public reads.";
    vec![
        reads_more(ApiCall::get(path::GET_STATE, read::get))
            .named("documents", "read_state", "Read a document")
            .described(reading),
        reads(ApiCall::post(path::GET_STATE, read::get))
            .named("documents", "get_state", "Read a document")
            .described(reading),
        updates(path::UPDATE_STATE).named("documents", "update_state", "Commit a document"),
        removes(path::REMOVE_STATE).named("documents", "remove_state", "Remove a document"),
        reads_more(ApiCall::get("/v1/get-state", read::get))
            .named("documents", "read_state_dashed", "Old spelling of `/v1/get_state`")
            .deprecated(),
        reads(ApiCall::post("/v1/get-state", read::get))
            .named("documents", "get_state_dashed", "Old spelling of `/v1/get_state`")
            .deprecated(),
        updates("/v1/update-state")
            .named("documents", "update_state_dashed", "Old spelling of `/v1/update_state`")
            .deprecated(),
        removes("/v1/remove-state")
            .named("documents", "remove_state_dashed", "Old spelling of `/v1/remove_state`")
            .deprecated(),
    ]
}

/// GET adds ranges and conditional reads.
fn reads_more(call: ApiCall) -> ApiCall {
    let etag = || HeaderBuilder::new().schema(Some(ObjectBuilder::new().schema_type(Type::String))).build();
    let text = || ObjectBuilder::new().schema_type(Type::String);
    let range = HeaderBuilder::new()
        .schema(Some(text()))
        .description(Some("The range that was sent, and the total length."))
        .build();
    // A part of a document is not JSON.
    let part = ResponseBuilder::new()
        .description("The requested range of the document.")
        .header("Content-Range", range);
    let part = part.header("ETag", etag()).content("application/json", ContentBuilder::new().build());
    let known = ResponseBuilder::new()
        .description("The document matches a tag in `If-None-Match`.")
        .header("ETag", etag());
    reads(call)
        .header::<String>("If-None-Match", Required::False, "Tags of versions that the client already has.")
        .header::<String>("Range", Required::False, "One range of bytes, as in `bytes=0-99`.")
        .header::<String>(
            "If-Range",
            Required::False,
            "Apply `Range` only to the version with this tag; send the complete document of any other.",
        )
        .response_with(206, part)
        .response_with(304, known)
        .refuses(&[InvalidRange])
}

fn reads(call: ApiCall) -> ApiCall {
    let version = || number("Version of the key.");
    let etag = HeaderBuilder::new().schema(Some(ObjectBuilder::new().schema_type(Type::String)));
    let document = json(anything())
        .description("The document of the key.")
        .header("ETag", etag.description(Some("Hash of the document, in quotes.")).build())
        .header("X-Key-Version", version());
    let nothing =
        ResponseBuilder::new().description("The key has no document.").header("X-Key-Version", version());
    call.compressed()
        .query::<read::ReadQuery>()
        .header::<schema_types::Credential>(header::LEASE_ID, Required::False, "Credential of the lease.")
        .reads()
        .response_with(200, document)
        .response_with(204, nothing)
        .refuses(&INVALID_CREDENTIAL)
        .refuses(&[InvalidKey, MissingKey, MissingLeaseId, Forbidden])
}

fn updates(path: &'static str) -> ApiCall {
    writes(ApiCall::post(path, write::update))
        .described(
            "Atomic: lease, token and conditions are checked in the same log record that commits the document. A body that is \
             invalid, too long or cut off has no effect.",
        )
        .document()
        .returns::<responses::Committed>("The document is committed.")
        .refuses(&[InvalidJson, DocumentTooLarge])
}

fn removes(path: &'static str) -> ApiCall {
    writes(ApiCall::post(path, write::remove))
        .described("If there is no document, `removed` is false and the version is unchanged.")
        .returns::<responses::Removed>("The document is removed, or there was none.")
}

fn writes(call: ApiCall) -> ApiCall {
    call.query::<write::WriteQuery>()
        .header::<schema_types::Credential>(header::LEASE_ID, Required::True, "Credential of the lease.")
        .header::<HeaderNumber>(
            header::FENCING_TOKEN,
            Required::False,
            "Reject the request unless this is the lease's fencing token.",
        )
        .header::<HeaderNumber>(
            header::IF_VERSION,
            Required::False,
            "Reject the request unless the key has this version.",
        )
        .header::<HeaderEtag>(
            header::IF_STATE_ETAG,
            Required::False,
            "Reject the request unless the document has this hash; empty requires that there is none.",
        )
        .changes()
        .refuses(&INVALID_CREDENTIAL)
        .refuses(&[InvalidKey, MissingKey, MissingLeaseId, Forbidden])
        .refuses(&[FencingMismatch, VersionConflict, EtagMismatch, InvalidState])
}

fn views() -> Vec<ApiCall> {
    vec![
        ApiCall::get(path::DESCRIBE, view_calls::describe)
            .named("views", "describe", "Describe a key")
            .described("Lease and document metadata, without the document and without credentials.")
            .query::<view_calls::DescribeQuery>()
            .reads()
            .returns::<responses::Described>("The state of the key.")
            .refuses(&[InvalidKey, MissingKey, Forbidden, NotFound]),
        ApiCall::get(path::KEYS, view_calls::keys)
            .named("views", "keys", "List the keys of a namespace that have a document")
            .described("Sorted by name. Paged: repeat with `cursor` from the response until it has none.")
            .query::<view_calls::KeysQuery>()
            .reads()
            .with::<responses::StoredKey>()
            .returns::<responses::Keys>("One page of the list.")
            .refuses(&[InvalidKey, Forbidden]),
        ApiCall::get(path::LEASES, view_calls::leases)
            .named("views", "leases", "List all leases that the caller may see")
            .described("Paged: repeat with `cursor` from the response until it has none.")
            .query::<view_calls::LeasesQuery>()
            .reads()
            .returns::<responses::Leases>("One page of the list.")
            .refuses(&[InvalidKey, Forbidden]),
        ApiCall::get("/v1/leases/{id}", view_calls::lease)
            .named("views", "lease", "Read one lease")
            .described("Also after its end, until its history is removed.")
            .of_lease()
            .reads()
            .returns::<responses::Lease>("Public view of the lease.")
            .refuses(&[NotFound, Retired]),
        ApiCall::get(path::FENCE, view_calls::fence)
            .named("views", "fence", "Check whether a fencing token is current")
            .described("Valid at the time of the response only; it cannot replace a check at the resource.")
            .query::<view_calls::FenceQuery>()
            .reads()
            .returns::<responses::Fence>("Whether the token is current.")
            .refuses(&[InvalidKey, MissingKey, Forbidden]),
        ApiCall::get(path::NAMESPACES, view_calls::namespaces)
            .named("views", "namespaces", "List all namespaces that the caller may see")
            .described("Paged: repeat with `cursor` from the response until it has none.")
            .query::<view_calls::NamespacesQuery>()
            .reads()
            .returns::<responses::Namespaces>("One page of the list."),
        ApiCall::get(path::WHOAMI, history_calls::whoami)
            .named("views", "whoami", "Read the caller's own identity, role and rights")
            .with::<history::CallerRights>()
            .returns::<history::Caller>("The caller as the server knows it."),
    ]
}

fn operators() -> Vec<ApiCall> {
    vec![
        ApiCall::post("/v1/leases/{id}/revoke", operator::revoke_lease)
            .named("operators", "revoke_lease", "Revoke a lease")
            .described("The holder loses its authority. The resources stay blocked until the lease is reclaimed.")
            .of_lease()
            .changes()
            .returns::<responses::Lease>("The lease after the call.")
            .refuses(&[Forbidden, NotFound, Retired, InvalidState]),
        ApiCall::post("/v1/leases/{id}/reclaim", operator::reclaim_lease)
            .named("operators", "reclaim_lease", "Free the resources of a revoked lease")
            .of_lease()
            .changes()
            .returns::<responses::Lease>("The lease after the call.")
            .refuses(&[Forbidden, NotFound, Retired, InvalidState]),
        ApiCall::post(path::REVOKE, operator::revoke)
            .named("operators", "revoke", "Revoke all leases of an identity or an agent")
            .body::<requests::Party>()
            .changes()
            .returns::<responses::RevokedAll>("The number of revoked leases.")
            .refuses(&[InvalidKey, Forbidden]),
        ApiCall::post(path::PAUSE, operator::pause)
            .named("operators", "pause", "Pause or resume the grants of an identity or an agent")
            .body::<requests::Pause>()
            .changes()
            .returns::<responses::Done>("The change was applied.")
            .refuses(&[InvalidKey, Forbidden, NotFound]),
        ApiCall::delete("/v1/namespaces/{name}", operator::delete_namespace)
            .named("operators", "delete_namespace", "Delete a namespace and all its data")
            .described("Refused while any lease is held in it. Nothing is granted in it during the deletion. May be repeated.")
            .of_namespace()
            .changes()
            .returns::<responses::Done>("The namespace is deleted, by this call or earlier.")
            .refuses(&[InvalidKey, Forbidden, InvalidState]),
        ApiCall::get(path::QUOTAS, operator::quotas)
            .named("operators", "quotas", "List all quotas")
            .described("Paged: repeat with `cursor` from the response until it has none.")
            .query::<operator::QuotasQuery>()
            .reads()
            .returns::<responses::Quotas>("One page of the list.")
            .refuses(&[Forbidden]),
        ApiCall::put(path::QUOTAS, operator::set_quota)
            .named("operators", "set_quota", "Set the quota of a scope")
            .described(
                "Replaces the scope's quota: a missing limit is unlimited. `paused` pauses or resumes the scope as `POST \
                 /v1/pause` does; if missing, that is unchanged. An entry that `GET` returns is accepted, and restores that \
                 entry.",
            )
            .body::<requests::Quota>()
            .changes()
            .returns::<responses::Done>("The change was applied.")
            .refuses(&[InvalidKey, Forbidden]),
    ]
}

/// What operators do with the server itself.
fn server_acts() -> Vec<ApiCall> {
    vec![
        ApiCall::post(path::HAND_OVER, hand_over::hand_over)
            .named("operators", "hand_over", "Hand shards over to another server")
            .described(
                "For stores in a bucket that several servers use. Returns when the server no longer owns the shards; requests \
                 for them wait for the next owner. A shard of another server is handed over by that server.",
            )
            .body::<requests::HandOver>()
            .returns::<responses::HandedOver>("The shards are handed over.")
            .refuses(&[Forbidden, InvalidState, NotFound, Code::Moved, Code::Unavailable]),
        ApiCall::post(path::RELOAD, reload::reload)
            .named("operators", "reload", "Reload the server's identity file and denylist")
            .described(
                "Only on the Unix socket. When the call returns, revoked certificates are refused everywhere: their \
                 connections are closed, their waiters dismissed. A refused reload changes nothing.",
            )
            .returns::<responses::Reloaded>("The files are in use.")
            .refuses(&[Forbidden, InvalidState]),
    ]
}

fn server() -> Vec<ApiCall> {
    let text = ObjectBuilder::new().schema_type(Type::String);
    let text = ContentBuilder::new().schema(Some(text)).build();
    let object = ObjectBuilder::new().schema_type(Type::Object).into();
    vec![
        ApiCall::get("/healthz", health::healthz)
            .named("server", "healthz", "Check that the server is alive")
            .response_with(
                200,
                ResponseBuilder::new()
                    .description("The server is alive.")
                    .content("text/plain", text.clone()),
            ),
        ApiCall::get("/readyz", health::readyz)
            .named("server", "readyz", "Check that the server can grant leases durably")
            .returns::<responses::Ready>("The server is ready.")
            .returns_status::<responses::Ready>(503, "The server is not ready."),
        ApiCall::get("/metrics", health::metrics)
            .named("server", "metrics", "Metrics for Prometheus")
            .response_with(
                200,
                ResponseBuilder::new()
                    .description("Metrics in OpenMetrics text format.")
                    .content("application/openmetrics-text", text),
            ),
        ApiCall::get(openapi::PATH, openapi::serve)
            .named("server", "openapi", "This OpenAPI document")
            .response_with(200, json(object).description("This OpenAPI document.")),
    ]
}
