//! Named string schemas of the OpenAPI document, with their patterns and limits. On the wire each is a plain string.
//! JSON Schema counts lengths in characters, the server in bytes of UTF-8; for ASCII both are the same.

use utoipa::ToSchema;

macro_rules! string_schemas {
    ($($(#[$attribute:meta])* $name:ident,)*) => {$(
        #[derive(ToSchema)]
        $(#[$attribute])*
        pub struct $name(#[expect(dead_code, reason = "used as a schema only")] String);
    )*};
}

string_schemas! {
    /// Namespace: a unit of isolation; resources in different namespaces never conflict. 1 to 128 bytes of UTF-8, no
    /// control characters.
    #[schema(min_length = 1, max_length = 128, pattern = r"^[^\u0000-\u001f\u007f-\u009f]+$", examples("default"))]
    Namespace,
    /// Name of a key: 1 to 512 bytes of UTF-8, no control characters. Slashes have no special meaning.
    #[schema(min_length = 1, max_length = 512, pattern = r"^[^\u0000-\u001f\u007f-\u009f]+$", examples("orders"))]
    Key,
    /// Name of a resource: 1 to 512 bytes of UTF-8, no control characters. Names of kind `FILE` are absolute paths; `*` as
    /// the last segment covers everything below.
    #[schema(min_length = 1, max_length = 512, pattern = r"^[^\u0000-\u001f\u007f-\u009f]+$", examples("orders"))]
    ResourceName,
    /// Kind of a resource: `KEY`, `FILE`, or any other.
    #[schema(pattern = "^[A-Z][A-Z0-9_]{0,31}$", examples("KEY"))]
    Kind,
    /// Kind and name of a resource, as in `FILE:/src/main.rs`.
    #[schema(max_length = 545, pattern = r"^[A-Z][A-Z0-9_]{0,31}:[^\u0000-\u001f\u007f-\u009f]{1,512}$", examples("FILE:/src/main.rs"))]
    ResourceText,
    /// An absolute path of at most 512 bytes, without `*`. Relative paths must not leave it by `..`.
    #[schema(max_length = 512, pattern = r"^/[^\u0000-\u001f*\u007f-\u009f]*$", examples("/src"))]
    Directory,
    /// Identity: the name in a client certificate. Leases belong to identities.
    #[schema(min_length = 1, max_length = 256, pattern = r"^[^\u0000-\u001f\u007f-\u009f]+$")]
    Identity,
    /// Id of an agent, which belongs to an identity.
    #[schema(min_length = 1, max_length = 256, pattern = r"^[^\u0000-\u001f\u007f-\u009f]+$")]
    AgentId,
    /// Identifies one run of a client.
    #[schema(min_length = 1, max_length = 256, pattern = r"^[^\u0000-\u001f\u007f-\u009f]+$")]
    SessionId,
    /// Display name that the holder gives itself.
    #[schema(max_length = 256, pattern = r"^[^\u0000-\u001f\u007f-\u009f]*$", examples("worker-1"))]
    Owner,
    /// Opaque data that the holder attaches to its lease, up to 1 KiB.
    #[schema(min_length = 1, max_length = 1024)]
    Metadata,
    /// Credential of a lease: its possession proves the holder. Keep it secret.
    #[schema(pattern = r"^L-0{8}[0-9a-f]{8}000[0-9a-f]{13}\.(0|[1-9][0-9]{0,18})\.[A-Za-z0-9_-]{21}[AQgw]$")]
    Credential,
    /// Public id of a lease. It is not secret and grants no authority.
    #[schema(pattern = "^L-0{8}[0-9a-f]{8}000[0-9a-f]{13}$")]
    PublicId,
    /// Opaque id of an attempt: a request and its retries. It carries the place in the queue.
    #[schema(pattern = "^A-[A-Za-z0-9_-]{96}$")]
    AttemptId,
    /// Why an agent needs the resources, for people.
    #[schema(min_length = 1, max_length = 256, pattern = r"^[^\u0000-\u001f\u007f-\u009f]+$")]
    Reason,
    /// Position of an event: log record, index within the record, and the shard if it is not the first.
    #[schema(pattern = r"^[0-9]{1,19}\.[0-9]{1,9}(\.[0-9]{1,9})?$", examples("1794700000000000.0"))]
    EventId,
    /// Hash of a document, in hexadecimal.
    #[schema(pattern = "^[0-9a-f]{64}$")]
    Etag,
    /// Hash of a document, in hexadecimal; empty if there is none.
    #[schema(pattern = "^([0-9a-f]{64})?$")]
    EtagOrNone,
}

/// A server-sent event: one line for each field.
#[derive(ToSchema)]
#[expect(dead_code, reason = "used as a schema only")]
pub struct SentEvent {
    /// Position of the event: send it as `Last-Event-ID` to resume behind it. A `reset` has none.
    #[schema(value_type = Option<EventId>)]
    id: Option<String>,
    event: EventName,
    /// An `Event` as JSON; for a `reset`, an empty object.
    #[schema(content_media_type = "application/json")]
    data: String,
}

/// Type of an event.
#[derive(ToSchema)]
#[schema(rename_all = "snake_case")]
pub enum EventName {
    /// A lease was granted, activated or rebound.
    Granted,
    /// A lease was released.
    Released,
    /// A lease has expired.
    Expired,
    /// A lease was revoked.
    Revoked,
    /// The resources of a revoked or expired lease became free.
    Reclaimed,
    /// A document was committed or removed.
    Committed,
    /// A request was blocked by conflicting leases.
    Contention,
    /// Events were lost: read the current state again.
    Reset,
}

/// What a holder does with a resource. `CONSUMES`, `DEPENDS_ON` and one `PROVIDES` are compatible with each other; the
/// others conflict with everything.
#[derive(ToSchema)]
#[schema(rename_all = "SCREAMING_SNAKE_CASE")]
pub enum Predicate {
    /// Creates the resource.
    Provides,
    /// Reads the resource.
    Consumes,
    /// Changes the resource.
    Mutates,
    /// Removes the resource.
    Deletes,
    /// Needs the resource to stay.
    DependsOn,
    /// Renames the resource.
    Renames,
}

/// Lifecycle state of a lease.
#[derive(ToSchema)]
#[schema(as = State, rename_all = "snake_case")]
pub enum LeaseState {
    /// Held, but not yet activated.
    Reserved,
    /// Held and active.
    Active,
    /// Released by its holder.
    Released,
    /// Expired without a renewal.
    Expired,
    /// Without authority; its resources are still blocked.
    Revoking,
    /// Revoked; its resources are free.
    Revoked,
}

/// Whether a resource can be acquired.
#[derive(ToSchema)]
#[schema(rename_all = "snake_case")]
pub enum ResourceCondition {
    /// No lease overlaps with it.
    Available,
    /// A lease holds it that is not activated yet, and no active one does.
    Reserved,
    /// An active lease holds it.
    Active,
    /// No lease has authority over it, but it is still blocked.
    Revoking,
}
