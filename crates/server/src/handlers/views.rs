//! Views for clients with the right to read: keys, leases, tokens, namespaces.

use std::sync::Arc;

use api::{Code, Refusal, responses, schema_types};
use axum::extract::{Path, State};
use axum::{Extension, Json};
use engine::waiters::Ticket;
use identity::Right;
use kernel::{Bundle, LeaseView, Namespace, Predicate, ResourceName, Shard, Token};
use serde::Deserialize;
use utoipa::IntoParams;

use crate::backend::error::BackendError;
use crate::backend::leases::visible_lease;
use crate::backend::lists::{self, KeyFilter, QUERIES_MAX, RowPosition};
use crate::backend::shards::{Backend, ShardView};
use crate::parse;
use crate::parse::paging::{self, PAGE_BYTES, PAGE_MAX};
use crate::parse::query::Query;
use crate::peer::Peer;
use crate::present::JsonResult;
use crate::present::leases::{self, KeyDescription, public_lease};
use crate::present::refusals::{bad_cursor, no_such_key};

/// The longest name of a namespace in JSON, in bytes: each character may need a backslash.
const NAMESPACE_BYTES: usize = 2 * Namespace::MAX_BYTES + r#""","#.len();
// The number of rows bounds the bytes of a page.
const _: () = assert!(PAGE_MAX * NAMESPACE_BYTES <= PAGE_BYTES);

#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
pub(crate) struct DescribeQuery {
    /// Name of the key.
    #[param(value_type = schema_types::Key)]
    key: Option<String>,
    /// The namespace; `default` if missing.
    #[param(value_type = Option<schema_types::Namespace>)]
    namespace: Option<String>,
}

#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
pub(crate) struct KeysQuery {
    /// The namespace; `default` if missing.
    #[param(value_type = Option<schema_types::Namespace>)]
    namespace: Option<String>,
    /// Only keys that begin with this.
    #[param(max_length = 512, pattern = r"^[^\u0000-\u001f\u007f-\u009f]*$")]
    prefix: Option<String>,
    /// `cursor` of the previous page.
    #[param(value_type = Option<schema_types::Key>)]
    cursor: Option<String>,
    /// Maximum number of keys on a page.
    #[param(minimum = 1, maximum = 1000)]
    limit: Option<usize>,
}

#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
pub(crate) struct FenceQuery {
    /// Name of the key.
    #[param(value_type = schema_types::Key)]
    key: Option<String>,
    /// The namespace; `default` if missing.
    #[param(value_type = Option<schema_types::Namespace>)]
    namespace: Option<String>,
    /// The fencing token to check.
    #[param(value_type = u64, maximum = 18_446_744_073_709_551_615_usize)]
    token: Option<u64>,
}

#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
pub(crate) struct LeasesQuery {
    /// Only leases of this namespace.
    #[param(value_type = Option<schema_types::Namespace>)]
    namespace: Option<String>,
    /// `cursor` of the previous page.
    #[param(pattern = r"^[0-9]{1,9}\.[0-9]{1,19}$")]
    cursor: Option<String>,
    /// Maximum number of leases on a page; leases that the caller may not see are left out.
    #[param(minimum = 1, maximum = 1000)]
    limit: Option<usize>,
}

#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
pub(crate) struct NamespacesQuery {
    /// `cursor` of the previous page.
    #[param(pattern = r"^[0-9]{1,9}\.[0-9]{1,19}$")]
    cursor: Option<String>,
    /// Maximum number of namespaces on a page; namespaces that the caller may not see are left out.
    #[param(minimum = 1, maximum = 1000)]
    limit: Option<usize>,
}

pub(crate) async fn describe(
    State(backend): State<Arc<Backend>>,
    Extension(peer): Extension<Peer>,
    Query(query): Query<DescribeQuery>,
) -> JsonResult<responses::Described> {
    let key = parse::required_key(query.key.as_deref())?;
    let namespace = parse::namespace(query.namespace.as_deref())?;
    parse::require_right(&peer, &namespace, Right::Read)?;
    let (resource, of) = (key.clone(), namespace.clone());
    let read = move |view: &ShardView<'_>| {
        let key = view.kernel.key(&of, &resource)?;
        let holders = view.kernel.holders(&of, &resource, view.now);
        let lease = holders.iter().find(|lease| writes(lease)).or(holders.first()).cloned();
        let waiters = view.waiters.count_ahead(&of, &Bundle::of_key(resource), Ticket::LAST);
        Some(KeyDescription { key, lease, waiters, moment: view.moment })
    };
    let description = backend.query(backend.shard_of(&namespace), read).await?.ok_or_else(no_such_key)?;
    Ok(Json(leases::described(key.name(), &namespace, &description)))
}

pub(crate) async fn keys(
    State(backend): State<Arc<Backend>>,
    Extension(peer): Extension<Peer>,
    Query(query): Query<KeysQuery>,
) -> JsonResult<responses::Keys> {
    let namespace = parse::namespace(query.namespace.as_deref())?;
    parse::require_right(&peer, &namespace, Right::Read)?;
    let prefix = parse::key_prefix(query.prefix.as_deref())?;
    let after = query.cursor.as_deref().map(|cursor| key_cursor(cursor, prefix)).transpose()?;
    let limit = parse::page_limit(query.limit, PAGE_MAX)?;
    let filter = KeyFilter { namespace, prefix: prefix.to_string() };
    let list = lists::keys(&backend, &filter, after, limit, PAGE_BYTES).await?;
    let cursor = list.keys.last().filter(|_| list.more).map(|(key, _)| key.name().to_string());
    let keys = list.keys.iter().filter_map(|(key, view)| leases::stored_key(key.name(), view, &list.moment));
    Ok(Json(responses::Keys { keys: keys.collect(), cursor }))
}

