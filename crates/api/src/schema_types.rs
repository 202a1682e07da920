//! The words that requests and answers are made of, as the description of the API spells them out. Only names for
//! schemas: on the wire each is a plain text. Lengths are counted in characters here and in bytes of UTF-8 by the
//! server, which for ASCII is the same.

use utoipa::ToSchema;

macro_rules! words {
    ($($(#[$attribute:meta])* $name:ident,)*) => {$(
        #[derive(ToSchema)]
        $(#[$attribute])*
        pub struct $name(#[expect(dead_code, reason = "a schema has no values")] String);
    )*};
}

words! {
    /// A unit of isolation: what is in one namespace never meets what is in another. 1 to 128 bytes of UTF-8, no control
    /// characters.
    #[schema(min_length = 1, max_length = 128, pattern = r"^[^\u0000-\u001f\u007f-\u009f]+$", examples("default"))]
    Namespace,
    /// The name of a key: 1 to 512 bytes of UTF-8, no control characters. Any other character is data, never a path.
    #[schema(min_length = 1, max_length = 512, pattern = r"^[^\u0000-\u001f\u007f-\u009f]+$", examples("orders"))]
    Key,
    /// The name of a resource: 1 to 512 bytes of UTF-8, no control characters. Names of kind `FILE` are absolute paths;
    /// `*` may be their whole last segment, and means everything beneath.
    #[schema(min_length = 1, max_length = 512, pattern = r"^[^\u0000-\u001f\u007f-\u009f]+$", examples("orders"))]
    ResourceName,
    /// The kind of a resource: `KEY`, `FILE`, or any other.
    #[schema(pattern = "^[A-Z][A-Z0-9_]{0,31}$", examples("KEY"))]
    Kind,
    /// Kind and name of a resource in one, as manifests spell it.
    #[schema(max_length = 545, pattern = r"^[A-Z][A-Z0-9_]{0,31}:[^\u0000-\u001f\u007f-\u009f]{1,512}$", examples("FILE:/src/main.rs"))]
    ResourceText,
    /// An absolute path of at most 512 bytes, without `*`. `..` must not lead out of it.
    #[schema(max_length = 512, pattern = r"^/[^\u0000-\u001f*\u007f-\u009f]*$", examples("/src"))]
    Directory,
    /// The name in a certificate. Leases belong to identities.
    #[schema(min_length = 1, max_length = 256, pattern = r"^[^\u0000-\u001f\u007f-\u009f]+$")]
    Identity,
    /// An agent of an identity.
    #[schema(min_length = 1, max_length = 256, pattern = r"^[^\u0000-\u001f\u007f-\u009f]+$")]
    AgentId,
    /// A run of a program.
    #[schema(min_length = 1, max_length = 256, pattern = r"^[^\u0000-\u001f\u007f-\u009f]+$")]
    SessionId,
    /// Who the holder says it is.
    #[schema(max_length = 256, pattern = r"^[^\u0000-\u001f\u007f-\u009f]*$", examples("worker-1"))]
    Owner,
    /// Up to 1 KiB that the holder attaches to its lease.
    #[schema(min_length = 1, max_length = 1024)]
    Metadata,
    /// A credential: whoever shows it is the holder. Keep it secret.
    #[schema(pattern = r"^L-0{8}[0-9a-f]{8}000[0-9a-f]{13}\.(0|[1-9][0-9]{0,18})\.[A-Za-z0-9_-]{21}[AQgw]$")]
    Credential,
    /// The public name of a lease: anybody may see it, and nothing can be done with it.
    #[schema(pattern = "^L-0{8}[0-9a-f]{8}000[0-9a-f]{13}$")]
    PublicId,
    /// What an agent comes back with, as it was given: how old its attempt is.
    #[schema(pattern = r"^A-[0-9a-f]{32}\.[A-Za-z0-9_-]{21}[AQgw]$")]
    AttemptId,
    /// Why an agent wants something.
    #[schema(min_length = 1, max_length = 256, pattern = r"^[^\u0000-\u001f\u007f-\u009f]+$")]
    Reason,
    /// An event's place: the record, which of its events, and the shard where it is not the first.
    #[schema(pattern = r"^[0-9]{1,19}\.[0-9]{1,9}(\.[0-9]{1,9})?$", examples("1794700000000000.0"))]
    EventId,
    /// The hash of a document.
    #[schema(pattern = "^[0-9a-f]{64}$")]
    Etag,
    /// The hash of a document; empty if there is none.
    #[schema(pattern = "^([0-9a-f]{64})?$")]
    EtagOrNone,
}

/// An event as it stands in the stream: a line for each field.
#[derive(ToSchema)]
#[expect(dead_code, reason = "a schema has no values")]
pub struct SentEvent {
    /// Where it stands: to go on behind it, as `Last-Event-ID`. A `reset` has none.
    #[schema(value_type = Option<EventId>)]
    id: Option<String>,
    event: EventName,
    /// An `Event`; of a `reset`, an empty object.
    #[schema(content_media_type = "application/json")]
    data: String,
}

/// What happened.
#[derive(ToSchema)]
#[schema(rename_all = "snake_case")]
pub enum EventName {
    /// Somebody has a lease now.
    Granted,
    /// A lease was given back.
    Released,
    /// A lease ran out.
    Expired,
    /// A lease was withdrawn.
    Revoked,
    /// What a withdrawn lease still held is free.
    Reclaimed,
    /// A document was written or removed.
    Committed,
    /// Others were in the way of somebody.
    Contention,
    /// Events were lost: whoever needs to know reads again how things stand.
    Reset,
}

/// What a holder does with a resource. `CONSUMES`, `DEPENDS_ON` and `PROVIDES` go together, but not `PROVIDES` twice;
/// the others go with nothing.
#[derive(ToSchema)]
#[schema(rename_all = "SCREAMING_SNAKE_CASE")]
pub enum Predicate {
    /// Makes it.
    Provides,
    /// Reads it.
    Consumes,
    /// Changes it.
    Mutates,
    /// Removes it.
    Deletes,
    /// Needs it to stay.
    DependsOn,
    /// Gives it another name.
    Renames,
}

/// Where a lease is in its life.
#[derive(ToSchema)]
#[schema(rename_all = "snake_case")]
pub enum State {
    /// Held, and not yet activated.
    Reserved,
    /// Held.
    Active,
    /// Given back.
    Released,
    /// Ran out.
    Expired,
    /// Without authority, and its resources are not free yet.
    Revoking,
    /// Withdrawn, and its resources are free.
    Revoked,
}