/// The last key of the page before.
fn key_cursor(cursor: &str, prefix: &str) -> Result<ResourceName, Refusal> {
    let key = ResourceName::key(cursor).ok();
    key.filter(|key| key.name().starts_with(prefix)).ok_or_else(bad_cursor)
}

fn writes(lease: &LeaseView) -> bool {
    lease.members.iter().any(|member| member.predicate == Predicate::Mutates)
}

pub(crate) async fn lease(
    State(backend): State<Arc<Backend>>,
    Extension(peer): Extension<Peer>,
    Path(id): Path<String>,
) -> JsonResult<responses::Lease> {
    let may_read = |namespace: &Namespace| peer.rights.allows(namespace.as_str(), Right::Read);
    let (view, moment) = visible_lease(&backend, parse::public_id(&id)?, may_read).await?;
    Ok(Json(public_lease(&backend, &view, &moment)))
}

pub(crate) async fn leases(
    State(backend): State<Arc<Backend>>,
    Extension(peer): Extension<Peer>,
    Query(query): Query<LeasesQuery>,
) -> JsonResult<responses::Leases> {
    let namespace = parse::optional_namespace(query.namespace.as_deref())?;
    if let Some(namespace) = &namespace {
        parse::require_right(&peer, namespace, Right::Read)?;
    }
    let start = || namespace.as_ref().map_or(Shard(0), |name| backend.shard_of(name));
    let first = first_row(&backend, query.cursor.as_deref(), start)?;
    let mut at = first;
    let limit = parse::page_limit(query.limit, PAGE_MAX)?;
    let mut page = responses::Leases::default();
    let mut bytes = 0;
    for _ in 0..QUERIES_MAX {
        if page.leases.len() == limit || bytes >= PAGE_BYTES || !at.exists(&backend) {
            break;
        }
        let (rights, only) = (peer.rights.clone(), namespace.clone());
        let left = limit - page.leases.len();
        let read = move |view: &ShardView<'_>| {
            let mut leases = view.kernel.leases_page(at.cursor, left, view.now);
            leases.rows.retain(|lease| {
                rights.allows(lease.namespace.as_str(), Right::Read)
                    && only.as_ref().is_none_or(|only| *only == lease.namespace)
            });
            (leases, view.moment)
        };
        let (leases, moment) = match backend.query(at.shard, read).await {
            // The next page is the other server's.
            Err(BackendError::Moved(_)) if at != first => break,
            read => read?,
        };
        bytes += leases.rows.iter().map(leases::json_bytes).sum::<usize>();
        page.leases.extend(leases.rows.iter().map(|lease| public_lease(&backend, lease, &moment)));
        // A namespace is in one shard.
        if leases.next.is_none() && namespace.is_some() {
            return Ok(Json(page));
        }
        at = at.behind(leases.next);
    }
    page.cursor = at.exists(&backend).then(|| paging::row_cursor(at));
    Ok(Json(page))
}

/// The position of a cursor; without one, the first row of the shard `start`.
fn first_row(
    backend: &Backend,
    cursor: Option<&str>,
    start: impl FnOnce() -> Shard,
) -> Result<RowPosition, Refusal> {
    let Some(text) = cursor else { return Ok(RowPosition::first_of(start())) };
    Some(paging::row_position(text)?).filter(|at| at.exists(backend)).ok_or_else(bad_cursor)
}

pub(crate) async fn fence(
    State(backend): State<Arc<Backend>>,
    Extension(peer): Extension<Peer>,
    Query(query): Query<FenceQuery>,
) -> JsonResult<responses::Fence> {
    let key = parse::required_key(query.key.as_deref())?;
    let namespace = parse::namespace(query.namespace.as_deref())?;
    parse::require_right(&peer, &namespace, Right::Read)?;
    let missing = || Refusal::new(Code::InvalidBody, "the query parameter `token` is missing");
    let token = Token(query.token.ok_or_else(missing)?);
    let shard = backend.shard_of(&namespace);
    let read = move |view: &ShardView<'_>| view.kernel.is_current(&namespace, &key, token, view.now);
    Ok(Json(responses::Fence { current: backend.query(shard, read).await? }))
}

pub(crate) async fn namespaces(
    State(backend): State<Arc<Backend>>,
    Extension(peer): Extension<Peer>,
    Query(query): Query<NamespacesQuery>,
) -> JsonResult<responses::Namespaces> {
    let at = first_row(&backend, query.cursor.as_deref(), || Shard(0))?;
    let limit = parse::page_limit(query.limit, PAGE_MAX)?;
    let is_readable = |name: &Namespace| peer.rights.allows(name.as_str(), Right::Read);
    let (namespaces, next) = lists::namespaces(&backend, at, limit, is_readable).await?;
    let namespaces = namespaces.iter().map(|name| name.as_str().to_string()).collect();
    Ok(Json(responses::Namespaces { namespaces, cursor: next.map(paging::row_cursor) }))
}
